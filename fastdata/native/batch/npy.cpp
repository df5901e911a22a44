#include "batch/npy.h"

#include "kernels/kernels.h"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace fastdata {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY\x01";
constexpr size_t kPreambleBytes = 10; // magic, version, length of the header

std::string_view text(std::span<const uint8_t> data) {
    return {reinterpret_cast<const char *>(data.data()), data.size()};
}

// Reads a number and what must follow it; -1 if it is not there.
int64_t number(std::string_view &header, std::string_view then) {
    int64_t value = -1;
    const auto [end, error] = std::from_chars(header.data(), header.data() + header.size(), value);
    if (error != std::errc{})
        return -1;
    header.remove_prefix(static_cast<size_t>(end - header.data()));
    if (!header.starts_with(then))
        return -1;
    header.remove_prefix(then.size());
    return value;
}

} // namespace

bool NpyDecoder::is_npy(std::span<const uint8_t> data) {
    return text(data).starts_with(kMagic);
}

fd_status NpyDecoder::open(std::span<const uint8_t> data, int64_t most_pixels) {
    if (!is_npy(data) || data.size() < kPreambleBytes)
        return FD_UNSUPPORTED;
    const size_t length = static_cast<size_t>(data[8]) | static_cast<size_t>(data[9]) << 8;
    if (length > data.size() - kPreambleBytes)
        return FD_CORRUPT;
    std::string_view header = text(data.subspan(kPreambleBytes, length));
    constexpr std::string_view shape = "'shape': (";
    const size_t at = header.find(shape);
    if (header.find("'descr': '|u1'") == header.npos || header.find("'fortran_order': False") == header.npos ||
        at == header.npos)
        return FD_UNSUPPORTED;
    header.remove_prefix(at + shape.size());
    const int64_t height = number(header, ", "), width = number(header, ", "), channels = number(header, ")");
    if (height <= 0 || width <= 0 || channels != 3 || height > INT32_MAX || width > INT32_MAX)
        return FD_UNSUPPORTED;
    if (width * height > most_pixels)
        return FD_LIMIT;
    if (width * height > kMostPixels)
        return FD_UNSUPPORTED;
    rgb_ = data.subspan(kPreambleBytes + length);
    if (static_cast<int64_t>(rgb_.size()) != width * height * 3)
        return FD_CORRUPT;
    width_ = static_cast<int>(width);
    height_ = static_cast<int>(height);
    return FD_OK;
}

fd_status NpyDecoder::decode(const Box &window) {
    if (!window.is_inside(width_, height_))
        return FD_BAD_REQUEST;
    const ptrdiff_t stride = static_cast<ptrdiff_t>(window.width()) * kPixelBytes;
    const size_t needed = static_cast<size_t>(stride) * static_cast<size_t>(window.height());
    uint8_t *const pixels = pixels_.take(needed).data();
    for (int y = window.top; y < window.bottom; ++y) {
        const ptrdiff_t from = (static_cast<ptrdiff_t>(y) * width_ + window.left) * 3;
        kernels().unpack(rgb_.data() + from, window.width(), pixels + (y - window.top) * stride);
    }
    rows_ = {pixels, stride, window.width(), window.height()};
    return FD_OK;
}

} // namespace fastdata

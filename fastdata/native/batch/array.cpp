#include "batch/array.h"

#include "base/buffer.h"
#include "kernels/kernels.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <span>

namespace fastdata {
namespace {

constexpr int64_t kPixelsAtOnce = 1 << 17; // what one thread does before it looks for more: about half a millisecond
constexpr int64_t kMostBytes = int64_t{1} << 60;
constexpr int kMostSide = 1 << 24;

// True when every pixel of the array lies in its memory.
bool is_inside(const fd_array &array) {
    const int64_t counts[4] = {array.images, array.height, array.width, array.channels};
    int64_t low = array.first_byte, high = array.first_byte;
    if (array.memory_bytes <= 0 || array.memory_bytes > kMostBytes || low < 0 || low >= array.memory_bytes)
        return false;
    for (size_t axis = 0; axis < 4; ++axis) {
        const int64_t steps = counts[axis] - 1, stride = array.strides_bytes[axis];
        if (steps == 0 || stride == 0)
            continue;
        if (stride < -kMostBytes || std::abs(stride) > array.memory_bytes / steps) // the product may not wrap
            return false;
        (stride < 0 ? low : high) += steps * stride;
    }
    return low >= 0 && high < array.memory_bytes;
}

// Its bytes in memory are red, green, blue and 0.
uint32_t pixel_of(uint32_t red, uint32_t green, uint32_t blue) {
    if constexpr (std::endian::native == std::endian::little)
        return red | green << 8 | blue << 16;
    return red << 24 | green << 16 | blue << 8;
}

// A row of pixels of any layout as 4-byte pixels.
void gather_row(const uint8_t *from, int64_t column_stride, int64_t channel_stride, int width, int channels,
                uint8_t *pixels) {
    if (channels == 3 && column_stride == 3 && channel_stride == 1)
        return kernels().unpack(from, width, pixels);
    const uint8_t *const green = from + (channels == 3 ? channel_stride : 0);
    const uint8_t *const blue = from + (channels == 3 ? 2 * channel_stride : 0);
    const auto copy = [&](int64_t step) {
        for (int64_t x = 0; x < width; ++x) {
            const uint32_t pixel = pixel_of(from[x * step], green[x * step], blue[x * step]);
            std::memcpy(pixels + x * kPixelBytes, &pixel, sizeof pixel);
        }
    };
    if (column_stride == 1)
        return copy(1); // a constant, which the compiler uses
    copy(column_stride);
}

} // namespace

bool is_valid(const fd_array &array) {
    return array.memory != nullptr && array.images > 0 && 0 < array.width && array.width <= kMostSide &&
           0 < array.height && array.height <= kMostSide && (array.channels == 1 || array.channels == 3) &&
           is_inside(array);
}

Rows gather(const fd_array &array, int64_t row, const Box &window) {
    static thread_local Buffer memory;
    const int64_t *const strides = array.strides_bytes;
    const ptrdiff_t stride = static_cast<ptrdiff_t>(window.width()) * kPixelBytes;
    uint8_t *const pixels = memory.take(static_cast<size_t>(stride) * static_cast<size_t>(window.height())).data();
    const uint8_t *from =
        array.memory + array.first_byte + row * strides[0] + window.top * strides[1] + window.left * strides[2];
    for (int y = 0; y < window.height(); ++y)
        gather_row(from + y * strides[1], strides[2], strides[3], window.width(), array.channels, pixels + y * stride);
    return {pixels, stride, window.width(), window.height()};
}

int64_t images_at_once(const fd_array &array, const int32_t out_size_px[2]) {
    const int64_t pixels = std::max(int64_t{out_size_px[0]} * out_size_px[1], int64_t{array.width} * array.height);
    return std::max<int64_t>(1, kPixelsAtOnce / pixels);
}

} // namespace fastdata

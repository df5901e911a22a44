#include "resize/output.h"

#include "base/geometry.h"
#include "kernels/kernels.h"

#include <cstring>

namespace fastdata {

bool is_valid(const fd_format &format) {
    const bool layout = format.layout == FD_NHWC || format.layout == FD_NCHW;
    const bool table = format.element == FD_TABLE_16BIT || format.element == FD_TABLE_32BIT;
    const bool channels = format.channels == 3 || format.channels == 1;
    const bool strides = format.strides[0] >= 0 && format.strides[1] >= 0;
    return layout && channels && strides && (format.element == FD_UINT8 || (table && format.table != nullptr));
}

RowWriter::RowWriter(const fd_format &format, void *out, int width, int height, bool flip_horizontal,
                     bool flip_vertical, std::vector<uint8_t> &mirror)
    : format_(format), out_(static_cast<uint8_t *>(out)), width_(width), height_(height),
      row_(static_cast<ptrdiff_t>(format.strides[0])), plane_(static_cast<ptrdiff_t>(format.strides[1])),
      flip_horizontal_(flip_horizontal), flip_vertical_(flip_vertical), mirror_(mirror) {
    const bool side_by_side = format.layout == FD_NHWC;
    row_ = row_ > 0 ? row_ : static_cast<ptrdiff_t>(width) * (side_by_side ? format.channels : 1);
    plane_ = plane_ > 0 ? plane_ : row_ * height;
    if (flip_horizontal)
        mirror_.resize(static_cast<size_t>(width) * kPixelBytes);
}

void RowWriter::write(int y, const uint8_t *pixels) {
    if (flip_horizontal_) {
        kernels().reverse(pixels, width_, mirror_.data());
        pixels = mirror_.data();
    }
    store(flip_vertical_ ? height_ - 1 - y : y, pixels);
}

void RowWriter::store(int y, const uint8_t *pixels) {
    if (format_.channels == 1)
        return store_first_channel(y, pixels);
    if (format_.channels == kPixelBytes) {
        std::memcpy(out_ + y * row_, pixels, static_cast<size_t>(width_) * kPixelBytes);
        return;
    }
    if (format_.element == FD_TABLE_32BIT)
        return store_table<uint32_t>(y, pixels);
    if (format_.element == FD_TABLE_16BIT)
        return store_table<uint16_t>(y, pixels);
    uint8_t *const out = out_ + y * row_;
    if (format_.layout == FD_NHWC)
        kernels().pack(pixels, width_, out);
    else
        kernels().split(pixels, width_, out, out + plane_, out + 2 * plane_);
}

void RowWriter::store_first_channel(int y, const uint8_t *pixels) {
    const auto look_up = [&]<typename Element>(const Element *table) {
        auto *out = reinterpret_cast<Element *>(out_) + y * row_;
        for (int x = 0; x < width_; ++x, pixels += kPixelBytes)
            out[x] = table[*pixels];
    };
    if (format_.element == FD_TABLE_32BIT)
        return look_up(static_cast<const uint32_t *>(format_.table));
    if (format_.element == FD_TABLE_16BIT)
        return look_up(static_cast<const uint16_t *>(format_.table));
    for (int x = 0; x < width_; ++x, pixels += kPixelBytes)
        out_[y * row_ + x] = *pixels;
}

template <typename Element> void RowWriter::store_table(int y, const uint8_t *pixels) {
    const auto *red = static_cast<const Element *>(format_.table);
    const Element *green = red + 256, *blue = red + 512;
    auto *out = reinterpret_cast<Element *>(out_) + y * row_;
    if (format_.layout == FD_NHWC) {
        for (int x = 0; x < width_; ++x, out += 3, pixels += kPixelBytes) {
            out[0] = red[pixels[0]];
            out[1] = green[pixels[1]];
            out[2] = blue[pixels[2]];
        }
        return;
    }
    Element *const planes[3] = {out, out + plane_, out + 2 * plane_};
    for (int x = 0; x < width_; ++x, pixels += kPixelBytes) {
        planes[0][x] = red[pixels[0]];
        planes[1][x] = green[pixels[1]];
        planes[2][x] = blue[pixels[2]];
    }
}

} // namespace fastdata

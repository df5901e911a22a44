#include "resample.h"

#include "kernels.h"

#include <algorithm>
#include <cstring>

namespace fastdata {
namespace {

constexpr int kMostSide = 1 << 16;
constexpr int kRowsAtOnce = 4; // the horizontal pass shares its weights between so many rows

bool is_side(int size) {
    return 0 < size && size <= kMostSide;
}

} // namespace

bool View::is_valid() const {
    return is_side(resize_width) && is_side(resize_height) && crop.left < crop.right && crop.top < crop.bottom &&
           -kMostSide <= crop.left && crop.right <= 2 * kMostSide && -kMostSide <= crop.top &&
           crop.bottom <= 2 * kMostSide && is_side(crop.width()) && is_side(crop.height()) &&
           window.left < window.right && window.top < window.bottom && 0 <= window.left && 0 <= window.top;
}

void Resampler::prepare(const View &view, const Source &source, Filter filter, bool shrink_first) {
    const Box &crop = view.crop;
    crop_width_ = crop.width();
    crop_height_ = crop.height();
    const Box seen = {std::clamp(crop.left, 0, view.resize_width), std::clamp(crop.top, 0, view.resize_height),
                      std::clamp(crop.right, 0, view.resize_width), std::clamp(crop.bottom, 0, view.resize_height)};
    inside_ = {seen.left - crop.left, seen.top - crop.top, seen.right - crop.left, seen.bottom - crop.top};
    if (seen.width() <= 0 || seen.height() <= 0)
        inside_ = {0, 0, 0, 0};
    horizontal_.build(filter, source.width, source.across, view.resize_width, seen.left, seen.right);
    vertical_.build(filter, source.height, source.down, view.resize_height, seen.top, seen.bottom);
    // Source: Pillow 13, Resample.c.
    const int shrink = source.height - view.resize_height;
    vertical_first_ =
        shrink_first && filter != Filter::nearest && shrink > 0 && shrink > 2 * (source.width - view.resize_width);
    rows_ = row_memory_.take(static_cast<size_t>(crop_width_) * kPixelBytes * kRowsAtOnce);
    std::fill(rows_.begin(), rows_.end(), uint8_t{0});
}

Box Resampler::source() const {
    if (inside_.width() <= 0)
        return {0, 0, 0, 0};
    return {horizontal_.source_begin(), vertical_.source_begin(), horizontal_.source_end(), vertical_.source_end()};
}

uint8_t *Resampler::row_inside(int slot) {
    return rows_.data() + (static_cast<ptrdiff_t>(slot) * crop_width_ + inside_.left) * kPixelBytes;
}

const uint8_t *Resampler::row_whole(int slot) const {
    return rows_.data() + static_cast<ptrdiff_t>(slot) * crop_width_ * kPixelBytes;
}

void Resampler::run(const Rows &pixels, RowWriter &writer) {
    write_black(0, inside_.top, writer);
    if (inside_.width() <= 0) {
        write_black(inside_.top, crop_height_, writer);
        return;
    }
    if (vertical_first_ && !horizontal_.is_identity())
        write_vertical_first(pixels, writer);
    else
        write_horizontal_first(pixels, writer);
    std::fill(rows_.begin(), rows_.end(), uint8_t{0});
    write_black(inside_.bottom, crop_height_, writer);
}

void Resampler::write_black(int begin, int end, RowWriter &writer) {
    for (int y = begin; y < end; ++y)
        writer.write(y, row_whole(0));
}

void Resampler::write_horizontal_first(const Rows &pixels, RowWriter &writer) {
    Rows narrow = pixels;
    if (!horizontal_.is_identity()) {
        const int width = horizontal_.results();
        const ptrdiff_t stride = static_cast<ptrdiff_t>(width) * kPixelBytes;
        uint8_t *const between = between_.take(static_cast<size_t>(stride) * static_cast<size_t>(pixels.height)).data();
        kernels().horizontal(pixels, horizontal_, between, stride);
        narrow = {between, stride, width, pixels.height};
    }
    const int bytes = inside_.width() * kPixelBytes;
    for (int y = 0; y < inside_.height(); ++y) {
        const uint8_t *first = narrow.row(vertical_.first(y));
        if (vertical_.is_identity() && inside_.width() == crop_width_) {
            writer.write(inside_.top + y, first);
            continue;
        }
        if (vertical_.is_identity())
            std::memcpy(row_inside(0), first, static_cast<size_t>(bytes));
        else
            kernels().vertical(first, narrow.stride_bytes, vertical_, y, row_inside(0), bytes);
        writer.write(inside_.top + y, row_whole(0));
    }
}

void Resampler::write_vertical_first(const Rows &pixels, RowWriter &writer) {
    const int bytes = pixels.width * kPixelBytes;
    uint8_t *const between = between_.take(static_cast<size_t>(bytes) * kRowsAtOnce).data();
    const ptrdiff_t out_stride = static_cast<ptrdiff_t>(crop_width_) * kPixelBytes;
    for (int y = 0; y < inside_.height(); y += kRowsAtOnce) {
        const int count = std::min(kRowsAtOnce, inside_.height() - y);
        for (int row = 0; row < count; ++row)
            kernels().vertical(pixels.row(vertical_.first(y + row)), pixels.stride_bytes, vertical_, y + row,
                               between + static_cast<ptrdiff_t>(row) * bytes, bytes);
        const Rows flat = {between, bytes, pixels.width, count};
        kernels().horizontal(flat, horizontal_, row_inside(0), out_stride);
        for (int row = 0; row < count; ++row)
            writer.write(inside_.top + y + row, row_whole(row));
    }
}

} // namespace fastdata

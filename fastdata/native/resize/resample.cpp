#include "resize/resample.h"

#include "kernels/kernels.h"

#include <algorithm>
#include <cstring>

namespace fastdata {
namespace {

constexpr int kMostSide = 1 << 16;
constexpr int kRowsAtOnce = 4; // the horizontal pass shares its weights between so many rows

bool is_side(int size) {
    return 0 < size && size <= kMostSide;
}

// Which pixel of `size` is seen at a place that may lie outside.  Source: numpy.pad.
int repeated(int at, int size, int mode) {
    if (mode == FD_EDGE || size == 1)
        return std::clamp(at, 0, size - 1);
    const int period = mode == FD_REFLECT ? 2 * (size - 1) : 2 * size;
    const int within = (at % period + period) % period;
    return within < size ? within : period - within - (mode == FD_SYMMETRIC ? 1 : 0);
}

// For the places from begin to end, which pixels are seen there.
std::vector<int> repeated(int begin, int end, int size, int mode) {
    std::vector<int> places;
    for (int at = begin; at < end; ++at)
        places.push_back(repeated(at, size, mode));
    return places;
}

// The stretch in a mirror.
Stretch mirrored(Stretch stretch, int size) {
    return {size - stretch.end, size - stretch.begin};
}

} // namespace

bool View::is_valid() const {
    return is_side(resize_width) && is_side(resize_height) && crop.left < crop.right && crop.top < crop.bottom &&
           -kMostSide <= crop.left && crop.right <= 2 * kMostSide && -kMostSide <= crop.top &&
           crop.bottom <= 2 * kMostSide && is_side(crop.width()) && is_side(crop.height()) &&
           window.left < window.right && window.top < window.bottom && 0 <= window.left && 0 <= window.top &&
           is_filter(static_cast<int>(filter)) && FD_CONSTANT <= outside.mode && outside.mode <= FD_SYMMETRIC;
}

View view_at(const fd_views &views, int64_t item) {
    const auto box = [&](const int32_t *column) {
        return Box{column[4 * item], column[4 * item + 1], column[4 * item + 2], column[4 * item + 3]};
    };
    const uint8_t *const flips = views.flips + 4 * item, *const outside = views.outside + 4 * item;
    return {box(views.windows_px),
            views.resizes_px[2 * item],
            views.resizes_px[2 * item + 1],
            box(views.crops_px),
            flips[0] != 0,
            flips[1] != 0,
            flips[2] != 0,
            flips[3] != 0,
            static_cast<Filter>(views.filters[item]),
            {outside[0], {outside[1], outside[2], outside[3], 0}}};
}

// Finds what is seen where the crop reaches out of the image; returns the part of the image that this takes.
Box Resampler::repeat_into_image(const View &view) {
    const Box &crop = view.crop;
    columns_ = repeated(crop.left, crop.right, view.resize_width, view.outside.mode);
    lines_ = repeated(crop.top, crop.bottom, view.resize_height, view.outside.mode);
    const auto [left, right] = std::minmax_element(columns_.begin(), columns_.end());
    const auto [top, bottom] = std::minmax_element(lines_.begin(), lines_.end());
    const Box box = {*left, *top, *right + 1, *bottom + 1};
    for (int &column : columns_)
        column -= box.left;
    for (int &line : lines_)
        line -= box.top;
    return box;
}

void Resampler::prepare(const View &view, const Source &source, bool shrink_first) {
    const bool is_outside = view.crop.left < 0 || view.crop.top < 0 || view.crop.right > view.resize_width ||
                            view.crop.bottom > view.resize_height;
    columns_.clear();
    lines_.clear();
    outside_ = view.outside;
    mirror_horizontal_ = view.window_flip_horizontal;
    mirror_vertical_ = view.window_flip_vertical;
    source_width_ = source.width;
    source_height_ = source.height;
    const Filter filter = view.filter;
    const Box crop = is_outside && outside_.mode != FD_CONSTANT ? repeat_into_image(view) : view.crop;
    crop_width_ = crop.width();
    crop_height_ = crop.height();
    const Box seen = {std::clamp(crop.left, 0, view.resize_width), std::clamp(crop.top, 0, view.resize_height),
                      std::clamp(crop.right, 0, view.resize_width), std::clamp(crop.bottom, 0, view.resize_height)};
    inside_ = {seen.left - crop.left, seen.top - crop.top, seen.right - crop.left, seen.bottom - crop.top};
    if (seen.width() <= 0 || seen.height() <= 0)
        inside_ = {0, 0, 0, 0};
    horizontal_.build(filter, source.width, mirror_horizontal_ ? mirrored(source.across, source.width) : source.across,
                      view.resize_width, seen.left, seen.right);
    vertical_.build(filter, source.height, mirror_vertical_ ? mirrored(source.down, source.height) : source.down,
                    view.resize_height, seen.top, seen.bottom);
    // Source: Pillow 13, Resample.c.
    const int shrink = source.height - view.resize_height;
    vertical_first_ = shrink_first && filter != Filter::nearest && !is_tensors(filter) && shrink > 0 &&
                      shrink > 2 * (source.width - view.resize_width);
    rows_ = row_memory_.take(static_cast<size_t>(crop_width_) * kPixelBytes * kRowsAtOnce);
    clear_rows();
}

Box Resampler::source() const {
    if (inside_.width() <= 0)
        return {0, 0, 0, 0};
    Box box = {horizontal_.source_begin(), vertical_.source_begin(), horizontal_.source_end(), vertical_.source_end()};
    if (mirror_horizontal_)
        box = {source_width_ - box.right, box.top, source_width_ - box.left, box.bottom};
    if (mirror_vertical_)
        box = {box.left, source_height_ - box.bottom, box.right, source_height_ - box.top};
    return box;
}

void Resampler::clear_rows() {
    for (size_t at = 0; at < rows_.size(); at += kPixelBytes)
        std::memcpy(&rows_[at], outside_.levels, kPixelBytes);
}

// The source as it is to be resized.
Rows Resampler::mirror(const Rows &pixels) {
    Rows rows = pixels;
    if (mirror_vertical_)
        rows = {pixels.row(pixels.height - 1), -pixels.stride_bytes, pixels.width, pixels.height};
    if (!mirror_horizontal_)
        return rows;
    const ptrdiff_t stride = static_cast<ptrdiff_t>(rows.width) * kPixelBytes;
    uint8_t *const reversed = mirror_.take(static_cast<size_t>(stride) * static_cast<size_t>(rows.height)).data();
    for (int y = 0; y < rows.height; ++y)
        kernels().reverse(rows.row(y), rows.width, reversed + y * stride);
    return {reversed, stride, rows.width, rows.height};
}

uint8_t *Resampler::row_inside(int slot) {
    return rows_.data() + (static_cast<ptrdiff_t>(slot) * crop_width_ + inside_.left) * kPixelBytes;
}

const uint8_t *Resampler::row_whole(int slot) const {
    return rows_.data() + static_cast<ptrdiff_t>(slot) * crop_width_ * kPixelBytes;
}

void Resampler::run(const Rows &pixels, RowWriter &writer) {
    if (columns_.empty())
        return run_crop(pixels, writer);
    const size_t stride = static_cast<size_t>(crop_width_) * kPixelBytes, width = columns_.size() * kPixelBytes;
    uint8_t *const tile = tile_.take(stride * static_cast<size_t>(crop_height_) + width).data(), *const row = tile;
    uint8_t *const lines = tile + width;
    RowWriter tile_writer(kPixelFormat, lines, crop_width_, crop_height_, false, false, no_mirror_);
    run_crop(pixels, tile_writer);
    for (size_t y = 0; y < lines_.size(); ++y) {
        const uint8_t *const from = lines + static_cast<size_t>(lines_[y]) * stride;
        for (size_t x = 0; x < columns_.size(); ++x)
            std::memcpy(row + x * kPixelBytes, from + static_cast<size_t>(columns_[x]) * kPixelBytes, kPixelBytes);
        writer.write(static_cast<int>(y), row);
    }
}

void Resampler::run_crop(const Rows &pixels, RowWriter &writer) {
    write_outside(0, inside_.top, writer);
    if (inside_.width() <= 0) {
        write_outside(inside_.top, crop_height_, writer);
        return;
    }
    const Rows source = mirror_horizontal_ || mirror_vertical_ ? mirror(pixels) : pixels;
    if (vertical_first_ && !horizontal_.is_identity())
        write_vertical_first(source, writer);
    else
        write_horizontal_first(source, writer);
    clear_rows();
    write_outside(inside_.bottom, crop_height_, writer);
}

void Resampler::write_outside(int begin, int end, RowWriter &writer) {
    for (int y = begin; y < end; ++y)
        writer.write(y, row_whole(0));
}

// For so many rows of the source after the horizontal pass; what is in them stays if there is room already.
Rows Resampler::room_between(int height) {
    const int width = horizontal_.results();
    const ptrdiff_t stride = static_cast<ptrdiff_t>(width) * kPixelBytes;
    return {between_.take(static_cast<size_t>(stride) * static_cast<size_t>(height)).data(), stride, width, height};
}

bool Resampler::takes_rows() const {
    return inside_.width() > 0 && !vertical_first_ && !horizontal_.is_identity() && !mirror_horizontal_ &&
           !mirror_vertical_;
}

void Resampler::take(const Rows &rows, int first) {
    const Rows narrow = room_between(source().height());
    kernels().horizontal(rows, horizontal_, between_.data() + first * narrow.stride_bytes, narrow.stride_bytes);
}

void Resampler::write_horizontal_first(const Rows &pixels, RowWriter &writer) {
    Rows narrow = pixels;
    if (!horizontal_.is_identity()) {
        narrow = room_between(pixels.height);
        if (pixels.first != nullptr)
            kernels().horizontal(pixels, horizontal_, between_.data(), narrow.stride_bytes);
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

// Pillow's two-pass resize of a window, computing only what the crop of the result needs.
#pragma once

#include "base/buffer.h"
#include "base/geometry.h"
#include "fastdata_native.h"
#include "kernels/axis.h"
#include "resize/output.h"

#include <cstdint>
#include <span>
#include <vector>

namespace fastdata {

// What is seen beside an image.
struct Outside {
    int mode = FD_CONSTANT; // fd_padding
    uint8_t levels[kPixelBytes] = {0, 0, 0, 0};
};

// How one image is seen; see View in views/draw.py.
struct View {
    Box window;                      // source pixels
    int resize_width, resize_height; // of the window
    Box crop;                        // of the resized window
    bool flip_horizontal, flip_vertical;
    bool window_flip_horizontal, window_flip_vertical; // before the resize
    Filter filter;
    Outside outside;

    bool is_valid() const;
};

// One view of the caller's columns.
View view_at(const fd_views &views, int64_t item);

// What is resized: `across` and `down` of a width x height window.
struct Source {
    int width, height;
    Stretch across, down;

    static Source whole(int width, int height) { return {width, height, {0, double(width)}, {0, double(height)}}; }
};

// Resizes images one after the other with memory of its own.  Not shared between threads.
class Resampler final : public RowSink {
  public:
    // Computes taps for a view of a width x height source, of which the stretches are resized.
    void prepare(const View &view, const Source &source, bool shrink_first);

    // The same for whoever resizes elsewhere: the taps, and which pass comes first.
    const Axis &horizontal() const { return horizontal_; }
    const Axis &vertical() const { return vertical_; }
    bool is_vertical_first() const { return vertical_first_; }
    // True if all of the crop is in the resized source, which is not mirrored before.
    bool is_plain() const {
        return !mirror_horizontal_ && !mirror_vertical_ && columns_.empty() && inside_.width() == crop_width_ &&
               inside_.height() == crop_height_;
    }

    // The part of the source, in its pixels, that run() will read.  Empty when all of the crop lies outside.
    Box source() const;

    // True if the rows of source() may be given to take() one after the other: their first pass is done at once, while
    // they are in the cache.
    bool takes_rows() const;
    void take(const Rows &rows, int first) override;

    // pixels: exactly source(); without pixels if take() was given all rows.
    void run(const Rows &pixels, RowWriter &writer);

  private:
    Box repeat_into_image(const View &view);
    Rows mirror(const Rows &pixels);
    void run_crop(const Rows &pixels, RowWriter &writer);
    Rows room_between(int height);
    void write_horizontal_first(const Rows &pixels, RowWriter &writer);
    void write_vertical_first(const Rows &pixels, RowWriter &writer);
    // Room for one row of the crop, empty at first, and where the resized part of it begins.
    uint8_t *row_inside(int slot);
    const uint8_t *row_whole(int slot) const;
    void clear_rows();
    void write_outside(int begin, int end, RowWriter &writer);

    Axis horizontal_, vertical_;
    bool vertical_first_ = false;
    bool mirror_horizontal_ = false, mirror_vertical_ = false; // of the source
    int source_width_ = 0, source_height_ = 0;
    Outside outside_{};
    std::vector<int> columns_, lines_; // of the crop that is resized, for each of the result; none if that is the crop
    int crop_width_ = 0, crop_height_ = 0;
    Box inside_{}; // the part of the crop, in crop pixels, that lies in the resized window
    Buffer between_, row_memory_, mirror_, tile_;
    std::vector<uint8_t> no_mirror_;
    std::span<uint8_t> rows_; // inside row_memory_
};

} // namespace fastdata

// Pillow's two-pass resize of a window, computing only what the crop of the result needs.
#pragma once

#include "axis.h"
#include "buffer.h"
#include "fastdata_native.h"
#include "geometry.h"
#include "output.h"

#include <cstdint>
#include <span>

namespace fastdata {

// How one image is seen; see View in views/draw.py.
struct View {
    Box window;                      // source pixels
    int resize_width, resize_height; // of the window
    Box crop;                        // of the resized window; black outside
    bool flip_horizontal, flip_vertical;

    bool is_valid() const;
};

// What is resized: `across` and `down` of a width x height window.
struct Source {
    int width, height;
    Stretch across, down;

    static Source whole(int width, int height) { return {width, height, {0, double(width)}, {0, double(height)}}; }
};

// Resizes images one after the other with memory of its own.  Not shared between threads.
class Resampler {
  public:
    // Computes taps for a view of a width x height source, of which the stretches are resized.
    void prepare(const View &view, const Source &source, Filter filter, bool shrink_first);

    // The part of the source, in its pixels, that run() will read.  Empty when all of the crop lies outside.
    Box source() const;

    // pixels: exactly source().
    void run(const Rows &pixels, RowWriter &writer);

  private:
    void write_horizontal_first(const Rows &pixels, RowWriter &writer);
    void write_vertical_first(const Rows &pixels, RowWriter &writer);
    // Room for one row of the crop, black at first, and where the resized part of it begins.
    uint8_t *row_inside(int slot);
    const uint8_t *row_whole(int slot) const;
    void write_black(int begin, int end, RowWriter &writer);

    Axis horizontal_, vertical_;
    bool vertical_first_ = false;
    int crop_width_ = 0, crop_height_ = 0;
    Box inside_{}; // the part of the crop, in crop pixels, that lies in the resized window
    Buffer between_, row_memory_;
    std::span<uint8_t> rows_; // inside row_memory_
};

} // namespace fastdata

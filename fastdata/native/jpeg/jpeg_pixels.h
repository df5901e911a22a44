// The pixels of a window, made from the coefficients of a scan without libjpeg, row of MCUs after row of MCUs: the same
// to the last bit (jpeg_loops.h).
#pragma once

#include "base/buffer.h"
#include "base/geometry.h"
#include "jpeg/unpacked.h"
#include "kernels/jpeg_loops.h"

#include <array>
#include <cstdio> // jpeglib.h needs it
#include <jpeglib.h>

namespace fastdata {

// How the blocks of all components would follow one another in one scan.
inline ScanShape shape_of_all(const jpeg_decompress_struct &jpeg) {
    const auto count_of = [](JDIMENSION length, int size) {
        return static_cast<int>((length + static_cast<JDIMENSION>(size) - 1) / static_cast<JDIMENSION>(size));
    };
    const jpeg_component_info &first = jpeg.comp_info[0];
    if (jpeg.num_components == 1) // MCUs of one block, whatever its sampling factors
        return {static_cast<int>(first.width_in_blocks), static_cast<int>(first.height_in_blocks), 1, 1, {}};
    ScanShape shape = {count_of(jpeg.image_width, jpeg.max_h_samp_factor * DCTSIZE),
                       count_of(jpeg.image_height, jpeg.max_v_samp_factor * DCTSIZE),
                       jpeg.num_components,
                       0,
                       {}};
    for (int i = 0; i < jpeg.num_components; ++i)
        for (int block = jpeg.comp_info[i].h_samp_factor * jpeg.comp_info[i].v_samp_factor; block > 0; --block)
            if (shape.blocks++ < kMostBlocksInMcu)
                shape.component_of[static_cast<size_t>(shape.blocks - 1)] = static_cast<uint8_t>(i);
    return shape;
}

class JpegPixels {
  public:
    // Prepares for a window of the image in its full size, whose decoding has been started.  False for what is left to
    // libjpeg: processors without vectors that this knows, other colours than YCbCr and grey, unusual sampling, tiny
    // images, cheap upsampling.  pixels: room for those of the window.  sink: takes them instead, if there is one.
    bool begin(const jpeg_decompress_struct &jpeg, const Box &window, Buffer &pixels, RowSink *sink);

    // No more than what begin() finds out, for whoever makes the pixels elsewhere; the header has been read.
    bool plan(const jpeg_decompress_struct &jpeg, const Box &window);
    int components() const { return count_; }
    int halved_x() const { return halved_x_; }
    int halved_y() const { return halved_y_; }
    const std::array<uint16_t, DCTSIZE2> &steps(int component) const {
        return planes_[static_cast<size_t>(component)].steps;
    }

    // MCUs whose coefficients are needed.
    int first_column() const { return first_column_; }
    int last_column() const { return last_column_; }
    int first_row() const { return first_row_; }
    int last_row() const { return last_row_; }

    // To receive the coefficients of the next MCU; one pointer for each of its blocks.
    int16_t *const *blocks() const { return pointers_.data(); }
    // Makes zeros of them.
    void clear_blocks();
    // They are there: from left to right, from top to bottom, nothing but the MCUs that are needed.
    void add_mcu();

    // Exactly the window, once all MCUs have been added; without pixels if a sink has taken them.
    Rows rows() const { return {sink_ == nullptr ? pixels_ : nullptr, stride_, window_.width(), window_.height()}; }

  private:
    // The samples of a component: of two rows of MCUs, which take turns.
    struct Plane {
        int across, down;  // blocks in an MCU
        int width, height; // of the whole image
        alignas(16) std::array<uint16_t, DCTSIZE2> steps;
        uint8_t *samples;
        ptrdiff_t stride;
        int rows;  // that there is room for
        int first; // column of the image that the first sample is in

        uint8_t *row(int y) const { return samples + (y % rows) * stride; }
    };

    bool take_shape(const jpeg_decompress_struct &jpeg);
    void choose_mcus(const ScanShape &shape);
    void make_room(Buffer &pixels);
    void begin_row();
    void point_behind();
    void put_rows();
    void put_row(int y, uint8_t *pixels);
    const uint8_t *chroma_row(Plane &plane, int y, uint8_t *wide);
    void extend(Plane &plane, uint8_t *row) const;

    const JpegLoops *loops_ = nullptr;
    Box window_{};
    int count_ = 0;      // of components
    int mcu_blocks_ = 0; // in an MCU
    int halved_x_ = 0;   // 1 where chroma has half the columns
    int halved_y_ = 0;   // and rows
    int mcu_width_ = 0, mcu_height_ = 0;
    int first_column_ = 0, last_column_ = 0, first_row_ = 0, last_row_ = 0;
    int column_ = 0, row_ = 0; // of the next MCU
    int next_row_ = 0;         // of pixels
    std::array<Plane, 3> planes_{};
    std::array<IdctBlock, kMostBlocksInMcu> next_{}; // MCU's blocks
    // Blocks wait for some others: two are done at once, and coefficients that were stored a moment ago in small parts
    // are slow to load in large ones.
    static constexpr size_t kMostWaiting = 32;
    size_t waiting_ = 0;
    std::array<IdctBlock, kMostWaiting> idct_{};
    alignas(32) std::array<std::array<int16_t, DCTSIZE2>, kMostWaiting> coefficients_;
    std::array<int16_t *, kMostBlocksInMcu> pointers_{};
    Buffer samples_, wide_;
    RowSink *sink_ = nullptr;
    uint8_t *pixels_ = nullptr; // of the window; with a sink those of one row of MCUs
    ptrdiff_t stride_ = 0;
};

} // namespace fastdata

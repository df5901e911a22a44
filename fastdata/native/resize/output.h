// Stores finished rows in the batch: layout, element type, mirror images.
#pragma once

#include "fastdata_native.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastdata {

bool is_valid(const fd_format &format);

constexpr fd_format kPixelFormat = {FD_NHWC, FD_UINT8, 4, nullptr, {0, 0}}; // pixels of kPixelBytes, as they are

// Writes rows of 4-byte pixels into one image of a batch.
class RowWriter {
  public:
    // format: the caller's, or uint8 rows of kPixelBytes channels, which are copied.
    // out: height x width x channels elements, as far apart as the format says.  mirror: scratch memory that is kept
    // between images.
    RowWriter(const fd_format &format, void *out, int width, int height, bool flip_horizontal, bool flip_vertical,
              std::vector<uint8_t> &mirror);

    // y: row of the image before it is flipped.
    void write(int y, const uint8_t *pixels);

  private:
    void store(int y, const uint8_t *pixels);
    template <typename Element> void store_table(int y, const uint8_t *pixels);
    void store_first_channel(int y, const uint8_t *pixels);

    const fd_format &format_;
    uint8_t *out_;
    int width_, height_;
    ptrdiff_t row_, plane_; // elements from one to the next
    bool flip_horizontal_, flip_vertical_;
    std::vector<uint8_t> &mirror_;
};

} // namespace fastdata

// Raw pixels in NumPy's file format: uint8 (height, width, 3).
#pragma once

#include "base/buffer.h"
#include "base/geometry.h"
#include "fastdata_native.h"

#include <cstdint>
#include <span>

namespace fastdata {

class NpyDecoder {
  public:
    // Parses the header.  data: must live until decode() has returned.  Source: NumPy, format version 1.0.
    fd_status open(std::span<const uint8_t> data, int64_t most_pixels);
    int width() const { return width_; }
    int height() const { return height_; }

    // On success rows() shows exactly the window, which must lie inside the image.
    fd_status decode(const Box &window);
    Rows rows() const { return rows_; }

    static bool is_npy(std::span<const uint8_t> data);

  private:
    std::span<const uint8_t> rgb_;
    int width_ = 0, height_ = 0;
    Buffer pixels_;
    Rows rows_{};
};

} // namespace fastdata

// Rectangles and pixel rows, with their bounds kept beside them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastdata {

// (left, top, right, bottom) in pixels, half-open.
struct Box {
    int left, top, right, bottom;

    int width() const { return right - left; }
    int height() const { return bottom - top; }
    bool is_inside(int image_width, int image_height) const {
        return 0 <= left && left < right && right <= image_width && 0 <= top && top < bottom && bottom <= image_height;
    }
};

constexpr int64_t kMostPixels = int64_t{1} << 40; // of an image whatever the limit: products with 8 fit 64 bits
constexpr int kPixelBytes = 4;                    // R, G, B and one that is ignored

// Rows of 4-byte pixels in memory somebody else owns.
struct Rows {
    const uint8_t *first;
    ptrdiff_t stride_bytes;
    int width, height;

    const uint8_t *row(int y) const { return first + y * stride_bytes; }
    Rows part(const Box &box) const {
        return {row(box.top) + static_cast<ptrdiff_t>(box.left) * kPixelBytes, stride_bytes, box.width(), box.height()};
    }
};

// Takes the rows of a window as soon as they are decoded.
class RowSink {
  public:
    // From top to bottom, all of them; again from the top if an image has to be decoded anew.  rows: valid during the
    // call.  first: the number of the uppermost in the window.
    virtual void take(const Rows &rows, int first) = 0;

  protected:
    ~RowSink() = default;
};

} // namespace fastdata

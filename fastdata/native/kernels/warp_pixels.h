// One pixel of a map of an image; included once for every instruction set, of which each has its own copy.
#pragma once

#include "base/geometry.h"
#include "kernels/kernels.h"

#include <algorithm>
#include <cmath>

namespace fastdata {
namespace {

inline const uint8_t *row_at(const Rows &image, int y) {
    return image.row(std::clamp(y, 0, image.height - 1));
}

inline int column_at(const Rows &image, int x) {
    return std::clamp(x, 0, image.width - 1) * kPixelBytes;
}

// The pixel left above of a place, and how far the place is from its middle.
struct Corner {
    Corner(double from_x, double from_y)
        : x(below(from_x - 0.5)), y(below(from_y - 0.5)), right(from_x - 0.5 - x), down(from_y - 0.5 - y) {}

    // The largest integer that is not above; of numbers from -0.5 on, without a call of the library.
    static int below(double value) { return value < 0 ? -1 : static_cast<int>(value); }

    int x, y;
    double right, down;
};

inline void bilinear_pixel(const Rows &image, const Corner &corner, uint8_t *to) {
    const int left = column_at(image, corner.x), right = column_at(image, corner.x + 1);
    const uint8_t *const above = row_at(image, corner.y);
    const bool has_below = corner.y + 1 >= 0 && corner.y + 1 < image.height;
    const uint8_t *const below = row_at(image, corner.y + 1);
    for (int channel = 0; channel < kPixelBytes; ++channel) { // all four at once
        const int first = above[left + channel], second = above[right + channel];
        const int third = below[left + channel], fourth = below[right + channel];
        const double high = first + (second - first) * corner.right;
        const double low = has_below ? third + (fourth - third) * corner.right : high;
        to[channel] = static_cast<uint8_t>(static_cast<int>(high + (low - high) * corner.down));
    }
}

inline double cubic(double before, double first, double second, double after, double share) {
    const double slope = second - before;
    const double bend = 2 * (before - first) + second - after;
    const double turn = first - before - second + after;
    return first + share * (slope + share * (bend + share * turn));
}

inline void bicubic_pixel(const Rows &image, const Corner &corner, uint8_t *to) {
    int columns[4];
    for (int i = 0; i < 4; ++i)
        columns[i] = column_at(image, corner.x - 1 + i);
    double rows[4][kPixelBytes];
    for (int i = 0; i < 4; ++i) {
        const int y = corner.y - 1 + i;
        if (i > 0 && (y < 0 || y >= image.height)) {
            std::copy_n(rows[i - 1], kPixelBytes, rows[i]);
            continue;
        }
        const uint8_t *const row = row_at(image, y);
        for (int channel = 0; channel < kPixelBytes; ++channel)
            rows[i][channel] = cubic(row[columns[0] + channel], row[columns[1] + channel], row[columns[2] + channel],
                                     row[columns[3] + channel], corner.right);
    }
    for (int channel = 0; channel < kPixelBytes; ++channel) {
        const double value = cubic(rows[0][channel], rows[1][channel], rows[2][channel], rows[3][channel], corner.down);
        to[channel] = static_cast<uint8_t>(static_cast<int>(std::clamp(value, 0.0, 255.0)));
    }
}

} // namespace
} // namespace fastdata

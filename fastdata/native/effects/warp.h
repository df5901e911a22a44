// Images seen through an affine or perspective map, with Pillow's arithmetic.
#pragma once

#include "fastdata_native.h"

#include <array>
#include <cstdint>
#include <vector>

namespace fastdata {

// What is filled: 4-byte pixels, one row after the other.
struct Warped {
    uint8_t *pixels;
    int width, height;
};

// Where the nearest pixels of an affine map are from: Pillow knows three ways.
struct NearestMap {
    enum class Kind { scaled, fixed, other };
    Kind kind;
    std::vector<int> columns, rows;  // scaled: of the source, for each of the result; they may lie outside
    std::array<uint32_t, 6> fixed{}; // fixed, in 16.16 bits: the steps a, b, d and e, and x and y of the first pixel
};
NearestMap nearest_map(const double *map, int width, int height);

// Fills an image from another, of (width, height) and of the same kind of pixels.
void warp(const fd_effect &effect, const uint8_t *from, int width, int height, const Warped &result);

} // namespace fastdata

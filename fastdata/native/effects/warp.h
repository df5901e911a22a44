// Images seen through an affine or perspective map, with Pillow's arithmetic.
#pragma once

#include "fastdata_native.h"

#include <cstdint>

namespace fastdata {

// What is filled: 4-byte pixels, one row after the other.
struct Warped {
    uint8_t *pixels;
    int width, height;
};

// Fills an image from another, of (width, height) and of the same kind of pixels.
void warp(const fd_effect &effect, const uint8_t *from, int width, int height, const Warped &result);

} // namespace fastdata

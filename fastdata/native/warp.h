// Images seen through an affine or perspective map, with Pillow's arithmetic.
#pragma once

#include "fastdata_native.h"

#include <cstdint>

namespace fastdata {

// Fills an image of 4-byte pixels, one row after the other, from another of the same size.
void warp(const fd_effect &effect, const uint8_t *from, uint8_t *to, int width, int height);

} // namespace fastdata

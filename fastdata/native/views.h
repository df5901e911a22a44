// Which part of an image is seen: the arithmetic of views/draw.py, number for number, for one image at a time.
#pragma once

#include "fastdata_native.h"
#include "resample.h"

#include <array>
#include <cstdint>
#include <span>

namespace fastdata {

bool is_valid(const fd_op &op);

// e to the power of x, from additions, multiplications and divisions alone, so that every machine and Python get the
// same bits.  x: below 700 in size.
double portable_exp(double x);

// Names one sample's random numbers.
struct Draw {
    int64_t index, copy;
    std::array<uint32_t, 2> key;
};

// Draws the view of a width x height image.  False when the image is smaller than a random crop.
bool draw_view(std::span<const fd_op> ops, int width, int height, const Draw &draw, View &view);

} // namespace fastdata

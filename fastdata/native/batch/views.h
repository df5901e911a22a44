// Which part of an image is seen: the arithmetic of views/draw.py, number for number, for one image at a time.
#pragma once

#include "fastdata_native.h"
#include "resize/resample.h"

#include <array>
#include <cstdint>
#include <span>

namespace fastdata {

bool is_valid(const fd_op &op);

// e to the power of x, from additions, multiplications and divisions alone, so that every machine and Python get the
// same bits.  x: below 700 in size.
double portable_exp(double x);

// Names one sample's random numbers, or holds those that somebody else has drawn for each step.
struct Draw {
    int64_t index, occurrence;
    std::array<uint32_t, 2> key;
    const int64_t *given = nullptr; // (steps, FD_GIVEN_NUMBERS)

    static Draw of(const fd_geometry &geometry, int64_t item, const int64_t *indices, const int64_t *occurrences,
                   const int64_t *given) {
        return {indices[item],
                occurrences[item],
                {geometry.key[0], geometry.key[1]},
                given == nullptr ? nullptr : given + item * geometry.op_count * FD_GIVEN_NUMBERS};
    }

    // The numbers given for a step; null if they are drawn here.
    const int64_t *given_for(size_t op) const { return given == nullptr ? nullptr : given + op * FD_GIVEN_NUMBERS; }
};

// Draws the view of a width x height image.  False when the image is smaller than a random crop.
bool draw_view(std::span<const fd_op> ops, int width, int height, const Draw &draw, View &view);

} // namespace fastdata

// For vectors that put the eight values of a group of open coefficients into their places at once.
#pragma once

#include "kernels/unpacked_tile.h"

namespace fastdata {

constexpr size_t kNarrowKinds = 7; // of width that leave a value in two bytes, wherever it begins
static_assert(kWidths[kNarrowKinds - 1] == 8 && kNarrowKinds + 1 == kWidths.size());

struct GroupTables {
    // For each kind of width and each bit in a byte at which the first value may begin: the bytes from which each value
    // is taken, and what moves its sign to the highest bit of them.
    alignas(16) uint8_t bytes[kNarrowKinds][8][16];
    alignas(16) uint16_t factors[kNarrowKinds][8][8];
    // For each mask: which of the values every place gets, and those that get none.
    alignas(16) int8_t places[256][16];
    // For each mask: the places of its values, one behind the other, and then of none.
    alignas(16) int8_t values[256][16];

    constexpr GroupTables() : bytes{}, factors{}, places{}, values{} {
        for (size_t kind = 0; kind < kNarrowKinds; ++kind)
            for (unsigned first = 0; first < 8; ++first)
                for (unsigned i = 0; i < 8; ++i) {
                    const unsigned width = static_cast<unsigned>(kWidths[kind]), bit = first + i * width;
                    factors[kind][first][i] = static_cast<uint16_t>(1U << (16 - bit % 8 - width));
                    for (unsigned byte = 0; byte < 2; ++byte)
                        bytes[kind][first][2 * i + byte] = static_cast<uint8_t>(bit / 8 + byte);
                }
        for (unsigned mask = 0; mask < 256; ++mask) {
            int8_t value = 0;
            for (int8_t &place : values[mask])
                place = -1;
            for (unsigned i = 0; i < 8; ++i) {
                const bool is_there = (mask >> i & 1) != 0;
                for (unsigned byte = 0; byte < 2; ++byte)
                    places[mask][2 * i + byte] = is_there ? static_cast<int8_t>(2 * value + byte) : int8_t{-1};
                for (unsigned byte = 0; is_there && byte < 2; ++byte)
                    values[mask][2 * value + static_cast<int>(byte)] = static_cast<int8_t>(2 * i + byte);
                value = static_cast<int8_t>(value + (is_there ? 1 : 0));
            }
        }
    }
};
inline constexpr GroupTables kTables;

} // namespace fastdata

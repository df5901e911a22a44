// A window of a JPEG as a device decodes it: everything that the window's pixels and its resize need, in one piece.
// fastdata/device/decode_kernels.py reads it.
//
//     PackedHead
//     int32 across[result_width], int32 weights[result_width][across_taps]     the taps of each column of the result
//     int32 down[result_height], int32 weights[result_height][down_taps]       and of each row; see kernels/axis.h
//     the effects' data and PackedStep[steps]  (effects/packed_steps.h); before what may end at any byte
//     int32 steps[components][64]              of quantisation, in natural order
//     of a record:
//         int32 begins[tiles + 1]              of each tile behind tiles_at
//         tiles                                as in the record (unpacked.h), row by row
//     of a file with an index:
//         PackedTable[]                        Huffman tables
//         PackedSegment begins[tiles]          of the data from one of the index's entries to the next
//         segments                             entropy-coded, as in the file: of each row of MCUs those that are needed
//     zeros                                    at least 16; so many that the whole is a multiple of 16 bytes
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastdata {

constexpr int kMostPackedBlocks = 64;                // in a tile of a record
constexpr size_t kMostPackedBytes = size_t{1} << 27; // whose bits 31 bits count
constexpr int kPackedBits = 10;                      // of Huffman codes that are looked up at once

struct PackedHead {
    int32_t bytes;                       // of all
    int32_t components;                  // 1 or 3
    int32_t halved_x, halved_y;          // 1 where chroma has half the columns, and rows
    int32_t width, height;               // of the image
    int32_t left, top;                   // of what is resized, in the image
    int32_t source_width, source_height; // and its size
    int32_t first_column, first_row;     // the first of the MCUs that are here
    int32_t columns, rows;               // how many there are
    int32_t is_entropy_coded;            // 1 for a file with an index
    int32_t tile;                        // MCUs in a tile or segment, but for the last of a row
    int32_t tiles;                       // how many there are
    int32_t result_width, result_height; // pixels
    int32_t across_taps, down_taps;      // weights of each result
    int32_t down_first;                  // 1 where the pass along columns comes first
    int32_t flip_x, flip_y;              // 1 where the result is mirrored
    int32_t steps, effects_at;           // effects behind that: how many PackedStep (effects/packed_steps.h), and where
    int32_t blurs;                       // 1 if one of them is a blur
    int32_t steps_at, across_at, down_at, begins_at, tiles_at; // bytes from here
    int32_t codes_at[6]; // of each component: its tables for DC and for other coefficients
};

// A Huffman table.
struct PackedTable {
    int16_t codes[1 << kPackedBits];  // by the next bits: the code's length << 8 | its symbol; 0 for a longer one
    int32_t limit[16 - kPackedBits];  // of each longer length: the first 16 bits that are behind its codes
    int32_t offset[16 - kPackedBits]; // from a code to the place of its symbol
    uint8_t symbols[256];
};

// A segment of entropy-coded data; bits are counted from tiles_at, stuffed bytes included.
struct PackedSegment {
    int32_t bit;     // where it begins
    int32_t dc[3];   // predictors there
    int32_t end_bit; // the same behind it, to be compared; -1 where nothing is known
    int32_t end_dc[3];
};

} // namespace fastdata

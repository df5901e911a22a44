// The blocks of a tile of open coefficients, one after the other; unpacked.h says how they lie there.
#pragma once

#include "base/bits.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fastdata {

constexpr int kMostComponents = 4;
constexpr int kGroupWidth = 4, kBlockWidth = 8; // coefficients in one of a group's two rows, and in a row of a block
constexpr int kCoefficients = 64, kGroups = 8;  // in a block
constexpr std::array<int, 8> kWidths = {1, 2, 3, 4, 5, 6, 8, 12};

// For each width the first of kWidths that is not less; their number if there is none.
constexpr std::array<size_t, 18> kKinds = [] {
    std::array<size_t, 18> kinds{};
    for (size_t width = 0; width < kinds.size(); ++width)
        while (kinds[width] < kWidths.size() && kWidths[kinds[width]] < static_cast<int>(width))
            ++kinds[width];
    return kinds;
}();

// Where its parts lie, and how far they have been read, in bits.  16 bytes behind the last part may be read.
struct UnpackedTile {
    std::array<int, kMostComponents> dc{}, dc_width{};
    const uint8_t *groups = nullptr, *differences = nullptr, *classes = nullptr, *masks = nullptr, *values = nullptr;
    size_t difference_bit = 0, class_bit = 0, value_bit = 0;
    size_t value_bits = 0; // there are
};

// Four bytes from a bit on, of which at least 25 bits are behind it.
inline uint32_t word_at(const uint8_t *from, size_t bit) {
    uint32_t word = 0;
    std::memcpy(&word, from + bit / 8, sizeof word); // little-endian, as all processors that this is built for
    return word >> (bit % 8);
}

// Where a group's first coefficient is in its block.
inline int place_of(int group) {
    return group % 4 * 2 * kBlockWidth + group / 4 * kGroupWidth;
}

// Where the others are from there.
inline int place_in_group(int number) {
    return number / kGroupWidth * kBlockWidth + number % kGroupWidth;
}

// Stores a group's values, one by one.  first: the place of its first coefficient.
inline void put_group(const uint8_t *values, size_t bit, size_t kind, unsigned mask, int16_t *first) {
    const int above = 32 - kWidths[kind];
    for (; mask != 0; mask &= mask - 1, bit += static_cast<size_t>(kWidths[kind])) {
        const int value = static_cast<int32_t>(word_at(values, bit) << above) >> above; // with its sign
        first[place_in_group(std::countr_zero(mask))] = static_cast<int16_t>(value >= 0 ? value + 1 : value);
    }
}

// Reads blocks: of whom component_of tells the component; into blocks, which are zeros, or past them if that is null.
// put: stores the values of one group, as put_group.  False if there are fewer values.
template <class PutGroup>
bool read_blocks_by(UnpackedTile &tile, const uint8_t *component_of, int count, int16_t *const *blocks,
                    const PutGroup &put) {
    size_t value_bit = tile.value_bit;
    for (int i = 0; i < count; ++i) {
        const size_t c = component_of[i];
        const uint32_t low = (uint32_t{1} << tile.dc_width[c]) - 1;
        tile.dc[c] = static_cast<int16_t>(tile.dc[c] + unzigzag(word_at(tile.differences, tile.difference_bit) & low));
        tile.difference_bit += static_cast<size_t>(tile.dc_width[c]);
        unsigned groups = *tile.groups++;
        uint32_t classes = word_at(tile.classes, tile.class_bit);
        tile.class_bit += 3 * static_cast<size_t>(std::popcount(groups));
        for (; groups != 0; groups &= groups - 1, classes >>= 3) {
            const size_t kind = classes & 7;
            const unsigned mask = *tile.masks++;
            const size_t first_bit = value_bit;
            value_bit += static_cast<size_t>(std::popcount(mask) * kWidths[kind]);
            if (value_bit > tile.value_bits)
                return false;
            if (blocks != nullptr)
                put(tile.values, first_bit, kind, mask, blocks[i] + place_of(std::countr_zero(groups)));
        }
        if (blocks != nullptr)
            blocks[i][0] = static_cast<int16_t>(tile.dc[c]);
    }
    tile.value_bit = value_bit;
    return true;
}

// Where the groups of a tile go that is written.
struct TileGroups {
    uint8_t *groups, *masks; // the next byte
    BitPacker classes;
    WideBitPacker values;
};

// Puts the values of a group: as they are stored, one by one.
inline void put_values(const int16_t *values, unsigned mask, size_t kind, WideBitPacker &to) {
    const int width = kWidths[kind];
    for (; mask != 0; mask &= mask - 1)
        to.put(static_cast<uint16_t>(values[std::countr_zero(mask)]) & ((1U << width) - 1), width);
}

// Writes all but the DC values of blocks.  False for values that a record cannot hold.
bool write_groups(const int16_t *blocks, size_t count, TileGroups &to);
bool write_groups_avx2(const int16_t *blocks, size_t count, TileGroups &to);

bool read_blocks_avx2(UnpackedTile &tile, const uint8_t *component_of, int count, int16_t *const *blocks);
bool read_blocks_neon(UnpackedTile &tile, const uint8_t *component_of, int count, int16_t *const *blocks);

} // namespace fastdata

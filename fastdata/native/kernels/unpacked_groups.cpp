// Groups of open coefficients: eight values at once, by loops that compilers make vectors of.
#include "kernels/unpacked_tile.h"

namespace fastdata {
namespace {

// The values of a group as they are stored.
struct GroupValues {
    alignas(16) int16_t less[8]; // by one, if they are positive
    unsigned mask;               // of those that are not zero
    int width;                   // of the widest

    GroupValues(const int16_t *first, bool begins_with_dc) {
        alignas(16) int16_t value[8];
        std::memcpy(value, first, sizeof value / 2);
        std::memcpy(value + kGroupWidth, first + kBlockWidth, sizeof value / 2);
        if (begins_with_dc)
            value[0] = 0;
        alignas(8) uint8_t is_there[8];
        int16_t bits[8], all = 0;
        for (int i = 0; i < 8; ++i) {
            is_there[i] = value[i] != 0 ? 1 : 0;
            less[i] = static_cast<int16_t>(value[i] - (value[i] > 0 ? 1 : 0));
            bits[i] = static_cast<int16_t>(less[i] ^ (less[i] >> 15));
        }
        for (int i = 0; i < 8; ++i)
            all = static_cast<int16_t>(all | bits[i]);
        uint64_t bytes = 0;
        std::memcpy(&bytes, is_there, sizeof bytes);
        mask = static_cast<unsigned>(bytes * 0x0102040810204080U >> 56); // gathers the lowest bit of each byte
        width = 1 + static_cast<int>(std::bit_width(static_cast<uint16_t>(all)));
    }
};

bool is_zero(const int16_t *first, bool begins_with_dc) {
    uint64_t row[2];
    static_assert(sizeof row[0] == kGroupWidth * sizeof *first);
    std::memcpy(&row[0], first, sizeof row[0]);
    std::memcpy(&row[1], first + kBlockWidth, sizeof row[1]);
    if (begins_with_dc)
        row[0] &= ~uint64_t{0xFFFF}; // little-endian
    return (row[0] | row[1]) == 0;
}

} // namespace

bool write_groups(const int16_t *blocks, size_t count, TileGroups &to) {
    for (size_t i = 0; i < count; ++i, blocks += kCoefficients) {
        unsigned groups = 0;
        for (int group = 0; group < kGroups; ++group) {
            const int16_t *const first = blocks + place_of(group);
            if (is_zero(first, group == 0)) // as half of them are
                continue;
            const GroupValues values(first, group == 0);
            const size_t kind = kKinds[static_cast<size_t>(values.width)];
            if (kind == kWidths.size())
                return false;
            groups |= 1U << group;
            to.classes.put(static_cast<uint32_t>(kind), 3);
            *to.masks++ = static_cast<uint8_t>(values.mask);
            put_values(values.less, values.mask, kind, to.values);
        }
        *to.groups++ = static_cast<uint8_t>(groups);
    }
    return true;
}

} // namespace fastdata

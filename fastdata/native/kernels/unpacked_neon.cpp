// Groups of open coefficients: eight values at once.
#include "kernels/unpacked_tables.h"

#include <arm_neon.h>

namespace fastdata {
namespace {

struct PutGroup {
    void operator()(const uint8_t *values, size_t bit, size_t kind, unsigned mask, int16_t *first) const {
        if (kind >= kNarrowKinds) [[unlikely]]
            return put_group(values, bit, kind, mask, first);
        const uint8x16_t some = vqtbl1q_u8(vld1q_u8(values + bit / 8), vld1q_u8(kTables.bytes[kind][bit % 8]));
        const uint16x8_t high = vmulq_u16(vreinterpretq_u16_u8(some), vld1q_u16(kTables.factors[kind][bit % 8]));
        const auto down = static_cast<int16_t>(kWidths[kind] - 16);
        int16x8_t value = vshlq_s16(vreinterpretq_s16_u16(high), vdupq_n_s16(down));
        value = vsubq_s16(value, vreinterpretq_s16_u16(vcgtq_s16(value, vdupq_n_s16(-1)))); // 0 stands for 1
        const uint8x16_t places = vreinterpretq_u8_s8(vld1q_s8(kTables.places[mask]));
        value = vreinterpretq_s16_u8(vqtbl1q_u8(vreinterpretq_u8_s16(value), places));
        vst1_s16(first, vget_low_s16(value));
        vst1_s16(first + kBlockWidth, vget_high_s16(value));
    }
};

} // namespace

bool read_blocks_neon(UnpackedTile &tile, const uint8_t *component_of, int count, int16_t *const *blocks) {
    return read_blocks_by(tile, component_of, count, blocks, PutGroup{});
}

} // namespace fastdata

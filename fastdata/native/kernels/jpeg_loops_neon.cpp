// NEON: eight values of a row or a column at once.
#include "kernels/jpeg_loops.h"

#include <arm_neon.h>

namespace fastdata {
namespace {

using C = DctConstants;

struct Sums {
    int32x4_t low, high;

    Sums operator+(const Sums &other) const { return {vaddq_s32(low, other.low), vaddq_s32(high, other.high)}; }
    Sums operator-(const Sums &other) const { return {vsubq_s32(low, other.low), vsubq_s32(high, other.high)}; }
};

Sums products(int16x8_t a, int constant_a, int16x8_t b, int constant_b) {
    const auto of_a = static_cast<int16_t>(constant_a), of_b = static_cast<int16_t>(constant_b);
    return {vmlal_n_s16(vmull_n_s16(vget_low_s16(a), of_a), vget_low_s16(b), of_b),
            vmlal_n_s16(vmull_n_s16(vget_high_s16(a), of_a), vget_high_s16(b), of_b)};
}

Sums scaled(int16x8_t value) {
    return {vshll_n_s16(vget_low_s16(value), C::kBits), vshll_n_s16(vget_high_s16(value), C::kBits)};
}

template <int kShift> int16x8_t descaled(const Sums &sums) {
    const int32x4_t half = vdupq_n_s32(1 << (kShift - 1));
    return vcombine_s16(vqmovn_s32(vshrq_n_s32(vaddq_s32(sums.low, half), kShift)),
                        vqmovn_s32(vshrq_n_s32(vaddq_s32(sums.high, half), kShift)));
}

template <int kShift> void store_eight(const Sums (&sum)[4], const Sums (&odd)[4], int16x8_t (&v)[8]) {
    for (int i = 0; i < 4; ++i) {
        v[i] = descaled<kShift>(sum[i] + odd[i]);
        v[7 - i] = descaled<kShift>(sum[i] - odd[i]);
    }
}

template <int kShift> void idct_pass(int16x8_t (&v)[8]) {
    const Sums even2 = products(v[2], C::k0_541, v[6], C::k0_541 - C::k1_847);
    const Sums even3 = products(v[2], C::k0_541 + C::k0_765, v[6], C::k0_541);
    const Sums even0 = scaled(vaddq_s16(v[0], v[4])), even1 = scaled(vsubq_s16(v[0], v[4]));
    const Sums sum[4] = {even0 + even3, even1 + even2, even1 - even2, even0 - even3};
    const int16x8_t v73 = vaddq_s16(v[7], v[3]), v51 = vaddq_s16(v[5], v[1]);
    const Sums z3 = products(v73, C::k1_175 - C::k1_961, v51, C::k1_175);
    const Sums z4 = products(v73, C::k1_175, v51, C::k1_175 - C::k0_390);
    const Sums odd[4] = {
        products(v[7], -C::k0_899, v[1], C::k1_501 - C::k0_899) + z4,
        products(v[5], -C::k2_562, v[3], C::k3_072 - C::k2_562) + z3,
        products(v[5], C::k2_053 - C::k2_562, v[3], -C::k2_562) + z4,
        products(v[7], C::k0_298 - C::k0_899, v[1], -C::k0_899) + z3,
    };
    store_eight<kShift>(sum, odd, v);
}

// Rows become columns.
void transpose(int16x8_t (&v)[8]) {
    int16x8_t a[8];
    int32x4_t b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = vtrn1q_s16(v[i], v[i + 1]);
        a[i + 1] = vtrn2q_s16(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int odd = 0; odd < 2; ++odd) {
            const int32x4_t first = vreinterpretq_s32_s16(a[i + odd]), third = vreinterpretq_s32_s16(a[i + 2 + odd]);
            b[i + odd] = vtrn1q_s32(first, third);
            b[i + 2 + odd] = vtrn2q_s32(first, third);
        }
    for (int i = 0; i < 4; ++i) {
        const int64x2_t above = vreinterpretq_s64_s32(b[i]), below = vreinterpretq_s64_s32(b[4 + i]);
        v[i] = vreinterpretq_s16_s64(vtrn1q_s64(above, below));
        v[4 + i] = vreinterpretq_s16_s64(vtrn2q_s64(above, below));
    }
}

void idct_block(const IdctBlock &block) {
    int16x8_t v[8];
    for (int row = 0; row < kBlockEdge; ++row)
        v[row] = vmulq_s16(vld1q_s16(block.coefficients + row * kBlockEdge),
                           vreinterpretq_s16_u16(vld1q_u16(block.steps + row * kBlockEdge)));
    idct_pass<C::kFirstShift>(v);
    transpose(v);
    idct_pass<C::kSecondShift>(v);
    transpose(v);
    for (int row = 0; row < kBlockEdge; ++row)
        vst1_u8(block.out + row * block.stride,
                veor_u8(vreinterpret_u8_s8(vqmovn_s16(v[row])), vdup_n_u8(128))); // the centre is added
}

bool is_flat(const IdctBlock &block) {
    int16x8_t any = vld1q_s16(block.coefficients + kBlockEdge);
    for (int row = 2; row < kBlockEdge; ++row)
        any = vorrq_s16(any, vld1q_s16(block.coefficients + row * kBlockEdge));
    return vmaxvq_u16(vreinterpretq_u16_s16(any)) == 0;
}

void idct(const IdctBlock *blocks, int count) {
    for (const IdctBlock *block = blocks; block != blocks + count; ++block)
        if (is_flat(*block))
            idct_flat(*block);
        else
            idct_block(*block);
}

uint16x8_t words(const uint8_t *from) {
    return vmovl_u8(vld1_u8(from));
}

template <int kShift>
void store_widened(uint16x8_t value, uint16x8_t before, uint16x8_t behind, int first_half, int second_half,
                   uint8_t *out) {
    const uint16x8_t most = vmulq_n_u16(value, 3);
    const uint16x8_t even = vaddq_u16(vaddq_u16(most, before), vdupq_n_u16(static_cast<uint16_t>(first_half)));
    const uint16x8_t odd = vaddq_u16(vaddq_u16(most, behind), vdupq_n_u16(static_cast<uint16_t>(second_half)));
    const uint8x8x2_t pairs = {{vshrn_n_u16(even, kShift), vshrn_n_u16(odd, kShift)}};
    vst2_u8(out, pairs);
}

void widen(const uint8_t *first, int count, uint8_t *out) {
    for (int i = 0; i < count; i += 8)
        store_widened<2>(words(first + i), words(first + i - 1), words(first + i + 1), 1, 2, out + 2 * i);
}

void widen_between(const uint8_t *near, const uint8_t *far, int count, uint8_t *out) {
    const auto between = [near, far](int i) { return vmlaq_n_u16(words(far + i), words(near + i), 3); };
    for (int i = 0; i < count; i += 8)
        store_widened<4>(between(i), between(i - 1), between(i + 1), 8, 7, out + 2 * i);
}

// What 32-bit sums are times 2^-16.
int16x8_t rounded(const Sums &sums) {
    return vcombine_s16(vrshrn_n_s32(sums.low, 16), vrshrn_n_s32(sums.high, 16));
}

void to_rgb(const uint8_t *luma, const uint8_t *blue, const uint8_t *red, int count, uint8_t *pixels) {
    constexpr int one = 1 << 16;
    const int16x8_t centre = vdupq_n_s16(128), none = vdupq_n_s16(0);
    for (int i = 0; i < count; i += 8) {
        const int16x8_t y = vreinterpretq_s16_u16(words(luma + i));
        const int16x8_t cb = vsubq_s16(vreinterpretq_s16_u16(words(blue + i)), centre);
        const int16x8_t cr = vsubq_s16(vreinterpretq_s16_u16(words(red + i)), centre);
        const int16x8_t of_red = vaddq_s16(cr, rounded(products(cr, ColourConstants::kRedOfRed - one, none, 0)));
        const int16x8_t of_blue =
            vaddq_s16(vaddq_s16(cb, cb), rounded(products(cb, ColourConstants::kBlueOfBlue - 2 * one, none, 0)));
        const int16x8_t of_both = vsubq_s16(
            rounded(products(cb, -ColourConstants::kGreenOfBlue, cr, one - ColourConstants::kGreenOfRed)), cr);
        const uint8x8x4_t four = {{vqmovun_s16(vaddq_s16(y, of_red)), vqmovun_s16(vaddq_s16(y, of_both)),
                                   vqmovun_s16(vaddq_s16(y, of_blue)), vdup_n_u8(255)}};
        vst4_u8(pixels + 4 * i, four);
    }
}

void grey_to_rgb(const uint8_t *luma, int count, uint8_t *pixels) {
    for (int i = 0; i < count; i += 8) {
        const uint8x8_t y = vld1_u8(luma + i);
        const uint8x8x4_t four = {{y, y, y, vdup_n_u8(255)}};
        vst4_u8(pixels + 4 * i, four);
    }
}

} // namespace

const JpegLoops kNeonJpegLoops = {idct, widen, widen_between, to_rgb, grey_to_rgb};

} // namespace fastdata

// NEON: one pixel's four channels in 32-bit lanes.
#include "kernels/kernels.h"
#include "kernels/unpacked_tile.h"

#include <arm_neon.h>
#include <cstring>

namespace fastdata {
namespace {

int32x4_t widened(const uint8_t *pixel) {
    uint32_t four;
    std::memcpy(&four, pixel, sizeof four);
    const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(four));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}

void store_clamped(uint8_t *to, int32x4_t sum) {
    const uint16x4_t words = vqmovun_s32(vshrq_n_s32(sum, kWeightBits));
    const uint8x8_t bytes = vqmovn_u16(vcombine_u16(words, words));
    const uint32_t four = vget_lane_u32(vreinterpret_u32_u8(bytes), 0);
    std::memcpy(to, &four, sizeof four);
}

void horizontal(const Rows &source, const Axis &axis, uint8_t *results, ptrdiff_t result_stride) {
    for (int y = 0; y < source.height; ++y) {
        uint8_t *out = results + y * result_stride;
        for (int x = 0; x < axis.results(); ++x, out += kPixelBytes) {
            const uint8_t *pixel = source.row(y) + static_cast<ptrdiff_t>(axis.first(x)) * kPixelBytes;
            const int32_t *weights = axis.weights(x);
            int32x4_t sum = vdupq_n_s32(kHalf);
            for (int tap = 0; tap < axis.taps(); ++tap, pixel += kPixelBytes)
                sum = vmlaq_n_s32(sum, widened(pixel), weights[tap]);
            store_clamped(out, sum);
        }
    }
}

void vertical(const uint8_t *source, ptrdiff_t stride, const Axis &axis, int result, uint8_t *out, int bytes) {
    const int32_t *weights = axis.weights(result);
    int i = 0;
    for (; i + 16 <= bytes; i += 16) {
        int32x4_t sums[4];
        for (int32x4_t &sum : sums)
            sum = vdupq_n_s32(kHalf);
        for (int tap = 0; tap < axis.taps(); ++tap) {
            const uint8x16_t row = vld1q_u8(source + tap * stride + i);
            const uint16x8_t low = vmovl_u8(vget_low_u8(row)), high = vmovl_u8(vget_high_u8(row));
            const uint16x4_t quarters[4] = {vget_low_u16(low), vget_high_u16(low), vget_low_u16(high),
                                            vget_high_u16(high)};
            for (int q = 0; q < 4; ++q)
                sums[q] = vmlaq_n_s32(sums[q], vreinterpretq_s32_u32(vmovl_u16(quarters[q])), weights[tap]);
        }
        const uint16x8_t low = vcombine_u16(vqmovun_s32(vshrq_n_s32(sums[0], kWeightBits)),
                                            vqmovun_s32(vshrq_n_s32(sums[1], kWeightBits)));
        const uint16x8_t high = vcombine_u16(vqmovun_s32(vshrq_n_s32(sums[2], kWeightBits)),
                                             vqmovun_s32(vshrq_n_s32(sums[3], kWeightBits)));
        vst1q_u8(out + i, vcombine_u8(vqmovn_u16(low), vqmovn_u16(high)));
    }
    kPlainKernels.vertical(source + i, stride, axis, result, out + i, bytes - i);
}

void unpack(const uint8_t *rgb, int count, uint8_t *pixels) {
    int i = 0;
    for (; i + 16 <= count; i += 16) {
        const uint8x16x3_t three = vld3q_u8(rgb + i * 3);
        const uint8x16x4_t four = {{three.val[0], three.val[1], three.val[2], vdupq_n_u8(0)}};
        vst4q_u8(pixels + i * kPixelBytes, four); // clang's are macros, in which braces are no initialisers
    }
    kPlainKernels.unpack(rgb + i * 3, count - i, pixels + i * kPixelBytes);
}

void pack(const uint8_t *pixels, int count, uint8_t *rgb) {
    int i = 0;
    for (; i + 16 <= count; i += 16) {
        const uint8x16x4_t planes = vld4q_u8(pixels + i * kPixelBytes);
        const uint8x16x3_t three = {{planes.val[0], planes.val[1], planes.val[2]}};
        vst3q_u8(rgb + i * 3, three);
    }
    kPlainKernels.pack(pixels + i * kPixelBytes, count - i, rgb + i * 3);
}

void split(const uint8_t *pixels, int count, uint8_t *red, uint8_t *green, uint8_t *blue) {
    int i = 0;
    for (; i + 16 <= count; i += 16) {
        const uint8x16x4_t planes = vld4q_u8(pixels + i * kPixelBytes);
        vst1q_u8(red + i, planes.val[0]);
        vst1q_u8(green + i, planes.val[1]);
        vst1q_u8(blue + i, planes.val[2]);
    }
    kPlainKernels.split(pixels + i * kPixelBytes, count - i, red + i, green + i, blue + i);
}

void reverse(const uint8_t *pixels, int count, uint8_t *reversed) {
    kPlainKernels.reverse(pixels, count, reversed);
}

void weighted_sum(const float *rows, size_t step, const float *weights, int taps, float *sums, size_t count) {
    constexpr size_t kAtOnce = 16;
    size_t i = 0;
    for (; i + kAtOnce <= count; i += kAtOnce) {
        float32x4_t sum[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
        for (int tap = 0; tap < taps; ++tap) {
            const float *const row = rows + static_cast<size_t>(tap) * step + i;
            for (size_t part = 0; part < 4; ++part)
                sum[part] = vaddq_f32(sum[part], vmulq_n_f32(vld1q_f32(row + 4 * part), weights[tap]));
        }
        for (size_t part = 0; part < 4; ++part)
            vst1q_f32(sums + i + 4 * part, sum[part]);
    }
    kPlainKernels.weighted_sum(rows + i, step, weights, taps, sums + i, count - i);
}

} // namespace

// The rest is made into vectors by the compiler, which knows NEON in any case.
const Kernels kNeonKernels = {"NEON",
                              horizontal,
                              vertical,
                              unpack,
                              pack,
                              split,
                              reverse,
                              weighted_sum,
                              kPlainKernels.bilinear,
                              kPlainKernels.bicubic,
                              kPlainKernels.effects,
                              kPlainKernels.normals,
                              read_blocks_neon,
                              write_groups,
                              &kNeonJpegLoops};

} // namespace fastdata

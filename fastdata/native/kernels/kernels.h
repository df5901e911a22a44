// The inner loops, once per instruction set, chosen at run time.
#pragma once

#include "base/geometry.h"
#include "kernels/axis.h"
#include "kernels/jpeg_loops.h"

namespace fastdata {

struct UnpackedTile;
struct TileGroups;

// Of a box in which the last pixel at each end counts in part; weights have 24 bits.
struct BoxWeights {
    int radius;
    uint32_t inner, outer; // of the pixels within the radius, and of the two beside them
};

// The share of an image, and that of another, which are rounded one by one.
struct TensorBlend {
    float share, rest;
};

// What effects do to whole images of 4-byte pixels; see pixel_loops.h.
struct EffectLoops {
    void (*saturate)(uint8_t *pixels, size_t count, float factor);
    void (*make_grey)(uint8_t *pixels, size_t count);
    uint64_t (*luma_sum)(const uint8_t *pixels, size_t count);
    void (*sharpen_row)(const uint8_t *above, const uint8_t *here, const uint8_t *below, uint8_t *to, size_t bytes,
                        float factor);
    void (*add_weighted)(const uint8_t *bytes, size_t count, float weight, float *sums);
    void (*blend_with_sums)(uint8_t *bytes, size_t count, const float *sums, float share);
    void (*blend_into_sums)(const uint8_t *bytes, size_t count, float share, float *sums);
    void (*box_down)(const uint8_t *from, uint8_t *to, int width, int height, const BoxWeights &box);
    // With the arithmetic of uint8 tensors.
    void (*tensors_saturate)(uint8_t *pixels, size_t count, TensorBlend blend);
    void (*tensors_make_grey)(uint8_t *pixels, size_t count);
    uint64_t (*tensors_grey_sum)(const uint8_t *pixels, size_t count);
    void (*tensors_turn_hue)(uint8_t *pixels, size_t count, float turn);
    void (*tensors_sharpen_row)(const uint8_t *above, const uint8_t *here, const uint8_t *below, uint8_t *to,
                                size_t bytes, float rest);
};

// Pixels of a row of a result: number `columns[i]` comes from (x[i], y[i]), which lies inside the image.
struct Places {
    const double *x, *y;
    const int32_t *columns;
    int count;
};

// Of whom normally distributed numbers are drawn: counters of Philox, but for the third, and its key.
struct NormalDraws {
    uint32_t index, occurrence, stream;
    uint32_t key[2];
};

constexpr uint32_t kNormalCounters = 64; // at once, with four numbers each

// All work on rows of 4-byte pixels and give the same bits: sums of 8-bit values times 22-bit weights, plus a half,
// shifted and clamped.  Integer sums are exact modulo 2^32, so no order of addition changes them.
struct Kernels {
    const char *name;

    // result[x] = sum over taps of source[axis.first(x) + tap].  Reads only inside [0, source_end - source_begin).
    void (*horizontal)(const Rows &source, const Axis &axis, uint8_t *results, ptrdiff_t result_stride);

    // One row: the weighted sum of `taps` rows beginning at `source`, over `bytes` bytes.
    void (*vertical)(const uint8_t *source, ptrdiff_t stride, const Axis &axis, int result, uint8_t *out, int bytes);

    // RGB to 4-byte pixels.
    void (*unpack)(const uint8_t *rgb, int count, uint8_t *pixels);

    // (4-byte pixels) to RGB, to three planes, and in reverse order.
    void (*pack)(const uint8_t *pixels, int count, uint8_t *rgb);
    void (*split)(const uint8_t *pixels, int count, uint8_t *red, uint8_t *green, uint8_t *blue);
    void (*reverse)(const uint8_t *pixels, int count, uint8_t *reversed);

    // sums[i] = sum over taps, in order, of weights[tap] * rows[tap * step + i]; multiplied and added, not fused.
    void (*weighted_sum)(const float *rows, size_t step, const float *weights, int taps, float *sums, size_t count);

    // Source: Pillow, Geometry.c.
    void (*bilinear)(const Rows &image, const Places &places, uint8_t *row);
    void (*bicubic)(const Rows &image, const Places &places, uint8_t *row);

    EffectLoops effects;

    // Four numbers of the standard normal distribution for each of the counters from `first`.
    void (*normals)(const NormalDraws &draws, uint32_t first, float *out);

    // See read_blocks_by.
    bool (*read_blocks)(UnpackedTile &tile, const uint8_t *component_of, int count, int16_t *const *blocks);
    bool (*write_groups)(const int16_t *blocks, size_t count, TileGroups &to); // see there

    // nullptr where libjpeg-turbo's own vector code is faster.
    const JpegLoops *jpeg;
};

// The fastest set this processor has.
const Kernels &kernels();

// Makes kernels() return the set of that name; false when the processor lacks it.
bool choose_kernels(const char *name);

extern const Kernels kPlainKernels;
#if defined(FASTDATA_AVX2)
extern const Kernels kAvx2Kernels;
#endif
#if defined(FASTDATA_NEON)
extern const Kernels kNeonKernels;
#endif

inline uint8_t clamp_sum(int32_t sum) {
    const int32_t value = sum >> kWeightBits;
    return static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
}

constexpr int32_t kHalf = 1 << (kWeightBits - 1);

} // namespace fastdata

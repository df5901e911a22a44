#include "kernels/jpeg_loops.h"

#include <algorithm>
#include <cstring>

namespace fastdata {
namespace {

using C = DctConstants;
constexpr int kCentre = 128;

int16_t wrapped(int value) {
    return static_cast<int16_t>(static_cast<uint16_t>(value));
}

int16_t saturated(int32_t value) {
    return static_cast<int16_t>(std::clamp(value, -32768, 32767));
}

uint32_t times(int value, int constant) { // sums of these may wrap
    return static_cast<uint32_t>(value * constant);
}

// Eight values, `step` apart; `shift` is what is taken off at the end.
void idct_eight(const int16_t *in, ptrdiff_t step, int shift, int16_t *out) {
    const int v0 = in[0], v1 = in[step], v2 = in[2 * step], v3 = in[3 * step];
    const int v4 = in[4 * step], v5 = in[5 * step], v6 = in[6 * step], v7 = in[7 * step];
    const uint32_t even2 = times(v2, C::k0_541) + times(v6, C::k0_541 - C::k1_847);
    const uint32_t even3 = times(v2, C::k0_541 + C::k0_765) + times(v6, C::k0_541);
    const uint32_t even0 = static_cast<uint32_t>(wrapped(v0 + v4)) << C::kBits;
    const uint32_t even1 = static_cast<uint32_t>(wrapped(v0 - v4)) << C::kBits;
    const uint32_t sum[4] = {even0 + even3, even1 + even2, even1 - even2, even0 - even3};
    const int z3 = wrapped(v7 + v3), z4 = wrapped(v5 + v1);
    const uint32_t odd3 = times(z3, C::k1_175 - C::k1_961) + times(z4, C::k1_175);
    const uint32_t odd4 = times(z3, C::k1_175) + times(z4, C::k1_175 - C::k0_390);
    const uint32_t odd[4] = {
        times(v7, -C::k0_899) + times(v1, C::k1_501 - C::k0_899) + odd4,
        times(v5, -C::k2_562) + times(v3, C::k3_072 - C::k2_562) + odd3,
        times(v5, C::k2_053 - C::k2_562) + times(v3, -C::k2_562) + odd4,
        times(v7, C::k0_298 - C::k0_899) + times(v1, -C::k0_899) + odd3,
    };
    const uint32_t half = uint32_t{1} << (shift - 1);
    for (int i = 0; i < 4; ++i) {
        out[i] = saturated(static_cast<int32_t>(sum[i] + odd[i] + half) >> shift);
        out[7 - i] = saturated(static_cast<int32_t>(sum[i] - odd[i] + half) >> shift);
    }
}

uint8_t to_sample(int16_t value) {
    return static_cast<uint8_t>(std::clamp<int>(value, -kCentre, kCentre - 1) + kCentre);
}

bool is_flat(const int16_t *coefficients) {
    return std::all_of(coefficients + kBlockEdge, coefficients + kBlockEdge * kBlockEdge,
                       [](int16_t value) { return value == 0; });
}

void idct_block(const IdctBlock &block) {
    int16_t values[kBlockEdge * kBlockEdge], column[kBlockEdge];
    for (int i = 0; i < kBlockEdge * kBlockEdge; ++i)
        values[i] = wrapped(block.coefficients[i] * block.steps[i]);
    for (int x = 0; x < kBlockEdge; ++x) {
        idct_eight(values + x, kBlockEdge, C::kFirstShift, column);
        for (int y = 0; y < kBlockEdge; ++y)
            values[y * kBlockEdge + x] = column[y];
    }
    for (int y = 0; y < kBlockEdge; ++y) {
        int16_t row[kBlockEdge];
        idct_eight(values + y * kBlockEdge, 1, C::kSecondShift, row);
        std::transform(row, row + kBlockEdge, block.out + y * block.stride, to_sample);
    }
}

void idct(const IdctBlock *blocks, int count) {
    for (const IdctBlock *block = blocks; block != blocks + count; ++block)
        if (is_flat(block->coefficients))
            idct_flat(*block);
        else
            idct_block(*block);
}

void widen(const uint8_t *first, int count, uint8_t *out) {
    for (int i = 0; i < count; ++i) {
        const int most = 3 * first[i];
        out[2 * i] = static_cast<uint8_t>((most + first[i - 1] + 1) >> 2);
        out[2 * i + 1] = static_cast<uint8_t>((most + first[i + 1] + 2) >> 2);
    }
}

void widen_between(const uint8_t *near, const uint8_t *far, int count, uint8_t *out) {
    const auto between = [near, far](int i) { return 3 * near[i] + far[i]; };
    for (int i = 0; i < count; ++i) {
        const int most = 3 * between(i);
        out[2 * i] = static_cast<uint8_t>((most + between(i - 1) + 8) >> 4);
        out[2 * i + 1] = static_cast<uint8_t>((most + between(i + 1) + 7) >> 4);
    }
}

uint8_t to_level(int value) {
    return static_cast<uint8_t>(std::clamp(value, 0, 255));
}

void to_rgb(const uint8_t *luma, const uint8_t *blue, const uint8_t *red, int count, uint8_t *pixels) {
    constexpr int half = 1 << 15;
    for (int i = 0; i < count; ++i, pixels += 4) {
        const int y = luma[i], cb = blue[i] - kCentre, cr = red[i] - kCentre;
        pixels[0] = to_level(y + ((ColourConstants::kRedOfRed * cr + half) >> 16));
        pixels[1] =
            to_level(y + ((-ColourConstants::kGreenOfBlue * cb - ColourConstants::kGreenOfRed * cr + half) >> 16));
        pixels[2] = to_level(y + ((ColourConstants::kBlueOfBlue * cb + half) >> 16));
        pixels[3] = 255;
    }
}

void grey_to_rgb(const uint8_t *luma, int count, uint8_t *pixels) {
    for (int i = 0; i < count; ++i, pixels += 4) {
        pixels[0] = pixels[1] = pixels[2] = luma[i];
        pixels[3] = 255;
    }
}

} // namespace

void idct_flat(const IdctBlock &block) {
    int16_t values[kBlockEdge], row[kBlockEdge];
    bool is_level = true;
    for (int x = 0; x < kBlockEdge; ++x) {
        values[x] = wrapped(wrapped(block.coefficients[x] * block.steps[x]) * (1 << C::kFirstPassBits));
        is_level = is_level && (x == 0 || block.coefficients[x] == 0);
    }
    uint8_t samples[kBlockEdge];
    if (is_level) {
        constexpr int shift = C::kSecondShift - C::kBits;
        std::memset(samples, to_sample(wrapped((values[0] + (1 << (shift - 1))) >> shift)), sizeof samples);
    } else {
        idct_eight(values, 1, C::kSecondShift, row);
        std::transform(row, row + kBlockEdge, samples, to_sample);
    }
    for (int y = 0; y < kBlockEdge; ++y)
        std::memcpy(block.out + y * block.stride, samples, sizeof samples);
}

const JpegLoops kPlainJpegLoops = {idct, widen, widen_between, to_rgb, grey_to_rgb};

} // namespace fastdata

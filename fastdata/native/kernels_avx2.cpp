// AVX2: two taps per multiplication, by pmaddwd on the high and low halves of the weights.
#include "kernels.h"

#include <cstring>
#include <immintrin.h>

namespace fastdata {
namespace {

// 16-bit pairs (p0, p1) of every channel for pixels 0 and 1 in the low lane, 2 and 3 in the high one.
__m256i pixel_pairs() {
    constexpr char z = -128;
    return _mm256_setr_epi8(0, z, 4, z, 1, z, 5, z, 2, z, 6, z, 3, z, 7, z, //
                            8, z, 12, z, 9, z, 13, z, 10, z, 14, z, 11, z, 15, z);
}

// Four 16-bit weights as (w0, w1) x 4 in the low lane and (w2, w3) x 4 in the high one.
__m256i weight_pairs(const int16_t *weights) {
    const __m128i four = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(weights));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_shuffle_epi32(four, 0x00)), _mm_shuffle_epi32(four, 0x55),
                                   1);
}

__m256i joined(__m256i high, __m256i low) {
    return _mm256_add_epi32(_mm256_slli_epi32(high, kLowBits), low);
}

__m256i four_pixels(const uint8_t *pixels, __m256i pairs) {
    const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i *>(pixels));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(four), pairs);
}

// Adds the two lanes of four pixels' sums, rounds and clamps.
__m128i finish_four(__m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i half = _mm256_set1_epi32(kHalf);
    const __m256i ab = _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
    const __m256i cd = _mm256_add_epi32(_mm256_permute2x128_si256(c, d, 0x20), _mm256_permute2x128_si256(c, d, 0x31));
    const __m256i words = _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(ab, half), kWeightBits),
                                             _mm256_srai_epi32(_mm256_add_epi32(cd, half), kWeightBits));
    // Per lane: (a, c) and (b, d) as bytes.
    const __m256i bytes = _mm256_packus_epi16(words, words);
    const __m128i ac = _mm256_castsi256_si128(bytes), bd = _mm256_extracti128_si256(bytes, 1);
    return _mm_unpacklo_epi32(ac, bd);
}

// Four rows at once, so that each weight is loaded once.  kTaps: 4, or 0 for any multiple of it.
template <int kTaps> void horizontal_four(const uint8_t *const source[4], const Axis &axis, uint8_t *const out[4]) {
    const __m256i pairs = pixel_pairs();
    const int taps = kTaps != 0 ? kTaps : axis.taps();
    const int16_t *high = axis.high(0), *low = axis.low(0);
    for (int x = 0; x < axis.results(); ++x) {
        const ptrdiff_t first = static_cast<ptrdiff_t>(axis.first(x)) * kPixelBytes;
        __m256i highs[4], lows[4];
        const __m256i h = weight_pairs(high), l = weight_pairs(low);
        for (int row = 0; row < 4; ++row) {
            const __m256i values = four_pixels(source[row] + first, pairs);
            highs[row] = _mm256_madd_epi16(values, h);
            lows[row] = _mm256_madd_epi16(values, l);
        }
        for (int tap = 4; tap < taps; tap += 4) {
            const __m256i more_h = weight_pairs(high + tap), more_l = weight_pairs(low + tap);
            for (int row = 0; row < 4; ++row) {
                const __m256i values = four_pixels(source[row] + first + tap * kPixelBytes, pairs);
                highs[row] = _mm256_add_epi32(highs[row], _mm256_madd_epi16(values, more_h));
                lows[row] = _mm256_add_epi32(lows[row], _mm256_madd_epi16(values, more_l));
            }
        }
        high += taps;
        low += taps;
        const __m128i pixels = finish_four(joined(highs[0], lows[0]), joined(highs[1], lows[1]),
                                           joined(highs[2], lows[2]), joined(highs[3], lows[3]));
        const int four[4] = {_mm_cvtsi128_si32(pixels), _mm_extract_epi32(pixels, 1), _mm_extract_epi32(pixels, 2),
                             _mm_extract_epi32(pixels, 3)};
        for (int row = 0; row < 4; ++row)
            std::memcpy(out[row] + static_cast<ptrdiff_t>(x) * kPixelBytes, four + row, 4);
    }
}

void horizontal(const Rows &source, const Axis &axis, uint8_t *results, ptrdiff_t result_stride) {
    if (axis.taps() % 4 != 0) { // a source narrower than four pixels, or identity
        kPlainKernels.horizontal(source, axis, results, result_stride);
        return;
    }
    for (int y = 0; y < source.height; y += 4) {
        const uint8_t *from[4];
        uint8_t *to[4];
        for (int row = 0; row < 4; ++row) { // beyond the last row: the last row again
            const int at = y + row < source.height ? y + row : source.height - 1;
            from[row] = source.row(at);
            to[row] = results + at * result_stride;
        }
        if (axis.taps() == 4)
            horizontal_four<4>(from, axis, to);
        else
            horizontal_four<0>(from, axis, to);
    }
}

__m256i load(const uint8_t *from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
}

__m256i rounded(__m256i high, __m256i low) {
    const __m256i sum = _mm256_add_epi32(joined(high, low), _mm256_set1_epi32(kHalf));
    return _mm256_srai_epi32(sum, kWeightBits);
}

void vertical_32(const uint8_t *source, ptrdiff_t stride, const int32_t *weights, int taps, uint8_t *out) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i high[4] = {zero, zero, zero, zero}, low[4] = {zero, zero, zero, zero};
    for (int tap = 0; tap < taps; tap += 2) {
        const bool pair = tap + 1 < taps;
        const int32_t w0 = weights[tap], w1 = pair ? weights[tap + 1] : 0;
        constexpr int32_t mask = (1 << kLowBits) - 1;
        const __m256i h = _mm256_set1_epi32(static_cast<int32_t>(static_cast<uint32_t>(w1 >> kLowBits) << 16) |
                                            ((w0 >> kLowBits) & 0xFFFF));
        const __m256i l = _mm256_set1_epi32(((w1 & mask) << 16) | (w0 & mask));
        const __m256i a = load(source + tap * stride);
        const __m256i b = pair ? load(source + (tap + 1) * stride) : a;
        const __m256i ab[2] = {_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)};
        for (int i = 0; i < 4; ++i) {
            const __m256i values =
                i % 2 == 0 ? _mm256_unpacklo_epi8(ab[i / 2], zero) : _mm256_unpackhi_epi8(ab[i / 2], zero);
            high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(values, h));
            low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(values, l));
        }
    }
    const __m256i first = _mm256_packs_epi32(rounded(high[0], low[0]), rounded(high[1], low[1]));
    const __m256i second = _mm256_packs_epi32(rounded(high[2], low[2]), rounded(high[3], low[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(out), _mm256_packus_epi16(first, second));
}

void vertical(const uint8_t *source, ptrdiff_t stride, const Axis &axis, int result, uint8_t *out, int bytes) {
    if (bytes < 32) {
        kPlainKernels.vertical(source, stride, axis, result, out, bytes);
        return;
    }
    const int32_t *weights = axis.weights(result);
    int taps = axis.taps();
    while (taps > 1 && weights[taps - 1] == 0) // padding
        --taps;
    for (int i = 0; i < bytes; i += 32) {
        const int at = i + 32 <= bytes ? i : bytes - 32; // the last block overlaps
        vertical_32(source + at, stride, weights, taps, out + at);
    }
}

// 16 bytes are read for 12 that count, so the last pixels go another way.
void unpack(const uint8_t *rgb, int count, uint8_t *pixels) {
    const __m128i order = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    int i = 0;
    for (; i + 6 <= count; i += 4) {
        const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i *>(rgb + i * 3));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(pixels + i * kPixelBytes), _mm_shuffle_epi8(four, order));
    }
    kPlainKernels.unpack(rgb + i * 3, count - i, pixels + i * kPixelBytes);
}

// 16 bytes are written for 12 that count, so the last pixels go another way.
void pack(const uint8_t *pixels, int count, uint8_t *rgb) {
    const __m128i order = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    int i = 0;
    for (; i + 6 <= count; i += 4) {
        const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i *>(pixels + i * kPixelBytes));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(rgb + i * 3), _mm_shuffle_epi8(four, order));
    }
    kPlainKernels.pack(pixels + i * kPixelBytes, count - i, rgb + i * 3);
}

void split(const uint8_t *pixels, int count, uint8_t *red, uint8_t *green, uint8_t *blue) {
    const __m256i by_channel =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i across = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    int i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m256i eight = _mm256_shuffle_epi8(load(pixels + i * kPixelBytes), by_channel);
        const __m256i planes = _mm256_permutevar8x32_epi32(eight, across);
        const __m128i rg = _mm256_castsi256_si128(planes);
        const __m128i bx = _mm256_extracti128_si256(planes, 1);
        _mm_storel_epi64(reinterpret_cast<__m128i *>(red + i), rg);
        _mm_storel_epi64(reinterpret_cast<__m128i *>(green + i), _mm_srli_si128(rg, 8));
        _mm_storel_epi64(reinterpret_cast<__m128i *>(blue + i), bx);
    }
    kPlainKernels.split(pixels + i * kPixelBytes, count - i, red + i, green + i, blue + i);
}

void reverse(const uint8_t *pixels, int count, uint8_t *reversed) {
    const __m256i order = _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    int i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(reversed + (count - i - 8) * kPixelBytes),
                            _mm256_permutevar8x32_epi32(load(pixels + i * kPixelBytes), order));
    kPlainKernels.reverse(pixels + i * kPixelBytes, count - i, reversed);
}

} // namespace

const Kernels kAvx2Kernels = {"AVX2", horizontal, vertical, unpack, pack, split, reverse};

} // namespace fastdata

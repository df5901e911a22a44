// AVX2: two taps per multiplication, by pmaddwd on the high and low halves of the weights.
#include "kernels/kernels.h"
#include "kernels/normals.h"
#include "kernels/pixel_loops.h"
#include "kernels/unpacked_tile.h"
#include "kernels/warp_pixels.h"

#include <algorithm>
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

// Two pixels of each of two rows, as 16-bit pairs (p0, p1) of every channel; one row in each lane.
__m256i two_pixels(const uint8_t *one, const uint8_t *other) {
    constexpr char z = -128;
    const __m128i order = _mm_setr_epi8(0, z, 4, z, 1, z, 5, z, 2, z, 6, z, 3, z, 7, z);
    const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(one));
    const __m128i high = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(other));
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    return _mm256_shuffle_epi8(both, _mm256_broadcastsi128_si256(order));
}

__m256i weight_pair(const int16_t *weights) {
    int32_t pair;
    std::memcpy(&pair, weights, sizeof pair);
    return _mm256_set1_epi32(pair);
}

__m256i rounded(__m256i high, __m256i low) {
    const __m256i sum = _mm256_add_epi32(joined(high, low), _mm256_set1_epi32(kHalf));
    return _mm256_srai_epi32(sum, kWeightBits);
}

// Enlarging by the triangle needs two taps: four rows at once, two in each register.
void horizontal_two_taps(const uint8_t *const source[4], const Axis &axis, uint8_t *const out[4]) {
    const int16_t *high = axis.high(0), *low = axis.low(0);
    for (int x = 0; x < axis.results(); ++x, high += 2, low += 2) {
        const ptrdiff_t first = static_cast<ptrdiff_t>(axis.first(x)) * kPixelBytes;
        const __m256i h = weight_pair(high), l = weight_pair(low);
        const __m256i a = two_pixels(source[0] + first, source[1] + first);
        const __m256i b = two_pixels(source[2] + first, source[3] + first);
        const __m256i words = _mm256_packs_epi32(rounded(_mm256_madd_epi16(a, h), _mm256_madd_epi16(a, l)),
                                                 rounded(_mm256_madd_epi16(b, h), _mm256_madd_epi16(b, l)));
        // Rows 0 and 2 in the low lane, 1 and 3 in the high one.
        const __m256i bytes = _mm256_packus_epi16(words, words);
        const uint64_t even = static_cast<uint64_t>(_mm256_extract_epi64(bytes, 0));
        const uint64_t odd = static_cast<uint64_t>(_mm256_extract_epi64(bytes, 2));
        const uint32_t four[4] = {static_cast<uint32_t>(even), static_cast<uint32_t>(odd),
                                  static_cast<uint32_t>(even >> 32), static_cast<uint32_t>(odd >> 32)};
        for (int row = 0; row < 4; ++row)
            std::memcpy(out[row] + static_cast<ptrdiff_t>(x) * kPixelBytes, four + row, sizeof four[row]);
    }
}

void horizontal(const Rows &source, const Axis &axis, uint8_t *results, ptrdiff_t result_stride) {
    if (axis.taps() % 4 != 0 && axis.taps() != 2) { // a source narrower than four pixels, or identity
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
        if (axis.taps() == 2)
            horizontal_two_taps(from, axis, to);
        else if (axis.taps() == 4)
            horizontal_four<4>(from, axis, to);
        else
            horizontal_four<0>(from, axis, to);
    }
}

__m256i load(const uint8_t *from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
}

constexpr int kBlock = 32;
constexpr int kPairsAtOnce = 4; // whose weights stay in registers

// Two rows and their weights, the higher and the lower half of each.
struct RowPair {
    const uint8_t *first, *second;
    __m256i high, low;
};

RowPair row_pair(const uint8_t *source, ptrdiff_t stride, const int32_t *weights, int taps) {
    const bool two = taps > 1;
    const int32_t w0 = weights[0], w1 = two ? weights[1] : 0;
    constexpr int32_t mask = (1 << kLowBits) - 1;
    return {source, two ? source + stride : source,
            _mm256_set1_epi32(
                static_cast<int32_t>(static_cast<uint32_t>(w1 >> kLowBits) << 16 | ((w0 >> kLowBits) & 0xFFFF))),
            _mm256_set1_epi32((w1 & mask) << 16 | (w0 & mask))};
}

// Sums of 32 bytes, four at a time in the order that packing puts right.
struct BlockSums {
    __m256i high[4], low[4];
};

// kFirst: the sums begin here.
template <bool kFirst> void add_rows(const RowPair &rows, int at, BlockSums &sums) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i a = load(rows.first + at), b = load(rows.second + at);
    const __m256i ab[2] = {_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)};
    for (int i = 0; i < 4; ++i) {
        const __m256i values =
            i % 2 == 0 ? _mm256_unpacklo_epi8(ab[i / 2], zero) : _mm256_unpackhi_epi8(ab[i / 2], zero);
        const __m256i high = _mm256_madd_epi16(values, rows.high), low = _mm256_madd_epi16(values, rows.low);
        sums.high[i] = kFirst ? high : _mm256_add_epi32(sums.high[i], high);
        sums.low[i] = kFirst ? low : _mm256_add_epi32(sums.low[i], low);
    }
}

void store_block(const BlockSums &sums, uint8_t *out) {
    const __m256i first = _mm256_packs_epi32(rounded(sums.high[0], sums.low[0]), rounded(sums.high[1], sums.low[1]));
    const __m256i second = _mm256_packs_epi32(rounded(sums.high[2], sums.low[2]), rounded(sums.high[3], sums.low[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(out), _mm256_packus_epi16(first, second));
}

template <int kPairs> void vertical_pairs(const RowPair *pairs, int bytes, uint8_t *out) {
    RowPair rows[kPairs];
    std::copy_n(pairs, kPairs, rows);
    for (int i = 0; i < bytes; i += kBlock) {
        const int at = std::min(i, bytes - kBlock); // the last block overlaps
        BlockSums sums;
        add_rows<true>(rows[0], at, sums);
        for (int pair = 1; pair < kPairs; ++pair)
            add_rows<false>(rows[pair], at, sums);
        store_block(sums, out + at);
    }
}

void vertical_many(const uint8_t *source, ptrdiff_t stride, const int32_t *weights, int taps, int bytes, uint8_t *out) {
    for (int i = 0; i < bytes; i += kBlock) {
        const int at = std::min(i, bytes - kBlock);
        BlockSums sums;
        add_rows<true>(row_pair(source, stride, weights, taps), at, sums);
        for (int tap = 2; tap < taps; tap += 2)
            add_rows<false>(row_pair(source + tap * stride, stride, weights + tap, taps - tap), at, sums);
        store_block(sums, out + at);
    }
}

void vertical(const uint8_t *source, ptrdiff_t stride, const Axis &axis, int result, uint8_t *out, int bytes) {
    if (bytes < kBlock) {
        kPlainKernels.vertical(source, stride, axis, result, out, bytes);
        return;
    }
    const int32_t *weights = axis.weights(result);
    int taps = axis.taps();
    while (taps > 1 && weights[taps - 1] == 0) // padding
        --taps;
    while (taps > 1 && weights[0] == 0) {
        ++weights;
        source += stride;
        --taps;
    }
    RowPair pairs[kPairsAtOnce];
    const int count = (taps + 1) / 2;
    for (int pair = 0; pair < std::min(count, kPairsAtOnce); ++pair)
        pairs[pair] = row_pair(source + 2 * pair * stride, stride, weights + 2 * pair, taps - 2 * pair);
    switch (count) {
    case 1:
        return vertical_pairs<1>(pairs, bytes, out);
    case 2:
        return vertical_pairs<2>(pairs, bytes, out);
    case 3:
        return vertical_pairs<3>(pairs, bytes, out);
    case 4:
        return vertical_pairs<4>(pairs, bytes, out);
    default:
        return vertical_many(source, stride, weights, taps, bytes, out);
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

void weighted_sum(const float *rows, size_t step, const float *weights, int taps, float *sums, size_t count) {
    constexpr size_t kAtOnce = 32;
    size_t i = 0;
    for (; i + kAtOnce <= count; i += kAtOnce) {
        __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
        for (int tap = 0; tap < taps; ++tap) {
            const __m256 weight = _mm256_set1_ps(weights[tap]);
            const float *const row = rows + static_cast<size_t>(tap) * step + i;
            for (size_t part = 0; part < 4; ++part)
                sum[part] = _mm256_add_ps(sum[part], _mm256_mul_ps(weight, _mm256_loadu_ps(row + 8 * part)));
        }
        for (size_t part = 0; part < 4; ++part)
            _mm256_storeu_ps(sums + i + 8 * part, sum[part]);
    }
    kPlainKernels.weighted_sum(rows + i, step, weights, taps, sums + i, count - i);
}

// A pixel's four channels.
__m256d doubles_of(__m128i pixels) {
    return _mm256_cvtepi32_pd(_mm_cvtepu8_epi32(pixels));
}

// Cut off; all are from 0 to 255.
void store_doubles(__m256d channels, uint8_t *to) {
    const __m128i words = _mm256_cvttpd_epi32(channels);
    const __m128i bytes = _mm_packus_epi16(_mm_packus_epi32(words, words), words);
    const int pixel = _mm_cvtsi128_si32(bytes);
    std::memcpy(to, &pixel, sizeof pixel);
}

__m256d between(__m256d one, __m256d other, __m256d share) {
    return _mm256_add_pd(one, _mm256_mul_pd(_mm256_sub_pd(other, one), share));
}

void bilinear(const Rows &image, const Places &places, uint8_t *row) {
    for (int i = 0; i < places.count; ++i) {
        uint8_t *const to = row + places.columns[i] * kPixelBytes;
        const Corner corner(places.x[i], places.y[i]);
        if (corner.x < 0 || corner.y < 0 || corner.x + 1 >= image.width || corner.y + 1 >= image.height) {
            bilinear_pixel(image, corner, to);
            continue;
        }
        const uint8_t *const first = image.row(corner.y) + corner.x * kPixelBytes;
        const __m128i above = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(first));
        const __m128i below = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(first + image.stride_bytes));
        const __m256d right = _mm256_set1_pd(corner.right);
        const __m256d high = between(doubles_of(above), doubles_of(_mm_srli_si128(above, 4)), right);
        const __m256d low = between(doubles_of(below), doubles_of(_mm_srli_si128(below, 4)), right);
        store_doubles(between(high, low, _mm256_set1_pd(corner.down)), to);
    }
}

__m256d cubic_four(__m256d before, __m256d first, __m256d second, __m256d after, __m256d share) {
    const __m256d slope = _mm256_sub_pd(second, before);
    const __m256d twice = _mm256_mul_pd(_mm256_set1_pd(2.0), _mm256_sub_pd(before, first));
    const __m256d bend = _mm256_sub_pd(_mm256_add_pd(twice, second), after);
    const __m256d turn = _mm256_add_pd(_mm256_sub_pd(_mm256_sub_pd(first, before), second), after);
    const __m256d inner = _mm256_add_pd(bend, _mm256_mul_pd(share, turn));
    return _mm256_add_pd(first, _mm256_mul_pd(share, _mm256_add_pd(slope, _mm256_mul_pd(share, inner))));
}

void bicubic(const Rows &image, const Places &places, uint8_t *row) {
    for (int i = 0; i < places.count; ++i) {
        uint8_t *const to = row + places.columns[i] * kPixelBytes;
        const Corner corner(places.x[i], places.y[i]);
        if (corner.x < 1 || corner.y < 1 || corner.x + 2 >= image.width || corner.y + 2 >= image.height) {
            bicubic_pixel(image, corner, to);
            continue;
        }
        const uint8_t *from = image.row(corner.y - 1) + (corner.x - 1) * kPixelBytes;
        const __m256d right = _mm256_set1_pd(corner.right);
        __m256d rows[4];
        for (__m256d &each : rows) {
            const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
            each = cubic_four(doubles_of(four), doubles_of(_mm_srli_si128(four, 4)),
                              doubles_of(_mm_srli_si128(four, 8)), doubles_of(_mm_srli_si128(four, 12)), right);
            from += image.stride_bytes;
        }
        const __m256d value = cubic_four(rows[0], rows[1], rows[2], rows[3], _mm256_set1_pd(corner.down));
        store_doubles(_mm256_min_pd(_mm256_max_pd(value, _mm256_setzero_pd()), _mm256_set1_pd(255.0)), to);
    }
}

} // namespace

const Kernels kAvx2Kernels = {"AVX2",           horizontal,        vertical,       unpack,  pack,         split,
                              reverse,          weighted_sum,      bilinear,       bicubic, kEffectLoops, normals,
                              read_blocks_avx2, write_groups_avx2, &kAvx2JpegLoops};

} // namespace fastdata

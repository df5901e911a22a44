// AVX2: two blocks at once, one in each lane; 16 or 32 samples of a row.
#include "kernels/jpeg_loops.h"

#include <cstring>
#include <immintrin.h>

namespace fastdata {
namespace {

using C = DctConstants;

__m256i pair_of(int first, int second) {
    return _mm256_set1_epi32(
        static_cast<int>(static_cast<uint32_t>(static_cast<uint16_t>(first)) | static_cast<uint32_t>(second) << 16));
}

// 16-bit numbers of two registers side by side, and what sums of their products are.
struct Sums {
    __m256i low, high; // 32 bits

    Sums operator+(const Sums &other) const {
        return {_mm256_add_epi32(low, other.low), _mm256_add_epi32(high, other.high)};
    }
    Sums operator-(const Sums &other) const {
        return {_mm256_sub_epi32(low, other.low), _mm256_sub_epi32(high, other.high)};
    }
};

Sums side_by_side(__m256i a, __m256i b) {
    return {_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)};
}

Sums products(const Sums &pairs, __m256i constants) {
    return {_mm256_madd_epi16(pairs.low, constants), _mm256_madd_epi16(pairs.high, constants)};
}

Sums scaled(__m256i value) { // times 2^13
    constexpr int down = 16 - C::kBits;
    const Sums above = side_by_side(_mm256_setzero_si256(), value);
    return {_mm256_srai_epi32(above.low, down), _mm256_srai_epi32(above.high, down)};
}

template <int kShift> __m256i descaled(const Sums &sums) {
    const __m256i half = _mm256_set1_epi32(1 << (kShift - 1));
    return _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(sums.low, half), kShift),
                              _mm256_srai_epi32(_mm256_add_epi32(sums.high, half), kShift));
}

// What both halves of a pass give is their sum and their difference.
template <int kShift> void store_eight(const Sums (&sum)[4], const Sums (&odd)[4], __m256i (&v)[8]) {
    for (int i = 0; i < 4; ++i) {
        v[i] = descaled<kShift>(sum[i] + odd[i]);
        v[7 - i] = descaled<kShift>(sum[i] - odd[i]);
    }
}

// One pass; each register has a row of both blocks.
template <int kShift> void idct_pass(__m256i (&v)[8]) {
    const Sums v26 = side_by_side(v[2], v[6]);
    const Sums even2 = products(v26, pair_of(C::k0_541, C::k0_541 - C::k1_847));
    const Sums even3 = products(v26, pair_of(C::k0_541 + C::k0_765, C::k0_541));
    const Sums even0 = scaled(_mm256_add_epi16(v[0], v[4])), even1 = scaled(_mm256_sub_epi16(v[0], v[4]));
    const Sums sum[4] = {even0 + even3, even1 + even2, even1 - even2, even0 - even3};
    const Sums z34 = side_by_side(_mm256_add_epi16(v[7], v[3]), _mm256_add_epi16(v[5], v[1]));
    const Sums z3 = products(z34, pair_of(C::k1_175 - C::k1_961, C::k1_175));
    const Sums z4 = products(z34, pair_of(C::k1_175, C::k1_175 - C::k0_390));
    const Sums v71 = side_by_side(v[7], v[1]), v53 = side_by_side(v[5], v[3]);
    const Sums odd[4] = {
        products(v71, pair_of(-C::k0_899, C::k1_501 - C::k0_899)) + z4,
        products(v53, pair_of(-C::k2_562, C::k3_072 - C::k2_562)) + z3,
        products(v53, pair_of(C::k2_053 - C::k2_562, -C::k2_562)) + z4,
        products(v71, pair_of(C::k0_298 - C::k0_899, -C::k0_899)) + z3,
    };
    store_eight<kShift>(sum, odd, v);
}

// The same where the last four are zeros: the rotations of what is left, multiplied out.
template <int kShift> void idct_half_pass(__m256i (&v)[8]) {
    constexpr int one = 1 << C::kBits, third = C::k0_541 + C::k0_765;
    const Sums v02 = side_by_side(v[0], v[2]), v13 = side_by_side(v[1], v[3]);
    const Sums sum[4] = {products(v02, pair_of(one, third)), products(v02, pair_of(one, C::k0_541)),
                         products(v02, pair_of(one, -C::k0_541)), products(v02, pair_of(one, -third))};
    constexpr int of_z3 = C::k1_175 - C::k1_961, of_z4 = C::k1_175 - C::k0_390;
    const Sums odd[4] = {products(v13, pair_of(C::k1_501 - C::k0_899 + of_z4, C::k1_175)),
                         products(v13, pair_of(C::k1_175, C::k3_072 - C::k2_562 + of_z3)),
                         products(v13, pair_of(of_z4, C::k1_175 - C::k2_562)),
                         products(v13, pair_of(C::k1_175 - C::k0_899, of_z3))};
    store_eight<kShift>(sum, odd, v);
}

template <int kShift> void idct_any_pass(__m256i (&v)[8]) {
    const __m256i last = _mm256_or_si256(_mm256_or_si256(v[4], v[5]), _mm256_or_si256(v[6], v[7]));
    if (_mm256_testz_si256(last, last) != 0)
        idct_half_pass<kShift>(v);
    else
        idct_pass<kShift>(v);
}

// Rows become columns, in each lane.
void transpose(__m256i (&v)[8]) {
    __m256i a[8], b[8];
    for (int i = 0; i < 4; ++i) {
        a[2 * i] = _mm256_unpacklo_epi16(v[2 * i], v[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi16(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i)
        for (int half = 0; half < 2; ++half) {
            b[4 * i + 2 * half] = _mm256_unpacklo_epi32(a[4 * i + half], a[4 * i + 2 + half]);
            b[4 * i + 2 * half + 1] = _mm256_unpackhi_epi32(a[4 * i + half], a[4 * i + 2 + half]);
        }
    for (int i = 0; i < 4; ++i) {
        v[2 * i] = _mm256_unpacklo_epi64(b[i], b[4 + i]);
        v[2 * i + 1] = _mm256_unpackhi_epi64(b[i], b[4 + i]);
    }
}

__m128i load_row(const void *from, int row) {
    return _mm_load_si128(static_cast<const __m128i *>(from) + row);
}

__m256i both(__m128i low, __m128i high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

void store_rows(const IdctBlock &block, int row, __m128i two) {
    _mm_storel_epi64(reinterpret_cast<__m128i *>(block.out + row * block.stride), two);
    _mm_storeh_pd(reinterpret_cast<double *>(block.out + (row + 1) * block.stride), _mm_castsi128_pd(two));
}

void idct_two(const IdctBlock &one, const IdctBlock &other) {
    __m256i v[8];
    for (int row = 0; row < 8; ++row)
        v[row] = _mm256_mullo_epi16(both(load_row(one.coefficients, row), load_row(other.coefficients, row)),
                                    both(load_row(one.steps, row), load_row(other.steps, row)));
    idct_any_pass<C::kFirstShift>(v);
    transpose(v);
    idct_any_pass<C::kSecondShift>(v);
    // Register i has column i.  Bytes of columns side by side, two, four and eight of them.
    const __m256i centre = _mm256_set1_epi8(-128);
    __m256i bytes[4], two[4];
    for (int i = 0; i < 4; ++i)
        bytes[i] = _mm256_xor_si256(_mm256_packs_epi16(v[i], v[i + 4]), centre);
    for (int i = 0; i < 2; ++i) {
        two[i] = _mm256_unpacklo_epi8(bytes[2 * i], bytes[2 * i + 1]);
        two[2 + i] = _mm256_unpackhi_epi8(bytes[2 * i], bytes[2 * i + 1]);
    }
    for (int half = 0; half < 2; ++half) {
        const __m256i four = half == 0 ? _mm256_unpacklo_epi16(two[0], two[1]) : _mm256_unpackhi_epi16(two[0], two[1]);
        const __m256i next = half == 0 ? _mm256_unpacklo_epi16(two[2], two[3]) : _mm256_unpackhi_epi16(two[2], two[3]);
        const __m256i first = _mm256_unpacklo_epi32(four, next), second = _mm256_unpackhi_epi32(four, next);
        store_rows(one, 4 * half, _mm256_castsi256_si128(first));
        store_rows(other, 4 * half, _mm256_extracti128_si256(first, 1));
        store_rows(one, 4 * half + 2, _mm256_castsi256_si128(second));
        store_rows(other, 4 * half + 2, _mm256_extracti128_si256(second, 1));
    }
}

bool is_flat(const IdctBlock &block) {
    __m128i any = load_row(block.coefficients, 1);
    for (int row = 2; row < kBlockEdge; ++row)
        any = _mm_or_si128(any, load_row(block.coefficients, row));
    return _mm_testz_si128(any, any) != 0;
}

void idct(const IdctBlock *blocks, int count) {
    const IdctBlock *waiting = nullptr;
    for (const IdctBlock *block = blocks; block != blocks + count; ++block) {
        if (is_flat(*block)) {
            idct_flat(*block);
        } else if (waiting == nullptr) {
            waiting = block;
        } else {
            idct_two(*waiting, *block);
            waiting = nullptr;
        }
    }
    if (waiting != nullptr)
        idct_two(*waiting, *waiting);
}

__m256i words(const uint8_t *from) { // 16 bytes
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
}

__m256i three_times(__m256i value) {
    return _mm256_add_epi16(value, _mm256_add_epi16(value, value));
}

// value, before, behind: 16 sums of which each makes two samples, written one after the other.
template <int kShift>
void store_widened(__m256i value, __m256i before, __m256i behind, int first_half, int second_half, uint8_t *out) {
    const __m256i most = three_times(value);
    const __m256i even = _mm256_srli_epi16(
        _mm256_add_epi16(_mm256_add_epi16(most, before), _mm256_set1_epi16(static_cast<int16_t>(first_half))), kShift);
    const __m256i odd = _mm256_srli_epi16(
        _mm256_add_epi16(_mm256_add_epi16(most, behind), _mm256_set1_epi16(static_cast<int16_t>(second_half))), kShift);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(out), _mm256_or_si256(even, _mm256_slli_epi16(odd, 8)));
}

void widen(const uint8_t *first, int count, uint8_t *out) {
    for (int i = 0; i < count; i += 16)
        store_widened<2>(words(first + i), words(first + i - 1), words(first + i + 1), 1, 2, out + 2 * i);
}

void widen_between(const uint8_t *near, const uint8_t *far, int count, uint8_t *out) {
    const auto between = [near, far](int i) { return _mm256_add_epi16(three_times(words(near + i)), words(far + i)); };
    for (int i = 0; i < count; i += 16)
        store_widened<4>(between(i), between(i - 1), between(i + 1), 8, 7, out + 2 * i);
}

// (value * constant + 2^15) >> 16, where the constant has at most 15 bits and the value nine.
__m256i times(__m256i value, int constant) {
    const __m256i twice =
        _mm256_mulhi_epi16(_mm256_add_epi16(value, value), _mm256_set1_epi16(static_cast<int16_t>(constant)));
    return _mm256_srai_epi16(_mm256_add_epi16(twice, _mm256_set1_epi16(1)), 1);
}

// Of 16-bit levels 16 pixels.
struct Colours {
    __m256i red, green, blue;
};

Colours colours(const uint8_t *luma, const uint8_t *blue, const uint8_t *red) {
    constexpr int one = 1 << 16;
    const __m256i centre = _mm256_set1_epi16(128), half = _mm256_set1_epi32(one / 2);
    const __m256i y = words(luma), cb = _mm256_sub_epi16(words(blue), centre),
                  cr = _mm256_sub_epi16(words(red), centre);
    const Sums green =
        products(side_by_side(cb, cr), pair_of(-ColourConstants::kGreenOfBlue, one - ColourConstants::kGreenOfRed));
    const __m256i of_both = _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(green.low, half), 16),
                                               _mm256_srai_epi32(_mm256_add_epi32(green.high, half), 16));
    const __m256i of_red = _mm256_add_epi16(cr, times(cr, ColourConstants::kRedOfRed - one));
    const __m256i of_blue =
        _mm256_add_epi16(_mm256_add_epi16(cb, cb), times(cb, ColourConstants::kBlueOfBlue - 2 * one));
    return {_mm256_add_epi16(y, of_red), _mm256_sub_epi16(_mm256_add_epi16(y, of_both), cr),
            _mm256_add_epi16(y, of_blue)};
}

// 16-byte parts of both lanes in the order of the pixels.
void store_pixels(uint8_t *pixels, __m256i red_green, __m256i blue_full) {
    const __m256i low = _mm256_unpacklo_epi16(red_green, blue_full);
    const __m256i high = _mm256_unpackhi_epi16(red_green, blue_full);
    auto *const out = reinterpret_cast<__m256i *>(pixels);
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(low, high, 0x31));
}

void to_rgb(const uint8_t *luma, const uint8_t *blue, const uint8_t *red, int count, uint8_t *pixels) {
    const __m256i full = _mm256_set1_epi16(255);
    for (int i = 0; i < count; i += 16) {
        const Colours of = colours(luma + i, blue + i, red + i);
        // Per lane: eight reds, eight greens; eight blues, eight full.
        const __m256i rg = _mm256_packus_epi16(of.red, of.green), bx = _mm256_packus_epi16(of.blue, full);
        const __m256i red_green = _mm256_unpacklo_epi8(rg, _mm256_srli_si256(rg, 8));
        const __m256i blue_full = _mm256_unpacklo_epi8(bx, _mm256_srli_si256(bx, 8));
        store_pixels(pixels + 4 * i, red_green, blue_full);
    }
}

void grey_to_rgb(const uint8_t *luma, int count, uint8_t *pixels) {
    const __m256i full = _mm256_set1_epi16(-256);
    for (int i = 0; i < count; i += 16) {
        const __m256i y = words(luma + i);
        store_pixels(pixels + 4 * i, _mm256_or_si256(y, _mm256_slli_epi16(y, 8)), _mm256_or_si256(y, full));
    }
}

} // namespace

const JpegLoops kAvx2JpegLoops = {idct, widen, widen_between, to_rgb, grey_to_rgb};

} // namespace fastdata

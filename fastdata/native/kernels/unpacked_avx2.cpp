// Groups of open coefficients: eight values at once.
#include "kernels/unpacked_tables.h"

#include <immintrin.h>

namespace fastdata {
namespace {

__m128i load(const void *from) {
    return _mm_load_si128(static_cast<const __m128i *>(from));
}

struct PutGroup {
    void operator()(const uint8_t *values, size_t bit, size_t kind, unsigned mask, int16_t *first) const {
        if (kind >= kNarrowKinds) [[unlikely]]
            return put_group(values, bit, kind, mask, first);
        const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i *>(values + bit / 8));
        __m128i value = _mm_shuffle_epi8(some, load(kTables.bytes[kind][bit % 8]));
        value = _mm_mullo_epi16(value, load(kTables.factors[kind][bit % 8]));
        value = _mm_sra_epi16(value, _mm_cvtsi32_si128(16 - kWidths[kind]));
        value = _mm_sub_epi16(value, _mm_cmpgt_epi16(value, _mm_set1_epi16(-1))); // 0 stands for 1
        value = _mm_shuffle_epi8(value, load(kTables.places[mask]));
        _mm_storel_epi64(reinterpret_cast<__m128i *>(first), value);
        _mm_storeh_pd(reinterpret_cast<double *>(first + kBlockWidth), _mm_castsi128_pd(value));
    }
};

} // namespace

bool write_groups_avx2(const int16_t *blocks, size_t count, TileGroups &to) {
    const __m128i zero = _mm_setzero_si128();
    for (size_t i = 0; i < count; ++i, blocks += kCoefficients) {
        __m128i row[kBlockWidth];
        for (int y = 0; y < kBlockWidth; ++y)
            row[y] = _mm_loadu_si128(reinterpret_cast<const __m128i *>(blocks + kBlockWidth * y));
        row[0] = _mm_insert_epi16(row[0], 0, 0); // the DC value
        unsigned groups = 0;
        for (int pair = 0; pair < kBlockWidth / 2; ++pair) {
            const __m128i empty = _mm_cmpeq_epi64(_mm_or_si128(row[2 * pair], row[2 * pair + 1]), zero);
            const unsigned filled = static_cast<unsigned>(_mm_movemask_pd(_mm_castsi128_pd(empty))) ^ 3U;
            groups |= (filled & 1U) << pair | (filled >> 1) << (pair + 4);
        }
        *to.groups++ = static_cast<uint8_t>(groups);
        for (; groups != 0; groups &= groups - 1) {
            const int group = std::countr_zero(groups), above = group % 4 * 2;
            const __m128i value = group < 4 ? _mm_unpacklo_epi64(row[above], row[above + 1])
                                            : _mm_unpackhi_epi64(row[above], row[above + 1]);
            const __m128i less = _mm_add_epi16(value, _mm_cmpgt_epi16(value, zero)); // by one, if it is positive
            const __m128i bits = _mm_xor_si128(less, _mm_srai_epi16(less, 15));
            const __m128i fewest = _mm_minpos_epu16(_mm_xor_si128(bits, _mm_set1_epi16(-1)));
            const auto most = static_cast<uint16_t>(~_mm_cvtsi128_si32(fewest));
            const size_t kind = kKinds[static_cast<size_t>(1 + std::bit_width(most))];
            if (kind == kWidths.size()) [[unlikely]]
                return false;
            const __m128i is_zero = _mm_packs_epi16(_mm_cmpeq_epi16(value, zero), zero);
            const unsigned mask = ~static_cast<unsigned>(_mm_movemask_epi8(is_zero)) & 0xFF;
            to.classes.put(static_cast<uint32_t>(kind), 3);
            *to.masks++ = static_cast<uint8_t>(mask);
            if (kind >= kNarrowKinds) [[unlikely]] {
                alignas(16) int16_t values[8];
                _mm_store_si128(reinterpret_cast<__m128i *>(values), less);
                put_values(values, mask, kind, to.values);
                continue;
            }
            // The values one behind the other, then pairs of them, then fours.
            const int width = kWidths[kind];
            const auto low = static_cast<int16_t>((1 << width) - 1);
            const __m128i packed =
                _mm_and_si128(_mm_shuffle_epi8(less, load(kTables.values[mask])), _mm_set1_epi16(low));
            const __m128i pairs = _mm_madd_epi16(packed, _mm_set1_epi32(1 | 1 << (16 + width)));
            const __m128i second = _mm_sll_epi64(_mm_srli_epi64(pairs, 32), _mm_cvtsi32_si128(2 * width));
            const __m128i fours = _mm_or_si128(_mm_blend_epi16(pairs, zero, 0xCC), second);
            const auto first = static_cast<uint64_t>(_mm_cvtsi128_si64(fours));
            const auto rest = static_cast<uint64_t>(_mm_extract_epi64(fours, 1));
            to.values.put(first | rest << (4 * width), std::popcount(mask) * width);
        }
    }
    return true;
}

bool read_blocks_avx2(UnpackedTile &tile, const uint8_t *component_of, int count, int16_t *const *blocks) {
    return read_blocks_by(tile, component_of, count, blocks, PutGroup{});
}

} // namespace fastdata

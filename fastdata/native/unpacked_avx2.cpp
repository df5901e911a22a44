// Groups of open coefficients: eight values at once.
#include "unpacked_tile.h"

#include <immintrin.h>

namespace fastdata {
namespace {

constexpr size_t kNarrowKinds = 7; // of width that leave a value in two bytes, wherever it begins
static_assert(kWidths[kNarrowKinds - 1] == 8 && kNarrowKinds + 1 == kWidths.size());

struct Tables {
    // For each kind of width and each bit in a byte at which the first value may begin: the bytes from which each value
    // is taken, and what moves its sign to the highest bit of them.
    alignas(16) uint8_t bytes[kNarrowKinds][8][16];
    alignas(16) uint16_t factors[kNarrowKinds][8][8];
    // For each mask: which of the values every place gets, and those that get none.
    alignas(16) int8_t places[256][16];

    constexpr Tables() : bytes{}, factors{}, places{} {
        for (size_t kind = 0; kind < kNarrowKinds; ++kind)
            for (unsigned first = 0; first < 8; ++first)
                for (unsigned i = 0; i < 8; ++i) {
                    const unsigned width = static_cast<unsigned>(kWidths[kind]), bit = first + i * width;
                    factors[kind][first][i] = static_cast<uint16_t>(1U << (16 - bit % 8 - width));
                    for (unsigned byte = 0; byte < 2; ++byte)
                        bytes[kind][first][2 * i + byte] = static_cast<uint8_t>(bit / 8 + byte);
                }
        for (unsigned mask = 0; mask < 256; ++mask) {
            int8_t value = 0;
            for (unsigned i = 0; i < 8; ++i) {
                const bool is_there = (mask >> i & 1) != 0;
                for (unsigned byte = 0; byte < 2; ++byte)
                    places[mask][2 * i + byte] = is_there ? static_cast<int8_t>(2 * value + byte) : int8_t{-1};
                value = static_cast<int8_t>(value + (is_there ? 1 : 0));
            }
        }
    }
};
constexpr Tables kTables;

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

bool read_blocks_avx2(UnpackedTile &tile, const uint8_t *component_of, int count, int16_t *const *blocks) {
    return read_blocks_by(tile, component_of, count, blocks, PutGroup{});
}

} // namespace fastdata

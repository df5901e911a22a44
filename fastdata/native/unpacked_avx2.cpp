// Groups of open coefficients: eight values at once.
#include "unpacked_tables.h"

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

bool read_blocks_avx2(UnpackedTile &tile, const uint8_t *component_of, int count, int16_t *const *blocks) {
    return read_blocks_by(tile, component_of, count, blocks, PutGroup{});
}

} // namespace fastdata

#include "crc32c.h"

#include "processor.h"

#include <array>
#include <cstring>

#if defined(FASTDATA_AVX2)
#include <immintrin.h>
#endif

namespace fastdata {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78; // reflected

constexpr std::array<uint32_t, 256> make_table() {
    std::array<uint32_t, 256> table{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit)
            crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
        table[byte] = crc;
    }
    return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

uint32_t by_table(uint32_t crc, std::span<const uint8_t> data) {
    for (const uint8_t byte : data)
        crc = crc >> 8 ^ kTable[(crc ^ byte) & 0xFF];
    return crc;
}

#if defined(FASTDATA_AVX2)

constexpr size_t kStretch = 1024; // bytes of each of three chains, since one instruction waits for the one before

// What a CRC becomes after so many zero bytes: a linear map, kept as the images of the four bytes of the CRC.
using Shift = std::array<std::array<uint32_t, 256>, 4>;

constexpr Shift make_shift(size_t zeros) {
    Shift shift{};
    for (uint32_t bit = 0; bit < 32; ++bit) {
        uint32_t crc = uint32_t{1} << bit;
        for (size_t done = 0; done < zeros; ++done)
            crc = crc >> 8 ^ kTable[crc & 0xFF];
        for (uint32_t byte = 0; byte < 256; ++byte)
            if (byte >> bit % 8 & 1)
                shift[bit / 8][byte] ^= crc;
    }
    return shift;
}

// Made by the compiler: what is made at the first call is locked meanwhile, and a child that is forked then would wait
// for a thread that it does not have.
constexpr Shift kShift = make_shift(kStretch);

uint32_t shifted(const Shift &shift, uint32_t crc) {
    return shift[0][crc & 0xFF] ^ shift[1][crc >> 8 & 0xFF] ^ shift[2][crc >> 16 & 0xFF] ^ shift[3][crc >> 24];
}

uint64_t load(const uint8_t *from) {
    uint64_t word;
    std::memcpy(&word, from, sizeof word);
    return word;
}

__attribute__((target("sse4.2,crc32"))) uint32_t by_instruction(uint32_t crc, std::span<const uint8_t> data) {
    while (data.size() >= 3 * kStretch) {
        uint64_t first = crc, second = 0, third = 0;
        for (size_t at = 0; at < kStretch; at += sizeof(uint64_t)) {
            first = _mm_crc32_u64(first, load(data.data() + at));
            second = _mm_crc32_u64(second, load(data.data() + kStretch + at));
            third = _mm_crc32_u64(third, load(data.data() + 2 * kStretch + at));
        }
        const uint32_t two = shifted(kShift, static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second);
        crc = shifted(kShift, two) ^ static_cast<uint32_t>(third);
        data = data.subspan(3 * kStretch);
    }
    for (; data.size() >= sizeof(uint64_t); data = data.subspan(sizeof(uint64_t)))
        crc = static_cast<uint32_t>(_mm_crc32_u64(crc, load(data.data())));
    return by_table(crc, data);
}

const bool kHasInstruction = has_sse42();

#endif

} // namespace

uint32_t crc32c(std::span<const uint8_t> data) {
#if defined(FASTDATA_AVX2)
    if (kHasInstruction)
        return ~by_instruction(~uint32_t{0}, data);
#endif
    return ~by_table(~uint32_t{0}, data);
}

} // namespace fastdata

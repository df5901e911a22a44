#include "base/crc32c.h"

#include "base/processor.h"

#include <array>
#include <cstring>

#if defined(FASTDATA_AVX2)
#include <immintrin.h>
#endif
#if defined(FASTDATA_AVX2) || (defined(FASTDATA_NEON) && defined(__GNUC__))
#define FASTDATA_BY_INSTRUCTION
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

#if defined(FASTDATA_BY_INSTRUCTION)

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
    std::memcpy(&word, from, sizeof word); // little-endian, as all processors that this is built for
    return word;
}

#if defined(FASTDATA_AVX2)
#define FASTDATA_HAS_CRC __attribute__((target("sse4.2,crc32")))

FASTDATA_HAS_CRC uint32_t with_word(uint32_t crc, uint64_t word) {
    return static_cast<uint32_t>(_mm_crc32_u64(crc, word));
}

const bool kHasInstruction = has_sse42();
#else
#define FASTDATA_HAS_CRC

uint32_t with_word(uint32_t crc, uint64_t word) {
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}

const bool kHasInstruction = has_crc32();
#endif

FASTDATA_HAS_CRC uint32_t by_instruction(uint32_t crc, std::span<const uint8_t> data) {
    while (data.size() >= 3 * kStretch) {
        uint32_t first = crc, second = 0, third = 0;
        for (size_t at = 0; at < kStretch; at += sizeof(uint64_t)) {
            first = with_word(first, load(data.data() + at));
            second = with_word(second, load(data.data() + kStretch + at));
            third = with_word(third, load(data.data() + 2 * kStretch + at));
        }
        crc = shifted(kShift, shifted(kShift, first) ^ second) ^ third;
        data = data.subspan(3 * kStretch);
    }
    for (; data.size() >= sizeof(uint64_t); data = data.subspan(sizeof(uint64_t)))
        crc = with_word(crc, load(data.data()));
    return by_table(crc, data);
}

#endif

} // namespace

uint32_t crc32c(std::span<const uint8_t> data) {
#if defined(FASTDATA_BY_INSTRUCTION)
    if (kHasInstruction)
        return ~by_instruction(~uint32_t{0}, data);
#endif
    return ~by_table(~uint32_t{0}, data);
}

} // namespace fastdata

// From quantised coefficients of a JPEG to pixels, bit by bit as libjpeg-turbo's accurate decoding does it: the inner
// loops, once per instruction set.
//
// The arithmetic is that of 16-bit and 32-bit integers that wrap, saturated where libjpeg-turbo's vector code for x86
// saturates, so that damaged images with impossible coefficients have its pixels there, too; on ARM its code wraps
// where this saturates.  Sources: Loeffler, Ligtenberg and Moschytz, "Practical fast 1-D DCT algorithms with 11
// multiplications", ICASSP 1989; libjpeg-turbo, jidctint.c, jdsample.c and jdcolor.c, which fix constants and rounding.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastdata {

constexpr int kBlockEdge = 8; // pixels

// One block: its coefficients and their quantisation steps in natural order, aligned to 16 bytes, and the place of its
// pixels.
struct IdctBlock {
    const int16_t *coefficients;
    const uint16_t *steps;
    uint8_t *out;
    ptrdiff_t stride;
};

// Loops may read kJpegSlack bytes behind the end of their rows, and write as many pixels behind their results.
constexpr int kJpegSlack = 32;

struct JpegLoops {
    // Dequantisation and the inverse DCT.
    void (*idct)(const IdctBlock *blocks, int count);
    // Twice as many samples as `count`, by a triangle filter.  The samples beside those of the row count, too:
    // first[-1] and first[count].
    void (*widen)(const uint8_t *first, int count, uint8_t *out);
    // The same between two rows, of which `near` has three quarters.
    void (*widen_between)(const uint8_t *near, const uint8_t *far, int count, uint8_t *out);
    // YCbCr to 4-byte pixels.
    void (*to_rgb)(const uint8_t *luma, const uint8_t *blue, const uint8_t *red, int count, uint8_t *pixels);
    void (*grey_to_rgb)(const uint8_t *luma, int count, uint8_t *pixels);
};

extern const JpegLoops kPlainJpegLoops;
#if defined(FASTDATA_AVX2)
extern const JpegLoops kAvx2JpegLoops;
#endif
#if defined(FASTDATA_NEON)
extern const JpegLoops kNeonJpegLoops;
#endif

// ---- what all share

// Rotations of the inverse DCT, times 2^13.
struct DctConstants {
    static constexpr int kBits = 13, kFirstPassBits = 2;
    static constexpr int k0_298 = 2446, k0_390 = 3196, k0_541 = 4433, k0_765 = 6270, k0_899 = 7373, k1_175 = 9633,
                         k1_501 = 12299, k1_847 = 15137, k1_961 = 16069, k2_053 = 16819, k2_562 = 20995, k3_072 = 25172;
    static constexpr int kFirstShift = kBits - kFirstPassBits, kSecondShift = kBits + kFirstPassBits + 3;
};

// Conversion of colours, times 2^16.
struct ColourConstants {
    static constexpr int kRedOfRed = 91881, kBlueOfBlue = 116130, kGreenOfRed = 46802, kGreenOfBlue = 22554;
};

// For a block of whose rows all but the first are zeros.
void idct_flat(const IdctBlock &block);

} // namespace fastdata

// What this processor can do, asked of itself: compilers' built-in questions need a runtime that not all of them bring.
#pragma once

#include <cstdint>

#if defined(FASTDATA_AVX2) && defined(__GNUC__)
#include <cpuid.h>

namespace fastdata {

struct Cpuid {
    unsigned a = 0, b = 0, c = 0, d = 0;

    explicit Cpuid(unsigned leaf) { __get_cpuid_count(leaf, 0, &a, &b, &c, &d); } // zeros if there is no such leaf
};

inline bool has_sse42() {
    return (Cpuid(1).c & bit_SSE4_2) != 0;
}

// Also that the system keeps the wide registers when it switches between threads.
inline bool has_avx2_and_fma() {
    constexpr unsigned kNeeded = bit_OSXSAVE | bit_FMA;
    if ((Cpuid(1).c & kNeeded) != kNeeded)
        return false;
    uint32_t low = 0, high = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    constexpr uint32_t kXmmAndYmm = 6;
    return (low & kXmmAndYmm) == kXmmAndYmm && (Cpuid(7).b & bit_AVX2) != 0;
}

} // namespace fastdata

#endif

#if defined(FASTDATA_NEON)
#if defined(__linux__)
#include <sys/auxv.h>
#endif

namespace fastdata {

// Instructions for checksums, which all processors have since ARMv8.1.
inline bool has_crc32() {
#if defined(__linux__)
    constexpr unsigned long kCrc32 = 1 << 7; // HWCAP_CRC32
    return (getauxval(AT_HWCAP) & kCrc32) != 0;
#elif defined(__APPLE__)
    return true;
#else
    return false;
#endif
}

} // namespace fastdata

#endif

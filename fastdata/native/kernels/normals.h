// Normally distributed numbers by Philox and Box and Muller, written so that compilers make vectors of them; included
// once for every instruction set.  Of sums, products, quotients and roots alone, so the bits are the same on all.
#pragma once

#include "kernels/kernels.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>

namespace fastdata {
namespace {

// The natural logarithm of a positive number, by the series of the inverse hyperbolic tangent.
inline float log_of(float value) {
    constexpr int32_t kRootOfHalf = 0x3F3504F3; // its bits
    const auto bits = std::bit_cast<int32_t>(value);
    const int32_t exponent = (bits - kRootOfHalf) >> 23;
    const auto rest = std::bit_cast<float>(bits - exponent * (1 << 23)); // between the roots of a half and of 2
    const float s = (rest - 1.0F) / (rest + 1.0F), square = s * s;
    const float series = 1.0F + square * (1.0F / 3 + square * (1.0F / 5 + square * (1.0F / 7 + square * (1.0F / 9))));
    return static_cast<float>(exponent) * std::numbers::ln2_v<float> + 2.0F * s * series;
}

// Two numbers from two words, of which 24 bits count, which are enough for pixels.
inline void normal_pair(uint32_t first, uint32_t second, float &one, float &other) {
    const float share = (static_cast<float>(static_cast<int32_t>(first >> 8)) + 0.5F) * 0x1p-24F;
    const float length = std::sqrt(-2.0F * log_of(share));
    const float quarters = static_cast<float>(static_cast<int32_t>(second >> 8)) * 0x1p-22F;
    const auto quarter = static_cast<int32_t>(quarters + 0.5F);
    const float angle = (quarters - static_cast<float>(quarter)) * (std::numbers::pi_v<float> / 2);
    const float square = angle * angle;
    const float sine =
        angle * (1.0F + square * (-1.0F / 6 + square * (1.0F / 120 + square * (-1.0F / 5040 + square / 362880))));
    const float cosine = 1.0F + square * (-1.0F / 2 + square * (1.0F / 24 + square * (-1.0F / 720 + square / 40320)));
    const auto turn = static_cast<uint32_t>(quarter);
    const auto bits_of_cosine = std::bit_cast<uint32_t>((turn & 1) != 0 ? sine : cosine) ^ (((turn + 1) & 2) << 30);
    const auto bits_of_sine = std::bit_cast<uint32_t>((turn & 1) != 0 ? cosine : sine) ^ ((turn & 2) << 30);
    one = length * std::bit_cast<float>(bits_of_cosine);
    other = length * std::bit_cast<float>(bits_of_sine);
}

void normals(const NormalDraws &draws, uint32_t first, float *out) {
    uint32_t words[4][kNormalCounters];
    for (uint32_t i = 0; i < kNormalCounters; ++i) {
        uint32_t a = draws.index, b = draws.occurrence, c = first + i, d = draws.stream;
        uint32_t key = draws.key[0], other_key = draws.key[1];
        for (int round = 0; round < 10; ++round) { // see philox.h
            const uint64_t even = uint64_t{a} * 0xD2511F53U, odd = uint64_t{c} * 0xCD9E8D57U;
            a = static_cast<uint32_t>(odd >> 32) ^ b ^ key;
            b = static_cast<uint32_t>(odd);
            c = static_cast<uint32_t>(even >> 32) ^ d ^ other_key;
            d = static_cast<uint32_t>(even);
            key += 0x9E3779B9U;
            other_key += 0xBB67AE85U;
        }
        words[0][i] = a;
        words[1][i] = b;
        words[2][i] = c;
        words[3][i] = d;
    }
    for (size_t pair = 0; pair < 4; pair += 2) {
        float ones[kNormalCounters], others[kNormalCounters];
        for (size_t i = 0; i < kNormalCounters; ++i)
            normal_pair(words[pair][i], words[pair + 1][i], ones[i], others[i]);
        for (size_t i = 0; i < kNormalCounters; ++i) {
            out[4 * i + pair] = ones[i];
            out[4 * i + pair + 1] = others[i];
        }
    }
}

} // namespace
} // namespace fastdata

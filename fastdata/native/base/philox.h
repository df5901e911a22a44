// The counter-based generator behind all random views.
#pragma once

#include <array>
#include <cstdint>

namespace fastdata {

// Ten rounds.  Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t even = uint64_t{counter[0]} * 0xD2511F53u, odd = uint64_t{counter[2]} * 0xCD9E8D57u;
        counter = {static_cast<uint32_t>(odd >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(odd),
                   static_cast<uint32_t>(even >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(even)};
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return counter;
}

} // namespace fastdata

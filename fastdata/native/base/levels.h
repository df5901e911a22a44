// Arithmetic of single levels; every instruction set has its own copy.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fastdata {
namespace {

// Between one level (0) and another (1), or beyond.  Source: Pillow's Image.blend.
inline uint32_t blended_level(int32_t one, int32_t other, float share) {
    const float value = static_cast<float>(one) + share * static_cast<float>(other - one);
    return static_cast<uint32_t>(static_cast<int32_t>(std::min(std::max(value, 0.0F), 255.0F)));
}

} // namespace
} // namespace fastdata

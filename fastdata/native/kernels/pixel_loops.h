// Inner loops of effects, written so that compilers make vectors of them; included once for every instruction set, of
// which each has its own copy.
#pragma once

#include "kernels/kernels.h"

#include "base/geometry.h"
#include "base/levels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fastdata {
namespace {

constexpr int kRedShift = std::endian::native == std::endian::little ? 0 : 24;
constexpr int kGreenShift = std::endian::native == std::endian::little ? 8 : 16;
constexpr int kBlueShift = std::endian::native == std::endian::little ? 16 : 8;

inline uint32_t pixel_at(const uint8_t *pixels, size_t number) {
    uint32_t pixel;
    std::memcpy(&pixel, pixels + number * kPixelBytes, sizeof pixel);
    return pixel;
}

inline void put_pixel(uint8_t *pixels, size_t number, uint32_t red, uint32_t green, uint32_t blue) {
    const uint32_t pixel = red << kRedShift | green << kGreenShift | blue << kBlueShift;
    std::memcpy(pixels + number * kPixelBytes, &pixel, sizeof pixel);
}

inline int32_t channel_of(uint32_t pixel, int shift) {
    return static_cast<int32_t>(pixel >> shift & 255);
}

// Source: ITU-R BT.601, with Pillow's weights of 16 bits.
inline int32_t luma_of(uint32_t pixel) {
    return (channel_of(pixel, kRedShift) * 19595 + channel_of(pixel, kGreenShift) * 38470 +
            channel_of(pixel, kBlueShift) * 7471 + 0x8000) >>
           16;
}

inline void saturate(uint8_t *pixels, size_t count, float factor) {
    for (size_t i = 0; i < count; ++i) {
        const uint32_t pixel = pixel_at(pixels, i);
        const int32_t own = luma_of(pixel);
        put_pixel(pixels, i, blended_level(own, channel_of(pixel, kRedShift), factor),
                  blended_level(own, channel_of(pixel, kGreenShift), factor),
                  blended_level(own, channel_of(pixel, kBlueShift), factor));
    }
}

inline void make_grey(uint8_t *pixels, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        const auto grey = static_cast<uint32_t>(luma_of(pixel_at(pixels, i)));
        put_pixel(pixels, i, grey, grey, grey);
    }
}

inline uint64_t luma_sum(const uint8_t *pixels, size_t count) {
    constexpr size_t kAtOnce = 1 << 16; // whose sum fits 32 bits
    uint64_t all = 0;
    for (size_t begin = 0; begin < count; begin += kAtOnce) {
        uint32_t sum = 0;
        for (size_t i = begin; i < std::min(count, begin + kAtOnce); ++i)
            sum += static_cast<uint32_t>(luma_of(pixel_at(pixels, i)));
        all += sum;
    }
    return all;
}

// Of a level, which weighs 5, and its eight neighbours.
inline int32_t mean_around(const uint8_t *above, const uint8_t *here, const uint8_t *below, size_t at) {
    const auto three = [&](const uint8_t *row) {
        return int32_t{row[at - kPixelBytes]} + row[at] + row[at + kPixelBytes];
    };
    const int32_t sum = 4 * here[at] + three(above) + three(here) + three(below);
    return static_cast<int32_t>(static_cast<uint32_t>(2 * sum + 13) / 26U); // halves do not occur
}

// One row of bytes, but for the first and the last pixel, blended with the mean around each.
// above, here, below: rows of the image; to: where the row goes, which is none of them.
inline void sharpen_row(const uint8_t *__restrict above, const uint8_t *__restrict here,
                        const uint8_t *__restrict below, uint8_t *__restrict to, size_t bytes, float factor) {
    for (size_t at = kPixelBytes; at < bytes - kPixelBytes; ++at)
        to[at] = static_cast<uint8_t>(blended_level(mean_around(above, here, below, at), here[at], factor));
}

// Adds bytes, weighted, to sums.
inline void add_weighted(const uint8_t *__restrict bytes, size_t count, float weight, float *__restrict sums) {
    for (size_t i = 0; i < count; ++i)
        sums[i] += weight * static_cast<float>(bytes[i]);
}

// Blends bytes with sums, which are clamped and cut off.
inline void blend_with_sums(uint8_t *__restrict bytes, size_t count, const float *__restrict sums, float share) {
    for (size_t i = 0; i < count; ++i) {
        const auto other = static_cast<int32_t>(std::min(std::max(sums[i], 0.0F), 255.0F));
        bytes[i] = static_cast<uint8_t>(blended_level(bytes[i], other, share));
    }
}

// The sums are whole levels before and after.  Source: Pillow's Image.blend of them and the image.
inline void blend_into_sums(const uint8_t *__restrict bytes, size_t count, float share, float *__restrict sums) {
    for (size_t i = 0; i < count; ++i)
        sums[i] = static_cast<float>(blended_level(static_cast<int32_t>(sums[i]), bytes[i], share));
}

// ---- the arithmetic of torchvision's v2 operators on uint8 tensors, which is float32 with fused multiply-adds

// Source: v2's rgb_to_grayscale.
inline float tensors_luma_of(uint32_t pixel) {
    const auto level = [&](int shift) { return static_cast<float>(channel_of(pixel, shift)); };
    return std::fma(level(kBlueShift), 0.114F, std::fma(level(kGreenShift), 0.587F, level(kRedShift) * 0.2989F));
}

inline int32_t tensors_grey_of(uint32_t pixel) {
    return static_cast<int32_t>(tensors_luma_of(pixel));
}

// Levels, clamped and cut off.
inline uint32_t as_level(float value) {
    return static_cast<uint32_t>(static_cast<int32_t>(std::min(std::max(value, 0.0F), 255.0F)));
}

// A share of a level, and the rest of another.  Source: v2's _blend.
inline uint32_t tensors_blended(int32_t level, float other, TensorBlend blend) {
    return as_level(std::fma(other, blend.rest, static_cast<float>(level) * blend.share));
}

inline void tensors_saturate(uint8_t *pixels, size_t count, TensorBlend blend) {
    for (size_t i = 0; i < count; ++i) {
        const uint32_t pixel = pixel_at(pixels, i);
        const auto grey = static_cast<float>(tensors_grey_of(pixel));
        put_pixel(pixels, i, tensors_blended(channel_of(pixel, kRedShift), grey, blend),
                  tensors_blended(channel_of(pixel, kGreenShift), grey, blend),
                  tensors_blended(channel_of(pixel, kBlueShift), grey, blend));
    }
}

inline void tensors_make_grey(uint8_t *pixels, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        const auto grey = static_cast<uint32_t>(tensors_grey_of(pixel_at(pixels, i)));
        put_pixel(pixels, i, grey, grey, grey);
    }
}

inline uint64_t tensors_grey_sum(const uint8_t *pixels, size_t count) {
    uint64_t all = 0;
    for (size_t i = 0; i < count; ++i)
        all += static_cast<uint64_t>(tensors_grey_of(pixel_at(pixels, i)));
    return all;
}

// Source: v2's adjust_hue: the hexcone model (Smith, "Color gamut transform pairs", SIGGRAPH 1978) in float32.
inline void tensors_turn_hue(uint8_t *pixels, size_t count, float turn) {
    for (size_t i = 0; i < count; ++i) {
        const uint32_t pixel = pixel_at(pixels, i);
        const auto share = [&](int shift) {
            return static_cast<float>(channel_of(pixel, shift)) * static_cast<float>(1.0 / 255.0);
        };
        const float red = share(kRedShift), green = share(kGreenShift), blue = share(kBlueShift);
        const float high = std::max(std::max(red, green), blue), low = std::min(std::min(red, green), blue);
        const float spread = high - low, divisor = high == low ? 1.0F : spread;
        const float saturation = spread / (high == low ? 1.0F : high);
        const float no_red = (high - red) / divisor, no_green = (high - green) / divisor;
        const float no_blue = (high - blue) / divisor;
        const float beside_red = no_blue - no_green, beside_green = no_red + 2.0F - no_blue;
        float sector = no_green + 4.0F - no_red;
        sector = high == green ? beside_green : sector;
        sector = high == red ? beside_red : sector;
        const float circle = sector * static_cast<float>(1.0 / 6.0) + 1.0F;
        const float turned = circle - std::floor(circle) + turn;
        const float sextants = (turned - std::floor(turned)) * 6.0F;
        const float sextant = std::floor(sextants), rest = sextants - sextant;
        const float pale = 1.0F - saturation, part = saturation * rest;
        const auto stored = [&](float value) {
            return static_cast<int32_t>(std::min(std::max(value, 0.0F), 1.0F) * static_cast<float>(255.0 + 1.0 - 1e-3));
        };
        const int32_t full = stored(high), least = stored(pale * high);
        const int32_t falling = stored((1.0F - part) * high), rising = stored((part + pale) * high);
        // What a channel has in each sextant; the seventh is the first.  Nested, the choices would make no vectors.
        const auto of_sextant = [&](int32_t zero, int32_t one, int32_t two, int32_t three, int32_t four, int32_t five) {
            int32_t level = zero;
            level = sextant == 1.0F ? one : level;
            level = sextant == 2.0F ? two : level;
            level = sextant == 3.0F ? three : level;
            level = sextant == 4.0F ? four : level;
            return sextant == 5.0F ? five : level;
        };
        const int32_t first = of_sextant(full, falling, least, least, rising, full);
        const int32_t second = of_sextant(rising, full, full, falling, least, least);
        const int32_t third = of_sextant(least, least, rising, full, full, falling);
        put_pixel(pixels, i, static_cast<uint32_t>(first), static_cast<uint32_t>(second), static_cast<uint32_t>(third));
    }
}

// As sharpen_row; a level becomes itself and a share of its distance from the mean.  Source: v2's adjust_sharpness.
inline void tensors_sharpen_row(const uint8_t *__restrict above, const uint8_t *__restrict here,
                                const uint8_t *__restrict below, uint8_t *__restrict to, size_t bytes, float rest) {
    for (size_t at = kPixelBytes; at < bytes - kPixelBytes; ++at) {
        const int32_t distance = mean_around(above, here, below, at) - here[at];
        to[at] =
            static_cast<uint8_t>(as_level(std::fma(static_cast<float>(distance), rest, static_cast<float>(here[at]))));
    }
}

// ---- blur

// One step of a box along its way, for many lines beside each other.
template <size_t kWidth>
void box_step(const uint8_t *__restrict before, const uint8_t *__restrict leaving, const uint8_t *__restrict after,
              uint8_t *__restrict result, uint32_t *__restrict sums, const BoxWeights box) {
    for (size_t i = 0; i < kWidth; ++i) {
        const uint32_t sum = sums[i], sides = uint32_t{before[i]} + after[i];
        result[i] = static_cast<uint8_t>((sum * box.inner + sides * box.outer + (1 << 23)) >> 24);
        sums[i] = sum + after[i] - leaving[i];
    }
}

// Lines of `count` bytes, kWidth of them beside each other, `step` from each byte to the next: each becomes the mean of
// the box around it, with the first and the last repeated beyond the ends.
template <size_t kWidth>
void box_lines(const uint8_t *from, uint8_t *to, int count, ptrdiff_t step, const BoxWeights &box) {
    const auto at = [&](int place) { return from + std::clamp(place, 0, count - 1) * step; };
    uint32_t sums[kWidth] = {};
    for (int place = -box.radius; place <= box.radius; ++place)
        for (size_t i = 0; i < kWidth; ++i)
            sums[i] += at(place)[i];
    for (int place = 0; place < count; ++place)
        box_step<kWidth>(at(place - box.radius - 1), at(place - box.radius), at(place + box.radius + 1),
                         to + place * step, sums, box);
}

inline void box_down(const uint8_t *from, uint8_t *to, int width, int height, const BoxWeights &box) {
    constexpr ptrdiff_t kAtOnce = 64;
    const ptrdiff_t stride = static_cast<ptrdiff_t>(width) * kPixelBytes;
    ptrdiff_t at = 0;
    for (; at + kAtOnce <= stride; at += kAtOnce)
        box_lines<kAtOnce>(from + at, to + at, height, stride, box);
    for (; at < stride; at += kPixelBytes)
        box_lines<kPixelBytes>(from + at, to + at, height, stride, box);
}

constexpr EffectLoops kEffectLoops = {
    saturate,
    make_grey,
    luma_sum,
    sharpen_row,
    add_weighted,
    blend_with_sums,
    blend_into_sums,
    box_down,
    tensors_saturate,
    tensors_make_grey,
    tensors_grey_sum,
    tensors_turn_hue,
    tensors_sharpen_row,
};

} // namespace
} // namespace fastdata

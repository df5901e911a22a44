// Inner loops of effects, written so that compilers make vectors of them; included once for every instruction set, of
// which each has its own copy.
#pragma once

#include "geometry.h"
#include "levels.h"

#include <algorithm>
#include <bit>
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

// One row of bytes, but for the first and the last pixel, blended with the mean around each.
// above, here, below: rows of the image; to: where the row goes, which is none of them.
inline void sharpen_row(const uint8_t *__restrict above, const uint8_t *__restrict here,
                        const uint8_t *__restrict below, uint8_t *__restrict to, size_t bytes, float factor) {
    const auto three = [](const uint8_t *row, size_t at) {
        return int32_t{row[at - kPixelBytes]} + row[at] + row[at + kPixelBytes];
    };
    for (size_t at = kPixelBytes; at < bytes - kPixelBytes; ++at) {
        const int32_t sum = 4 * here[at] + three(above, at) + three(here, at) + three(below, at); // the middle weighs 5
        const auto mean = static_cast<int32_t>(static_cast<uint32_t>(2 * sum + 13) / 26U);        // halves do not occur
        to[at] = static_cast<uint8_t>(blended_level(mean, here[at], factor));
    }
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

constexpr EffectLoops kEffectLoops = {saturate,     make_grey,       luma_sum,        sharpen_row,
                                      add_weighted, blend_with_sums, blend_into_sums, box_down};

} // namespace
} // namespace fastdata

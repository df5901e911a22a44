#include "kernels/kernels.h"
#include "kernels/normals.h"
#include "kernels/pixel_loops.h"
#include "kernels/unpacked_tile.h"
#include "kernels/warp_pixels.h"

#include <cstring>

namespace fastdata {
namespace {

uint32_t scaled(uint8_t value, int32_t weight) { // unsigned, so that it may wrap
    return static_cast<uint32_t>(value) * static_cast<uint32_t>(weight);
}

void horizontal(const Rows &source, const Axis &axis, uint8_t *results, ptrdiff_t result_stride) {
    for (int y = 0; y < source.height; ++y) {
        uint8_t *out = results + y * result_stride;
        for (int x = 0; x < axis.results(); ++x, out += kPixelBytes) {
            const uint8_t *pixel = source.row(y) + axis.first(x) * kPixelBytes;
            const int32_t *weights = axis.weights(x);
            uint32_t red = kHalf, green = kHalf, blue = kHalf;
            for (int tap = 0; tap < axis.taps(); ++tap, pixel += kPixelBytes) {
                red += scaled(pixel[0], weights[tap]);
                green += scaled(pixel[1], weights[tap]);
                blue += scaled(pixel[2], weights[tap]);
            }
            out[0] = clamp_sum(static_cast<int32_t>(red));
            out[1] = clamp_sum(static_cast<int32_t>(green));
            out[2] = clamp_sum(static_cast<int32_t>(blue));
            out[3] = 0;
        }
    }
}

void vertical(const uint8_t *source, ptrdiff_t stride, const Axis &axis, int result, uint8_t *out, int bytes) {
    const int32_t *weights = axis.weights(result);
    for (int i = 0; i < bytes; ++i) {
        uint32_t sum = kHalf;
        for (int tap = 0; tap < axis.taps(); ++tap)
            sum += scaled(source[tap * stride + i], weights[tap]);
        out[i] = clamp_sum(static_cast<int32_t>(sum));
    }
}

void unpack(const uint8_t *rgb, int count, uint8_t *pixels) {
    for (int i = 0; i < count; ++i, rgb += 3, pixels += kPixelBytes) {
        pixels[0] = rgb[0];
        pixels[1] = rgb[1];
        pixels[2] = rgb[2];
        pixels[3] = 0;
    }
}

void pack(const uint8_t *pixels, int count, uint8_t *rgb) {
    for (int i = 0; i < count; ++i, pixels += kPixelBytes, rgb += 3) {
        rgb[0] = pixels[0];
        rgb[1] = pixels[1];
        rgb[2] = pixels[2];
    }
}

void split(const uint8_t *pixels, int count, uint8_t *red, uint8_t *green, uint8_t *blue) {
    for (int i = 0; i < count; ++i, pixels += kPixelBytes) {
        red[i] = pixels[0];
        green[i] = pixels[1];
        blue[i] = pixels[2];
    }
}

void reverse(const uint8_t *pixels, int count, uint8_t *reversed) {
    for (int i = 0; i < count; ++i)
        std::memcpy(reversed + (count - 1 - i) * kPixelBytes, pixels + i * kPixelBytes, kPixelBytes);
}

void weighted_sum(const float *rows, size_t step, const float *weights, int taps, float *sums, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        float sum = 0;
        for (int tap = 0; tap < taps; ++tap)
            sum += weights[tap] * rows[static_cast<size_t>(tap) * step + i];
        sums[i] = sum;
    }
}

void bilinear(const Rows &image, const Places &places, uint8_t *row) {
    for (int i = 0; i < places.count; ++i)
        bilinear_pixel(image, {places.x[i], places.y[i]}, row + places.columns[i] * kPixelBytes);
}

void bicubic(const Rows &image, const Places &places, uint8_t *row) {
    for (int i = 0; i < places.count; ++i)
        bicubic_pixel(image, {places.x[i], places.y[i]}, row + places.columns[i] * kPixelBytes);
}

bool read_blocks(UnpackedTile &tile, const uint8_t *component_of, int count, int16_t *const *blocks) {
    return read_blocks_by(tile, component_of, count, blocks, put_group);
}

} // namespace

const Kernels kPlainKernels = {"plain",      horizontal, vertical,     unpack,       pack,
                               split,        reverse,    weighted_sum, bilinear,     bicubic,
                               kEffectLoops, normals,    read_blocks,  write_groups, nullptr};

} // namespace fastdata

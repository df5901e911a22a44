#include "blur.h"

#include "geometry.h"
#include "kernels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace fastdata {
namespace {

constexpr int kMostTaps = 1 << 12;
constexpr int kBoxes = 3; // one after the other make nearly a Gaussian

// Where an index beyond an edge lies, with the edge as a mirror that is not repeated.
int reflected(int at, int size) {
    at = at < 0 ? -at : at;
    return at < size ? at : 2 * (size - 1) - at;
}

std::vector<float> gaussian(int taps, double sigma) {
    std::vector<double> weights(static_cast<size_t>(taps));
    double sum = 0;
    for (int tap = 0; tap < taps; ++tap) {
        const double x = (tap - (taps - 1) * 0.5) / sigma;
        sum += weights[static_cast<size_t>(tap)] = std::exp(-0.5 * x * x);
    }
    std::vector<float> result;
    for (const double weight : weights)
        result.push_back(static_cast<float>(weight / sum));
    return result;
}

bool is_odd_size(double taps) {
    return taps >= 1 && taps < kMostTaps && static_cast<int>(taps) == taps && static_cast<int>(taps) % 2 == 1;
}

// The radius of a box, of which the last pixel at each end may count in part.
float box_radius(float sigma) {
    const float variance = sigma * sigma / kBoxes;
    const auto length = static_cast<float>(std::sqrt(12.0 * variance + 1.0));
    const auto whole = static_cast<float>(std::floor((length - 1.0) / 2.0));
    float part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance);
    part /= 6 * (variance - (whole + 1) * (whole + 1));
    return whole + part;
}

// Weights of 24 bits.
struct BoxWeights {
    explicit BoxWeights(float size)
        : radius(static_cast<int>(size)), inner(static_cast<uint32_t>((1 << 24) / (size * 2 + 1))),
          outer(((1 << 24) - static_cast<uint32_t>(radius * 2 + 1) * inner) / 2) {}

    int radius;
    uint32_t inner, outer; // of the pixels within the radius, and of the two beside them
};

// A line of `count` groups of `width` values, `step` from each to the next: each becomes the mean of the box around it,
// with the first and the last repeated beyond the ends.  sums: scratch.
void box_line(const uint8_t *from, uint8_t *to, int count, ptrdiff_t step, size_t width, const BoxWeights &weights,
              std::vector<uint32_t> &sums) {
    const int radius = weights.radius;
    const auto at = [&](int place) { return from + std::clamp(place, 0, count - 1) * step; };
    sums.assign(width, 0);
    for (int place = -radius; place <= radius; ++place)
        for (size_t i = 0; i < width; ++i)
            sums[i] += at(place)[i];
    for (int place = 0; place < count; ++place) {
        const uint8_t *const before = at(place - radius - 1), *const after = at(place + radius + 1);
        const uint8_t *const leaving = at(place - radius);
        uint8_t *const result = to + place * step;
        for (size_t i = 0; i < width; ++i) {
            const uint32_t sides = static_cast<uint32_t>(before[i]) + after[i];
            result[i] = static_cast<uint8_t>((sums[i] * weights.inner + sides * weights.outer + (1 << 23)) >> 24);
            sums[i] += after[i];
            sums[i] -= leaving[i];
        }
    }
}

} // namespace

bool is_gaussian(const double *values) {
    return is_odd_size(values[0]) && is_odd_size(values[1]) && values[2] > 0 && values[3] > 0;
}

// Across, then down, in floats; torchvision's kernel has both in one, whose sums differ in the last bits.
void gaussian_blur(uint8_t *pixels, int width, int height, const double *values) {
    const int across = static_cast<int>(values[0]), down = static_cast<int>(values[1]);
    const int edge_x = across / 2, edge_y = down / 2;
    if (edge_x >= width || edge_y >= height)
        return;
    static thread_local std::vector<float> smooth, padded, sums;
    const std::vector<float> horizontal = gaussian(across, values[2]);
    const std::vector<float> vertical = gaussian(down, values[3]);
    const size_t stride = static_cast<size_t>(width) * kPixelBytes;
    smooth.resize(stride * static_cast<size_t>(height + 2 * edge_y));
    padded.resize(stride + static_cast<size_t>(2 * edge_x) * kPixelBytes);
    sums.resize(stride);
    const auto smooth_row = [&](int y) { return smooth.data() + static_cast<size_t>(y + edge_y) * stride; };
    for (int y = 0; y < height; ++y) {
        const uint8_t *const from = pixels + static_cast<size_t>(y) * stride;
        std::copy_n(from, stride, padded.data() + edge_x * kPixelBytes);
        for (int x = -edge_x; x < width + edge_x; x = x == -1 ? width : x + 1) // what is beyond the edges
            std::copy_n(from + reflected(x, width) * kPixelBytes, kPixelBytes,
                        &padded[static_cast<size_t>((x + edge_x) * kPixelBytes)]);
        kernels().weighted_sum(padded.data(), kPixelBytes, horizontal.data(), across, smooth_row(y), stride);
    }
    for (int y = 1; y <= edge_y; ++y) {
        std::copy_n(smooth_row(reflected(-y, height)), stride, smooth_row(-y));
        std::copy_n(smooth_row(reflected(height - 1 + y, height)), stride, smooth_row(height - 1 + y));
    }
    for (int y = 0; y < height; ++y) {
        kernels().weighted_sum(smooth_row(y - edge_y), stride, vertical.data(), down, sums.data(), stride);
        uint8_t *const to = pixels + static_cast<size_t>(y) * stride;
        for (size_t at = 0; at < stride; ++at)
            to[at] = static_cast<uint8_t>(static_cast<int>(sums[at] + 0.5F));
    }
}

// Source: Pillow, BoxBlur.c; Gwosdek et al., "Theoretical foundations of Gaussian convolution by extended box
// filtering", 2011.
void box_blur(uint8_t *pixels, int width, int height, float sigma) {
    const float radius = box_radius(sigma);
    if (sigma == 0 || radius == 0)
        return;
    static thread_local std::vector<uint8_t> other;
    static thread_local std::vector<uint32_t> sums;
    const BoxWeights weights(radius);
    const ptrdiff_t stride = static_cast<ptrdiff_t>(width) * kPixelBytes;
    other.resize(static_cast<size_t>(stride) * static_cast<size_t>(height));
    uint8_t *from = pixels, *to = other.data();
    for (int pass = 0; pass < kBoxes; ++pass, std::swap(from, to))
        for (int y = 0; y < height; ++y)
            box_line(from + y * stride, to + y * stride, width, kPixelBytes, kPixelBytes, weights, sums);
    for (int pass = 0; pass < kBoxes; ++pass, std::swap(from, to))
        box_line(from, to, height, stride, static_cast<size_t>(stride), weights, sums);
    static_assert(2 * kBoxes % 2 == 0, "the last pass writes to the image itself");
}

} // namespace fastdata

#include "effects/blur.h"

#include "base/geometry.h"
#include "kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>
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

BoxWeights weights_of(float radius) {
    const int whole = static_cast<int>(radius);
    const auto inner = static_cast<uint32_t>((1 << 24) / (radius * 2 + 1));
    return {whole, inner, ((1 << 24) - static_cast<uint32_t>(whole * 2 + 1) * inner) / 2};
}

// Makes rows of columns.
void turn(const uint8_t *from, uint8_t *to, int width, int height) {
    constexpr int kTile = 16; // pixels; a row of them is a line of the cache
    for (int top = 0; top < height; top += kTile)
        for (int left = 0; left < width; left += kTile)
            for (int y = top; y < std::min(height, top + kTile); ++y)
                for (int x = left; x < std::min(width, left + kTile); ++x)
                    std::memcpy(to + (static_cast<ptrdiff_t>(x) * height + y) * kPixelBytes,
                                from + (static_cast<ptrdiff_t>(y) * width + x) * kPixelBytes, kPixelBytes);
}

} // namespace

bool is_gaussian(const double *values) {
    return is_odd_size(values[0]) && is_odd_size(values[1]) && values[2] > 0 && values[3] > 0;
}

BlurWeights gaussian_weights(const double *values) {
    return {gaussian(static_cast<int>(values[0]), values[2]), gaussian(static_cast<int>(values[1]), values[3])};
}

// Across, then down, in floats; torchvision's kernel has both in one, whose sums differ in the last bits.
void gaussian_blur(uint8_t *pixels, int width, int height, const double *values) {
    const auto &[horizontal, vertical] = gaussian_weights(values);
    const int across = static_cast<int>(horizontal.size()), down = static_cast<int>(vertical.size());
    const int edge_x = across / 2, edge_y = down / 2;
    if (edge_x >= width || edge_y >= height)
        return;
    static thread_local std::vector<float> smooth, padded, sums;
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
    const BoxWeights weights = weights_of(radius);
    other.resize(static_cast<size_t>(width) * kPixelBytes * static_cast<size_t>(height));
    uint8_t *from = pixels, *to = other.data();
    for (const auto &[across, down] : {std::pair{width, height}, std::pair{height, width}}) {
        turn(from, to, across, down);
        std::swap(from, to);
        for (int pass = 0; pass < kBoxes; ++pass, std::swap(from, to))
            kernels().effects.box_down(from, to, down, across, weights);
    }
    static_assert(2 * (1 + kBoxes) % 2 == 0, "the last pass writes to the image itself");
}

} // namespace fastdata

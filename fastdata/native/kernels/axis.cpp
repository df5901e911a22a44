#include "kernels/axis.h"

#include "fastdata_native.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fastdata {
namespace {

// Pillow's filters and their supports.  Source: Pillow, Resample.c.
double sinc(double x) {
    if (x == 0.0)
        return 1.0;
    x *= std::numbers::pi;
    return std::sin(x) / x;
}

double weight_at(Filter filter, double x) {
    switch (filter) {
    case Filter::box:
        return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
    case Filter::bilinear:
    case Filter::tensor_bilinear:
        x = std::fabs(x);
        return x < 1.0 ? 1.0 - x : 0.0;
    case Filter::hamming:
        x = std::fabs(x);
        if (x == 0.0)
            return 1.0;
        if (x >= 1.0)
            return 0.0;
        x *= std::numbers::pi;
        return std::sin(x) / x * (0.54f + 0.46f * std::cos(x)); // float constants, as in Pillow
    case Filter::bicubic:
    case Filter::tensor_bicubic: {
        constexpr double a = -0.5;
        x = std::fabs(x);
        if (x < 1.0)
            return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
        if (x < 2.0)
            return (((x - 5) * x + 8) * x - 4) * a;
        return 0.0;
    }
    case Filter::lanczos:
        return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
    case Filter::nearest:
        break;
    }
    return 0.0;
}

double support_of(Filter filter) {
    switch (filter) {
    case Filter::box:
        return 0.5;
    case Filter::bicubic:
    case Filter::tensor_bicubic:
        return 2.0;
    case Filter::lanczos:
        return 3.0;
    default:
        return 1.0;
    }
}

// The weight rounded to so many bits, as a multiple of 2^-kWeightBits.
int32_t fixed_point(double weight, int bits) {
    const double scaled = weight * (1 << bits);
    return static_cast<int32_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5) * (1 << (kWeightBits - bits));
}

// As many bits as let the largest weight fit 16 bits with its sign.  Source: PyTorch, UpSampleKernel.cpp,
// _compute_index_ranges_int16_weights.
int tensor_bits(double most) {
    int bits = 0;
    while (bits < kWeightBits && static_cast<int>(0.5 + most * (1 << (bits + 1))) < 1 << 15)
        ++bits;
    return bits;
}

// The weights of one result before they are rounded, and where its source begins.
struct Taps {
    Taps(Filter chosen, int size, Stretch stretch, int result_size)
        : filter(chosen), source_size(size), begin(stretch.begin), scale((stretch.end - stretch.begin) / result_size),
          filter_scale(std::max(scale, 1.0)), support(support_of(filter) * filter_scale) {}

    size_t most() const { return static_cast<size_t>(std::ceil(support)) * 2 + 1; }

    // Fills `weights`; they are not divided by their sum, which is returned.
    double of(int result, std::vector<double> &weights) {
        const double center = begin + (result + 0.5) * scale, inverse = 1.0 / filter_scale;
        low = std::max(static_cast<int>(center - support + 0.5), 0);
        high = std::min(static_cast<int>(center + support + 0.5), source_size);
        double sum = 0.0;
        for (int x = low; x < high; ++x) {
            const double weight = weight_at(filter, (x - center + 0.5) * inverse);
            weights[static_cast<size_t>(x - low)] = weight;
            sum += weight;
        }
        return sum;
    }

    const Filter filter;
    const int source_size;
    const double begin, scale, filter_scale, support;
    int low = 0, high = 0; // of the latest
};

} // namespace

bool is_filter(int number) {
    return (FD_NEAREST <= number && number <= FD_HAMMING) || is_tensors(static_cast<Filter>(number));
}

void Axis::build(Filter filter, int source_size, Stretch stretch, int result_size, int begin, int end) {
    identity_ = source_size == result_size && stretch.begin == 0 && stretch.end == source_size;
    if (identity_)
        build_identity(begin, end);
    else if (filter == Filter::nearest)
        build_nearest(source_size, stretch, result_size, begin, end);
    else
        build_convolution(filter, source_size, stretch, result_size, begin, end);
}

void Axis::build_identity(int begin, int end) {
    source_begin_ = begin;
    source_end_ = end;
    taps_ = 1;
    const auto count = static_cast<size_t>(end - begin);
    first_.resize(count);
    for (size_t i = 0; i < count; ++i)
        first_[i] = static_cast<int>(i);
    weights_.assign(count, 1 << kWeightBits);
}

// Pillow steps through the source by repeated addition, so this does, too.  Source: Pillow, Geometry.c.
void Axis::build_nearest(int source_size, Stretch stretch, int result_size, int begin, int end) {
    const double scale = (stretch.end - stretch.begin) / result_size;
    const auto count = static_cast<size_t>(end - begin);
    first_.resize(count);
    count_.assign(count, 1);
    rounded_.assign(count, 1 << kWeightBits);
    double at = stretch.begin + scale * 0.5;
    for (int result = 0; result < end; ++result, at += scale)
        if (result >= begin)
            first_[static_cast<size_t>(result - begin)] = std::min(static_cast<int>(at), source_size - 1);
    lay_out(source_size);
}

// The largest weight of all results.
double Axis::most_of_weights(Filter filter, int source_size, Stretch stretch, int result_size) {
    Taps taps(filter, source_size, stretch, result_size);
    exact_.resize(taps.most());
    double most = 0.0;
    for (int result = 0; result < result_size; ++result) {
        const double sum = taps.of(result, exact_);
        for (int x = 0; x < taps.high - taps.low; ++x)
            most = std::max(most, exact_[static_cast<size_t>(x)] / sum);
    }
    return most;
}

// Source: Pillow, Resample.c, precompute_coeffs and normalize_coeffs_8bpc.
void Axis::build_convolution(Filter filter, int source_size, Stretch stretch, int result_size, int begin, int end) {
    const int bits =
        is_tensors(filter) ? tensor_bits(most_of_weights(filter, source_size, stretch, result_size)) : kWeightBits;
    Taps taps(filter, source_size, stretch, result_size);
    const size_t longest = taps.most();
    const auto count = static_cast<size_t>(end - begin);
    first_.resize(count);
    count_.resize(count);
    rounded_.assign(count * longest, 0);
    exact_.resize(longest);
    for (size_t i = 0; i < count; ++i) {
        const double sum = taps.of(begin + static_cast<int>(i), exact_);
        for (int x = 0; x < taps.high - taps.low; ++x) {
            const double weight = exact_[static_cast<size_t>(x)];
            rounded_[i * longest + static_cast<size_t>(x)] = fixed_point(sum != 0.0 ? weight / sum : weight, bits);
        }
        first_[i] = taps.low;
        count_[i] = std::max(taps.high - taps.low, 0);
    }
    lay_out(source_size);
}

// Finds the source range in use, pads weights to a common length, and splits them for SIMD.
void Axis::lay_out(int source_size) {
    const size_t count = first_.size();
    const size_t longest = count == 0 ? 0 : rounded_.size() / count;
    int most = 1;
    source_begin_ = source_size;
    source_end_ = 0;
    for (size_t i = 0; i < count; ++i) {
        source_begin_ = std::min(source_begin_, first_[i]);
        source_end_ = std::max(source_end_, first_[i] + count_[i]);
        most = std::max(most, count_[i]);
    }
    const int width = source_end_ - source_begin_;
    taps_ = most <= 2 ? 2 : (most + 3) / 4 * 4;
    if (taps_ > width)
        taps_ = most;
    const size_t taps = static_cast<size_t>(taps_);
    weights_.assign(count * taps, 0);
    high_.assign(count * taps, 0);
    low_.assign(count * taps, 0);
    for (size_t i = 0; i < count; ++i) {
        const int wanted = first_[i] - source_begin_;
        first_[i] = std::min(wanted, width - taps_);
        const size_t shift = static_cast<size_t>(wanted - first_[i]);
        for (size_t t = 0; t < static_cast<size_t>(count_[i]); ++t) {
            const int32_t weight = rounded_[i * longest + t];
            const size_t at = i * taps + shift + t;
            weights_[at] = weight;
            high_[at] = static_cast<int16_t>(weight >> kLowBits);
            low_[at] = static_cast<int16_t>(weight & ((1 << kLowBits) - 1));
        }
    }
}

} // namespace fastdata

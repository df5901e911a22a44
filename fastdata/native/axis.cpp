#include "axis.h"

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
    case Filter::bicubic: {
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
        return 2.0;
    case Filter::lanczos:
        return 3.0;
    default:
        return 1.0;
    }
}

int32_t fixed_point(double weight) {
    const double scaled = weight * (1 << kWeightBits);
    return static_cast<int32_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
}

} // namespace

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

// Source: Pillow, Resample.c, precompute_coeffs and normalize_coeffs_8bpc.
void Axis::build_convolution(Filter filter, int source_size, Stretch stretch, int result_size, int begin, int end) {
    const double scale = (stretch.end - stretch.begin) / result_size;
    const double filter_scale = std::max(scale, 1.0);
    const double support = support_of(filter) * filter_scale;
    const double inverse = 1.0 / filter_scale;
    const size_t longest = static_cast<size_t>(std::ceil(support)) * 2 + 1;
    const auto count = static_cast<size_t>(end - begin);
    first_.resize(count);
    count_.resize(count);
    rounded_.assign(count * longest, 0);
    exact_.resize(longest);
    for (size_t i = 0; i < count; ++i) {
        const double center = stretch.begin + (begin + static_cast<int>(i) + 0.5) * scale;
        const int low = std::max(static_cast<int>(center - support + 0.5), 0);
        const int high = std::min(static_cast<int>(center + support + 0.5), source_size);
        double sum = 0.0;
        for (int x = low; x < high; ++x) {
            const double weight = weight_at(filter, (x - center + 0.5) * inverse);
            exact_[static_cast<size_t>(x - low)] = weight;
            sum += weight;
        }
        for (int x = low; x < high; ++x) {
            const double weight = exact_[static_cast<size_t>(x - low)];
            rounded_[i * longest + static_cast<size_t>(x - low)] = fixed_point(sum != 0.0 ? weight / sum : weight);
        }
        first_[i] = low;
        count_[i] = std::max(high - low, 0);
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

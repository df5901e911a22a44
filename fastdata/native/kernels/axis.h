// One direction of a resize: which source pixels each result pixel is made from, and with which weights.
#pragma once

#include "fastdata_native.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastdata {

enum class Filter {
    nearest = FD_NEAREST,
    lanczos = FD_LANCZOS,
    bilinear = FD_BILINEAR,
    bicubic = FD_BICUBIC,
    box = FD_BOX,
    hamming = FD_HAMMING,
    tensor_bilinear = FD_TENSOR_BILINEAR,
    tensor_bicubic = FD_TENSOR_BICUBIC
};

bool is_filter(int number);

// True for the filters of torch, which resizes along rows first and has weights of 16 bits.
inline bool is_tensors(Filter filter) {
    return filter == Filter::tensor_bilinear || filter == Filter::tensor_bicubic;
}

constexpr int kWeightBits = 22; // Pillow's PRECISION_BITS
constexpr int kLowBits = 11;    // weights are also kept as high * 2^11 + low, 16 bits each, for SIMD

// A stretch of the source, in pixels; its ends may lie between two.
struct Stretch {
    double begin, end;
};

// The taps of result pixels [begin, end) along one axis.
//
// Taps are numbered from `source_begin`.  All results have the same number of weights, `taps`, two or a multiple of
// four where the source is wide enough, padded with zeros so that no read goes past the source.
class Axis {
  public:
    // Memory is kept between calls.  Throws std::bad_alloc.
    void build(Filter filter, int source_size, Stretch stretch, int result_size, int begin, int end);

    int results() const { return static_cast<int>(first_.size()); }
    int taps() const { return taps_; }
    bool is_identity() const { return identity_; }
    int source_begin() const { return source_begin_; }
    int source_end() const { return source_end_; }

    // First source pixel of a result, counted from source_begin().
    int first(int result) const { return first_[static_cast<size_t>(result)]; }
    const int32_t *weights(int result) const { return weights_.data() + offset(result); }
    const int16_t *high(int result) const { return high_.data() + offset(result); }
    const int16_t *low(int result) const { return low_.data() + offset(result); }

  private:
    size_t offset(int result) const { return static_cast<size_t>(result) * static_cast<size_t>(taps_); }
    void build_identity(int begin, int end);
    void build_nearest(int source_size, Stretch stretch, int result_size, int begin, int end);
    void build_convolution(Filter filter, int source_size, Stretch stretch, int result_size, int begin, int end);
    double most_of_weights(Filter filter, int source_size, Stretch stretch, int result_size);
    void lay_out(int source_size);

    bool identity_ = false;
    int taps_ = 0, source_begin_ = 0, source_end_ = 0;
    std::vector<int> first_, count_;
    std::vector<double> exact_;    // one row of weights before rounding
    std::vector<int32_t> rounded_; // `longest` weights per result, unpadded
    std::vector<int32_t> weights_;
    std::vector<int16_t> high_, low_;
};

} // namespace fastdata

#include "effects/effects.h"

#include "base/buffer.h"
#include "base/geometry.h"
#include "base/levels.h"
#include "effects/blur.h"
#include "effects/hue.h"
#include "effects/warp.h"
#include "kernels/kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

namespace fastdata {
namespace {

constexpr int kLevels = 256;

// A level for each level, of red, green and blue.
using Table = std::array<uint8_t, kLevels>;
using Tables = std::array<Table, 3>;
using Counts = std::array<std::array<uint32_t, kLevels>, 3>;

uint8_t blended(int one, int other, float share) {
    return static_cast<uint8_t>(blended_level(one, other, share));
}

uint8_t cut_off(float value) {
    return static_cast<uint8_t>(static_cast<int>(std::clamp(value, 0.0F, 255.0F)));
}

// Rounded as torchvision hands it to torch.
TensorBlend tensor_blend(double factor) {
    return {static_cast<float>(factor), static_cast<float>(1.0 - factor)};
}

// The lowest and the highest level that occur.
std::pair<int, int> range_of(const std::array<uint32_t, kLevels> &count) {
    int low = 0, high = kLevels - 1;
    while (low < high && count[static_cast<size_t>(low)] == 0)
        ++low;
    while (high > low && count[static_cast<size_t>(high)] == 0)
        --high;
    return {low, high};
}

// An image before it was changed in several ways, and the weighted sum of the results.
struct Mix {
    std::vector<uint8_t> original;
    std::vector<float> sums;
};

// An image, and what is still to be done to each of its levels, which is done in one pass.
class Canvas {
  public:
    Canvas(uint8_t *pixels, int width, int height)
        : pixels_(pixels), width_(width), height_(height), count_(static_cast<int64_t>(width) * height) {
        forget();
    }

    void apply(const fd_effect &effect);

    // Does what is still to be done.
    void settle();

  private:
    void forget();
    template <typename Function> void map_levels(Function function);
    template <typename Function> void map_pixels(Function function);
    Counts counts() const;

    void contrast(float factor);
    void autocontrast();
    void equalize();
    void saturate(float factor);
    void turn_hue(uint8_t shift);
    void grey();
    void sharpen(decltype(EffectLoops::sharpen_row) sharpen_row, float factor);
    void flip(bool horizontal, bool vertical);
    void begin_mix(float share);
    void add_to_mix(decltype(EffectLoops::add_weighted) add, float weight);
    void end_mix(float share);
    void permute(const fd_effect &effect);
    void tensors_contrast(double factor);
    void tensors_autocontrast();
    uint8_t *copy_of_pixels();

    uint8_t *pixels_;
    int width_, height_;
    int64_t count_;
    Tables tables_;
    bool is_settled_ = true;
    Mix *mix_ = nullptr; // once one has begun
};

void Canvas::forget() {
    for (Table &table : tables_)
        for (int level = 0; level < kLevels; ++level)
            table[static_cast<size_t>(level)] = static_cast<uint8_t>(level);
    is_settled_ = true;
}

void Canvas::settle() {
    if (is_settled_)
        return;
    const auto &[red, green, blue] = tables_;
    uint8_t *pixel = pixels_;
    for (int64_t i = 0; i < count_; ++i, pixel += kPixelBytes) {
        pixel[0] = red[pixel[0]];
        pixel[1] = green[pixel[1]];
        pixel[2] = blue[pixel[2]];
    }
    forget();
}

// function(channel, level) gives the new level.
template <typename Function> void Canvas::map_levels(Function function) {
    for (size_t channel = 0; channel < 3; ++channel)
        for (uint8_t &level : tables_[channel])
            level = function(channel, level);
    is_settled_ = false;
}

// function(pixel) changes it.
template <typename Function> void Canvas::map_pixels(Function function) {
    settle();
    uint8_t *pixel = pixels_;
    for (int64_t i = 0; i < count_; ++i, pixel += kPixelBytes)
        function(pixel);
}

Counts Canvas::counts() const {
    Counts before{}, after{};
    const uint8_t *pixel = pixels_;
    for (int64_t i = 0; i < count_; ++i, pixel += kPixelBytes)
        for (size_t channel = 0; channel < 3; ++channel)
            ++before[channel][pixel[channel]];
    for (size_t channel = 0; channel < 3; ++channel)
        for (size_t level = 0; level < kLevels; ++level)
            after[channel][tables_[channel][level]] += before[channel][level];
    return after;
}

// Source: Pillow's ImageEnhance.Contrast.
void Canvas::contrast(float factor) {
    settle();
    const auto sum = static_cast<double>(kernels().effects.luma_sum(pixels_, static_cast<size_t>(count_)));
    const int mean = static_cast<int>(sum / static_cast<double>(count_) + 0.5);
    map_levels([&](size_t, uint8_t level) { return blended(mean, level, factor); });
}

// Source: Pillow's ImageOps.autocontrast.
void Canvas::autocontrast() {
    const Counts count = counts();
    Tables stretched;
    for (size_t channel = 0; channel < 3; ++channel) {
        const auto [low, high] = range_of(count[channel]);
        const double scale = high > low ? 255.0 / (high - low) : 1.0;
        const double offset = high > low ? -low * scale : 0.0;
        for (int level = 0; level < kLevels; ++level)
            stretched[channel][static_cast<size_t>(level)] =
                static_cast<uint8_t>(std::clamp(static_cast<int>(level * scale + offset), 0, 255));
    }
    map_levels([&](size_t channel, uint8_t level) { return stretched[channel][level]; });
}

// Source: Pillow's ImageOps.equalize.
void Canvas::equalize() {
    const Counts count = counts();
    Tables equal;
    for (size_t channel = 0; channel < 3; ++channel) {
        const auto highest =
            std::find_if(count[channel].rbegin(), count[channel].rend(), [](uint32_t n) { return n > 0; });
        const int64_t step = (count_ - *highest) / 255;
        int64_t below = step / 2;
        for (size_t level = 0; level < kLevels; ++level) {
            equal[channel][level] =
                step == 0 ? static_cast<uint8_t>(level) : static_cast<uint8_t>(std::min<int64_t>(below / step, 255));
            below += count[channel][level];
        }
    }
    map_levels([&](size_t channel, uint8_t level) { return equal[channel][level]; });
}

// Source: Pillow's ImageEnhance.Color.
void Canvas::saturate(float factor) {
    settle();
    kernels().effects.saturate(pixels_, static_cast<size_t>(count_), factor);
}

void Canvas::grey() {
    settle();
    kernels().effects.make_grey(pixels_, static_cast<size_t>(count_));
}

void Canvas::turn_hue(uint8_t shift) {
    const HueTurner turner(shift);
    map_pixels([&](uint8_t *pixel) { turner.turn(pixel); });
}

uint8_t *Canvas::copy_of_pixels() {
    static thread_local Buffer memory;
    const size_t bytes = static_cast<size_t>(count_) * kPixelBytes;
    uint8_t *const copy = memory.take(bytes).data();
    std::memcpy(copy, pixels_, bytes);
    return copy;
}

// Source: Pillow's ImageEnhance.Sharpness, which blends with ImageFilter.SMOOTH; that leaves the outermost pixels.
void Canvas::sharpen(decltype(EffectLoops::sharpen_row) sharpen_row, float factor) {
    settle();
    if (width_ < 3 || height_ < 3)
        return;
    const uint8_t *const copy = copy_of_pixels();
    const ptrdiff_t stride = static_cast<ptrdiff_t>(width_) * kPixelBytes;
    for (int y = 1; y < height_ - 1; ++y) {
        const uint8_t *const here = copy + y * stride;
        sharpen_row(here - stride, here, here + stride, pixels_ + y * stride, static_cast<size_t>(stride), factor);
    }
}

// Source: v2's adjust_contrast.
void Canvas::tensors_contrast(double factor) {
    settle();
    const uint64_t sum = kernels().effects.tensors_grey_sum(pixels_, static_cast<size_t>(count_));
    const float mean = static_cast<float>(sum) / static_cast<float>(count_);
    const TensorBlend blend = tensor_blend(factor);
    map_levels([&](size_t, uint8_t level) {
        return cut_off(std::fma(mean, blend.rest, static_cast<float>(level) * blend.share));
    });
}

// Source: v2's autocontrast.
void Canvas::tensors_autocontrast() {
    const Counts count = counts();
    Tables stretched;
    for (size_t channel = 0; channel < 3; ++channel) {
        const auto [low, high] = range_of(count[channel]);
        const float divisor = high > low ? static_cast<float>(high - low) * static_cast<float>(1.0 / 255.0) : 1.0F;
        const int least = high > low ? low : 0;
        for (int level = 0; level < kLevels; ++level)
            stretched[channel][static_cast<size_t>(level)] = cut_off(static_cast<float>(level - least) / divisor);
    }
    map_levels([&](size_t channel, uint8_t level) { return stretched[channel][level]; });
}

void Canvas::permute(const fd_effect &effect) {
    map_pixels([&](uint8_t *pixel) {
        const uint8_t old[3] = {pixel[0], pixel[1], pixel[2]};
        for (int channel = 0; channel < 3; ++channel)
            pixel[channel] = old[static_cast<int>(effect.values[channel])];
    });
}

void Canvas::flip(bool horizontal, bool vertical) {
    settle();
    const ptrdiff_t stride = static_cast<ptrdiff_t>(width_) * kPixelBytes;
    const uint8_t *const copy = copy_of_pixels();
    for (int y = 0; y < height_; ++y) {
        uint8_t *const to = pixels_ + y * stride;
        const uint8_t *const from = copy + (vertical ? height_ - 1 - y : y) * stride;
        if (horizontal)
            kernels().reverse(from, width_, to);
        else
            std::memcpy(to, from, static_cast<size_t>(stride));
    }
}

void Canvas::begin_mix(float share) {
    static thread_local Mix mix;
    settle();
    mix.original.assign(pixels_, pixels_ + count_ * kPixelBytes);
    mix.sums.resize(mix.original.size());
    std::transform(mix.original.begin(), mix.original.end(), mix.sums.begin(),
                   [share](uint8_t level) { return share * static_cast<float>(level); });
    mix_ = &mix;
}

// Adds what the image has become, and goes back to what it was.
void Canvas::add_to_mix(decltype(EffectLoops::add_weighted) add, float weight) {
    if (mix_ == nullptr)
        return;
    settle();
    add(pixels_, mix_->sums.size(), weight, mix_->sums.data());
    std::copy(mix_->original.begin(), mix_->original.end(), pixels_);
}

// Source: timm's AugMixAugment.
void Canvas::end_mix(float share) {
    if (mix_ == nullptr)
        return;
    settle();
    kernels().effects.blend_with_sums(pixels_, mix_->sums.size(), mix_->sums.data(), share);
    mix_ = nullptr;
}

void Canvas::apply(const fd_effect &effect) {
    if (changes_levels(effect.kind))
        return map_levels([&](size_t, uint8_t level) { return changed_level(effect, level); });
    const double value = effect.values[0];
    const auto factor = static_cast<float>(value);
    switch (effect.kind) {
    case FD_CONTRAST:
        return contrast(factor);
    case FD_SATURATION:
        return saturate(factor);
    case FD_HUE:
        return turn_hue(static_cast<uint8_t>(value));
    case FD_SHARPNESS:
        return sharpen(kernels().effects.sharpen_row, factor);
    case FD_GREY:
        return grey();
    case FD_AUTOCONTRAST:
        return autocontrast();
    case FD_EQUALIZE:
        return equalize();
    case FD_BLUR:
        settle();
        return gaussian_blur(pixels_, width_, height_, effect.values);
    case FD_BOX_BLUR:
        settle();
        return box_blur(pixels_, width_, height_, factor);
    case FD_FLIP:
        return flip(value != 0, effect.values[1] != 0);
    case FD_MIX_BEGIN:
        return begin_mix(factor);
    case FD_MIX_ADD:
        return add_to_mix(kernels().effects.add_weighted, factor);
    case FD_MIX_BLEND:
        return add_to_mix(kernels().effects.blend_into_sums, factor);
    case FD_MIX_END:
        return end_mix(factor);
    case FD_PERMUTE:
        return permute(effect);
    case FD_TENSOR_CONTRAST:
        return tensors_contrast(value);
    case FD_TENSOR_SATURATION:
        settle();
        return kernels().effects.tensors_saturate(pixels_, static_cast<size_t>(count_), tensor_blend(value));
    case FD_TENSOR_HUE:
        settle();
        return kernels().effects.tensors_turn_hue(pixels_, static_cast<size_t>(count_),
                                                  static_cast<float>(effect.values[1]));
    case FD_TENSOR_SHARPNESS:
        return sharpen(kernels().effects.tensors_sharpen_row, tensor_blend(value).rest);
    case FD_TENSOR_GREY:
        settle();
        return kernels().effects.tensors_make_grey(pixels_, static_cast<size_t>(count_));
    case FD_TENSOR_AUTOCONTRAST:
        return tensors_autocontrast();
    case FD_AFFINE:
    case FD_PERSPECTIVE:
        settle();
        return warp(effect, copy_of_pixels(), width_, height_, {pixels_, width_, height_});
    default:
        return;
    }
}

} // namespace

bool changes_levels(int32_t kind) {
    return kind == FD_BRIGHTNESS || kind == FD_INVERT || kind == FD_POSTERIZE || kind == FD_SOLARIZE ||
           kind == FD_SOLARIZE_ADD;
}

uint8_t changed_level(const fd_effect &effect, uint8_t level) {
    const double value = effect.values[0];
    switch (effect.kind) {
    case FD_BRIGHTNESS:
        return blended(0, level, static_cast<float>(value));
    case FD_INVERT:
        return static_cast<uint8_t>(255 - level);
    case FD_POSTERIZE:
        return static_cast<uint8_t>(level & ~((1 << (8 - static_cast<int>(value))) - 1));
    case FD_SOLARIZE:
        return static_cast<uint8_t>(level < value ? level : 255 - level);
    case FD_SOLARIZE_ADD:
        return level < effect.values[1] ? static_cast<uint8_t>(std::min(255.0, level + value)) : level;
    default:
        return level;
    }
}

void apply_effects(Effects effects, uint8_t *pixels, int width, int height) {
    Canvas canvas(pixels, width, height);
    for (const fd_effect &effect : effects)
        canvas.apply(effect);
    canvas.settle();
}

} // namespace fastdata

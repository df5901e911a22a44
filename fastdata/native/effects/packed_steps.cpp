#include "effects/packed_steps.h"

#include "effects/blur.h"
#include "effects/warp.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

namespace fastdata {
namespace {

constexpr int kLevels = 256;
constexpr int64_t kMostPixels = int64_t{1} << 22; // whose sum fits 32 bits

// What is to be done to each level, and the steps before.
class Steps {
  public:
    Steps(int width, int height, std::vector<uint8_t> &packed) : width_(width), height_(height), packed_(packed) {
        forget();
    }

    bool add(const fd_effect &effect);

    // Appends the steps.
    PackedSteps finish() {
        settle();
        const int32_t at = append(std::span<const PackedStep>(steps_));
        const bool blurs =
            std::any_of(steps_.begin(), steps_.end(), [](const PackedStep &each) { return each.kind == kStepBlur; });
        return {static_cast<int32_t>(steps_.size()), at, blurs};
    }

  private:
    void forget() {
        for (size_t level = 0; level < kLevels; ++level)
            table_[level] = static_cast<uint8_t>(level);
        is_settled_ = true;
    }
    template <typename Number> int32_t append(std::span<const Number> numbers) {
        const auto at = static_cast<int32_t>(packed_.size());
        const auto *const bytes = reinterpret_cast<const uint8_t *>(numbers.data());
        packed_.insert(packed_.end(), bytes, bytes + numbers.size_bytes());
        return at;
    }
    void settle() {
        if (is_settled_)
            return;
        PackedStep step{};
        step.kind = kStepLevels;
        step.data_at = append(std::span<const uint8_t>(table_));
        for (int channel = 1; channel < 3; ++channel)
            append(std::span<const uint8_t>(table_));
        steps_.push_back(step);
        forget();
    }
    PackedStep &step(int32_t kind, double factor = 0) {
        settle();
        steps_.push_back({kind, static_cast<float>(factor), 0, {}});
        return steps_.back();
    }
    bool warp(const fd_effect &effect);

    int width_, height_;
    std::vector<uint8_t> &packed_;
    std::vector<PackedStep> steps_;
    std::array<uint8_t, kLevels> table_{};
    bool is_settled_ = true;
};

bool Steps::warp(const fd_effect &effect) {
    const bool is_nearest = effect.filter == FD_NEAREST, is_affine = effect.kind == FD_AFFINE;
    if ((!is_affine && effect.kind != FD_PERSPECTIVE) || (!is_nearest && effect.filter != FD_BILINEAR))
        return false;
    NearestMap map{NearestMap::Kind::other, {}, {}};
    if (is_nearest && is_affine)
        map = nearest_map(effect.values, width_, height_);
    const double *const fill = effect.values + 8;
    PackedStep &made = step(map.kind == NearestMap::Kind::scaled  ? kStepScale
                            : map.kind == NearestMap::Kind::fixed ? kStepMove
                                                                  : kStepWarp);
    made.values[6] =
        static_cast<int32_t>(fill[0]) | static_cast<int32_t>(fill[1]) << 8 | static_cast<int32_t>(fill[2]) << 16;
    if (map.kind == NearestMap::Kind::other) {
        packed_.resize((packed_.size() + 7) / 8 * 8);
        made.data_at = append(std::span<const double>(effect.values, 8));
        made.values[0] = is_affine ? 0 : 1;
        made.values[1] = is_nearest ? 0 : 1;
        return true;
    }
    if (map.kind == NearestMap::Kind::scaled) {
        made.data_at = append(std::span<const int>(map.columns));
        append(std::span<const int>(map.rows));
        return true;
    }
    std::memcpy(made.values, map.fixed.data(), sizeof map.fixed);
    return true;
}

bool Steps::add(const fd_effect &effect) {
    const double *const values = effect.values;
    if (changes_levels(effect.kind)) {
        for (uint8_t &level : table_)
            level = changed_level(effect, level);
        is_settled_ = false;
        return true;
    }
    switch (effect.kind) {
    case FD_NO_EFFECT:
        return true;
    case FD_CONTRAST:
        step(kStepContrast, values[0]);
        return true;
    case FD_SATURATION:
        step(kStepSaturation, values[0]);
        return true;
    case FD_HUE:
        step(kStepHue).values[0] = static_cast<uint8_t>(values[0]);
        return true;
    case FD_SHARPNESS:
        step(kStepSharpness, values[0]);
        return true;
    case FD_GREY:
        step(kStepGrey);
        return true;
    case FD_AUTOCONTRAST:
        step(kStepAutocontrast);
        return true;
    case FD_EQUALIZE:
        step(kStepEqualize);
        return true;
    case FD_FLIP: {
        PackedStep &made = step(kStepFlip);
        made.values[0] = values[0] != 0;
        made.values[1] = values[1] != 0;
        return true;
    }
    case FD_PERMUTE: {
        PackedStep &made = step(kStepPermute);
        for (int channel = 0; channel < 3; ++channel)
            made.values[channel] = static_cast<int32_t>(values[channel]);
        return true;
    }
    case FD_BLUR: {
        const BlurWeights weights = gaussian_weights(values);
        const auto across = static_cast<int32_t>(weights.across.size()),
                   down = static_cast<int32_t>(weights.down.size());
        if (across / 2 >= width_ || down / 2 >= height_)
            return true; // nothing is done
        PackedStep &made = step(kStepBlur);
        made.data_at = append(std::span<const float>(weights.across));
        append(std::span<const float>(weights.down));
        made.values[0] = across;
        made.values[1] = down;
        return true;
    }
    default:
        return warp(effect);
    }
}

} // namespace

PackedSteps pack_effects(Effects effects, int width, int height, std::vector<uint8_t> &packed) {
    const PackedSteps none = {-1, 0, false};
    if (int64_t{width} * height > kMostPixels)
        return do_nothing(effects) ? PackedSteps{0, 0, false} : none;
    Steps steps(width, height, packed);
    for (const fd_effect &effect : effects)
        if (!steps.add(effect))
            return none;
    return steps.finish();
}

} // namespace fastdata

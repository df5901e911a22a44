#include "effects/blur.h"
#include "effects/effects.h"

#include <algorithm>
#include <cmath>

namespace fastdata {
namespace {

constexpr double kMostSigma = 1000; // of a blur by boxes
constexpr double kMostFactor = 1e6;
constexpr int64_t kMostEffects = 1 << 12;

bool is_between(double value, double least, double most) {
    return least <= value && value <= most; // false for NaN
}

} // namespace

bool is_valid(const fd_effect &effect) {
    const double *const values = effect.values;
    switch (effect.kind) {
    case FD_NO_EFFECT:
    case FD_GREY:
    case FD_INVERT:
    case FD_AUTOCONTRAST:
    case FD_EQUALIZE:
    case FD_FLIP:
    case FD_MIX_BEGIN:
    case FD_TENSOR_GREY:
    case FD_TENSOR_AUTOCONTRAST:
        return true;
    case FD_BRIGHTNESS:
    case FD_CONTRAST:
    case FD_SATURATION:
    case FD_SHARPNESS:
    case FD_SOLARIZE:
    case FD_MIX_ADD:
    case FD_MIX_END:
    case FD_MIX_BLEND:
    case FD_TENSOR_CONTRAST:
    case FD_TENSOR_SATURATION:
    case FD_TENSOR_SHARPNESS:
        return is_between(values[0], -kMostFactor, kMostFactor);
    case FD_HUE:
        return is_between(values[0], 0, 255);
    case FD_TENSOR_HUE:
        return is_between(values[1], -0.5, 0.5);
    case FD_POSTERIZE:
        return is_between(values[0], 0, 8);
    case FD_BLUR:
        return is_gaussian(values);
    case FD_BOX_BLUR:
        return is_between(values[0], 0, kMostSigma);
    case FD_SOLARIZE_ADD:
        return is_between(values[0], 0, 255) && is_between(values[1], 0, 256);
    case FD_PERMUTE:
        return std::all_of(values, values + 3, [](double channel) { return is_between(channel, 0, 2); });
    case FD_AFFINE:
    case FD_PERSPECTIVE:
        return is_between(effect.filter, FD_NEAREST, FD_BICUBIC) && effect.filter != FD_LANCZOS &&
               std::all_of(values, values + 8, [](double value) { return std::isfinite(value); }) &&
               std::all_of(values + 8, values + 11, [](double level) { return is_between(level, 0, 255); });
    default:
        return false;
    }
}

bool are_valid(const fd_effect *effects, int64_t per_image, int64_t images) {
    if (per_image == 0)
        return true;
    if (effects == nullptr || per_image < 0 || per_image > kMostEffects || images < 0)
        return false;
    return std::all_of(effects, effects + per_image * images, [](const fd_effect &effect) { return is_valid(effect); });
}

} // namespace fastdata

// Effects of an image as a device does them; fastdata/device/effect_kernels.py reads them.
#pragma once

#include "effects/effects.h"

#include <cstdint>
#include <vector>

namespace fastdata {

enum PackedStepKind : int32_t {
    kStepLevels = 1, // data: three tables of 256 levels
    kStepContrast = 2,
    kStepAutocontrast = 3,
    kStepEqualize = 4,
    kStepSaturation = 5,
    kStepHue = 6, // values: the shift
    kStepGrey = 7,
    kStepSharpness = 8,
    kStepFlip = 9,     // values: 1 left to right, 1 top to bottom
    kStepPermute = 10, // values: the channels
    // The nearest pixels of a map.  values: a, b, d, e and where the first pixel is from, in 16.16 bits; levels outside
    kStepMove = 11,
    kStepScale = 12, // data: int32 columns[width], rows[height]; values[6]: levels outside
    // data: float weights[taps across], weights[taps down]; values: how many
    kStepBlur = 13,
    // data: double map[8]; values: 1 for a perspective, 1 for bilinear; [6]: levels outside
    kStepWarp = 14
};

struct PackedStep {
    int32_t kind;
    float factor;
    int32_t data_at; // from the head of the image
    int32_t values[9];
};

struct PackedSteps {
    int32_t count; // -1 for effects that a device does not do
    int32_t at;    // from the head of the image
    bool blurs;
};

// Appends the steps of effects and their data to what is packed of an image, whose result has this size.
PackedSteps pack_effects(Effects effects, int width, int height, std::vector<uint8_t> &packed);

} // namespace fastdata

// What augmentations do to the pixels of a finished image, with Pillow's arithmetic or that of uint8 tensors.
#pragma once

#include "fastdata_native.h"

#include <algorithm>
#include <cstdint>
#include <span>

namespace fastdata {

// N images' effects, as a caller gives them.
using Effects = std::span<const fd_effect>;

bool is_valid(const fd_effect &effect);

// False where some make no sense, or are missing.
bool are_valid(const fd_effect *effects, int64_t per_image, int64_t images);

// Those of one image.
inline Effects effects_of(const fd_effect *effects, int64_t per_image, int64_t image) {
    return {effects + image * per_image, static_cast<size_t>(per_image)};
}

inline bool do_nothing(Effects effects) {
    return std::all_of(effects.begin(), effects.end(), [](const fd_effect &each) { return each.kind == FD_NO_EFFECT; });
}

// True for effects that give each level another one, whatever the image, and what they make of a level.
bool changes_levels(int32_t kind);
uint8_t changed_level(const fd_effect &effect, uint8_t level);

// Changes an image of 4-byte pixels, one row after the other, in place.  The effects are valid.  Throws std::bad_alloc.
void apply_effects(Effects effects, uint8_t *pixels, int width, int height);

} // namespace fastdata

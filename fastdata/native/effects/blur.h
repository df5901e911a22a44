// Blurs of finished images.
#pragma once

#include <cstdint>
#include <vector>

namespace fastdata {

// The weights of a Gaussian blur along rows and along columns.
struct BlurWeights {
    std::vector<float> across, down;
};
BlurWeights gaussian_weights(const double *values); // of an effect

// True for FD_BLUR's values that make sense.
bool is_gaussian(const double *values);

// Blurs 4-byte pixels in place, with FD_BLUR's values.  Throws std::bad_alloc, as the next does.
void gaussian_blur(uint8_t *pixels, int width, int height, const double *values);

// The same by three boxes one after the other, across and then down: Pillow's ImageFilter.GaussianBlur.
void box_blur(uint8_t *pixels, int width, int height, float sigma);

} // namespace fastdata

// Turning the hue of pixels, with Pillow's hue, saturation and value of 8 bits.
#pragma once

#include <array>
#include <cstdint>

namespace fastdata {

// Changes pixels as Pillow does that converts them to HSV, adds to the hue, and converts them back.
class HueTurner {
  public:
    explicit HueTurner(uint8_t shift);

    void turn(uint8_t *pixel) const;

  private:
    struct Hue {
        int sextant;
        float rest;
    };
    std::array<Hue, 256> turned_; // for each hue before
};

} // namespace fastdata

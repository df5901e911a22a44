#include "effects/hue.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>

namespace fastdata {
namespace {

constexpr size_t kLevels = 256;

// What Pillow's conversion to HSV gives, which divides for every pixel.  Of a pixel's three levels one is the highest
// and one the lowest, so its hue depends on which those are, on their difference and on that to the third.
struct ToHsv {
    // By the sixth of the circle, highest minus lowest level, and highest minus the third.
    std::array<std::array<std::array<uint8_t, kLevels>, kLevels>, 6> hue;
    std::array<std::array<uint8_t, kLevels>, kLevels> saturation; // by highest level and difference
    // By saturation and value: the lowest of the three levels.
    std::array<std::array<uint8_t, kLevels>, kLevels> lowest;
};

uint8_t byte(double value) {
    return static_cast<uint8_t>(std::clamp(static_cast<int>(value), 0, 255));
}

// Which level is highest, and which lowest: red 0, green 1, blue 2.
constexpr int kSixth[3][3] = {{0, 0, 1}, {2, 0, 3}, {4, 5, 0}};

// Source: Pillow's rgb2hsv.  r, g and b are how far the levels are below the highest, as shares of the spread.
double hue_of(int sixth, float third) {
    float sector = 0;
    switch (sixth) {
    case 0: // red, then blue, then green
        sector = third - 1.0F;
        break;
    case 1: // red, then green, then blue
        sector = 1.0F - third;
        break;
    case 2: // green, then blue, then red
        sector = static_cast<float>(2.0 + 1.0 - static_cast<double>(third));
        break;
    case 3: // green, then red, then blue
        sector = static_cast<float>(2.0 + static_cast<double>(third) - 1.0);
        break;
    case 4: // blue, then green, then red
        sector = static_cast<float>(4.0 + static_cast<double>(third) - 1.0);
        break;
    default: // blue, then red, then green
        sector = static_cast<float>(4.0 + 1.0 - static_cast<double>(third));
    }
    const double circle = sector / 6.0 + 1.0;
    return static_cast<double>(static_cast<float>(circle - std::floor(circle)));
}

std::unique_ptr<const ToHsv> make_tables() {
    auto tables = std::make_unique<ToHsv>();
    for (int spread = 1; spread < 256; ++spread)
        for (int third = 0; third <= spread; ++third)
            for (int sixth = 0; sixth < 6; ++sixth)
                tables->hue[static_cast<size_t>(sixth)][static_cast<size_t>(spread)][static_cast<size_t>(third)] =
                    byte(hue_of(sixth, static_cast<float>(third) / static_cast<float>(spread)) * 255.0);
    for (size_t high = 1; high < kLevels; ++high)
        for (size_t spread = 0; spread <= high; ++spread)
            tables->saturation[high][spread] =
                byte(static_cast<double>(static_cast<float>(spread) / static_cast<float>(high)) * 255.0);
    for (size_t saturation = 0; saturation < kLevels; ++saturation)
        for (size_t value = 0; value < kLevels; ++value) {
            const auto share = static_cast<float>(static_cast<float>(saturation) / 255.0);
            tables->lowest[saturation][value] =
                byte(std::round(static_cast<double>(value) * (1.0 - static_cast<double>(share))));
        }
    return tables;
}

// Without a lock, which a child could find taken that was forked while they were made.
const ToHsv &tables() {
    static std::atomic<const ToHsv *> made{nullptr};
    const ToHsv *known = made.load(std::memory_order_acquire);
    if (known == nullptr) {
        std::unique_ptr<const ToHsv> own = make_tables();
        if (made.compare_exchange_strong(known, own.get(), std::memory_order_acq_rel))
            known = own.release(); // for as long as the process runs
    }
    return *known;
}

} // namespace

HueTurner::HueTurner(uint8_t shift) {
    for (size_t hue = 0; hue < kLevels; ++hue) {
        const double sextants = static_cast<double>(static_cast<float>((hue + shift) & 255)) * 6.0 / 255.0;
        const int whole = static_cast<int>(sextants);
        turned_[hue] = {whole % 6, static_cast<float>(sextants - static_cast<double>(whole))};
    }
}

// Source: Pillow's hsv2rgb.
void HueTurner::turn(uint8_t *pixel) const {
    const int red = pixel[0], green = pixel[1], blue = pixel[2];
    const int high = std::max({red, green, blue}), low = std::min({red, green, blue});
    if (high == low)
        return; // grey has no hue
    const int highest = red == high ? 0 : green == high ? 1 : 2;
    const int lowest = blue == low ? 2 : green == low ? 1 : 0;
    const int third = red + green + blue - high - low;
    const ToHsv &known = tables();
    const auto value = static_cast<size_t>(high), spread = static_cast<size_t>(high - low);
    const size_t saturation = known.saturation[value][spread];
    if (saturation == 0) {
        pixel[0] = pixel[1] = pixel[2] = static_cast<uint8_t>(high);
        return;
    }
    const auto sixth = static_cast<size_t>(kSixth[highest][lowest]);
    const Hue &hue = turned_[known.hue[sixth][spread][static_cast<size_t>(high - third)]];
    const auto share = static_cast<float>(static_cast<float>(saturation) / 255.0);
    // Not negative, so that adding a half and cutting off rounds as Pillow's round() does.
    const auto level = [&](double lack) {
        return static_cast<uint8_t>(static_cast<int>(static_cast<double>(high) * (1.0 - lack) + 0.5));
    };
    const auto full = static_cast<uint8_t>(high), least = known.lowest[saturation][value];
    const bool falls = (hue.sextant & 1) != 0;
    const uint8_t between = falls ? level(static_cast<double>(share * hue.rest))
                                  : level(static_cast<double>(share) * (1.0 - static_cast<double>(hue.rest)));
    // Where the value, the lowest level and the one between go in each sextant.
    static constexpr uint8_t kPlaces[6][3] = {{0, 2, 1}, {1, 2, 0}, {1, 0, 2}, {2, 0, 1}, {2, 1, 0}, {0, 1, 2}};
    const uint8_t *const places = kPlaces[hue.sextant];
    pixel[places[0]] = full;
    pixel[places[1]] = least;
    pixel[places[2]] = between;
}

} // namespace fastdata

#include "warp.h"

#include "geometry.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace fastdata {
namespace {

struct Place {
    double x, y;
};

// A map from the middle of a pixel of the result to where it comes from.
struct Affine {
    const double *values; // a, b, c, d, e, f

    Place operator()(double x, double y) const {
        return {values[0] * x + values[1] * y + values[2], values[3] * x + values[4] * y + values[5]};
    }
};

struct Perspective {
    const double *values; // a to h

    Place operator()(double x, double y) const {
        const double depth = values[6] * x + values[7] * y + 1;
        return {(values[0] * x + values[1] * y + values[2]) / depth,
                (values[3] * x + values[4] * y + values[5]) / depth};
    }
};

struct Image {
    const uint8_t *pixels;
    int width, height;

    bool holds(const Place &place) const {
        return place.x >= 0.0 && place.x < width && place.y >= 0.0 && place.y < height;
    }
    const uint8_t *at(int x, int y) const { // which is inside
        return pixels + (static_cast<ptrdiff_t>(y) * width + x) * kPixelBytes;
    }
    bool holds(int x, int y) const {
        return static_cast<uint32_t>(x) < static_cast<uint32_t>(width) &&
               static_cast<uint32_t>(y) < static_cast<uint32_t>(height);
    }
    const uint8_t *row(int y) const {
        return pixels + static_cast<ptrdiff_t>(std::clamp(y, 0, height - 1)) * width * kPixelBytes;
    }
    int column(int x) const { return std::clamp(x, 0, width - 1) * kPixelBytes; }
};

void nearest(const Image &image, const Place &place, uint8_t *to) {
    std::memcpy(to, image.at(static_cast<int>(place.x), static_cast<int>(place.y)), kPixelBytes);
}

// The pixel left above of a place, and how far the place is from its middle.
struct Corner {
    explicit Corner(const Place &place)
        : x(static_cast<int>(std::floor(place.x - 0.5))), y(static_cast<int>(std::floor(place.y - 0.5))),
          right(place.x - 0.5 - x), down(place.y - 0.5 - y) {}

    int x, y;
    double right, down;
};

void bilinear(const Image &image, const Place &place, uint8_t *to) {
    const Corner corner(place);
    const int left = image.column(corner.x), right = image.column(corner.x + 1);
    const uint8_t *const above = image.row(corner.y);
    const bool has_below = corner.y + 1 >= 0 && corner.y + 1 < image.height;
    const uint8_t *const below = image.row(corner.y + 1);
    for (int channel = 0; channel < kPixelBytes; ++channel) { // all four at once
        const int first = above[left + channel], second = above[right + channel];
        const int third = below[left + channel], fourth = below[right + channel];
        const double high = first + (second - first) * corner.right;
        const double low = has_below ? third + (fourth - third) * corner.right : high;
        to[channel] = static_cast<uint8_t>(static_cast<int>(high + (low - high) * corner.down));
    }
}

double cubic(double before, double first, double second, double after, double share) {
    const double slope = second - before;
    const double bend = 2 * (before - first) + second - after;
    const double turn = first - before - second + after;
    return first + share * (slope + share * (bend + share * turn));
}

void bicubic(const Image &image, const Place &place, uint8_t *to) {
    const Corner corner(place);
    int columns[4];
    for (int i = 0; i < 4; ++i)
        columns[i] = image.column(corner.x - 1 + i);
    double rows[4][kPixelBytes];
    for (int i = 0; i < 4; ++i) {
        const int y = corner.y - 1 + i;
        if (i > 0 && (y < 0 || y >= image.height)) {
            std::copy_n(rows[i - 1], kPixelBytes, rows[i]);
            continue;
        }
        const uint8_t *const row = image.row(y);
        for (int channel = 0; channel < kPixelBytes; ++channel)
            rows[i][channel] = cubic(row[columns[0] + channel], row[columns[1] + channel], row[columns[2] + channel],
                                     row[columns[3] + channel], corner.right);
    }
    for (int channel = 0; channel < kPixelBytes; ++channel) {
        const double value = cubic(rows[0][channel], rows[1][channel], rows[2][channel], rows[3][channel], corner.down);
        to[channel] = static_cast<uint8_t>(static_cast<int>(std::clamp(value, 0.0, 255.0)));
    }
}

template <typename Map, typename Filter> void warp_by(const Map &map, const Image &image, uint8_t *to, Filter filter) {
    for (int y = 0; y < image.height; ++y)
        for (int x = 0; x < image.width; ++x, to += kPixelBytes)
            if (const Place place = map(x + 0.5, y + 0.5); image.holds(place))
                filter(image, place, to);
}

template <typename Map> void warp_with(const Map &map, int filter, const Image &image, uint8_t *to) {
    if (filter == FD_NEAREST)
        warp_by(map, image, to, nearest);
    else if (filter == FD_BILINEAR)
        warp_by(map, image, to, bilinear);
    else
        warp_by(map, image, to, bicubic);
}

// Places that are summed up, as Pillow does for maps that keep rows and columns.
std::vector<int> summed_places(double begin, double step, int count) {
    std::vector<int> places;
    for (int i = 0; i < count; ++i, begin += step)
        places.push_back(begin < 0.0 ? -1 : begin < INT32_MAX ? static_cast<int>(begin) : INT32_MAX);
    return places;
}

void scale_nearest(const double *map, const Image &image, uint8_t *to) {
    const std::vector<int> columns = summed_places(map[2] + map[0] * 0.5, map[0], image.width);
    const std::vector<int> rows = summed_places(map[5] + map[4] * 0.5, map[4], image.height);
    for (const int y : rows)
        for (const int x : columns) {
            if (image.holds(x, y))
                std::memcpy(to, image.at(x, y), kPixelBytes);
            to += kPixelBytes;
        }
}

// True when every place fits 16.16 bits.
bool fits_fixed_point(const double *map, const Image &image) {
    const Affine place{map};
    for (const int x : {0, image.width})
        for (const int y : {0, image.height})
            if (const Place at = place(x, y); !(std::fabs(at.x) < 32768.0 && std::fabs(at.y) < 32768.0))
                return false;
    return true;
}

// In 16.16 bits; unsigned, as sums may wrap beyond the last pixel.
uint32_t fixed(double value) {
    return static_cast<uint32_t>(static_cast<int64_t>(std::floor(value * 65536.0 + 0.5)));
}

void nearest_fixed(const double *map, const Image &image, uint8_t *to) {
    const uint32_t a = fixed(map[0]), b = fixed(map[1]), d = fixed(map[3]), e = fixed(map[4]);
    uint32_t row_x = fixed(map[2] + map[0] * 0.5 + map[1] * 0.5);
    uint32_t row_y = fixed(map[5] + map[3] * 0.5 + map[4] * 0.5);
    for (int y = 0; y < image.height; ++y, row_x += b, row_y += e) {
        uint32_t at_x = row_x, at_y = row_y;
        for (int x = 0; x < image.width; ++x, at_x += a, at_y += d, to += kPixelBytes) {
            const int from_x = static_cast<int32_t>(at_x) >> 16, from_y = static_cast<int32_t>(at_y) >> 16;
            if (image.holds(from_x, from_y))
                std::memcpy(to, image.at(from_x, from_y), kPixelBytes);
        }
    }
}

} // namespace

// Source: Pillow's Image.transform, which knows three ways for the nearest pixel.
void warp(const fd_effect &effect, const uint8_t *from, uint8_t *to, int width, int height) {
    const Image image{from, width, height};
    const double *const map = effect.values, *const fill = effect.values + 8;
    const uint8_t outside[kPixelBytes] = {static_cast<uint8_t>(fill[0]), static_cast<uint8_t>(fill[1]),
                                          static_cast<uint8_t>(fill[2]), 0};
    for (int64_t i = 0; i < static_cast<int64_t>(width) * height; ++i)
        std::memcpy(to + i * kPixelBytes, outside, kPixelBytes);
    if (effect.kind == FD_PERSPECTIVE)
        return warp_with(Perspective{map}, effect.filter, image, to);
    if (effect.filter != FD_NEAREST)
        return warp_with(Affine{map}, effect.filter, image, to);
    if (map[1] == 0 && map[3] == 0)
        return scale_nearest(map, image, to);
    if (fits_fixed_point(map, image))
        return nearest_fixed(map, image, to);
    warp_with(Affine{map}, effect.filter, image, to);
}

} // namespace fastdata

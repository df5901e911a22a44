#include "effects/warp.h"

#include "base/geometry.h"
#include "kernels/kernels.h"

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
};

void nearest(const Image &image, const Place &place, uint8_t *to) {
    std::memcpy(to, image.at(static_cast<int>(place.x), static_cast<int>(place.y)), kPixelBytes);
}

template <typename Map> void warp_nearest(const Map &map, const Image &image, const Warped &result) {
    uint8_t *to = result.pixels;
    for (int y = 0; y < result.height; ++y)
        for (int x = 0; x < result.width; ++x, to += kPixelBytes)
            if (const Place place = map(x + 0.5, y + 0.5); image.holds(place))
                nearest(image, place, to);
}

template <typename Map> void warp_with(const Map &map, int filter, const Image &image, const Warped &result) {
    if (filter == FD_NEAREST)
        return warp_nearest(map, image, result);
    static thread_local std::vector<double> xs, ys;
    static thread_local std::vector<int32_t> columns;
    const auto width = static_cast<size_t>(result.width);
    xs.resize(width);
    ys.resize(width);
    columns.resize(width);
    const ptrdiff_t stride = static_cast<ptrdiff_t>(image.width) * kPixelBytes;
    const ptrdiff_t result_stride = static_cast<ptrdiff_t>(result.width) * kPixelBytes;
    const Rows rows = {image.pixels, stride, image.width, image.height};
    const auto run = filter == FD_BILINEAR ? kernels().bilinear : kernels().bicubic;
    for (int y = 0; y < result.height; ++y) {
        size_t count = 0;
        for (int x = 0; x < result.width; ++x) {
            const Place place = map(x + 0.5, y + 0.5);
            xs[count] = place.x;
            ys[count] = place.y;
            columns[count] = x;
            count += image.holds(place);
        }
        run(rows, {xs.data(), ys.data(), columns.data(), static_cast<int>(count)}, result.pixels + y * result_stride);
    }
}

// Places that are summed up, as Pillow does for maps that keep rows and columns.
std::vector<int> summed_places(double begin, double step, int count) {
    std::vector<int> places;
    for (int i = 0; i < count; ++i, begin += step)
        places.push_back(begin < 0.0 ? -1 : begin < INT32_MAX ? static_cast<int>(begin) : INT32_MAX);
    return places;
}

void scale_nearest(const NearestMap &map, const Image &image, const Warped &result) {
    uint8_t *to = result.pixels;
    for (const int y : map.rows)
        for (const int x : map.columns) {
            if (image.holds(x, y))
                std::memcpy(to, image.at(x, y), kPixelBytes);
            to += kPixelBytes;
        }
}

// True when every place fits 16.16 bits.
bool fits_fixed_point(const double *map, int width, int height) {
    const Affine place{map};
    for (const int x : {0, width})
        for (const int y : {0, height})
            if (const Place at = place(x, y); !(std::fabs(at.x) < 32768.0 && std::fabs(at.y) < 32768.0))
                return false;
    return true;
}

// In 16.16 bits; unsigned, as sums may wrap beyond the last pixel.
uint32_t fixed(double value) {
    return static_cast<uint32_t>(static_cast<int64_t>(std::floor(value * 65536.0 + 0.5)));
}

void nearest_fixed(const NearestMap &map, const Image &image, const Warped &result) {
    auto [a, b, d, e, row_x, row_y] = map.fixed;
    uint8_t *to = result.pixels;
    for (int y = 0; y < result.height; ++y, row_x += b, row_y += e) {
        uint32_t at_x = row_x, at_y = row_y;
        for (int x = 0; x < result.width; ++x, at_x += a, at_y += d, to += kPixelBytes) {
            const int from_x = static_cast<int32_t>(at_x) >> 16, from_y = static_cast<int32_t>(at_y) >> 16;
            if (image.holds(from_x, from_y))
                std::memcpy(to, image.at(from_x, from_y), kPixelBytes);
        }
    }
}

} // namespace

NearestMap nearest_map(const double *map, int width, int height) {
    if (map[1] == 0 && map[3] == 0)
        return {NearestMap::Kind::scaled, summed_places(map[2] + map[0] * 0.5, map[0], width),
                summed_places(map[5] + map[4] * 0.5, map[4], height)};
    if (!fits_fixed_point(map, width, height))
        return {NearestMap::Kind::other, {}, {}};
    return {NearestMap::Kind::fixed,
            {},
            {},
            {fixed(map[0]), fixed(map[1]), fixed(map[3]), fixed(map[4]), fixed(map[2] + map[0] * 0.5 + map[1] * 0.5),
             fixed(map[5] + map[3] * 0.5 + map[4] * 0.5)}};
}

// Source: Pillow's Image.transform.
void warp(const fd_effect &effect, const uint8_t *from, int width, int height, const Warped &result) {
    const Image image{from, width, height};
    const double *const map = effect.values, *const fill = effect.values + 8;
    const uint8_t outside[kPixelBytes] = {static_cast<uint8_t>(fill[0]), static_cast<uint8_t>(fill[1]),
                                          static_cast<uint8_t>(fill[2]), 0};
    for (int64_t i = 0; i < static_cast<int64_t>(result.width) * result.height; ++i)
        std::memcpy(result.pixels + i * kPixelBytes, outside, kPixelBytes);
    if (effect.kind == FD_PERSPECTIVE)
        return warp_with(Perspective{map}, effect.filter, image, result);
    if (effect.filter != FD_NEAREST)
        return warp_with(Affine{map}, effect.filter, image, result);
    const NearestMap nearest = nearest_map(map, result.width, result.height);
    if (nearest.kind == NearestMap::Kind::scaled)
        return scale_nearest(nearest, image, result);
    if (nearest.kind == NearestMap::Kind::fixed)
        return nearest_fixed(nearest, image, result);
    warp_with(Affine{map}, effect.filter, image, result);
}

} // namespace fastdata

#include "array.h"

#include "batch.h"
#include "buffer.h"
#include "guard.h"
#include "image.h"
#include "kernels.h"
#include "output.h"
#include "views.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <span>

namespace fastdata {
namespace {

constexpr int64_t kPixelsAtOnce = 1 << 17; // what one thread does before it looks for more: about half a millisecond
constexpr int64_t kMostBytes = int64_t{1} << 60;
constexpr int kMostSide = 1 << 24;

// True when every pixel of the array lies in its memory.
bool is_inside(const fd_arrays &arrays) {
    const int64_t counts[4] = {arrays.images, arrays.height, arrays.width, arrays.channels};
    int64_t low = arrays.first_byte, high = arrays.first_byte;
    if (arrays.memory_bytes <= 0 || arrays.memory_bytes > kMostBytes || low < 0 || low >= arrays.memory_bytes)
        return false;
    for (size_t axis = 0; axis < 4; ++axis) {
        const int64_t steps = counts[axis] - 1, stride = arrays.strides_bytes[axis];
        if (steps == 0 || stride == 0)
            continue;
        if (stride < -kMostBytes || std::abs(stride) > arrays.memory_bytes / steps) // the product may not wrap
            return false;
        (stride < 0 ? low : high) += steps * stride;
    }
    return low >= 0 && high < arrays.memory_bytes;
}

bool is_valid(const fd_arrays &arrays, const fd_format &format) {
    const int64_t width = arrays.out_size_px[0], height = arrays.out_size_px[1];
    const bool image = arrays.images > 0 && 0 < arrays.width && arrays.width <= kMostSide && 0 < arrays.height &&
                       arrays.height <= kMostSide && (arrays.channels == 1 || arrays.channels == 3);
    return arrays.memory != nullptr && image && is_inside(arrays) && arrays.rows != nullptr &&
           arrays.indices != nullptr && arrays.occurrences != nullptr && arrays.out != nullptr && 0 < width &&
           width <= kMostSide && 0 < height && height <= kMostSide &&
           arrays.out_stride_bytes >= width * height * format.channels * format.element && is_dense(format) &&
           are_valid(arrays.effects, arrays.effects_per_image, arrays.count);
}

// Its bytes in memory are red, green, blue and 0.
uint32_t pixel_of(uint32_t red, uint32_t green, uint32_t blue) {
    if constexpr (std::endian::native == std::endian::little)
        return red | green << 8 | blue << 16;
    return red << 24 | green << 16 | blue << 8;
}

// A row of pixels of any layout as 4-byte pixels.
void gather_row(const uint8_t *from, int64_t column_stride, int64_t channel_stride, int width, int channels,
                uint8_t *pixels) {
    if (channels == 3 && column_stride == 3 && channel_stride == 1)
        return kernels().unpack(from, width, pixels);
    const uint8_t *const green = from + (channels == 3 ? channel_stride : 0);
    const uint8_t *const blue = from + (channels == 3 ? 2 * channel_stride : 0);
    const auto copy = [&](int64_t step) {
        for (int64_t x = 0; x < width; ++x) {
            const uint32_t pixel = pixel_of(from[x * step], green[x * step], blue[x * step]);
            std::memcpy(pixels + x * kPixelBytes, &pixel, sizeof pixel);
        }
    };
    if (column_stride == 1)
        return copy(1); // a constant, which the compiler uses
    copy(column_stride);
}

Rows gather(const fd_arrays &arrays, int64_t row, const Box &window) {
    static thread_local Buffer memory;
    const int64_t *const strides = arrays.strides_bytes;
    const ptrdiff_t stride = static_cast<ptrdiff_t>(window.width()) * kPixelBytes;
    uint8_t *const pixels = memory.take(static_cast<size_t>(stride) * static_cast<size_t>(window.height())).data();
    const uint8_t *from =
        arrays.memory + arrays.first_byte + row * strides[0] + window.top * strides[1] + window.left * strides[2];
    for (int y = 0; y < window.height(); ++y)
        gather_row(from + y * strides[1], strides[2], strides[3], window.width(), arrays.channels, pixels + y * stride);
    return {pixels, stride, window.width(), window.height()};
}

// Everything that the images of one call share.
struct Loading {
    const fd_arrays &arrays;
    std::span<const fd_op> ops;
    const fd_geometry &geometry;
    const fd_format &format;
    const fd_options &options;

    int32_t load(int64_t item) const {
        const int64_t row = arrays.rows[item];
        put_message(arrays.messages, item, "");
        if (row < 0 || row >= arrays.images)
            return FD_BAD_REQUEST;
        View view;
        const Draw draw = Draw::of(geometry, item, arrays.indices, arrays.occurrences, arrays.given);
        if (!draw_view(ops, arrays.width, arrays.height, draw, view))
            return FD_NO_VIEW;
        if (!view.is_valid() || !view.window.is_inside(arrays.width, arrays.height) ||
            view.crop.width() != arrays.out_size_px[0] || view.crop.height() != arrays.out_size_px[1])
            return FD_BAD_REQUEST;
        const Rows window = gather(arrays, row, view.window);
        uint8_t *const out = arrays.out + item * arrays.out_stride_bytes;
        const Effects effects = effects_of(arrays.effects, arrays.effects_per_image, item);
        return ImageDecoder::of_this_thread().resize(window, view, {out, format, effects}, options);
    }
};

// Images that one thread takes at a time, so that small ones do not cost a look at the pool each.
int64_t images_at_once(const fd_arrays &arrays) {
    const int64_t pixels =
        std::max(int64_t{arrays.out_size_px[0]} * arrays.out_size_px[1], int64_t{arrays.width} * arrays.height);
    return std::max<int64_t>(1, kPixelsAtOnce / pixels);
}

} // namespace

void load_arrays(Pool *pool, fd_arrays &arrays, const fd_geometry &geometry, const fd_format &format,
                 const fd_options &options) {
    const int32_t status = guarded([&]() -> int32_t {
        if (!is_valid(format) || !is_valid(options) || !is_valid(geometry) || !is_valid(arrays, format))
            return FD_BAD_REQUEST;
        const Loading loading{
            arrays, {geometry.ops, static_cast<size_t>(geometry.op_count)}, geometry, format, options};
        const int64_t at_once = images_at_once(arrays);
        std::atomic<int64_t> decode_ns{0};
        run(pool, (arrays.count + at_once - 1) / at_once, [&](int64_t part) {
            const int64_t began = now_ns();
            const int64_t end = std::min(arrays.count, (part + 1) * at_once);
            for (int64_t item = part * at_once; item < end; ++item)
                arrays.statuses[item] = guarded([&] { return loading.load(item); });
            decode_ns += now_ns() - began;
        });
        arrays.decode_ns = decode_ns;
        return FD_OK;
    });
    if (status != FD_OK) // nothing was done
        std::fill_n(arrays.statuses, arrays.count, status);
}

} // namespace fastdata

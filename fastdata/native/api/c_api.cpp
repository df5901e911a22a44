// The C interface: checks what comes in, lets nothing escape.
#include "fastdata_native.h"

#include "base/buffer.h"
#include "base/guard.h"
#include "base/philox.h"
#include "batch/batch.h"
#include "batch/image.h"
#include "batch/pool.h"
#include "effects/warp.h"
#include "jpeg/jpeg_hook.h"
#include "jpeg/jpeg_scans.h"
#include "jpeg/repack.h"
#include "kernels/kernels.h"
#include "resize/output.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

using namespace fastdata;

struct fd_pool {
    explicit fd_pool(int threads) : pool(threads) {}
    Pool pool;
};

namespace {
// Not inside of the functions that use them: Windows cannot have them there, in functions that others may call.
thread_local Buffer scratch;
thread_local std::vector<uint8_t> restored;

Pool *inside(fd_pool *pool) {
    return pool != nullptr ? &pool->pool : nullptr;
}

// Pixels of 3 bytes as pixels of 4, valid until the next call in this thread.
Rows unpacked(const Rows &rgb) {
    static thread_local Buffer memory;
    const ptrdiff_t stride = static_cast<ptrdiff_t>(rgb.width) * kPixelBytes;
    uint8_t *const pixels = memory.take(static_cast<size_t>(stride) * static_cast<size_t>(rgb.height)).data();
    for (int y = 0; y < rgb.height; ++y)
        kernels().unpack(rgb.row(y), rgb.width, pixels + y * stride);
    return {pixels, stride, rgb.width, rgb.height};
}
} // namespace

int32_t fd_abi_version(void) {
    return FD_ABI_VERSION;
}

const char *fd_description(void) {
    static const std::string text = std::string(jpeg_library()) + ", " + png_library() + ", " + kernels().name +
                                    (replaces_decode_mcu() ? "" : ", libjpeg's own entropy decoder");
    return text.c_str();
}

int32_t fd_features(void) {
    return (reads_pngs() ? FD_READS_PNGS : 0) | (replaces_decode_mcu() ? FD_REPLACES_ENTROPY : 0);
}

const char *fd_kernels(void) {
    return kernels().name;
}

int32_t fd_choose_kernels(const char *name) {
    return choose_kernels(name) ? 1 : 0;
}

fd_pool *fd_pool_create(int32_t threads) {
    return new (std::nothrow) fd_pool(threads);
}

void fd_pool_destroy(fd_pool *pool) {
    delete pool;
}

void fd_pool_abandon(fd_pool *pool) {
    pool->pool.abandon(); // a call in progress still refers to what is in it
}

void fd_fill(fd_pool *pool, fd_recipes *recipes, const fd_geometry *geometry, const fd_format *format,
             const fd_options *options) {
    fill(inside(pool), *recipes, geometry, *format, *options);
}

void fd_gather(int64_t count, const uint8_t *const *pieces, const int64_t *piece_bytes, uint8_t *const *places) {
    for (int64_t i = 0; i < count; ++i)
        std::copy_n(pieces[i], static_cast<size_t>(piece_bytes[i]), places[i]);
}

int32_t fd_has_whole_scans(const uint8_t *data, int64_t data_bytes, int64_t scan_at, int32_t one_scan) {
    return has_whole_scans({data, static_cast<size_t>(data_bytes)}, static_cast<size_t>(scan_at), one_scan != 0);
}

void fd_read(fd_pool *pool, fd_recipes *recipes, const fd_options *options, uint8_t *const *data, uint8_t *whole) {
    read_files(inside(pool), *recipes, *options, data, whole);
}

int64_t fd_draw_views(int64_t count, const int64_t *sizes_px, const int64_t *indices, const int64_t *occurrences,
                      const int64_t *given, const fd_geometry *geometry, const fd_views *views) {
    return draw_batch(count, sizes_px, indices, occurrences, given, *geometry, *views);
}

void fd_philox(int64_t count, const int64_t *first, const int64_t *second, const int64_t *third, int64_t fourth,
               const uint32_t key[2], uint64_t *words) {
    for (int64_t i = 0; i < count; ++i) {
        const auto drawn = philox4x32({static_cast<uint32_t>(first[i]), static_cast<uint32_t>(second[i]),
                                       static_cast<uint32_t>(third[i]), static_cast<uint32_t>(fourth)},
                                      {key[0], key[1]});
        for (size_t word = 0; word < drawn.size(); ++word)
            words[static_cast<int64_t>(word) * count + i] = drawn[word];
    }
}

void fd_normals(int64_t count, int64_t index, int64_t occurrence, int64_t stream, const uint32_t key[2], float *out) {
    const NormalDraws draws = {static_cast<uint32_t>(index),
                               static_cast<uint32_t>(occurrence),
                               static_cast<uint32_t>(stream),
                               {key[0], key[1]}};
    constexpr int64_t kAtOnce = int64_t{4} * kNormalCounters;
    float last[kAtOnce];
    for (int64_t done = 0; done < count; done += kAtOnce) {
        const bool is_whole = count - done >= kAtOnce;
        kernels().normals(draws, static_cast<uint32_t>(done / 4), is_whole ? out + done : last);
        if (!is_whole)
            std::copy_n(last, count - done, out + done);
    }
}

int32_t fd_resize(const uint8_t *pixels, int64_t pixels_bytes, int32_t pixel_bytes, int64_t stride_bytes,
                  const fd_views *seen, void *out, const fd_format *format, const fd_options *options) {
    return guarded([&]() -> int32_t {
        const View view = view_at(*seen, 0);
        const int width = view.window.width(), height = view.window.height();
        const bool known = pixel_bytes == 3 || pixel_bytes == kPixelBytes;
        const bool fits = known && width > 0 && height > 0 && stride_bytes >= int64_t{width} * pixel_bytes &&
                          (height == 1 || stride_bytes <= pixels_bytes) &&
                          pixels_bytes >= (height - 1) * stride_bytes + int64_t{width} * pixel_bytes;
        if (!fits || pixels == nullptr || out == nullptr || !view.is_valid() || !is_valid(*format) ||
            !is_valid(*options))
            return FD_BAD_REQUEST;
        Rows window = {pixels, static_cast<ptrdiff_t>(stride_bytes), width, height};
        if (pixel_bytes == 3)
            window = unpacked(window);
        return ImageDecoder::of_this_thread().resize(window, view, {out, *format}, *options);
    });
}

int32_t fd_warp(const uint8_t *rgb, int32_t width, int32_t height, const fd_effect *effect,
                const int32_t out_size_px[2], uint8_t *out) {
    return guarded([&]() -> int32_t {
        const bool moves = effect->kind == FD_AFFINE || effect->kind == FD_PERSPECTIVE;
        const int out_width = out_size_px[0], out_height = out_size_px[1];
        if (rgb == nullptr || out == nullptr || std::min({width, height, out_width, out_height}) <= 0 || !moves ||
            !is_valid(*effect))
            return FD_BAD_REQUEST;
        const size_t row_bytes = static_cast<size_t>(out_width) * kPixelBytes;
        uint8_t *const pixels = scratch.take(row_bytes * static_cast<size_t>(out_height)).data();
        const Rows from = unpacked({rgb, static_cast<ptrdiff_t>(width) * 3, width, height});
        warp(*effect, from.first, width, height, {pixels, out_width, out_height});
        for (int y = 0; y < out_height; ++y, out += static_cast<ptrdiff_t>(out_width) * 3)
            kernels().pack(pixels + static_cast<size_t>(y) * row_bytes, out_width, out);
        return FD_OK;
    });
}

int32_t fd_convert(const uint8_t *rgb, int32_t width, int32_t height, const fd_effect *effects, int64_t effect_count,
                   void *out, const fd_format *format) {
    return guarded([&]() -> int32_t {
        if (rgb == nullptr || out == nullptr || width <= 0 || height <= 0 || !is_valid(*format) ||
            !are_valid(effects, effect_count, 1))
            return FD_BAD_REQUEST;
        const Target target = {out, *format, effects_of(effects, effect_count, 0)};
        return ImageDecoder::of_this_thread().convert(rgb, width, height, target);
    });
}

// Hands over what is made of an image.  make: gets a decoder, a function that opens an image with it, and the bytes to
// make.
template <class Make>
static int32_t made_of(const uint8_t *data, int64_t data_bytes, const fd_options *options, uint8_t **to,
                       int64_t *to_bytes, const Make &make) {
    return guarded([&]() -> int32_t {
        if (data == nullptr || data_bytes < 0 || to == nullptr || to_bytes == nullptr || !is_valid(*options))
            return FD_BAD_REQUEST;
        static thread_local JpegDecoder decoder;
        static thread_local std::vector<uint8_t> made;
        const auto open = [&](std::span<const uint8_t> image) {
            return decoder.open(image, {options->max_pixels, options->max_memory_bytes, options->max_scans});
        };
        fd_status status = make(decoder, open, std::span(data, static_cast<size_t>(data_bytes)), made);
        if (status == FD_OK)
            status = handed_over(made, to, to_bytes);
        constexpr size_t kKeptBytes = size_t{16} << 20; // of an unusually large image no longer than for it
        if (made.capacity() > kKeptBytes)
            made = {};
        return status;
    });
}

int32_t fd_index(const uint8_t *data, int64_t data_bytes, int32_t step, const fd_options *options, uint8_t **index,
                 int64_t *index_bytes) {
    if (step < 0)
        return FD_BAD_REQUEST;
    return made_of(data, data_bytes, options, index, index_bytes,
                   [step](JpegDecoder &decoder, const auto &open, std::span<const uint8_t> file, auto &made) {
                       const fd_status status = open(file);
                       return status == FD_OK ? decoder.make_index(step, made) : status;
                   });
}

int32_t fd_unpack(const uint8_t *data, int64_t data_bytes, const fd_options *options, int32_t restorable,
                  uint8_t **record, int64_t *record_bytes) {
    return made_of(data, data_bytes, options, record, record_bytes,
                   [restorable](JpegDecoder &decoder, const auto &open, std::span<const uint8_t> file, auto &made) {
                       for (const int padding : {1, 0}) {
                           fd_status status = open(file);
                           if (status == FD_OK)
                               status = decoder.unpack(padding, made);
                           if (status != FD_OK || restorable == 0)
                               return status;
                           const bool is_restored = open(made) == FD_OK && decoder.restore(restored) == FD_OK;
                           if (is_restored && std::ranges::equal(restored, file))
                               return FD_OK;
                       }
                       return FD_UNSUPPORTED;
                   });
}

int32_t fd_restore(const uint8_t *record, int64_t record_bytes, const fd_options *options, uint8_t **file,
                   int64_t *file_bytes) {
    return made_of(record, record_bytes, options, file, file_bytes,
                   [](JpegDecoder &decoder, const auto &open, std::span<const uint8_t> image, auto &made) {
                       const fd_status status = open(image);
                       return status == FD_OK ? decoder.restore(made) : status;
                   });
}

int32_t fd_repack(const uint8_t *data, int64_t data_bytes, int32_t restart_rows, const fd_options *options,
                  uint8_t **repacked, int64_t *repacked_bytes, char *message) {
    return guarded([&]() -> int32_t {
        put_message(message, 0, "");
        if (data == nullptr || data_bytes < 0 || restart_rows < 0 || repacked == nullptr || repacked_bytes == nullptr ||
            !is_valid(*options))
            return FD_BAD_REQUEST;
        const JpegLimits limits = {options->max_pixels, options->max_memory_bytes, options->max_scans};
        std::vector<uint8_t> result;
        std::string reason;
        const fd_status status =
            repack_jpeg({data, static_cast<size_t>(data_bytes)}, limits, restart_rows, result, reason);
        put_message(message, 0, reason.c_str());
        if (status != FD_OK)
            return status;
        return handed_over(result, repacked, repacked_bytes);
    });
}

void fd_free(uint8_t *memory) {
    std::free(memory);
}

// The C interface: checks what comes in, lets nothing escape.
#include "fastdata_native.h"

#include "crc32c.h"
#include "files.h"
#include "image.h"
#include "kernels.h"
#include "output.h"
#include "philox.h"
#include "pool.h"
#include "repack.h"
#include "views.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

using namespace fastdata;

struct fd_pool {
    explicit fd_pool(int threads) : pool(threads) {}
    Pool pool;
};

namespace {

void run(fd_pool *pool, int64_t count, const std::function<void(int64_t)> &work) {
    if (pool != nullptr)
        return pool->pool.run(count, work);
    for (int64_t item = 0; item < count; ++item)
        work(item);
}

void put_message(char *messages, int64_t item, const char *text) {
    if (messages != nullptr)
        std::snprintf(messages + item * FD_MESSAGE_BYTES, FD_MESSAGE_BYTES, "%s", text);
}

// Calls work, which returns a status, and turns what it throws into one.
template <typename Work> int32_t guarded(Work work) noexcept {
    try {
        return work();
    } catch (const std::bad_alloc &) {
        return FD_OUT_OF_MEMORY;
    } catch (...) { // threads that cannot be started
        return FD_BAD_REQUEST;
    }
}

Box box_at(const int32_t *numbers) {
    return {numbers[0], numbers[1], numbers[2], numbers[3]};
}

View view_at(const fd_images &images, int64_t item) {
    return {box_at(images.windows_px + 4 * item), images.resizes_px[2 * item], images.resizes_px[2 * item + 1],
            box_at(images.crops_px + 4 * item),   images.flips[2 * item] != 0, images.flips[2 * item + 1] != 0};
}

int32_t decode_one(const fd_images &images, int64_t item, const fd_format &format, const fd_options &options) {
    put_message(images.messages, item, "");
    const auto size = images.data_bytes[item];
    const View view = view_at(images, item);
    if (images.data[item] == nullptr || size < 0 || images.out[item] == nullptr || !view.is_valid())
        return FD_BAD_REQUEST;
    ImageDecoder &decoder = ImageDecoder::of_this_thread();
    fd_status status = decoder.open({images.data[item], static_cast<size_t>(size)}, options);
    if (status == FD_OK)
        status = decoder.decode(view, images.out[item], format, options);
    put_message(images.messages, item, status == FD_OK ? "" : decoder.message());
    return status;
}

int64_t now_ns() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

// Everything that the images of one fd_load share.
struct Loading {
    const fd_files &files;
    std::span<const fd_op> ops;
    const fd_geometry &geometry;
    const fd_format &format;
    const fd_options &options;
    std::vector<const char *> paths{};
    std::atomic<int64_t> read_ns{0}, decode_ns{0};

    int32_t read(int64_t item, FileReader &reader) {
        const int64_t began = now_ns();
        fd_status status =
            reader.read(paths[static_cast<size_t>(item)], files.offsets != nullptr ? files.offsets[item] : 0,
                        files.lengths != nullptr ? files.lengths[item] : -1);
        files.data_bytes[item] = static_cast<int64_t>(reader.bytes().size());
        put_message(files.messages, item, reader.message().c_str());
        const int64_t expected = files.crcs != nullptr ? files.crcs[item] : -1;
        if (status == FD_OK && expected >= 0 && crc32c(reader.bytes()) != expected) {
            put_message(files.messages, item, "wrong checksum");
            status = FD_CORRUPT;
        }
        read_ns += now_ns() - began;
        return status;
    }

    int32_t decode(int64_t item, std::span<const uint8_t> data) {
        ImageDecoder &decoder = ImageDecoder::of_this_thread();
        View view;
        const auto draw_and_decode = [&]() -> fd_status {
            if (const fd_status status = decoder.open(data, options); status != FD_OK)
                return status;
            const Draw draw = {files.indices[item], files.copies[item], {geometry.key[0], geometry.key[1]}};
            if (!draw_view(ops, decoder.width(), decoder.height(), draw, view))
                return FD_NO_VIEW;
            if (!view.is_valid() || view.crop.width() != files.out_size_px[0] ||
                view.crop.height() != files.out_size_px[1])
                return FD_BAD_REQUEST;
            return decoder.decode(view, files.out + item * files.out_stride_bytes, format, options);
        };
        const int64_t began = now_ns();
        const fd_status status = draw_and_decode();
        if (status != FD_OK)
            put_message(files.messages, item, decoder.message());
        decode_ns += now_ns() - began;
        return status;
    }

    int32_t load(int64_t item) {
        static thread_local FileReader reader;
        files.data_bytes[item] = 0;
        const int32_t status = read(item, reader);
        return status == FD_OK ? decode(item, reader.bytes()) : status;
    }
};

bool is_valid(const fd_geometry &geometry) {
    return geometry.op_count >= 0 && (geometry.op_count == 0 || geometry.ops != nullptr) &&
           std::all_of(geometry.ops, geometry.ops + geometry.op_count,
                       [](const fd_op &op) { return fastdata::is_valid(op); });
}

bool is_valid(const fd_files &files, const fd_format &format) {
    const int64_t image_bytes = int64_t{files.out_size_px[0]} * files.out_size_px[1] * 3 * format.element;
    return files.paths != nullptr && files.indices != nullptr && files.copies != nullptr && files.out != nullptr &&
           files.data_bytes != nullptr && files.out_size_px[0] > 0 && files.out_size_px[1] > 0 &&
           files.out_stride_bytes >= image_bytes;
}

// Where each of N strings begins; false when there are fewer.
bool split(const fd_files &files, std::vector<const char *> &paths) {
    const char *at = files.paths, *const end = files.paths + files.paths_bytes;
    for (int64_t item = 0; item < files.count; ++item) {
        const void *last = at < end ? std::memchr(at, 0, static_cast<size_t>(end - at)) : nullptr;
        if (last == nullptr)
            return false;
        paths.push_back(at);
        at = static_cast<const char *>(last) + 1;
    }
    return at == end;
}

} // namespace

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

int32_t fd_abi_version(void) {
    return FD_ABI_VERSION;
}

const char *fd_description(void) {
    static const std::string text = std::string(jpeg_library()) + ", " + png_library() + ", " + kernels().name;
    return text.c_str();
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

void fd_load(fd_pool *pool, fd_files *files, const fd_geometry *geometry, const fd_format *format,
             const fd_options *options) {
    const int32_t status = guarded([&]() -> int32_t {
        const bool valid = is_valid(*format) && is_valid(*options) && is_valid(*geometry) && is_valid(*files, *format);
        Loading loading{*files, {geometry->ops, static_cast<size_t>(geometry->op_count)}, *geometry, *format, *options};
        if (!valid || !split(*files, loading.paths))
            return FD_BAD_REQUEST;
        run(pool, files->count,
            [&](int64_t item) { files->statuses[item] = guarded([&] { return loading.load(item); }); });
        files->read_ns = loading.read_ns;
        files->decode_ns = loading.decode_ns;
        return FD_OK;
    });
    if (status != FD_OK) // nothing was done
        std::fill_n(files->statuses, files->count, status);
}

int64_t fd_draw_views(int64_t count, const int64_t *sizes_px, const int64_t *indices, const int64_t *copies,
                      const fd_geometry *geometry, int32_t *windows_px, int32_t *resizes_px, int32_t *crops_px,
                      uint8_t *flips) {
    if (!is_valid(*geometry))
        return -2;
    const std::span<const fd_op> ops{geometry->ops, static_cast<size_t>(geometry->op_count)};
    const auto put = [](const Box &box, int32_t *to) {
        to[0] = box.left, to[1] = box.top, to[2] = box.right, to[3] = box.bottom;
    };
    for (int64_t item = 0; item < count; ++item) {
        View view;
        const Draw draw = {indices[item], copies[item], {geometry->key[0], geometry->key[1]}};
        const int64_t width = sizes_px[2 * item], height = sizes_px[2 * item + 1];
        if (width <= 0 || height <= 0 || width > INT32_MAX || height > INT32_MAX)
            return -2;
        if (!draw_view(ops, static_cast<int>(width), static_cast<int>(height), draw, view))
            return item;
        put(view.window, windows_px + 4 * item);
        put(view.crop, crops_px + 4 * item);
        resizes_px[2 * item] = view.resize_width;
        resizes_px[2 * item + 1] = view.resize_height;
        flips[2 * item] = view.flip_horizontal;
        flips[2 * item + 1] = view.flip_vertical;
    }
    return -1;
}

void fd_decode(fd_pool *pool, const fd_images *images, const fd_format *format, const fd_options *options) {
    const bool valid = is_valid(*format) && is_valid(*options);
    const int32_t status = guarded([&]() -> int32_t {
        run(pool, images->count, [&](int64_t item) {
            images->statuses[item] =
                valid ? guarded([&] { return decode_one(*images, item, *format, *options); }) : FD_BAD_REQUEST;
        });
        return FD_OK;
    });
    if (status != FD_OK) // no thread could be started, so nothing was done
        for (int64_t item = 0; item < images->count; ++item)
            images->statuses[item] = status;
}

int32_t fd_resize(const uint8_t *rgbx, int64_t rgbx_bytes, int64_t stride_bytes, int32_t width, int32_t height,
                  const int32_t resize_px[2], const int32_t crop_px[4], const uint8_t flips[2], void *out,
                  const fd_format *format, const fd_options *options) {
    return guarded([&]() -> int32_t {
        const View view = {{0, 0, width, height}, resize_px[0],  resize_px[1],
                           box_at(crop_px),       flips[0] != 0, flips[1] != 0};
        const bool fits = width > 0 && height > 0 && stride_bytes >= int64_t{width} * kPixelBytes &&
                          rgbx_bytes >= (height - 1) * stride_bytes + int64_t{width} * kPixelBytes;
        if (!fits || rgbx == nullptr || out == nullptr || !view.is_valid() || !is_valid(*format) || !is_valid(*options))
            return FD_BAD_REQUEST;
        const Rows window = {rgbx, static_cast<ptrdiff_t>(stride_bytes), width, height};
        return ImageDecoder::of_this_thread().resize(window, view, out, *format, *options);
    });
}

int32_t fd_convert(const uint8_t *rgb, int32_t width, int32_t height, void *out, const fd_format *format) {
    return guarded([&]() -> int32_t {
        if (rgb == nullptr || out == nullptr || width <= 0 || height <= 0 || !is_valid(*format))
            return FD_BAD_REQUEST;
        return ImageDecoder::of_this_thread().convert(rgb, width, height, out, *format);
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
        *repacked = static_cast<uint8_t *>(std::malloc(result.size()));
        if (*repacked == nullptr)
            return FD_OUT_OF_MEMORY;
        std::copy(result.begin(), result.end(), *repacked);
        *repacked_bytes = static_cast<int64_t>(result.size());
        return FD_OK;
    });
}

void fd_free(uint8_t *memory) {
    std::free(memory);
}

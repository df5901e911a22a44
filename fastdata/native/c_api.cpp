// The C interface: checks what comes in, lets nothing escape.
#include "fastdata_native.h"

#include "files.h"
#include "image.h"
#include "kernels.h"
#include "output.h"
#include "philox.h"
#include "pool.h"

#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <vector>

using namespace fastdata;

struct fd_pool {
    explicit fd_pool(int threads) : pool(threads) {}
    Pool pool;
};

struct fd_files {
    std::vector<Bytes> files;
    std::vector<const uint8_t *> data;
    std::vector<int64_t> sizes;
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
    const fd_status status =
        decoder.decode({images.data[item], static_cast<size_t>(size)}, view, images.out[item], format, options);
    put_message(images.messages, item, status == FD_OK ? "" : decoder.message());
    return status;
}

int32_t read_one(const char *path, int64_t offset, int64_t length, Bytes &bytes, int32_t *size_px, char *messages,
                 int64_t item) {
    std::string reason;
    const fd_status status = read_file(path, offset, length, bytes, reason);
    put_message(messages, item, reason.c_str());
    if (status != FD_OK)
        return status;
    const std::span<const uint8_t> data{bytes.data.get(), static_cast<size_t>(bytes.size)};
    return parse_jpeg_size(data, size_px) ? FD_OK : FD_UNSUPPORTED;
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
    static const std::string text = std::string(jpeg_library()) + ", " + kernels().name;
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

fd_files *fd_files_read(fd_pool *pool, int64_t count, const char *const *paths, const int64_t *offsets,
                        const int64_t *lengths, int32_t *sizes_px, int32_t *statuses, char *messages) {
    fd_files *result = nullptr;
    const int32_t status = guarded([&]() -> int32_t {
        if (count < 0 || paths == nullptr || sizes_px == nullptr || statuses == nullptr)
            return FD_BAD_REQUEST;
        auto files = std::make_unique<fd_files>();
        files->files.resize(static_cast<size_t>(count));
        run(pool, count, [&](int64_t item) {
            statuses[item] = guarded([&] {
                return read_one(paths[item], offsets != nullptr ? offsets[item] : 0,
                                lengths != nullptr ? lengths[item] : -1, files->files[static_cast<size_t>(item)],
                                sizes_px + 2 * item, messages, item);
            });
        });
        for (const Bytes &bytes : files->files) {
            files->data.push_back(bytes.data.get());
            files->sizes.push_back(bytes.size);
        }
        result = files.release();
        return FD_OK;
    });
    return status == FD_OK ? result : nullptr;
}

const uint8_t *const *fd_files_data(const fd_files *files) {
    return files->data.data();
}
const int64_t *fd_files_bytes(const fd_files *files) {
    return files->sizes.data();
}
void fd_files_free(fd_files *files) {
    delete files;
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

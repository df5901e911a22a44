#include "batch/batch.h"

#include "base/crc32c.h"
#include "base/guard.h"
#include "batch/files.h"
#include "batch/views.h"
#include "jpeg/jpeg_scans.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

namespace fastdata {
namespace {

// The files of one fd_read.
struct Reading {
    const fd_recipes &recipes;
    const fd_options &options;
    std::vector<const char *> paths{};

    int32_t measure(int64_t item, FileReader &reader) const {
        const fd_status status =
            reader.measure(paths[static_cast<size_t>(item)], value_or(recipes.offsets, item, 0),
                           value_or(recipes.lengths, item, -1), options.max_file_bytes, recipes.read_bytes[item]);
        put_message(recipes.messages, item, reader.message().c_str());
        return status;
    }

    int32_t read_into(int64_t item, uint8_t *data, FileReader &reader) const {
        if (recipes.read_bytes[item] < 0)
            return FD_BAD_REQUEST;
        std::span<uint8_t> to(data, static_cast<size_t>(recipes.read_bytes[item]));
        fd_status status = reader.read_into(to, paths[static_cast<size_t>(item)], value_or(recipes.offsets, item, 0));
        put_message(recipes.messages, item, reader.message().c_str());
        if (status == FD_OK)
            status = check(value_or(recipes.crcs, item, -1), to, recipes.messages, item);
        recipes.read_bytes[item] = static_cast<int64_t>(to.size());
        return status;
    }
};

} // namespace

bool split(const char *strings, int64_t bytes, int64_t count, std::vector<const char *> &begins) {
    const char *at = strings, *const end = strings + bytes;
    for (int64_t item = 0; item < count; ++item) {
        const void *last = at < end ? std::memchr(at, 0, static_cast<size_t>(end - at)) : nullptr;
        if (last == nullptr)
            return false;
        begins.push_back(at);
        at = static_cast<const char *>(last) + 1;
    }
    return at == end;
}

fd_status check(int64_t expected, std::span<const uint8_t> bytes, char *messages, int64_t item) {
    if (expected < 0 || crc32c(bytes) == expected)
        return FD_OK;
    put_message(messages, item, "wrong checksum");
    return FD_CORRUPT;
}

void run(Pool *pool, int64_t count, const std::function<void(int64_t)> &work) {
    if (pool != nullptr)
        return pool->run(count, work);
    for (int64_t item = 0; item < count; ++item)
        work(item);
}

int64_t now_ns() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

fd_status handed_over(const std::vector<uint8_t> &bytes, uint8_t **memory, int64_t *memory_bytes) {
    *memory = static_cast<uint8_t *>(std::malloc(bytes.size()));
    if (*memory == nullptr)
        return FD_OUT_OF_MEMORY;
    std::copy(bytes.begin(), bytes.end(), *memory);
    *memory_bytes = static_cast<int64_t>(bytes.size());
    return FD_OK;
}

bool is_valid(const fd_geometry &geometry) {
    return geometry.op_count >= 0 && (geometry.op_count == 0 || geometry.ops != nullptr) &&
           std::all_of(geometry.ops, geometry.ops + geometry.op_count, [](const fd_op &op) { return is_valid(op); });
}

void read_files(Pool *pool, fd_recipes &recipes, const fd_options &options, uint8_t *const *data, uint8_t *whole) {
    const int32_t status = guarded([&]() -> int32_t {
        Reading reading{recipes, options};
        if (recipes.paths == nullptr || recipes.read_bytes == nullptr || (data != nullptr && whole == nullptr) ||
            !is_valid(options) || !split(recipes.paths, recipes.paths_bytes, recipes.count, reading.paths))
            return FD_BAD_REQUEST;
        std::atomic<int64_t> read_ns{0};
        run(pool, recipes.count, [&](int64_t item) {
            static thread_local FileReader reader;
            const int64_t began = now_ns();
            if (data == nullptr)
                recipes.statuses[item] = guarded([&] { return reading.measure(item, reader); });
            else if (data[item] != nullptr) {
                recipes.statuses[item] = guarded([&] { return reading.read_into(item, data[item], reader); });
                whole[item] = recipes.statuses[item] == FD_OK &&
                              is_whole_jpeg({data[item], static_cast<size_t>(recipes.read_bytes[item])});
            }
            read_ns += now_ns() - began;
        });
        recipes.read_ns = read_ns;
        return FD_OK;
    });
    if (status != FD_OK) // nothing was done
        std::fill_n(recipes.statuses, recipes.count, status);
}

int64_t draw_batch(int64_t count, const int64_t *sizes_px, const int64_t *indices, const int64_t *occurrences,
                   const int64_t *given, const fd_geometry &geometry, const fd_views &columns) {
    if (!is_valid(geometry))
        return -2;
    const std::span<const fd_op> ops{geometry.ops, static_cast<size_t>(geometry.op_count)};
    const auto put = [](const Box &box, int32_t *to) {
        to[0] = box.left, to[1] = box.top, to[2] = box.right, to[3] = box.bottom;
    };
    for (int64_t item = 0; item < count; ++item) {
        View view;
        const Draw draw = Draw::of(geometry, item, indices, occurrences, given);
        const int64_t width = sizes_px[2 * item], height = sizes_px[2 * item + 1];
        if (width <= 0 || height <= 0 || width > INT32_MAX || height > INT32_MAX)
            return -2;
        if (!draw_view(ops, static_cast<int>(width), static_cast<int>(height), draw, view))
            return item;
        put(view.window, columns.windows_px + 4 * item);
        put(view.crop, columns.crops_px + 4 * item);
        columns.resizes_px[2 * item] = view.resize_width;
        columns.resizes_px[2 * item + 1] = view.resize_height;
        const bool flips[4] = {view.flip_horizontal, view.flip_vertical, view.window_flip_horizontal,
                               view.window_flip_vertical};
        std::copy_n(flips, 4, columns.flips + 4 * item);
        columns.filters[item] = static_cast<int32_t>(view.filter);
        columns.outside[4 * item] = static_cast<uint8_t>(view.outside.mode);
        std::copy_n(view.outside.levels, 3, columns.outside + 4 * item + 1);
    }
    return -1;
}

} // namespace fastdata

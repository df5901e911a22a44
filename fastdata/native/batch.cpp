#include "batch.h"

#include "crc32c.h"
#include "files.h"
#include "guard.h"
#include "jpeg_scans.h"
#include "output.h"
#include "views.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

namespace fastdata {
namespace {

// An image's index, if it is of a file of this size and time; empty where there is none.
// file_crc: CRC-32C of the image, -1 if it has not been compared.
StoredIndex index_of(const fd_indexes *indexes, int64_t item, const FileReader *reader, int64_t file_crc = -1) {
    if (indexes == nullptr)
        return {{}, file_crc};
    indexes->uses[item] = FD_INDEX_UNUSED;
    if (indexes->data[item] == nullptr || indexes->data_bytes[item] <= 0)
        return {{}, file_crc};
    const auto differs = [](int64_t expected, int64_t found) { return expected >= 0 && expected != found; };
    if (reader != nullptr && indexes->file_bytes != nullptr &&
        (differs(indexes->file_bytes[item], reader->file_bytes()) ||
         differs(indexes->modified_ns[item], reader->modified_ns()))) {
        indexes->uses[item] = FD_INDEX_WRONG;
        return {{}, file_crc};
    }
    return {{indexes->data[item], static_cast<size_t>(indexes->data_bytes[item])}, file_crc};
}

bool is_valid(const fd_indexes *indexes) {
    return indexes == nullptr ||
           (indexes->data != nullptr && indexes->data_bytes != nullptr && indexes->uses != nullptr &&
            (indexes->file_bytes == nullptr) == (indexes->modified_ns == nullptr));
}

void note_use(const fd_indexes *indexes, int64_t item, const ImageDecoder &decoder) {
    if (indexes != nullptr && decoder.index_use() != FD_INDEX_UNUSED)
        indexes->uses[item] = decoder.index_use();
}

int64_t value_or(const int64_t *column, int64_t item, int64_t otherwise) {
    return column != nullptr ? column[item] : otherwise;
}

// FD_CORRUPT, with a message, for bytes of another CRC-32C; expected: -1 if it is not known.
fd_status check(int64_t expected, std::span<const uint8_t> bytes, char *messages, int64_t item) {
    if (expected < 0 || crc32c(bytes) == expected)
        return FD_OK;
    put_message(messages, item, "wrong checksum");
    return FD_CORRUPT;
}

// Makes a record of an image that has been decoded.  There is none of other formats and of damaged files.
void make_record(std::span<const uint8_t> data, const fd_options &options, uint8_t **memory, int64_t *memory_bytes) {
    static thread_local JpegDecoder decoder;
    static thread_local std::vector<uint8_t> record;
    guarded([&]() -> int32_t {
        fd_status status = decoder.open(data, {options.max_pixels, options.max_memory_bytes, options.max_scans});
        if (status == FD_OK)
            status = decoder.unpack(1, record);
        if (status == FD_OK)
            status = handed_over(record, memory, memory_bytes);
        if (status == FD_UNSUPPORTED || status == FD_CORRUPT)
            *memory_bytes = -1;
        return status;
    });
    constexpr size_t kKeptBytes = size_t{16} << 20; // of an unusually large image no longer than for it
    if (record.capacity() > kKeptBytes)
        record = {};
}

// An image's bytes, from memory or from the file at `path`; valid until this thread's next call.
fd_status encoded(const fd_images &images, int64_t item, const char *path, int64_t most_bytes,
                  std::span<const uint8_t> &data, StoredIndex &index) {
    static thread_local FileReader reader;
    if (path != nullptr && *path != '\0') {
        const int64_t crc = value_or(images.crcs, item, -1);
        fd_status status =
            reader.read(path, value_or(images.offsets, item, 0), value_or(images.lengths, item, -1), most_bytes);
        put_message(images.messages, item, reader.message().c_str());
        data = reader.bytes();
        if (status == FD_OK)
            status = check(crc, data, images.messages, item);
        if (status == FD_OK)
            index = index_of(images.indexes, item, &reader, crc);
        return status;
    }
    index = index_of(images.indexes, item, nullptr);
    if (images.data[item] == nullptr || images.data_bytes[item] < 0)
        return FD_BAD_REQUEST;
    data = {images.data[item], static_cast<size_t>(images.data_bytes[item])};
    return FD_OK;
}

// The views of one image: rows `first` to `end`.
fd_status decode_group(const fd_images &images, int64_t first, int64_t end, const char *path, const fd_format &format,
                       const fd_options &options) {
    std::vector<View> views;
    std::vector<Target> targets;
    for (int64_t item = first; item < end; ++item) {
        put_message(images.messages, item, "");
        views.push_back(view_at(images.views, item));
        if (images.out[item] == nullptr || !views.back().is_valid())
            return FD_BAD_REQUEST;
        targets.push_back({images.out[item], format, effects_of(images.effects, images.effects_per_image, item)});
    }
    std::span<const uint8_t> data;
    StoredIndex index;
    if (const fd_status status = encoded(images, first, path, options.max_file_bytes, data, index); status != FD_OK)
        return status;
    if (images.read_bytes != nullptr)
        images.read_bytes[first] = static_cast<int64_t>(data.size());
    ImageDecoder &decoder = ImageDecoder::of_this_thread();
    fd_status status = decoder.open(data, options, index);
    if (status == FD_OK && views.size() == 1)
        status = decoder.decode(views[0], targets[0], options);
    else if (status == FD_OK)
        status = decoder.decode(views, targets, options);
    note_use(images.indexes, first, decoder);
    if (status != FD_OK)
        put_message(images.messages, first, decoder.message());
    else if (images.kept != nullptr && images.kept[first] != 0)
        make_record(data, options, &images.records[first], &images.record_bytes[first]);
    return status;
}

// Where each group of rows of one image begins, and the end of the last; empty if `same_as` makes no sense.
std::vector<int64_t> group_begins(const fd_images &images) {
    std::vector<int64_t> begins;
    for (int64_t item = 0; item < images.count; ++item) {
        const int64_t first = images.same_as != nullptr ? images.same_as[item] : item;
        if (first == item)
            begins.push_back(item);
        else if (begins.empty() || begins.back() != first)
            return {};
    }
    begins.push_back(images.count);
    return begins;
}

// The files of one call, and what reading them took.
struct Reading {
    const fd_files &files;
    const fd_options &options;
    std::vector<const char *> paths{};
    std::atomic<int64_t> read_ns{0};

    int64_t crc_of(int64_t item) const { return value_or(files.crcs, item, -1); }
    int64_t offset_of(int64_t item) const { return value_or(files.offsets, item, 0); }
    int64_t length_of(int64_t item) const { return value_or(files.lengths, item, -1); }

    int32_t read(int64_t item, FileReader &reader) {
        const int64_t began = now_ns();
        fd_status status =
            reader.read(paths[static_cast<size_t>(item)], offset_of(item), length_of(item), options.max_file_bytes);
        files.data_bytes[item] = static_cast<int64_t>(reader.bytes().size());
        put_message(files.messages, item, reader.message().c_str());
        if (status == FD_OK)
            status = check(crc_of(item), reader.bytes(), files.messages, item);
        read_ns += now_ns() - began;
        return status;
    }

    int32_t measure(int64_t item, FileReader &reader) {
        const int64_t began = now_ns();
        const fd_status status = reader.measure(paths[static_cast<size_t>(item)], offset_of(item), length_of(item),
                                                options.max_file_bytes, files.data_bytes[item]);
        put_message(files.messages, item, reader.message().c_str());
        read_ns += now_ns() - began;
        return status;
    }

    int32_t read_into(int64_t item, uint8_t *data, FileReader &reader) {
        if (files.data_bytes[item] < 0)
            return FD_BAD_REQUEST;
        const int64_t began = now_ns();
        std::span<uint8_t> to(data, static_cast<size_t>(files.data_bytes[item]));
        fd_status status = reader.read_into(to, paths[static_cast<size_t>(item)], offset_of(item));
        put_message(files.messages, item, reader.message().c_str());
        if (status == FD_OK)
            status = check(crc_of(item), to, files.messages, item);
        files.data_bytes[item] = static_cast<int64_t>(to.size());
        read_ns += now_ns() - began;
        return status;
    }
};

// Everything that the images of one fd_load share.
struct Loading : Reading {
    std::span<const fd_op> ops;
    const fd_geometry &geometry;
    const fd_format &format;
    std::atomic<int64_t> decode_ns{0};

    int32_t decode(int64_t item, std::span<const uint8_t> data, const StoredIndex &index) {
        ImageDecoder &decoder = ImageDecoder::of_this_thread();
        View view;
        const auto draw_and_decode = [&]() -> fd_status {
            if (const fd_status status = decoder.open(data, options, index); status != FD_OK)
                return status;
            const Draw draw = Draw::of(geometry, item, files.indices, files.occurrences, files.given);
            if (!draw_view(ops, decoder.width(), decoder.height(), draw, view))
                return FD_NO_VIEW;
            if (!view.is_valid() || view.crop.width() != files.out_size_px[0] ||
                view.crop.height() != files.out_size_px[1])
                return FD_BAD_REQUEST;
            const Effects effects = effects_of(files.effects, files.effects_per_image, item);
            return decoder.decode(view, {files.out + item * files.out_stride_bytes, format, effects}, options);
        };
        const int64_t began = now_ns();
        const fd_status status = draw_and_decode();
        note_use(files.indexes, item, decoder);
        if (status != FD_OK)
            put_message(files.messages, item, decoder.message());
        decode_ns += now_ns() - began;
        return status;
    }

    int32_t load(int64_t item) {
        static thread_local FileReader reader;
        files.data_bytes[item] = 0;
        const int32_t status = read(item, reader);
        if (status != FD_OK)
            return status;
        const int32_t decoded = decode(item, reader.bytes(), index_of(files.indexes, item, &reader, crc_of(item)));
        if (decoded == FD_OK && files.kept != nullptr && files.kept[item] != 0) {
            const int64_t began = now_ns();
            make_record(reader.bytes(), options, &files.records[item], &files.record_bytes[item]);
            decode_ns += now_ns() - began;
        }
        return decoded;
    }
};

bool is_valid(const fd_files &files, const fd_format &format) {
    const int64_t image_bytes = int64_t{files.out_size_px[0]} * files.out_size_px[1] * format.channels * format.element;
    return files.paths != nullptr && files.indices != nullptr && files.occurrences != nullptr && files.out != nullptr &&
           files.data_bytes != nullptr && files.out_size_px[0] > 0 && files.out_size_px[1] > 0 &&
           files.out_stride_bytes >= image_bytes && is_dense(format) &&
           are_valid(files.effects, files.effects_per_image, files.count) && is_valid(files.indexes) &&
           (files.kept == nullptr || (files.records != nullptr && files.record_bytes != nullptr));
}

// Where each of N strings begins; false when there are fewer.
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

} // namespace

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

void load_batch(Pool *pool, fd_files &files, const fd_geometry &geometry, const fd_format &format,
                const fd_options &options) {
    const int32_t status = guarded([&]() -> int32_t {
        const bool valid = is_valid(format) && is_valid(options) && is_valid(geometry) && is_valid(files, format);
        Loading loading{{files, options}, {geometry.ops, static_cast<size_t>(geometry.op_count)}, geometry, format};
        if (!valid || !split(files.paths, files.paths_bytes, files.count, loading.paths))
            return FD_BAD_REQUEST;
        run(pool, files.count,
            [&](int64_t item) { files.statuses[item] = guarded([&] { return loading.load(item); }); });
        files.read_ns = loading.read_ns;
        files.decode_ns = loading.decode_ns;
        return FD_OK;
    });
    if (status != FD_OK) // nothing was done
        std::fill_n(files.statuses, files.count, status);
}

void read_batch(Pool *pool, fd_files &files, const fd_options &options, uint8_t *const *data, uint8_t *whole) {
    const int32_t status = guarded([&]() -> int32_t {
        Reading reading{files, options};
        if (files.paths == nullptr || files.data_bytes == nullptr || (data != nullptr && whole == nullptr) ||
            !is_valid(options) || !split(files.paths, files.paths_bytes, files.count, reading.paths))
            return FD_BAD_REQUEST;
        run(pool, files.count, [&](int64_t item) {
            static thread_local FileReader reader;
            if (data == nullptr)
                files.statuses[item] = guarded([&] { return reading.measure(item, reader); });
            else if (data[item] != nullptr) {
                files.statuses[item] = guarded([&] { return reading.read_into(item, data[item], reader); });
                whole[item] = files.statuses[item] == FD_OK &&
                              is_whole_jpeg({data[item], static_cast<size_t>(files.data_bytes[item])});
            }
        });
        files.read_ns = reading.read_ns;
        return FD_OK;
    });
    if (status != FD_OK) // nothing was done
        std::fill_n(files.statuses, files.count, status);
}

void decode_batch(Pool *pool, const fd_images &images, const fd_format &format, const fd_options &options) {
    const bool valid = is_valid(format) && is_valid(options) && is_valid(images.indexes) &&
                       are_valid(images.effects, images.effects_per_image, images.count) &&
                       (images.kept == nullptr || (images.records != nullptr && images.record_bytes != nullptr));
    const int32_t status = guarded([&]() -> int32_t {
        std::vector<const char *> paths;
        if (images.paths == nullptr)
            paths.assign(static_cast<size_t>(images.count), nullptr);
        else if (!split(images.paths, images.paths_bytes, images.count, paths))
            return FD_BAD_REQUEST;
        const std::vector<int64_t> begins = group_begins(images);
        if (begins.empty())
            return FD_BAD_REQUEST;
        run(pool, static_cast<int64_t>(begins.size()) - 1, [&](int64_t group) {
            const int64_t first = begins[static_cast<size_t>(group)], end = begins[static_cast<size_t>(group) + 1];
            const char *const path = paths[static_cast<size_t>(first)];
            const int32_t result =
                valid ? guarded([&] { return decode_group(images, first, end, path, format, options); })
                      : FD_BAD_REQUEST;
            std::fill(images.statuses + first, images.statuses + end, result);
        });
        return FD_OK;
    });
    if (status != FD_OK) // nothing was done
        std::fill_n(images.statuses, images.count, status);
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

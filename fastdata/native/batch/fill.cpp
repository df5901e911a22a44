#include "base/guard.h"
#include "batch/array.h"
#include "batch/batch.h"
#include "batch/files.h"
#include "batch/image.h"
#include "batch/views.h"
#include "resize/output.h"

#include <algorithm>
#include <atomic>
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

bool has_columns(const fd_indexes *indexes) {
    return indexes == nullptr ||
           (indexes->data != nullptr && indexes->data_bytes != nullptr && indexes->uses != nullptr &&
            (indexes->file_bytes == nullptr) == (indexes->modified_ns == nullptr));
}

void note_use(const fd_indexes *indexes, int64_t item, const ImageDecoder &decoder) {
    if (indexes != nullptr && decoder.index_use() != FD_INDEX_UNUSED)
        indexes->uses[item] = decoder.index_use();
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

// Where each group of rows of one image begins, and the end of the last; empty if `same_as` makes no sense.
std::vector<int64_t> group_begins(const fd_recipes &recipes) {
    std::vector<int64_t> begins;
    for (int64_t item = 0; item < recipes.count; ++item) {
        const int64_t first = recipes.same_as != nullptr ? recipes.same_as[item] : item;
        if (first == item)
            begins.push_back(item);
        else if (begins.empty() || begins.back() != first)
            return {};
    }
    begins.push_back(recipes.count);
    return begins;
}

// Everything that the images of one call share.
struct Filling {
    const fd_recipes &recipes;
    const fd_geometry *geometry;
    const fd_format &format;
    const fd_options &options;
    std::vector<const char *> paths{};

    // The rows of one image, from `first` to `end`.  reading_ns: to which the time spent reading is added.
    fd_status fill(int64_t first, int64_t end, int64_t &reading_ns) const {
        for (int64_t item = first; item < end; ++item) {
            put_message(recipes.messages, item, "");
            if (recipes.out[item] == nullptr)
                return FD_BAD_REQUEST;
        }
        if (recipes.array != nullptr)
            return see(*recipes.array, first);
        std::span<const uint8_t> data;
        StoredIndex index;
        if (const fd_status status = find(first, data, index, reading_ns); status != FD_OK)
            return status;
        if (recipes.read_bytes != nullptr)
            recipes.read_bytes[first] = static_cast<int64_t>(data.size());
        ImageDecoder &decoder = ImageDecoder::of_this_thread();
        fd_status status = decoder.open(data, options, index);
        if (status == FD_OK)
            status = decode(decoder, first, end);
        note_use(recipes.indexes, first, decoder);
        if (status != FD_OK)
            put_message(recipes.messages, first, decoder.message());
        else if (recipes.kept != nullptr && recipes.kept[first] != 0)
            make_record(data, options, &recipes.records[first], &recipes.record_bytes[first]);
        return status;
    }

    // Draws the view of an image of this size, or takes the one given.
    fd_status view_of(int64_t item, int width, int height, View &view) const {
        if (recipes.views != nullptr) {
            view = view_at(*recipes.views, item);
            return view.is_valid() ? FD_OK : FD_BAD_REQUEST;
        }
        const std::span<const fd_op> ops{geometry->ops, static_cast<size_t>(geometry->op_count)};
        const Draw draw = Draw::of(*geometry, item, recipes.indices, recipes.occurrences, recipes.given);
        if (!draw_view(ops, width, height, draw, view))
            return FD_NO_VIEW;
        const bool fits = view.is_valid() && view.crop.width() == recipes.out_size_px[0] &&
                          view.crop.height() == recipes.out_size_px[1];
        return fits ? FD_OK : FD_BAD_REQUEST;
    }

    Target target_of(int64_t item) const {
        return {recipes.out[item], format, effects_of(recipes.effects, recipes.effects_per_image, item)};
    }

    // One image of an array.
    fd_status see(const fd_array &array, int64_t item) const {
        const int64_t row = recipes.rows[item];
        if (row < 0 || row >= array.images)
            return FD_BAD_REQUEST;
        View view;
        if (const fd_status status = view_of(item, array.width, array.height, view); status != FD_OK)
            return status;
        if (!view.window.is_inside(array.width, array.height))
            return FD_BAD_REQUEST;
        if (recipes.read_bytes != nullptr)
            recipes.read_bytes[item] = int64_t{array.width} * array.height * array.channels;
        const Rows window = gather(array, row, view.window);
        return ImageDecoder::of_this_thread().resize(window, view, target_of(item), options);
    }

    // An encoded image's bytes, from memory or from its file; valid until this thread's next call.
    fd_status find(int64_t item, std::span<const uint8_t> &data, StoredIndex &index, int64_t &reading_ns) const {
        static thread_local FileReader reader;
        const char *const path = paths.empty() ? "" : paths[static_cast<size_t>(item)];
        if (*path == '\0') {
            if (recipes.data == nullptr || recipes.data[item] == nullptr || recipes.data_bytes[item] < 0)
                return FD_BAD_REQUEST;
            index = index_of(recipes.indexes, item, nullptr);
            data = {recipes.data[item], static_cast<size_t>(recipes.data_bytes[item])};
            return FD_OK;
        }
        const int64_t crc = value_or(recipes.crcs, item, -1), began = now_ns();
        fd_status status = reader.read(path, value_or(recipes.offsets, item, 0), value_or(recipes.lengths, item, -1),
                                       options.max_file_bytes);
        put_message(recipes.messages, item, reader.message().c_str());
        data = reader.bytes();
        if (status == FD_OK)
            status = check(crc, data, recipes.messages, item);
        if (status == FD_OK)
            index = index_of(recipes.indexes, item, &reader, crc);
        reading_ns += now_ns() - began;
        return status;
    }

    // The opened image, as its rows see it.
    fd_status decode(ImageDecoder &decoder, int64_t first, int64_t end) const {
        std::vector<View> views;
        std::vector<Target> targets;
        for (int64_t item = first; item < end; ++item) {
            View view;
            fd_status status = view_of(item, decoder.width(), decoder.height(), view);
            if (status == FD_OK && recipes.packed != nullptr) {
                status = pack(decoder, item, view);
                if (status == FD_OK)
                    continue;
                status = status == FD_UNSUPPORTED ? FD_OK : status;
            }
            if (status != FD_OK || end - first == 1)
                return status == FD_OK ? decoder.decode(view, target_of(item), options) : status;
            views.push_back(view);
            targets.push_back(target_of(item));
        }
        return views.empty() ? FD_OK : decoder.decode(views, targets, options);
    }

    // What a device needs to decode a row of the opened image.  FD_UNSUPPORTED for one that is to be decoded here.
    fd_status pack(ImageDecoder &decoder, int64_t item, const View &view) const {
        static thread_local std::vector<uint8_t> packed;
        const Effects effects = effects_of(recipes.effects, recipes.effects_per_image, item);
        const fd_status status = decoder.pack(view, effects, options, packed);
        return status == FD_OK ? handed_over(packed, &recipes.packed[item], &recipes.packed_bytes[item]) : status;
    }

    bool makes_sense() const {
        const bool draws = geometry != nullptr && is_valid(*geometry) && recipes.indices != nullptr &&
                           recipes.occurrences != nullptr && recipes.out_size_px[0] > 0 && recipes.out_size_px[1] > 0;
        const bool has_array = recipes.array != nullptr;
        return is_valid(format) && is_valid(options) && recipes.out != nullptr && (recipes.views != nullptr || draws) &&
               (!has_array || (is_valid(*recipes.array) && recipes.rows != nullptr)) &&
               (recipes.data == nullptr || recipes.data_bytes != nullptr) &&
               (!has_array || (recipes.paths == nullptr && recipes.data == nullptr && recipes.same_as == nullptr)) &&
               are_valid(recipes.effects, recipes.effects_per_image, recipes.count) && has_columns(recipes.indexes) &&
               (recipes.kept == nullptr || (recipes.records != nullptr && recipes.record_bytes != nullptr)) &&
               (recipes.packed == nullptr || recipes.packed_bytes != nullptr);
    }
};

} // namespace

void fill(Pool *pool, fd_recipes &recipes, const fd_geometry *geometry, const fd_format &format,
          const fd_options &options) {
    const int32_t status = guarded([&]() -> int32_t {
        Filling filling{recipes, geometry, format, options};
        if (!filling.makes_sense() ||
            (recipes.paths != nullptr && !split(recipes.paths, recipes.paths_bytes, recipes.count, filling.paths)))
            return FD_BAD_REQUEST;
        const std::vector<int64_t> begins = group_begins(recipes);
        if (begins.empty())
            return FD_BAD_REQUEST;
        const int64_t groups = static_cast<int64_t>(begins.size()) - 1;
        const int64_t at_once = recipes.array != nullptr ? images_at_once(*recipes.array, recipes.out_size_px) : 1;
        std::atomic<int64_t> read_ns{0}, decode_ns{0};
        run(pool, (groups + at_once - 1) / at_once, [&](int64_t part) {
            const int64_t began = now_ns();
            int64_t reading_ns = 0;
            for (int64_t group = part * at_once; group < std::min(groups, (part + 1) * at_once); ++group) {
                const int64_t first = begins[static_cast<size_t>(group)], end = begins[static_cast<size_t>(group) + 1];
                const int32_t result = guarded([&] { return filling.fill(first, end, reading_ns); });
                std::fill(recipes.statuses + first, recipes.statuses + end, result);
            }
            read_ns += reading_ns;
            decode_ns += now_ns() - began - reading_ns;
        });
        recipes.read_ns = read_ns;
        recipes.decode_ns = decode_ns;
        return FD_OK;
    });
    if (status != FD_OK) // nothing was done
        std::fill_n(recipes.statuses, recipes.count, status);
}

} // namespace fastdata

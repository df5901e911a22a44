// libFuzzer target: any bytes as a record of open coefficients (unpacked.h), whose checksums count nothing in this
// build. A window of it is decoded and its file made again; of a record of one scan both must show the same pixels.
// Seeds: tests/helpers/make_corpus.py --records.
#include "checks/packed_check.h"
#include "fastdata_native.h"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

namespace {

constexpr size_t kViewBytes = 4, kKindAt = 31, kTailBytesAt = 24;
constexpr int kMostSide = 64;
constexpr fd_options kOptions = {0, 0, 20, int64_t{1} << 16, int64_t{4} << 20, int64_t{1} << 30};

int32_t decode(std::span<const uint8_t> image, int32_t (&box)[4], std::vector<uint8_t> &out) {
    int32_t size[2] = {box[2] - box[0], box[3] - box[1]}, crop[4] = {0, 0, size[0], size[1]};
    uint8_t flips[4] = {}, outside[4] = {};
    int32_t filter = FD_BILINEAR;
    out.assign(static_cast<size_t>(size[0]) * static_cast<size_t>(size[1]) * 3, 0);
    const uint8_t *const bytes = image.data();
    const auto length = static_cast<int64_t>(image.size());
    void *const place = out.data();
    const fd_format format = {0, FD_UINT8, 3, nullptr, {0, 0}};
    int32_t status = 0;
    char message[FD_MESSAGE_BYTES];
    const fd_views views = {box, size, crop, flips, &filter, outside};
    fd_recipes recipes = {.count = 1,
                          .data = &bytes,
                          .data_bytes = &length,
                          .views = &views,
                          .out = &place,
                          .statuses = &status,
                          .messages = message};
    fd_fill(nullptr, &recipes, nullptr, &format, &kOptions);
    const int32_t decoded = status;
    std::vector<uint8_t> instead(out.size());
    void *const other = instead.data();
    uint8_t *packed = nullptr;
    int64_t packed_bytes = 0;
    recipes.out = &other;
    recipes.packed = &packed;
    recipes.packed_bytes = &packed_bytes;
    fd_fill(nullptr, &recipes, nullptr, &format, &kOptions);
    if (packed != nullptr) {
        fastdata::check_packed(packed, packed_bytes);
        fd_free(packed);
    } else if (decoded == FD_OK && (status != FD_OK || instead != out)) {
        std::abort();
    }
    return decoded;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < kViewBytes)
        return 0;
    const std::span<const uint8_t> record(data, size - kViewBytes), choice(data + record.size(), kViewBytes);
    const int32_t left = choice[0] % kMostSide, top = choice[1] % kMostSide;
    int32_t box[4] = {left, top, left + 1 + choice[2] % kMostSide, top + 1 + choice[3] % kMostSide};
    static std::vector<uint8_t> of_record, of_file;
    const int32_t status = decode(record, box, of_record);
    uint8_t *file = nullptr;
    int64_t file_bytes = 0;
    if (fd_restore(record.data(), static_cast<int64_t>(record.size()), &kOptions, &file, &file_bytes) != FD_OK)
        return 0;
    const std::vector<uint8_t> restored(file, file + file_bytes);
    fd_free(file);
    // Behind an end marker there is nothing; a tail that is none may be another scan, or cut the file short.
    const bool is_whole = record[kTailBytesAt] == 2 && restored.back() == 0xD9;
    const bool shows_the_same = status == FD_OK && record[kKindAt] == 0 && is_whole;
    if (shows_the_same && decode(restored, box, of_file) == FD_OK && of_file != of_record)
        std::abort();
    return 0;
}

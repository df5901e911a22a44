// libFuzzer target: any bytes as two JPEGs or PNGs one after the other, any view of them.  What a thread decoded before
// must not change an image: the second is decoded again by a thread that has decoded nothing, and compared.  Then it is
// decoded for two rows at once, by plain loops and libjpeg-turbo's, by its index, as a record of open coefficients and
// packed anew, which all must give the same, and by indexes and records of which some bytes are arbitrary.  Seeds:
// tests/helpers/make_corpus.py.
#include "base/crc32c.h"
#include "checks/packed_check.h"
#include "fastdata_native.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t kViewBytes = 16;
constexpr int kMostSide = 96;
constexpr size_t kRows = 2, kMostEffects = 3;

// The file's last bytes choose the view and where the second image begins, so that mutations of the images keep them.
struct Choice {
    std::array<uint8_t, kViewBytes> bytes{};

    int up_to(size_t at, int most) const { return bytes[at] * (most + 1) / 256; }
};

template <typename Value, size_t kCount> std::array<Value, kRows * kCount> twice(const std::array<Value, kCount> &row) {
    std::array<Value, kRows * kCount> both{};
    for (size_t i = 0; i < both.size(); ++i)
        both[i] = row[i % kCount];
    return both;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Choice choice;
    if (size < kViewBytes)
        return 0;
    std::memcpy(choice.bytes.data(), data + size - kViewBytes, kViewBytes);
    const int width = choice.up_to(0, 255), height = choice.up_to(1, 255);
    const auto bit = [&](int number) { return static_cast<uint8_t>(choice.bytes[10] >> number & 1); };
    const auto fill_of = static_cast<uint8_t>(choice.bytes[10] >> 4 & 3);
    auto window = twice<int32_t, 4>({choice.up_to(2, width), choice.up_to(3, height), width, height});
    auto resize = twice<int32_t, 2>({1 + choice.up_to(4, kMostSide), 1 + choice.up_to(5, kMostSide)});
    auto crop = twice<int32_t, 4>({choice.up_to(6, 20) - 10, choice.up_to(7, 20) - 10, 1 + choice.up_to(8, kMostSide),
                                   1 + choice.up_to(9, kMostSide)});
    auto flips = twice<uint8_t, 4>({bit(0), bit(1), bit(2), bit(3)});
    auto outside = twice<uint8_t, 4>({fill_of, choice.bytes[0], choice.bytes[1], 9});
    auto filters = twice<int32_t, 1>({choice.up_to(12, FD_TENSOR_BICUBIC)}); // some do not exist
    static const std::vector<uint32_t> table(3 * 256, 1);
    const bool looked_up = (choice.bytes[11] & 1) != 0;
    const int out_width = crop[2] > crop[0] ? crop[2] - crop[0] : 0;
    const int out_height = crop[3] > crop[1] ? crop[3] - crop[1] : 0;
    const int32_t layout = choice.bytes[11] >> 1 & 1;
    const int64_t gap = choice.bytes[13] >> 4 & 1; // rows, and planes, with something between them
    const int64_t row = out_width * (layout == FD_NHWC ? 3 : 1) + 3;
    const fd_format format = {layout,
                              looked_up ? FD_TABLE_32BIT : FD_UINT8,
                              3,
                              looked_up ? table.data() : nullptr,
                              {gap * row, gap * (row * out_height + 5)}};
    const fd_options options = {choice.bytes[13] & 1, choice.bytes[13] & 2, 20,
                                int64_t{1} << 20,     int64_t{64} << 20,    int64_t{1} << 30};
    std::array<fd_effect, kRows * kMostEffects> effects{}; // of both rows the same
    const size_t effect_count = choice.bytes[13] >> 5 & kMostEffects;
    for (size_t number = 0; number < kRows * effect_count; ++number) {
        const size_t own = number % effect_count;
        fd_effect &effect = effects[number];
        effect.kind = choice.up_to(own == 0 ? 11 : own, FD_EFFECT_KINDS); // the last does not exist
        effect.filter = choice.bytes[13] >> 2 & 3;
        for (size_t i = 0; i < 8; ++i) {
            const int byte = choice.bytes[(i + own) % kViewBytes];
            effect.values[i] =
                effect.kind == FD_AFFINE || effect.kind == FD_PERSPECTIVE ? (byte - 128) / 64.0 : byte % 24;
        }
    }
    const size_t out_bytes = (static_cast<size_t>(out_width + 3) * static_cast<size_t>(out_height) + 5) * 3 * 4 + 4;
    const size_t cut = (size - kViewBytes) * (choice.bytes[14] << 8 | choice.bytes[15]) / 65536;
    const std::span<const uint8_t> both(data, size - kViewBytes), first = both.first(cut), second = both.subspan(cut);

    // Decodes an image for one row, or for two of the same views, one behind the other in `out`.
    const auto decode = [&](std::span<const uint8_t> image, std::vector<uint8_t> &out,
                            std::span<const uint8_t> index = {}, size_t rows = 1) {
        const std::array<const uint8_t *, kRows> stored = {index.data(), index.data()},
                                                 bytes = {image.data(), image.data()};
        const auto index_bytes = static_cast<int64_t>(index.size()), length = static_cast<int64_t>(image.size());
        const std::array<int64_t, kRows> stored_bytes = {index_bytes, index_bytes}, lengths = {length, length}, same{};
        std::array<int32_t, kRows> uses{}, statuses{};
        const fd_indexes indexes = {stored.data(), stored_bytes.data(), nullptr, nullptr, uses.data()};
        const std::array<void *, kRows> places = {out.data(), out.data() + (rows - 1) * out_bytes};
        char messages[kRows * FD_MESSAGE_BYTES];
        const fd_views views = {window.data(), resize.data(),  crop.data(),
                                flips.data(),  filters.data(), outside.data()};
        fd_recipes recipes = {.count = static_cast<int64_t>(rows),
                              .data = bytes.data(),
                              .data_bytes = lengths.data(),
                              .same_as = same.data(),
                              .indexes = &indexes,
                              .views = &views,
                              .out = places.data(),
                              .effects = effects.data(),
                              .effects_per_image = static_cast<int64_t>(effect_count),
                              .statuses = statuses.data(),
                              .messages = messages};
        fd_fill(nullptr, &recipes, nullptr, &format, &options);
        const int32_t last = statuses[rows - 1];
        std::array<uint8_t *, kRows> packed{};
        std::array<int64_t, kRows> packed_bytes{};
        std::vector<uint8_t> instead(rows * out_bytes);
        const std::array<void *, kRows> others = {instead.data(), instead.data() + (rows - 1) * out_bytes};
        recipes.packed = packed.data();
        recipes.packed_bytes = packed_bytes.data();
        recipes.out = others.data();
        fd_fill(nullptr, &recipes, nullptr, &format, &options); // damaged values are left to the device
        for (size_t row = 0; row < rows; ++row)
            if (packed[row] != nullptr) {
                fastdata::check_packed(packed[row], packed_bytes[row]);
                fd_free(packed[row]);
            } else if (statuses[rows - 1] != last) {
                std::abort();
            }
        return last;
    };
    std::vector<uint8_t> used(out_bytes), fresh(out_bytes);
    decode(first, used);
    std::fill(used.begin(), used.end(), uint8_t{0});
    const int32_t status = decode(second, used);
    if (constexpr size_t kSome = 16; status == FD_OK || size % kSome == 0) { // threads take long to start
        int32_t expected = FD_BAD_REQUEST;
        std::thread([&] { expected = decode(second, fresh); }).join(); // its decoder has seen nothing
        if (status != expected || (status == FD_OK && used != fresh))
            std::abort();
    }
    const auto must_give_the_same = [&](std::span<const uint8_t> image, std::span<const uint8_t> index) {
        std::fill(used.begin(), used.end(), uint8_t{0});
        if (decode(image, used, index) != status || (status == FD_OK && used != fresh))
            std::abort();
    };
    if (status == FD_OK) {
        std::vector<uint8_t> both_rows(kRows * out_bytes);
        const auto second_row = both_rows.begin() + static_cast<ptrdiff_t>(out_bytes);
        const bool is_done = decode(second, both_rows, {}, kRows) == FD_OK;
        if (is_done && !std::equal(both_rows.begin(), second_row, second_row))
            std::abort();
        if (options.fast == 0 &&
            !(is_done && std::equal(fresh.begin(), fresh.end(), second_row))) // else less is scaled
            std::abort();
        static const std::string own = fd_kernels();
        fd_choose_kernels("plain"); // libjpeg may meet damage in rows that are not needed
        if (decode(second, used) == FD_OK && used != fresh)
            std::abort();
        fd_choose_kernels(own.c_str());
    }
    // Changes some bytes of those that a checksum is of, and the checksum.
    const auto change = [&](std::span<uint8_t> changed, std::span<uint8_t> checked, uint8_t *checksum) {
        for (size_t at = 0; at < changed.size(); ++at)
            changed[at] = static_cast<uint8_t>(changed[at] + (at * 37 % 11 == 0 ? choice.bytes[at % kViewBytes] : 0));
        const uint32_t crc = fastdata::crc32c(checked);
        std::memcpy(checksum, &crc, sizeof crc);
    };
    const auto restore = [&options](std::span<const uint8_t> record) {
        uint8_t *file = nullptr;
        int64_t file_bytes = 0;
        if (fd_restore(record.data(), static_cast<int64_t>(record.size()), &options, &file, &file_bytes) == FD_OK)
            fd_free(file);
    };
    constexpr size_t kCrcBytes = 4;
    uint8_t *made = nullptr;
    int64_t made_bytes = 0;
    const auto second_bytes = static_cast<int64_t>(second.size());
    if (fd_index(second.data(), second_bytes, choice.bytes[12] % 5, &options, &made, &made_bytes) == FD_OK) {
        std::vector<uint8_t> index(made, made + made_bytes);
        fd_free(made);
        must_give_the_same(second, index);
        const size_t head_bytes = choice.bytes[15] % 2 == 0 ? 20 : 0;
        const std::span<uint8_t> checked = std::span(index).first(index.size() - kCrcBytes);
        change(checked.subspan(head_bytes), checked, index.data() + checked.size());
        decode(second, used, index);
    }
    if (fd_unpack(second.data(), second_bytes, &options, 1, &made, &made_bytes) == FD_OK) {
        std::vector<uint8_t> record(made, made + made_bytes);
        fd_free(made);
        must_give_the_same(record, {});
        constexpr size_t kCrcAt = 8, kCheckedAt = kCrcAt + kCrcBytes, kHeadBytes = 32;
        const size_t begin = choice.bytes[12] % 2 == 0 ? kHeadBytes + second.size() / 4 : kCheckedAt;
        change(std::span(record).subspan(std::min(begin, record.size())), std::span(record).subspan(kCheckedAt),
               record.data() + kCrcAt);
        decode(record, used);
        restore(record);
    }
    char message[FD_MESSAGE_BYTES];
    if (fd_repack(second.data(), second_bytes, choice.bytes[12] % 3, &options, &made, &made_bytes, message) == FD_OK) {
        const std::vector<uint8_t> repacked(made, made + made_bytes);
        fd_free(made);
        if (status == FD_OK)
            must_give_the_same(repacked, {});
        else
            decode(repacked, used);
    }
    restore(second); // it may be a record
    return 0;
}

#include "jpeg/jpeg_index.h"

#include "base/bits.h"
#include "base/crc32c.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace fastdata {
namespace {

constexpr size_t kHeadBytes = 20, kCrcBytes = 4, kWidthsAt = 16;
constexpr int kMostMcus = 65535;
constexpr int kMostBits = 32, kMostDcBits = 16;    // of a number
constexpr uint64_t kMostBytes = uint64_t{1} << 28; // whose bits 32 bits count

// The numbers of an entry, as they are stored.
using Numbers = std::array<uint32_t, 1 + kMostIndexed>;

size_t entry_count(int columns, int rows, int step) {
    return static_cast<size_t>((columns + step - 1) / step) * static_cast<size_t>(rows);
}

// DC predictors are 16 bits wide, and so are their differences.
Numbers differences(const IndexEntry &entry, const IndexEntry &before) {
    Numbers numbers{entry.bit - before.bit};
    for (size_t i = 0; i < kMostIndexed; ++i)
        numbers[1 + i] = zigzag(entry.dc[i] - before.dc[i]);
    return numbers;
}

} // namespace

bool JpegIndex::open(const StoredIndex &given, const IndexShape &shape) {
    const std::span<const uint8_t> stored = given.bytes;
    if (stored.size() < kHeadBytes + kCrcBytes)
        return false;
    const uint8_t *const head = stored.data();
    const auto half = [&](size_t at) { return static_cast<int>(number_at(head + at, 2)); };
    const std::span<const uint8_t> checked = stored.first(stored.size() - kCrcBytes);
    step_ = half(12);
    const int components = half(14);
    if (components < 1 || components > kMostIndexed)
        return false;
    if (step_ == 0 || half(8) != shape.columns || half(10) != shape.rows || components != shape.components ||
        number_at(head, 4) != shape.scan_begin || shape.file.size() >= kMostBytes)
        return false;
    per_row_ = (shape.columns + step_ - 1) / step_;
    const size_t count = entry_count(shape.columns, shape.rows, step_);
    const std::span<const uint8_t> widths = checked.subspan(kWidthsAt, static_cast<size_t>(1 + components));
    const std::span<const uint8_t> packed = checked.subspan(kHeadBytes);
    size_t bits = 0;
    for (size_t i = 0; i < widths.size(); ++i) {
        if (widths[i] > (i == 0 ? kMostBits : kMostDcBits))
            return false;
        bits += count * widths[i];
    }
    if (packed.size() != (bits + 7) / 8 || number_at(stored.last(kCrcBytes).data(), 4) != crc32c(checked) ||
        number_at(head + 4, 4) != (given.file_crc >= 0 ? given.file_crc : int64_t{crc32c(shape.file)}))
        return false;
    entries_.resize(count);
    BitUnpacker numbers(packed);
    IndexEntry entry;
    for (IndexEntry &each : entries_) {
        entry.bit += numbers.take(widths[0]);
        for (size_t i = 0; i + 1 < widths.size(); ++i)
            entry.dc[i] = static_cast<int16_t>(entry.dc[i] + unzigzag(numbers.take(widths[1 + i])));
        each = entry;
    }
    return true;
}

IndexEntry JpegIndex::entry(int row, int column) const {
    return entries_[static_cast<size_t>(row) * static_cast<size_t>(per_row_) + static_cast<size_t>(column / step_)];
}

bool JpegIndexWriter::begin(const IndexShape &shape, int step) {
    if (shape.columns > kMostMcus || shape.rows > kMostMcus || step < 1 || step > kMostMcus ||
        shape.components > kMostIndexed || shape.file.size() >= kMostBytes)
        return false;
    components_ = shape.components;
    stored_.clear();
    entries_.clear();
    entries_.reserve(entry_count(shape.columns, shape.rows, step));
    put_number(stored_, static_cast<uint32_t>(shape.scan_begin), 4);
    put_number(stored_, crc32c(shape.file), 4);
    for (const int number : {shape.columns, shape.rows, step, components_})
        put_number(stored_, static_cast<uint32_t>(number), 2);
    return true;
}

void JpegIndexWriter::add(const IndexEntry &entry) {
    entries_.push_back(entry);
}

std::vector<uint8_t> JpegIndexWriter::finish() {
    const auto used = static_cast<size_t>(1 + components_);
    Numbers all{}; // bits that any entry needs
    IndexEntry before;
    for (const IndexEntry &entry : entries_) {
        const Numbers numbers = differences(entry, before);
        for (size_t i = 0; i < used; ++i)
            all[i] |= numbers[i];
        before = entry;
    }
    for (const uint32_t each : all)
        stored_.push_back(static_cast<uint8_t>(std::bit_width(each)));
    size_t bits = 0;
    for (size_t i = 0; i < used; ++i)
        bits += entries_.size() * static_cast<size_t>(std::bit_width(all[i]));
    const size_t begin = stored_.size();
    stored_.resize(begin + (bits + 7) / 8 + 4);
    BitPacker packer(stored_.data() + begin);
    before = {};
    for (const IndexEntry &entry : entries_) {
        const Numbers numbers = differences(entry, before);
        for (size_t i = 0; i < used; ++i)
            packer.put(numbers[i], std::bit_width(all[i]));
        before = entry;
    }
    packer.finish();
    stored_.resize(stored_.size() - 4);
    put_number(stored_, static_cast<uint32_t>(crc32c(stored_)), 4);
    return std::move(stored_);
}

uint64_t StuffedPlace::bit(std::span<const uint8_t> data, size_t segment, uint64_t bits_read) {
    const auto wanted = static_cast<size_t>(bits_read / 8);
    if (segment != segment_) {
        segment_ = raw_ = segment;
        clean_ = 0;
    }
    while (clean_ < wanted && raw_ < data.size()) {
        const size_t most = std::min(wanted - clean_, data.size() - raw_);
        const void *const found = std::memchr(data.data() + raw_, 0xFF, most);
        const size_t plain =
            found != nullptr ? static_cast<size_t>(static_cast<const uint8_t *>(found) - data.data()) - raw_ : most;
        raw_ += plain;
        clean_ += plain;
        if (found != nullptr) { // and the stuffed zero behind it
            raw_ += 2;
            clean_ += 1;
        }
    }
    return uint64_t{8} * raw_ + bits_read % 8;
}

} // namespace fastdata

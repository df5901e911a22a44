#include "jpeg_index.h"

#include "crc32c.h"

#include <algorithm>
#include <cstring>

namespace fastdata {
namespace {

constexpr size_t kHeadBytes = 16, kCrcBytes = 4;
constexpr int kMostMcus = 65535;
constexpr uint64_t kMostBytes = uint64_t{1} << 28; // whose bits 32 bits count

size_t entry_bytes(int components) {
    return 4 + 2 * static_cast<size_t>(components);
}

uint32_t number_at(const uint8_t *from, int bytes) {
    uint32_t number = 0;
    for (int i = 0; i < bytes; ++i)
        number |= static_cast<uint32_t>(from[i]) << (8 * i);
    return number;
}

void put_number(std::vector<uint8_t> &to, uint32_t number, int bytes) {
    for (int i = 0; i < bytes; ++i)
        to.push_back(static_cast<uint8_t>(number >> (8 * i)));
}

int entries_per_row(int columns, int step) {
    return (columns + step - 1) / step;
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
    components_ = half(14);
    if (step_ == 0 || half(8) != shape.columns || half(10) != shape.rows || components_ != shape.components ||
        number_at(head, 4) != shape.scan_begin || shape.file.size() >= kMostBytes)
        return false;
    per_row_ = entries_per_row(shape.columns, step_);
    entries_ = checked.subspan(kHeadBytes);
    const size_t count = static_cast<size_t>(per_row_) * static_cast<size_t>(shape.rows);
    return entries_.size() == count * entry_bytes(components_) &&
           number_at(stored.last(kCrcBytes).data(), 4) == crc32c(checked) &&
           number_at(head + 4, 4) == (given.file_crc >= 0 ? given.file_crc : int64_t{crc32c(shape.file)});
}

IndexEntry JpegIndex::entry(int row, int column) const {
    const size_t number =
        static_cast<size_t>(row) * static_cast<size_t>(per_row_) + static_cast<size_t>(column / step_);
    const uint8_t *const from = entries_.data() + number * entry_bytes(components_);
    IndexEntry entry;
    entry.bit = number_at(from, 4);
    for (int i = 0; i < components_; ++i)
        entry.dc[static_cast<size_t>(i)] = static_cast<int16_t>(number_at(from + 4 + 2 * i, 2));
    return entry;
}

bool JpegIndexWriter::begin(const IndexShape &shape, int step) {
    if (shape.columns > kMostMcus || shape.rows > kMostMcus || step < 1 || step > kMostMcus ||
        shape.components > kMostIndexed || shape.file.size() >= kMostBytes)
        return false;
    components_ = shape.components;
    stored_.clear();
    const size_t count = static_cast<size_t>(entries_per_row(shape.columns, step)) * static_cast<size_t>(shape.rows);
    stored_.reserve(kHeadBytes + count * entry_bytes(components_) + kCrcBytes);
    put_number(stored_, static_cast<uint32_t>(shape.scan_begin), 4);
    put_number(stored_, crc32c(shape.file), 4);
    for (const int number : {shape.columns, shape.rows, step, components_})
        put_number(stored_, static_cast<uint32_t>(number), 2);
    return true;
}

void JpegIndexWriter::add(const IndexEntry &entry) {
    put_number(stored_, entry.bit, 4);
    for (int i = 0; i < components_; ++i)
        put_number(stored_, static_cast<uint32_t>(entry.dc[static_cast<size_t>(i)]), 2);
}

std::vector<uint8_t> JpegIndexWriter::finish() {
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

#include "jpeg/unpacked.h"

#include "base/crc32c.h"
#include "kernels/kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace fastdata {
namespace {

constexpr std::array<uint8_t, 8> kMagic = {'F', 'D', 'C', 'O', 'E', 'F', '0', '1'};
constexpr size_t kCrcAt = kMagic.size(), kCheckedAt = kCrcAt + 4, kHeadBytes = kCheckedAt + 20;
constexpr size_t kBeyond = 16; // bytes that may be read behind the last value
constexpr int kTileBlocks = 48, kMostTileMcus = 16;
constexpr size_t kMostBytes = size_t{1} << 31;

constexpr size_t kTileHeadBytes = 3; // of each component

constexpr size_t kMostGroupBytes = 12; // of eight values of the largest width

size_t whole_bytes(size_t bits) {
    return (bits + 7) / 8;
}

// A loop that compilers make vectors of, where the processor may lack an instruction for it.
size_t ones_in(std::span<const uint8_t> bytes) {
    size_t ones = 0;
    for (const unsigned byte : bytes) {
        const unsigned pairs = byte - (byte >> 1 & 0x55), fours = (pairs & 0x33) + (pairs >> 2 & 0x33);
        ones += (fours + (fours >> 4)) & 0xF;
    }
    return ones;
}

int tiles_in_row(const ScanShape &shape, int tile) {
    return (shape.columns + tile - 1) / tile;
}

} // namespace

bool is_unpacked(std::span<const uint8_t> data) {
    return data.size() >= kMagic.size() && std::equal(kMagic.begin(), kMagic.end(), data.begin());
}

int tile_for(const ScanShape &shape) {
    return std::clamp(kTileBlocks / std::max(1, shape.blocks), 1, kMostTileMcus);
}

// ---- reading

bool UnpackedReader::open(std::span<const uint8_t> data, bool is_checked) {
    if (!is_unpacked(data) || data.size() < kHeadBytes + kBeyond || data.size() >= kMostBytes)
        return false;
    const uint8_t *const at = data.data();
#if !defined(FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION) // a fuzzer would hardly guess it
    if (!is_checked && number_at(at + kCrcAt, 4) != crc32c(data.subspan(kCheckedAt)))
        return false;
#else
    (void)is_checked;
#endif
    const size_t head_bytes = number_at(at + 20, 4), tail_bytes = number_at(at + 24, 4);
    const size_t rest = data.size() - kHeadBytes - kBeyond;
    head_.jpeg_bytes = number_at(at + 12, 4);
    head_.jpeg_crc = number_at(at + 16, 4);
    head_.tile = static_cast<int>(number_at(at + 28, 2));
    head_.padding = at[30];
    head_.kind = static_cast<RecordKind>(at[31]);
    if (head_bytes > rest || tail_bytes > rest - head_bytes || head_.tile == 0 || head_.tile > kMostTileMcus ||
        head_.padding > 1 || head_.kind > RecordKind::other_scans)
        return false;
    head_.head = data.subspan(kHeadBytes, head_bytes);
    head_.tail = data.subspan(kHeadBytes + head_bytes, tail_bytes);
    rest_ = data.subspan(kHeadBytes + head_bytes + tail_bytes);
    rest_ = rest_.first(rest_.size() - kBeyond);
    return true;
}

bool UnpackedReader::begin(const ScanShape &shape, int first_column, int last_column) {
    if (shape.components > kMostComponents || shape.blocks > kMostBlocksInMcu)
        return false;
    shape_ = shape;
    first_column_ = first_column;
    last_column_ = last_column;
    row_ = column_ = 0;
    next_mcu_ = -1;
    const size_t count = static_cast<size_t>(tiles_in_row(shape, head_.tile)) * static_cast<size_t>(shape.rows);
    if (rest_.size() / 4 < count + 1)
        return false;
    tiles_ = rest_.subspan(4 * (count + 1));
    const size_t blocks = static_cast<size_t>(shape.columns) * static_cast<size_t>(shape.rows) *
                          static_cast<size_t>(shape.blocks); // each needs a byte at least
    return number_at(rest_.data() + 4 * count, 4) == tiles_.size() &&
           tiles_.size() >= blocks + count * kTileHeadBytes * static_cast<size_t>(shape.components);
}

bool UnpackedReader::open_tile(int row, int number) {
    const auto tile =
        static_cast<size_t>(row) * static_cast<size_t>(tiles_in_row(shape_, head_.tile)) + static_cast<size_t>(number);
    const size_t begin = number_at(rest_.data() + 4 * tile, 4), end = number_at(rest_.data() + 4 * (tile + 1), 4);
    if (begin > end || end > tiles_.size())
        return false;
    const int first = number * head_.tile;
    const auto mcus = static_cast<size_t>(std::min(head_.tile, shape_.columns - first));
    const size_t blocks = mcus * static_cast<size_t>(shape_.blocks);
    std::span<const uint8_t> left = tiles_.subspan(begin, end - begin);
    const auto take = [&left](size_t bytes) {
        const uint8_t *const at = left.data();
        left = left.subspan(bytes);
        return at;
    };
    const size_t components = static_cast<size_t>(shape_.components);
    if (left.size() < kTileHeadBytes * components + blocks)
        return false;
    size_t difference_bits = 0;
    for (size_t i = 0; i < components; ++i) {
        const uint8_t *const at = take(kTileHeadBytes);
        tile_.dc[i] = static_cast<int16_t>(number_at(at, 2));
        tile_.dc_width[i] = at[2];
        if (tile_.dc_width[i] > 16)
            return false;
    }
    for (int i = 0; i < shape_.blocks; ++i)
        difference_bits += mcus * static_cast<size_t>(
                                      tile_.dc_width[static_cast<size_t>(shape_.component_of[static_cast<size_t>(i)])]);
    tile_.groups = take(blocks);
    const size_t groups = ones_in({tile_.groups, blocks});
    const size_t difference_bytes = whole_bytes(difference_bits), class_bytes = whole_bytes(3 * groups);
    if (left.size() < difference_bytes + class_bytes + groups)
        return false;
    tile_.differences = take(difference_bytes);
    tile_.classes = take(class_bytes);
    tile_.masks = take(groups);
    tile_.values = left.data();
    tile_.value_bits = 8 * left.size();
    tile_.difference_bit = tile_.class_bit = tile_.value_bit = 0;
    return true;
}

bool UnpackedReader::read_mcu(int16_t *const *blocks) {
    const int column = column_, row = row_;
    if (++column_ == shape_.columns) {
        column_ = 0;
        ++row_;
    }
    if (blocks == nullptr || column > last_column_ || column < first_column_)
        return true;
    const int in_tile = column % head_.tile;
    const int64_t mcu = row * static_cast<int64_t>(shape_.columns) + column;
    if (in_tile == 0 || mcu != next_mcu_) {
        if (row >= shape_.rows || !open_tile(row, column / head_.tile))
            return false;
        for (int i = 0; i < in_tile; ++i)
            if (!kernels().read_blocks(tile_, shape_.component_of.data(), shape_.blocks, nullptr))
                return false;
    }
    if (!kernels().read_blocks(tile_, shape_.component_of.data(), shape_.blocks, blocks))
        return false;
    next_mcu_ = mcu + 1;
    return true;
}

bool UnpackedReader::copy_tiles(int first_row, int last_row, std::vector<int32_t> &begins,
                                std::vector<uint8_t> &bytes) {
    const int first = first_column_ / head_.tile, last = last_column_ / head_.tile;
    for (int row = first_row; row <= last_row; ++row) {
        const size_t begins_at = 4 * (static_cast<size_t>(row) * static_cast<size_t>(tiles_in_row(shape_, head_.tile)));
        const auto begin_of = [&](int tile) {
            return number_at(rest_.data() + begins_at + 4 * static_cast<size_t>(tile), 4);
        };
        for (int tile = first; tile <= last; ++tile) {
            if (row >= shape_.rows || !open_tile(row, tile))
                return false;
            begins.push_back(static_cast<int32_t>(bytes.size() + (begin_of(tile) - begin_of(first))));
        }
        const auto from = tiles_.subspan(begin_of(first), begin_of(last + 1) - begin_of(first));
        bytes.insert(bytes.end(), from.begin(), from.end());
    }
    begins.push_back(static_cast<int32_t>(bytes.size()));
    return bytes.size() < kMostBytes;
}

// ---- writing

void UnpackedWriter::begin(const UnpackedHead &head, const ScanShape &shape) {
    head_ = head;
    shape_ = shape;
    column_ = 0;
    blocks_.clear();
    begins_.clear();
    tiles_.clear();
}

bool UnpackedWriter::add_mcu(std::span<const Block> blocks) {
    blocks_.insert(blocks_.end(), blocks.begin(), blocks.end());
    const bool ends_row = ++column_ == shape_.columns;
    if (ends_row)
        column_ = 0;
    return (!ends_row && column_ % head_.tile != 0) || put_tile();
}

bool UnpackedWriter::put_tile() {
    begins_.push_back(static_cast<uint32_t>(tiles_.size()));
    const auto component_of = [this](size_t block) {
        return static_cast<size_t>(shape_.component_of[block % static_cast<size_t>(shape_.blocks)]);
    };
    // DC values: the first of each component, and how many bits the differences need.
    std::array<int, kMostComponents> last{}, width{};
    std::array<bool, kMostComponents> seen{};
    std::array<uint32_t, kMostComponents> bits{};
    std::array<int, kMostComponents> first{};
    for (size_t i = 0; i < blocks_.size(); ++i) {
        const size_t c = component_of(i);
        if (!seen[c])
            first[c] = last[c] = blocks_[i][0];
        seen[c] = true;
        bits[c] |= zigzag(blocks_[i][0] - last[c]);
        last[c] = blocks_[i][0];
    }
    for (size_t c = 0; c < static_cast<size_t>(shape_.components); ++c) {
        width[c] = static_cast<int>(std::bit_width(bits[c]));
        put_number(tiles_, static_cast<uint16_t>(first[c]), 2);
        tiles_.push_back(static_cast<uint8_t>(width[c]));
    }
    // Each part where it can be longest; moved together at the end.
    const size_t count = blocks_.size(), begin = tiles_.size();
    const size_t differences_at = begin + count, classes_at = differences_at + 2 * count + 4,
                 masks_at = classes_at + 3 * count + 4, values_at = masks_at + kGroups * count;
    tiles_.resize(values_at + kGroups * kMostGroupBytes * count + 8);
    uint8_t *const all = tiles_.data();
    BitPacker put_difference(all + differences_at);
    last = first;
    for (size_t i = 0; i < blocks_.size(); ++i) {
        const size_t c = component_of(i);
        put_difference.put(zigzag(blocks_[i][0] - last[c]), width[c]);
        last[c] = blocks_[i][0];
    }
    TileGroups groups{all + begin, all + masks_at, BitPacker(all + classes_at), WideBitPacker(all + values_at)};
    if (!kernels().write_groups(blocks_.data()->data(), count, groups))
        return false;
    uint8_t *end = put_difference.finish();
    end = std::copy(all + classes_at, groups.classes.finish(), end);
    end = std::copy(all + masks_at, groups.masks, end);
    end = std::copy(all + values_at, groups.values.finish(), end);
    tiles_.resize(static_cast<size_t>(end - all));
    blocks_.clear();
    return tiles_.size() < kMostBytes;
}

std::vector<uint8_t> UnpackedWriter::finish() {
    begins_.push_back(static_cast<uint32_t>(tiles_.size()));
    const size_t table_at = kHeadBytes + head_.head.size() + head_.tail.size(), table_bytes = 4 * begins_.size();
    std::vector<uint8_t> record(table_at + table_bytes + tiles_.size() + kBeyond);
    const auto set = [&record](size_t at, uint32_t number) { set_number(record.data() + at, number, 4); };
    std::ranges::copy(kMagic, record.begin());
    set(12, head_.jpeg_bytes);
    set(16, head_.jpeg_crc);
    set(20, static_cast<uint32_t>(head_.head.size()));
    set(24, static_cast<uint32_t>(head_.tail.size()));
    set(28, static_cast<uint32_t>(head_.tile | head_.padding << 16 | static_cast<int>(head_.kind) << 24));
    std::ranges::copy(head_.tail, std::ranges::copy(head_.head, record.data() + kHeadBytes).out);
    for (size_t i = 0; i < begins_.size(); ++i)
        set(table_at + 4 * i, begins_[i]);
    std::ranges::copy(tiles_, record.data() + table_at + table_bytes);
    set(kCrcAt, crc32c(std::span(record).subspan(kCheckedAt)));
    return record;
}

} // namespace fastdata

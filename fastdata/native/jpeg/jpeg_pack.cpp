// Windows for a device that decodes them (packed.h): of records, and of files with an index.
#include "base/bits.h"
#include "jpeg/jpeg_state.h"
#include "jpeg/packed.h"

#include <algorithm>
#include <cstring>

namespace fastdata {
namespace {

constexpr int kMostCodeBits = 16;

void put_int(std::vector<uint8_t> &packed, int32_t number) {
    put_number(packed, static_cast<uint32_t>(number), 4);
}

int32_t end_of(const std::vector<uint8_t> &packed) {
    return static_cast<int32_t>(packed.size());
}

// Where the marker is that ends the data, from a place in it on.
size_t end_of_scan(std::span<const uint8_t> scan, size_t at) {
    while (at < scan.size()) {
        const void *const found = std::memchr(scan.data() + at, 0xFF, scan.size() - at);
        if (found == nullptr)
            break;
        at = static_cast<size_t>(static_cast<const uint8_t *>(found) - scan.data());
        if (at + 1 < scan.size() && scan[at + 1] != 0)
            return at;
        at += 2;
    }
    return scan.size();
}

// Makes the lookup of a Huffman table; false where its codes overflow, or a DC table has a size that cannot be.
bool build(const JHUFF_TBL &source, bool is_dc, PackedTable &table) {
    table = {};
    uint32_t code = 0; // left-aligned in 16 bits
    int place = 0;
    for (int length = 1; length <= kMostCodeBits; ++length) {
        const uint32_t step = 1U << (kMostCodeBits - length);
        const int long_code = length - kPackedBits - 1;
        if (long_code >= 0)
            table.offset[long_code] = place - static_cast<int32_t>(code >> (kMostCodeBits - length));
        for (int i = 0; i < source.bits[length]; ++i, ++place, code += step) {
            if (place >= 256 || code + step > 1U << kMostCodeBits)
                return false;
            const uint8_t symbol = source.huffval[place];
            if (is_dc && symbol > 15)
                return false;
            table.symbols[place] = symbol;
            if (length > kPackedBits)
                continue;
            const uint32_t first = code >> (kMostCodeBits - kPackedBits);
            for (uint32_t at = first; at < first + (1U << (kPackedBits - length)); ++at)
                table.codes[at] = static_cast<int16_t>(length << 8 | symbol);
        }
        if (long_code >= 0)
            table.limit[long_code] = static_cast<int32_t>(code);
    }
    return true;
}

// The same, of a table that is most often the one before it.
const PackedTable *table_of(const JHUFF_TBL *source, bool is_dc, int component) {
    struct Known {
        JHUFF_TBL source{};
        PackedTable table{};
        bool is_good = false;
    };
    static thread_local std::array<Known, 6> all;
    if (source == nullptr)
        return nullptr;
    Known &known = all[static_cast<size_t>(2 * component + (is_dc ? 0 : 1))];
    const bool is_known = known.is_good && std::memcmp(known.source.bits, source->bits, sizeof source->bits) == 0 &&
                          std::memcmp(known.source.huffval, source->huffval, sizeof source->huffval) == 0;
    if (!is_known) {
        known.source = *source;
        known.is_good = build(*source, is_dc, known.table);
    }
    return known.is_good ? &known.table : nullptr;
}

} // namespace

fd_status JpegDecoder::pack(const Box &window, PackedHead &head, std::vector<uint8_t> &packed) {
    State &state = *state_;
    JpegPixels &plan = state.pixels;
    const bool has_index = !index_.bytes.empty() && has_one_scan();
    const jpeg_decompress_struct &jpeg = state.jpeg;
    if (jpeg.Ss != 0 || jpeg.Se != DCTSIZE2 - 1 || jpeg.Ah != 0 || jpeg.Al != 0) // libjpeg has a word about that
        return FD_UNSUPPORTED;
    if ((!state.is_record && !has_index) || !window.is_inside(width(), height()) || !plan.plan(jpeg, window))
        return FD_UNSUPPORTED;
    const ScanShape shape = shape_of_all(jpeg);
    head.steps_at = end_of(packed);
    for (int component = 0; component < plan.components(); ++component)
        for (const uint16_t step : plan.steps(component))
            put_int(packed, step);
    const fd_status status = state.is_record ? pack_tiles(shape, head, packed) : pack_segments(shape, head, packed);
    if (status != FD_OK)
        return status;
    head.components = plan.components();
    head.halved_x = plan.halved_x();
    head.halved_y = plan.halved_y();
    head.width = width();
    head.height = height();
    head.first_column = plan.first_column() / head.tile * head.tile;
    head.first_row = plan.first_row();
    head.columns = std::min(shape.columns, (plan.last_column() / head.tile + 1) * head.tile) - head.first_column;
    head.rows = plan.last_row() - plan.first_row() + 1;
    const int64_t blocks = int64_t{head.columns} * head.rows * shape.blocks;
    return blocks * kCoefficients <= INT32_MAX ? FD_OK : FD_UNSUPPORTED; // for numbers of 32 bits
}

fd_status JpegDecoder::pack_tiles(const ScanShape &shape, PackedHead &head, std::vector<uint8_t> &packed) {
    State &state = *state_;
    const JpegPixels &plan = state.pixels;
    head.tile = state.record.head().tile;
    if (head.tile * shape.blocks > kMostPackedBlocks)
        return FD_UNSUPPORTED;
    static thread_local std::vector<int32_t> begins;
    static thread_local std::vector<uint8_t> tiles;
    begins.clear();
    tiles.clear();
    if (!state.record.begin(shape, plan.first_column(), plan.last_column()) ||
        !state.record.copy_tiles(plan.first_row(), plan.last_row(), begins, tiles))
        return FD_CORRUPT;
    head.tiles = static_cast<int32_t>(begins.size()) - 1;
    head.begins_at = end_of(packed);
    for (const int32_t begin : begins)
        put_int(packed, begin);
    head.tiles_at = end_of(packed);
    packed.insert(packed.end(), tiles.begin(), tiles.end());
    return FD_OK;
}

fd_status JpegDecoder::pack_segments(const ScanShape &shape, PackedHead &head, std::vector<uint8_t> &packed) {
    const jpeg_decompress_struct &jpeg = state_->jpeg;
    const JpegPixels &plan = state_->pixels;
    const auto interval = static_cast<int>(jpeg.restart_interval);
    if (interval % shape.columns != 0 || shape.components > kMostIndexed) // markers inside of rows
        return FD_UNSUPPORTED;
    const size_t scan_begin = data_.size() - std::min(jpeg.src->bytes_in_buffer, data_.size());
    static thread_local JpegIndex index;
    if (!index.open(index_, {data_, scan_begin, shape.columns, shape.rows, shape.components}))
        return FD_UNSUPPORTED; // told when it is decoded
    for (int component = 0; component < shape.components; ++component) {
        const jpeg_component_info &info = *jpeg.cur_comp_info[component];
        for (const bool is_dc : {true, false}) {
            const int number = is_dc ? info.dc_tbl_no : info.ac_tbl_no;
            if (number < 0 || number >= NUM_HUFF_TBLS)
                return FD_UNSUPPORTED;
            const JHUFF_TBL *const source = is_dc ? jpeg.dc_huff_tbl_ptrs[number] : jpeg.ac_huff_tbl_ptrs[number];
            int32_t &at = head.codes_at[2 * component + (is_dc ? 0 : 1)];
            const int before = component - 1; // chroma shares its tables
            if (before >= 0 &&
                number == (is_dc ? jpeg.cur_comp_info[before]->dc_tbl_no : jpeg.cur_comp_info[before]->ac_tbl_no)) {
                at = head.codes_at[2 * before + (is_dc ? 0 : 1)];
                continue;
            }
            const PackedTable *const table = table_of(source, is_dc, component);
            if (table == nullptr)
                return FD_UNSUPPORTED;
            at = end_of(packed);
            const auto *const bytes = reinterpret_cast<const uint8_t *>(table);
            packed.insert(packed.end(), bytes, bytes + sizeof *table);
        }
    }
    const int step = index.step(), first = plan.first_column() / step, last = plan.last_column() / step;
    const int per_row = last - first + 1, rows = plan.last_row() - plan.first_row() + 1;
    head.is_entropy_coded = 1;
    head.tile = step;
    head.tiles = per_row * rows;
    head.begins_at = end_of(packed);
    packed.resize(packed.size() + sizeof(PackedSegment) * static_cast<size_t>(head.tiles));
    head.tiles_at = end_of(packed);
    const std::span<const uint8_t> scan = data_.subspan(scan_begin);
    for (int row = 0; row < rows; ++row) {
        const auto entry_behind = [&](int number, IndexEntry &entry) { // of the segment behind one; false without one
            const int y = plan.first_row() + row, column = (number + 1) * step;
            const bool ends_row = column >= shape.columns;
            if (ends_row && y + 1 == shape.rows)
                return false;
            entry = ends_row ? index.entry(y + 1, 0) : index.entry(y, column);
            return true;
        };
        IndexEntry end;
        const size_t from = index.entry(plan.first_row() + row, first * step).bit / 8;
        const size_t to = entry_behind(last, end) ? end.bit / 8 + 1 : end_of_scan(scan, from);
        if (from >= to || to > scan.size())
            return FD_UNSUPPORTED;
        const int64_t shift = 8 * (int64_t{end_of(packed)} - head.tiles_at - static_cast<int64_t>(from)); // of bits
        for (int number = first; number <= last; ++number) {
            const IndexEntry entry = index.entry(plan.first_row() + row, number * step);
            PackedSegment segment{};
            segment.bit = static_cast<int32_t>(entry.bit + shift);
            std::ranges::copy(entry.dc, segment.dc);
            // Behind a restart marker there are other predictors, and the marker lies between.
            const bool ends_row = (number + 1) * step >= shape.columns;
            segment.end_bit = -1;
            if (entry_behind(number, end) && !(ends_row && interval != 0)) {
                segment.end_bit = static_cast<int32_t>(end.bit + shift);
                std::ranges::copy(end.dc, segment.end_dc);
            }
            if (entry.bit / 8 < from || entry.bit / 8 >= to)
                return FD_UNSUPPORTED;
            const size_t at = static_cast<size_t>(head.begins_at) +
                              sizeof segment * static_cast<size_t>(row * per_row + number - first);
            std::memcpy(packed.data() + at, &segment, sizeof segment);
        }
        packed.insert(packed.end(), scan.begin() + static_cast<ptrdiff_t>(from),
                      scan.begin() + static_cast<ptrdiff_t>(to));
        if (packed.size() >= kMostPackedBytes)
            return FD_UNSUPPORTED;
    }
    index_use_ = FD_INDEX_USED;
    return FD_OK;
}

} // namespace fastdata

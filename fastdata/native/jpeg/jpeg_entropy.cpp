#include "jpeg/jpeg_entropy.h"

#include <algorithm>

namespace fastdata {
namespace {

std::span<const uint8_t, 17> lengths_of(const JHUFF_TBL &table) {
    return std::span<const uint8_t, 17>(table.bits);
}

bool build(HuffmanTable &table, const JHUFF_TBL *source) {
    return source != nullptr && table.build(lengths_of(*source), std::span<const uint8_t, 256>(source->huffval));
}

IndexShape shape_of(const jpeg_decompress_struct &jpeg, std::span<const uint8_t> file) {
    const size_t scan_begin = file.size() - std::min(jpeg.src->bytes_in_buffer, file.size());
    return {file, scan_begin, static_cast<int>(jpeg.MCUs_per_row), static_cast<int>(jpeg.MCU_rows_in_scan),
            jpeg.comps_in_scan};
}

} // namespace

bool EntropyDecoder::install(jpeg_decompress_struct &jpeg, int first_column, int last_column,
                             std::span<const uint8_t> file, const StoredIndex &index) {
    if (!build_tables(jpeg))
        return false;
    first_column_ = first_column;
    last_column_ = last_column;
    row_ = row_read_ = column_ = next_restart_ = 0;
    next_mcu_ = 0;
    has_index_ = !index.bytes.empty() && index_.open(index, shape_of(jpeg, file));
    rows_restart_ = jpeg.restart_interval == jpeg.MCUs_per_row;
    until_restart_ = jpeg.restart_interval;
    last_dc_.fill(0);
    reader_.open({jpeg.src->next_input_byte, jpeg.src->bytes_in_buffer});
    return true;
}

bool EntropyDecoder::build_tables(const jpeg_decompress_struct &jpeg) {
    for (int i = 0; i < jpeg.comps_in_scan; ++i) {
        const jpeg_component_info &component = *jpeg.cur_comp_info[i];
        const auto dc = static_cast<size_t>(component.dc_tbl_no), ac = static_cast<size_t>(component.ac_tbl_no);
        if (dc >= dc_.size() || ac >= ac_.size() || !build(dc_[dc], jpeg.dc_huff_tbl_ptrs[dc]) ||
            !build(ac_[ac], jpeg.ac_huff_tbl_ptrs[ac]))
            return false;
    }
    for (int i = 0; i < jpeg.blocks_in_MCU; ++i) {
        const int component = jpeg.MCU_membership[i];
        const jpeg_component_info &info = *jpeg.cur_comp_info[component];
        blocks_[static_cast<size_t>(i)] = {
            {&dc_[static_cast<size_t>(info.dc_tbl_no)], &ac_[static_cast<size_t>(info.ac_tbl_no)]}, component};
    }
    return true;
}

bool EntropyDecoder::begin_mcu(const jpeg_decompress_struct &jpeg) {
    if (jpeg.restart_interval != 0) {
        if (until_restart_ == 0) {
            if (!reader_.restart(next_restart_))
                return false;
            next_restart_ = (next_restart_ + 1) & 7;
            until_restart_ = jpeg.restart_interval;
            last_dc_.fill(0);
        }
        --until_restart_;
    }
    reader_.prepare(jpeg.blocks_in_MCU);
    return true;
}

// Moves the reader to the beginning of the row that is asked for.
bool EntropyDecoder::begin_row() {
    if (row_read_ == row_)
        return true;
    if (!reader_.skip_restarts(row_ - row_read_, row_read_ & 7))
        return false;
    row_read_ = row_;
    last_dc_.fill(0);
    return true;
}

bool EntropyDecoder::read_mcu(const jpeg_decompress_struct &jpeg, int16_t *const *blocks) {
    const bool needed = blocks != nullptr && first_column_ <= column_ && column_ <= last_column_;
    for (int i = 0; i < jpeg.blocks_in_MCU; ++i) {
        const Block &block = blocks_[static_cast<size_t>(i)];
        if (!reader_.read(block.tables, last_dc_[static_cast<size_t>(block.component)], needed ? blocks[i] : nullptr))
            return false;
    }
    return reader_.is_complete();
}

// What an index has for the MCU that is read next.
IndexEntry EntropyDecoder::here() {
    IndexEntry entry;
    entry.bit = static_cast<uint32_t>(reader_.bit());
    std::ranges::copy_n(last_dc_.begin(), kMostIndexed, entry.dc.begin());
    return entry;
}

// Moves the reader to the MCU that is asked for, of which there is an entry.
bool EntropyDecoder::seek(const jpeg_decompress_struct &jpeg) {
    const IndexEntry entry = index_.entry(row_, column_);
    if (!reader_.seek(entry.bit))
        return false;
    std::ranges::copy(entry.dc, last_dc_.begin());
    if (const int64_t interval = jpeg.restart_interval; interval != 0) {
        const int64_t mcu = row_ * static_cast<int64_t>(jpeg.MCUs_per_row) + column_;
        until_restart_ = static_cast<unsigned>(interval - mcu % interval); // the entry is behind the marker
        next_restart_ = static_cast<int>(mcu / interval & 7);
    }
    return true;
}

// The same with an index.  Entries that are reached by reading are compared: a wrong one would give wrong pixels.
bool EntropyDecoder::read_indexed(const jpeg_decompress_struct &jpeg, int16_t *const *blocks) {
    const int64_t mcu = row_ * static_cast<int64_t>(jpeg.MCUs_per_row) + column_;
    const bool is_entry = column_ % index_.step() == 0, has_come_here = next_mcu_ == mcu;
    if (!has_come_here && !(is_entry && seek(jpeg)))
        return false;
    if (!begin_mcu(jpeg) || (has_come_here && is_entry && here() != index_.entry(row_, column_)))
        return false;
    next_mcu_ = mcu + 1;
    return read_mcu(jpeg, blocks);
}

std::vector<uint8_t> EntropyDecoder::make_index(const jpeg_decompress_struct &jpeg, std::span<const uint8_t> file,
                                                int step) {
    const IndexShape shape = shape_of(jpeg, file);
    const int distance = step > 0 ? step : shape.columns;
    JpegIndexWriter writer;
    if (!writer.begin(shape, distance))
        return {};
    for (row_ = 0; row_ < shape.rows; ++row_)
        for (column_ = 0; column_ < shape.columns; ++column_) {
            if (!begin_mcu(jpeg))
                return {};
            if (column_ % distance == 0) {
                const IndexEntry entry = here();
                if (std::ranges::any_of(entry.dc, [](int dc) { return dc != static_cast<int16_t>(dc); }))
                    return {};
                writer.add(entry);
            }
            if (!read_mcu(jpeg, nullptr))
                return {};
        }
    return reader_.is_followed_by_end() ? writer.finish() : std::vector<uint8_t>{};
}

bool EntropyDecoder::decode(const jpeg_decompress_struct &jpeg, int16_t *const *blocks) {
    bool good = true;
    if (has_index_) {
        if (blocks != nullptr && first_column_ / index_.step() * index_.step() <= column_ && column_ <= last_column_)
            good = read_indexed(jpeg, blocks);
    } else if (!rows_restart_) {
        good = begin_mcu(jpeg) && read_mcu(jpeg, blocks);
    } else if (blocks != nullptr && column_ <= last_column_) { // libjpeg passes over whole rows
        good = begin_row();
        reader_.prepare(jpeg.blocks_in_MCU);
        good = good && read_mcu(jpeg, blocks);
    }
    if (++column_ == static_cast<int>(jpeg.MCUs_per_row)) {
        column_ = 0;
        ++row_;
    }
    return good;
}

bool EntropyDecoder::finish(const jpeg_decompress_struct &jpeg) {
    const int rows = static_cast<int>(jpeg.MCU_rows_in_scan);
    if (has_index_) // it was made of this file, all of it
        return true;
    if (rows_restart_)
        return row_read_ + 1 < rows ? reader_.skip_restarts(1, row_read_ & 7) : reader_.is_followed_by_end();
    while (column_ != 0)
        if (!decode(jpeg, nullptr))
            return false;
    return row_ < rows || reader_.is_followed_by_end();
}

} // namespace fastdata

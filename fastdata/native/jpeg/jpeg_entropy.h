// Decodes scans by the Huffman decoder of huffman.h; jpeg_hook.h puts it in the place of libjpeg's.
#pragma once

#include "jpeg/huffman.h"
#include "jpeg/jpeg_index.h"

#include <array>
#include <cstdio> // jpeglib.h needs it
#include <jpeglib.h>
#include <span>
#include <vector>

namespace fastdata {

class EntropyDecoder {
  public:
    // Call after jpeg_start_decompress, before the first row.  Leaves libjpeg's decoder where it is for progressive,
    // arithmetic and multi-scan files.  first_column, last_column: MCUs of which coefficients are needed.
    // file: all of it.  index: if it is of another file it is not used.  False when a table is damaged.
    bool install(jpeg_decompress_struct &jpeg, int first_column, int last_column, std::span<const uint8_t> file = {},
                 const StoredIndex &index = {});
    // True if rows are found by the index.
    bool has_index() const { return has_index_; }

    // Decodes one MCU, or passes over it if blocks is nullptr.  False when the data is damaged.
    bool decode(const jpeg_decompress_struct &jpeg, int16_t *const *blocks);

    // Call behind the last MCU that is needed: looks for damage in the rest of its row (at the next marker, if rows
    // restart), and behind the scan's last row at what follows it, since libjpeg would refuse the file for some
    // markers.  False when the data is damaged, or what follows is not simply the file's end.
    bool finish(const jpeg_decompress_struct &jpeg);

    // Bytes of the scan up to the one behind what was read, from where its data begins.
    size_t bytes_read() { return static_cast<size_t>((reader_.bit() + 7) / 8); }

    // Makes the index by passing over the whole scan, with an entry for every step-th MCU of a row, or one for each row
    // if step is 0.  Call after install.  Empty when the data is damaged, or the image too large.
    std::vector<uint8_t> make_index(const jpeg_decompress_struct &jpeg, std::span<const uint8_t> file, int step);

  private:
    struct Block {
        BlockTables tables;
        int component;
    };

    bool build_tables(const jpeg_decompress_struct &jpeg);
    bool begin_mcu(const jpeg_decompress_struct &jpeg);
    bool begin_row();
    bool read_mcu(const jpeg_decompress_struct &jpeg, int16_t *const *blocks);
    bool read_indexed(const jpeg_decompress_struct &jpeg, int16_t *const *blocks);
    bool seek(const jpeg_decompress_struct &jpeg);
    IndexEntry here();

    std::array<HuffmanTable, NUM_HUFF_TBLS> dc_, ac_;
    std::array<Block, D_MAX_BLOCKS_IN_MCU> blocks_{};
    std::array<int, MAX_COMPS_IN_SCAN> last_dc_{};
    BlockReader reader_;
    int first_column_ = 0, last_column_ = 0;
    int row_ = 0, column_ = 0; // of the MCU that libjpeg asks for
    unsigned until_restart_ = 0;
    int next_restart_ = 0;
    // Where every row of MCUs begins with a restart marker, rows above the window and what lies right of it are found
    // by their markers and never decoded.
    bool rows_restart_ = false;
    int row_read_ = 0; // the row that the reader is in
    JpegIndex index_;
    bool has_index_ = false;
    int64_t next_mcu_ = 0; // that the reader would read, counted through all rows
};

} // namespace fastdata

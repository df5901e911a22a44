// A Huffman coded JPEG whose quantised coefficients lie open: a record from which a window is read by reading its
// tiles, without entropy decoding, and from which the file is made again byte for byte.  docs/format.md describes it.
//
//     "FDCOEF01"
//     uint32 crc            CRC-32C of everything behind it
//     uint32 jpeg_bytes     of the file
//     uint32 jpeg_crc       CRC-32C of the file
//     uint32 head_bytes     of the file before its entropy-coded data; see kind
//     uint32 tail_bytes     of the file behind it
//     uint16 tile           MCUs in a tile, but for the last of a row
//     uint8  padding        the bit that fills bytes of the file before markers: 0 or 1
//     uint8  kind           0: the file has one sequential scan.  1: it has others; the head is that of a file with the
//                           same frame and one sequential scan, the tail is the file without its entropy-coded data
//     head, tail
//     uint32 begins[rows * tiles_per_row + 1]   of the tiles, behind this table; the last one is the end of all
//     tiles
//     16 zeros              so that a decoder may read beyond a value
//
// A tile has the blocks of its MCUs, in the order of the file, in five parts that begin with whole bytes:
//     for each component: int16 first DC value, uint8 width w
//     for each block: uint8, which of its eight groups of coefficients have any but zeros
//     for each block: the difference of its DC value to the block of the same component before, zigzag, w bits
//     for each such group of each block: 3 bits, the number of a width (kWidths); then, behind the padding
//         uint8, which of its eight coefficients are not zero
//     for each such coefficient, its value, less one if it is positive, in as many bits as the width says (two's
//     complement)
// Group g has rows 2 (g % 4) and the next, columns 4 (g / 4) to the third behind, of the block; the DC value is none of
// them.
#pragma once

#include "kernels/unpacked_tile.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fastdata {

constexpr int kMostBlocksInMcu = 10;

using Block = std::array<int16_t, kCoefficients>; // in natural order

// How the blocks of a scan follow one another.
struct ScanShape {
    int columns, rows; // MCUs
    int components;    // in the scan
    int blocks;        // in an MCU
    std::array<uint8_t, kMostBlocksInMcu> component_of{};
};

enum class RecordKind : uint8_t { one_scan, other_scans };

struct UnpackedHead {
    uint32_t jpeg_bytes = 0, jpeg_crc = 0;
    int tile = 1, padding = 1;
    RecordKind kind = RecordKind::one_scan;
    std::span<const uint8_t> head, tail; // of the file
};

bool is_unpacked(std::span<const uint8_t> data);

// Reads records.
class UnpackedReader {
  public:
    // False if the record is damaged.  is_checked: its bytes are known to be what they were.  data: must live as long
    // as blocks are read.
    bool open(std::span<const uint8_t> data, bool is_checked);
    const UnpackedHead &head() const { return head_; }

    // Prepares for the MCUs of some columns, from the first row on.  False if the record has others.
    bool begin(const ScanShape &shape, int first_column, int last_column);
    // The next MCU, from left to right and from top to bottom.  blocks: one pointer to zeros for each, or nullptr to
    // pass over them; those of other columns are passed over.  False if the record is damaged.
    bool read_mcu(int16_t *const *blocks);

    // The tiles of those columns, from one row to another, whole: where each begins, and the end of the last, and their
    // bytes.  False if the record is damaged, as far as that is seen without reading values.
    bool copy_tiles(int first_row, int last_row, std::vector<int32_t> &begins, std::vector<uint8_t> &bytes);

  private:
    bool open_tile(int row, int number);

    UnpackedHead head_;
    std::span<const uint8_t> rest_; // from the table of tiles on
    std::span<const uint8_t> tiles_;
    ScanShape shape_{};
    int first_column_ = 0, last_column_ = 0, row_ = 0, column_ = 0;
    UnpackedTile tile_;
    int64_t next_mcu_ = -1; // that the tile would give
};

// Makes a record, MCU by MCU.
class UnpackedWriter {
  public:
    void begin(const UnpackedHead &head, const ScanShape &shape);
    // blocks: of the next MCU.  False for values that a record cannot hold.
    bool add_mcu(std::span<const Block> blocks);
    // tail: what is behind the entropy-coded data.
    void end_at(std::span<const uint8_t> tail) { head_.tail = tail; }
    std::vector<uint8_t> finish();

  private:
    bool put_tile();

    UnpackedHead head_;
    ScanShape shape_{};
    int column_ = 0;
    std::vector<Block> blocks_; // of the tile
    std::vector<uint32_t> begins_;
    std::vector<uint8_t> tiles_;
};

// MCUs that a tile should have.
int tile_for(const ScanShape &shape);

} // namespace fastdata

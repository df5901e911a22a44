// An index into the entropy-coded data of a baseline JPEG: where some MCUs of every row begin, and the DC predictors
// there.  With it a window is decoded without what is above it, left of it and right of it.
//
// Stored little-endian; docs/format.md describes it:
//     uint32 scan_begin     bytes of the file before its entropy-coded data
//     uint32 file_crc       CRC-32C of the file
//     uint16 columns, rows  MCUs
//     uint16 step           there is an entry for every step-th MCU of a row, beginning with the first
//     uint16 components     in the scan, 1 to 3
//     uint8  widths[4]      bits of each number of an entry
//     entries               rows x ceil(columns / step), each of 1 + components numbers, as differences to those of
//                           the entry before: the bit at which the MCU begins, counted from scan_begin with stuffed
//                           bytes; and the DC predictors, zigzag (0, -1, 1, -2, ...).  Packed from the lowest bit
//                           of each byte on, and at the end padded with zeros.
//     uint32 crc            CRC-32C of all of the above
//
// Source of the idea: Android's region decoder of 2011, which keeps such an index in memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fastdata {

constexpr int kMostIndexed = 3; // components

struct IndexEntry {
    uint32_t bit = 0;
    std::array<int, kMostIndexed> dc{};
    bool operator==(const IndexEntry &) const = default;
};

// What an index is made of, and must be for the image that is decoded.
struct IndexShape {
    std::span<const uint8_t> file;
    size_t scan_begin; // where its entropy-coded data begins
    int columns, rows, components;
};

// An index as it is kept, and what is known of the file that it is asked for.
struct StoredIndex {
    std::span<const uint8_t> bytes{};
    int64_t file_crc = -1; // CRC-32C, if somebody has computed it
};

// A stored index.
class JpegIndex {
  public:
    // False if it is damaged, or of another file.
    bool open(const StoredIndex &stored, const IndexShape &shape);
    int step() const { return step_; }
    // column: a multiple of step().
    IndexEntry entry(int row, int column) const;

  private:
    std::vector<IndexEntry> entries_;
    int step_ = 1, per_row_ = 1;
};

// Makes one, entry by entry.
class JpegIndexWriter {
  public:
    // False if the image is too large for it.
    bool begin(const IndexShape &shape, int step);
    void add(const IndexEntry &entry);
    std::vector<uint8_t> finish();

  private:
    std::vector<uint8_t> stored_;
    std::vector<IndexEntry> entries_;
    int components_ = 1;
};

// From bits read of a segment of entropy-coded data, which are counted without stuffed bytes, to bits of the file.
class StuffedPlace {
  public:
    // segment: where it begins in the data.  Bits of the data.
    uint64_t bit(std::span<const uint8_t> data, size_t segment, uint64_t bits_read);

  private:
    size_t segment_ = 0, raw_ = 0, clean_ = 0; // bytes; the same place with stuffed bytes and without
};

} // namespace fastdata

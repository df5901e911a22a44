// Huffman decoding of baseline JPEG scans, in the place of libjpeg's.
//
// Entropy decoding is about two thirds of what a window costs.  This decoder looks a whole coefficient up at once
// (code and value), reads from a copy of the scan without stuffed bytes, and stores nothing for blocks outside the
// window.  It conceals no error: whatever libjpeg would complain about stops it, and Pillow decodes the image.
#pragma once

#include "jpeg/jpeg_index.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fastdata {

// The next bits of a scan, from the top of a word.
struct BitWindow {
    uint64_t bits = 0;
    int count = 0;               // how many of them are counted as read from `at`
    const uint8_t *at = nullptr; // at least 8 bytes are readable

    uint32_t top(int n) const { return static_cast<uint32_t>(bits >> (64 - n)); }
    void drop(int n) {
        bits <<= n;
        count -= n;
    }
    void refill(); // to 56 bits or more
};

// One Huffman table, expanded for lookup by the next bits.
class HuffmanTable {
  public:
    static constexpr int kBits = 10;

    // lengths: number of codes of 1 to 16 bits (17 entries, the first unused).  values: their symbols.
    // Keeps what it has when nothing changed.  False when the codes overflow.
    bool build(std::span<const uint8_t, 17> lengths, std::span<const uint8_t, 256> values);

    // Reads a DC difference; false when there is no such code.
    bool read_dc(BitWindow &window, int &difference) const;
    // Reads the 63 others; false when the data is damaged.  Stores them in natural order if asked to.
    template <bool kStore> bool read_ac(BitWindow &window, int16_t *coefficients) const;

  private:
    // By the next kBits bits.  Low byte: bits of code and value together, 0 for a longer code.  Then the run (4 bits),
    // the size (4 bits), and in the high half the coefficient, 0 when it is not here.
    static constexpr int kRunShift = 8, kSizeShift = 12, kValueShift = 16;
    int symbol(BitWindow &window) const;

    std::array<int32_t, 1 << kBits> entries_{};
    std::array<uint8_t, 17> lengths_{};
    std::array<uint8_t, 256> values_{};
    std::array<uint32_t, 18> limit_{}; // first 16-bit prefix beyond the codes of each length
    std::array<int32_t, 17> offset_{}; // from a code to its symbol's place
    bool built_ = false;
};

// Entropy-coded segments without their stuffed zeros.
class ScanBytes {
  public:
    // data: from the first byte after the scan header to the end of the file.
    void open(std::span<const uint8_t> data);

    // Makes `bytes` readable from `at`, with zeros behind the segment's end; returns the place of `at`, which moves.
    const uint8_t *ensure(const uint8_t *at, size_t bytes);

    // Bytes of the segment not yet copied or read, as seen from `at`; negative when more was read than there is.
    ptrdiff_t left(const uint8_t *at) const;
    bool at_marker() const { return at_marker_; }

    // Goes on behind the restart marker with this number (0 to 7); false if there is another or none.
    bool skip_restart(int number);
    // Goes on behind the `count`-th restart marker from here, the first of which has this number, passing over all data
    // in between.  False if they do not follow one another.
    bool skip_restarts(int count, int number);
    // True if the next marker from here is the file's end, but for those that libjpeg passes over without a word.
    bool is_followed_by_end() const;
    const uint8_t *begin() const { return clean_.data(); }

    // Goes on at a byte of the data, which is no stuffed one; false behind its end.
    bool seek(size_t byte);
    std::span<const uint8_t> data() const { return data_; }
    // Where the segment begins in the data, or what was sought; and bytes from there to `at`, without stuffed ones.
    size_t segment() const { return segment_; }
    size_t since_segment(const uint8_t *at) const { return dropped_ + static_cast<size_t>(at - clean_.data()); }

  private:
    void begin_segment();
    void copy_more();

    std::span<const uint8_t> data_;
    size_t next_ = 0; // in data_
    size_t segment_ = 0, dropped_ = 0;
    size_t clean_size_ = 0, at_once_ = 0; // bytes that are copied, and the most of them
    bool at_marker_ = false;
    std::vector<uint8_t> clean_;
};

// What decodes the blocks of one component.
struct BlockTables {
    const HuffmanTable *dc, *ac;
};

// Decodes blocks, one after the other.
class BlockReader {
  public:
    void open(std::span<const uint8_t> data);

    // Call before each MCU: makes room for so many blocks without a check.
    void prepare(int blocks);
    // After an MCU: false when the data has run out.
    bool is_complete() const;
    bool restart(int number);
    // Passes over everything up to the `count`-th restart marker from here, the first of which has this number.
    bool skip_restarts(int count, int number);

    // True if the scan is followed by the file's end; see ScanBytes.
    bool is_followed_by_end() const { return bytes_.is_followed_by_end(); }

    // Goes on at a bit of the data, with stuffed bytes counted; false if there is none.
    bool seek(uint64_t bit);
    // Which bit of the data is read next, with stuffed bytes counted.
    uint64_t bit();

    // coefficients: 64 zeros in natural order, or nullptr to pass over the block.  False when the data is damaged.
    bool read(const BlockTables &tables, int &dc, int16_t *coefficients);

  private:
    const uint8_t *consumed_up_to() const { return window_.at - window_.count / 8; }

    BitWindow window_;
    ScanBytes bytes_;
    StuffedPlace place_;
};

} // namespace fastdata

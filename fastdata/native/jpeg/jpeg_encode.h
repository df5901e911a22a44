// Huffman coding of coefficients as the file has them: what the JPEG that they are of was made of, byte for byte.
//
// Source: ITU T.81, F.1.2 (baseline sequential coding).
#pragma once

#include <array>
#include <cstdint>
#include <cstdio> // jpeglib.h needs it
#include <optional>
#include <vector>

#include <jpeglib.h>

namespace fastdata {

// Bits of entropy-coded data, with stuffed zeros, at the end of other bytes.
class ScanWriter {
  public:
    // padding: the bit that fills bytes before markers.
    ScanWriter(std::vector<uint8_t> &to, int padding) : to_(to), padding_(padding), at_(to.size()) {}
    // Call before each block: makes room for it.
    void prepare() {
        if (to_.size() - at_ < kMostBlockBytes)
            to_.resize(2 * to_.size() + kMostBlockBytes);
    }
    // size: up to 32.
    void put(uint32_t bits, int size) {
        held_ = held_ << size | bits;
        count_ += size;
        if (count_ >= 32)
            put_word(static_cast<uint32_t>(held_ >> (count_ -= 32)));
    }
    void put_restart(int number);
    // Bytes up to here, those before included.
    size_t size() const { return at_; }
    // Fills the last byte; the bytes have their length afterwards.
    void finish();

  private:
    static constexpr size_t kMostBlockBytes = 1024; // 64 values of up to 32 bits, every byte of which may be stuffed

    void put_byte(uint8_t byte) {
        to_[at_++] = byte;
        if (byte == 0xFF)
            to_[at_++] = 0;
    }
    void put_word(uint32_t word) {
        for (int shift = 24; shift >= 0; shift -= 8)
            put_byte(static_cast<uint8_t>(word >> shift));
    }
    void fill_byte();

    std::vector<uint8_t> &to_;
    int padding_;
    size_t at_;
    uint64_t held_ = 0;
    int count_ = 0;
};

// Says where the markers of a scan are.
class Restarts {
  public:
    explicit Restarts(unsigned interval = 0) : interval_(interval), left_(interval) {}
    // Call before each MCU: the number of the marker before it, or -1.
    int before_mcu() {
        if (interval_ == 0 || left_-- > 0)
            return -1;
        left_ = interval_ - 1;
        return next_++ & 7;
    }

  private:
    unsigned interval_, left_;
    int next_ = 0;
};

// The codes of symbols.
class CodeTable {
  public:
    // False if the table makes no sense.
    bool build(const JHUFF_TBL *source);
    // A symbol and some bits, up to 16, behind it.  False if the symbol has no code.
    bool put(ScanWriter &to, int symbol, uint32_t bits = 0, int count = 0) const {
        const auto s = static_cast<size_t>(symbol);
        to.put(static_cast<uint32_t>(codes_[s]) << count | bits, sizes_[s] + count);
        return sizes_[s] != 0;
    }

  private:
    std::array<uint16_t, 256> codes_{};
    std::array<uint8_t, 256> sizes_{};
};

// Place of a coefficient in natural order; number: of those in the order of the file.
int natural_order(int number);

// A value behind some zeros: its category, and its bits.  False if there is no code for it.
bool put_value(ScanWriter &to, const CodeTable &table, int zeros, int value);

// A block of a sequential scan, in natural order; last_dc: the component's latest DC value.  Call prepare() before.
bool put_block(ScanWriter &to, const CodeTable &dc, const CodeTable &ac, int &last_dc, const int16_t *block);

// Encodes the MCUs of a scan.
class EntropyEncoder {
  public:
    // False if a table is missing.
    bool begin(const jpeg_decompress_struct &jpeg, std::vector<uint8_t> &to, int padding);
    // blocks: of the next MCU, in natural order.  False for values that the tables have no code for.
    bool encode(const jpeg_decompress_struct &jpeg, const int16_t *const *blocks);
    void finish() { writer_->finish(); }

  private:
    struct Component {
        CodeTable dc, ac;
        int last_dc = 0;
    };
    std::optional<ScanWriter> writer_;
    std::array<Component, MAX_COMPS_IN_SCAN> components_;
    Restarts restarts_;
};

} // namespace fastdata

// Numbers of some bits, packed from the lowest bit of each byte on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace fastdata {

// Little-endian.
inline uint32_t number_at(const uint8_t *from, int bytes) {
    uint32_t number = 0;
    for (int i = 0; i < bytes; ++i)
        number |= static_cast<uint32_t>(from[i]) << (8 * i);
    return number;
}

inline void set_number(uint8_t *to, uint32_t number, int bytes) {
    for (int i = 0; i < bytes; ++i)
        to[i] = static_cast<uint8_t>(number >> (8 * i));
}

inline void put_number(std::vector<uint8_t> &to, uint32_t number, int bytes) {
    const size_t at = to.size();
    to.resize(at + static_cast<size_t>(bytes));
    set_number(to.data() + at, number, bytes);
}

// Packs into memory in which four more bytes than are needed may be written.
class BitPacker {
  public:
    explicit BitPacker(uint8_t *to) : at_(to) {}
    // width: up to 32; number: less than 2^width.
    void put(uint32_t number, int width) {
        held_ |= uint64_t{number} << count_;
        count_ += width;
        if (count_ >= 32) {
            const auto word = static_cast<uint32_t>(held_);
            std::memcpy(at_, &word, sizeof word); // little-endian, as all processors that this is built for
            at_ += sizeof word;
            held_ >>= 32;
            count_ -= 32;
        }
    }
    // Pads with zeros to a whole byte; returns the end.
    uint8_t *finish() {
        for (; count_ > 0; count_ -= 8, held_ >>= 8)
            *at_++ = static_cast<uint8_t>(held_);
        return at_;
    }

  private:
    uint8_t *at_;
    uint64_t held_ = 0;
    int count_ = 0;
};

// Packs up to 64 bits at once, into memory in which eight more bytes than are needed may be written.
class WideBitPacker {
  public:
    explicit WideBitPacker(uint8_t *to) : at_(to) {}
    // bits: less than 2^width.
    void put(uint64_t bits, int width) {
        held_ |= bits << count_;
        const int count = count_ + width;
        if (count >= 64) {
            std::memcpy(at_, &held_, sizeof held_); // little-endian
            at_ += sizeof held_;
            held_ = count_ == 0 ? 0 : bits >> (64 - count_);
        }
        count_ = count % 64;
    }
    // Pads with zeros to a whole byte; returns the end.
    uint8_t *finish() {
        for (; count_ > 0; count_ -= 8, held_ >>= 8)
            *at_++ = static_cast<uint8_t>(held_);
        return at_;
    }

  private:
    uint8_t *at_;
    uint64_t held_ = 0;
    int count_ = 0;
};

class BitUnpacker {
  public:
    explicit BitUnpacker(std::span<const uint8_t> from) : from_(from) {}
    // There must be so many bits.
    uint32_t take(int width) {
        for (; count_ < width; count_ += 8)
            held_ |= uint64_t{from_[at_++]} << count_;
        const auto number = static_cast<uint32_t>(held_ & ((uint64_t{1} << width) - 1));
        held_ >>= width;
        count_ -= width;
        return number;
    }

  private:
    std::span<const uint8_t> from_;
    uint64_t held_ = 0;
    size_t at_ = 0;
    int count_ = 0;
};

// Differences of 16-bit numbers, of which small ones take few bits: 0, -1, 1, -2, ... as 0, 1, 2, 3, ...
inline uint32_t zigzag(int difference) {
    const auto narrow = static_cast<int16_t>(difference);
    return static_cast<uint16_t>((narrow << 1) ^ (narrow >> 15));
}

inline int unzigzag(uint32_t number) {
    return static_cast<int>(number >> 1) ^ -static_cast<int>(number & 1);
}

} // namespace fastdata

#include "jpeg/huffman.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace fastdata {
namespace {

constexpr int kMostCodeBits = 16;
constexpr int kLastCoefficient = 63;
constexpr size_t kMostAtOnceBytes = size_t{32} << 10;
constexpr size_t kSoughtBytes = size_t{4} << 10; // of one row, of which the rest may never be read
// A block has at most 64 codes of 16 bits, each with a value of up to 15.
constexpr size_t kMostBlockBytes = 64 * 32 / 8;
constexpr size_t kMostBlocks = 10;
// One MCU may be read out of the zeros behind the data's end before that is noticed.
constexpr size_t kPaddingBytes = kMostBlocks * kMostBlockBytes + 64;

// Place of the k-th coefficient of the zigzag in natural order.  Source: ITU T.81, figure A.6.
// A damaged run may go 16 further, which is noticed only after the coefficient has been stored.
constexpr std::array<uint8_t, 64 + 16> kZigzag = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,
    6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31,
    39, 46, 53, 60, 61, 54, 47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63};

// Source: ITU T.81, F.2.2.1, EXTEND.
int extended(int bits, int size) {
    return bits < 1 << (size - 1) ? bits - (1 << size) + 1 : bits;
}

uint64_t load_big_endian(const uint8_t *from) {
    uint64_t word;
    std::memcpy(&word, from, sizeof word);
    if constexpr (std::endian::native == std::endian::little)
        word = __builtin_bswap64(word);
    return word;
}

} // namespace

bool HuffmanTable::build(std::span<const uint8_t, 17> lengths, std::span<const uint8_t, 256> values) {
    if (built_ && std::ranges::equal(lengths, lengths_) && std::ranges::equal(values, values_))
        return true;
    built_ = false;
    std::ranges::copy(lengths, lengths_.begin());
    std::ranges::copy(values, values_.begin());
    entries_.fill(0);
    uint32_t code = 0; // left-aligned in 16 bits
    int place = 0;
    for (int length = 1; length <= kMostCodeBits; ++length) {
        const uint32_t step = 1u << (kMostCodeBits - length);
        offset_[static_cast<size_t>(length)] = place - static_cast<int>(code >> (kMostCodeBits - length));
        for (int i = 0; i < lengths[static_cast<size_t>(length)]; ++i, ++place, code += step) {
            if (place >= 256 || code + step > 1u << kMostCodeBits)
                return false;
            if (length > kBits)
                continue;
            const int symbol = values[static_cast<size_t>(place)];
            const int run = symbol >> 4, size = symbol & 15, spare = kBits - length - size;
            const uint32_t first = code >> (kMostCodeBits - kBits);
            for (uint32_t at = first; at < first + (1u << (kBits - length)); ++at) {
                int value = 0, bits = length;
                if (size > 0 && spare >= 0) {
                    value = extended(static_cast<int>(at >> spare) & ((1 << size) - 1), size);
                    bits += size;
                }
                entries_[at] = static_cast<int32_t>(static_cast<uint32_t>(value) << kValueShift) |
                               (size << kSizeShift) | (run << kRunShift) | bits;
            }
        }
        limit_[static_cast<size_t>(length)] = code;
    }
    built_ = true;
    return true;
}

void ScanBytes::open(std::span<const uint8_t> data) {
    data_ = data;
    next_ = 0;
    begin_segment();
    at_once_ = kMostAtOnceBytes;
    clean_.resize(kMostAtOnceBytes + 1 + kPaddingBytes);
    std::memset(clean_.data(), 0, kPaddingBytes);
}

// What is copied from now on begins at next_.
void ScanBytes::begin_segment() {
    segment_ = next_;
    dropped_ = clean_size_ = 0;
    at_marker_ = false;
}

bool ScanBytes::seek(size_t byte) {
    if (byte >= data_.size())
        return false;
    next_ = byte;
    begin_segment();
    at_once_ = kSoughtBytes;
    return true;
}

const uint8_t *ScanBytes::ensure(const uint8_t *at, size_t bytes) {
    const auto used = static_cast<size_t>(at - clean_.data());
    if (at_marker_ || used + bytes <= clean_size_)
        return at;
    const size_t keep = clean_size_ - std::min(used, clean_size_);
    std::memmove(clean_.data(), clean_.data() + used, keep);
    clean_size_ = keep;
    dropped_ += used;
    while (clean_size_ < at_once_ && !at_marker_)
        copy_more();
    if (at_marker_)
        std::memset(clean_.data() + clean_size_, 0, kPaddingBytes);
    return clean_.data();
}

// Copies up to the next 0xFF at a time.
void ScanBytes::copy_more() {
    const size_t room = at_once_ - clean_size_; // a stuffed 0xFF may take one byte more
    const std::span<const uint8_t> rest = data_.subspan(next_);
    const size_t most = std::min(rest.size(), room);
    const void *found = most > 0 ? std::memchr(rest.data(), 0xFF, most) : nullptr;
    const size_t plain =
        found != nullptr ? static_cast<size_t>(static_cast<const uint8_t *>(found) - rest.data()) : most;
    std::memcpy(clean_.data() + clean_size_, rest.data(), plain);
    clean_size_ += plain;
    next_ += plain;
    if (found == nullptr) {
        at_marker_ = plain == rest.size(); // the file ends without a marker
        return;
    }
    if (plain + 1 < rest.size() && rest[plain + 1] == 0x00) {
        clean_[clean_size_++] = 0xFF;
        next_ += 2;
    } else {
        at_marker_ = true;
    }
}

ptrdiff_t ScanBytes::left(const uint8_t *at) const {
    return clean_.data() + clean_size_ - at;
}

bool ScanBytes::skip_restart(int number) {
    while (next_ + 1 < data_.size() && data_[next_] == 0xFF && data_[next_ + 1] == 0xFF) // fill bytes
        ++next_;
    if (next_ + 1 >= data_.size() || data_[next_] != 0xFF || data_[next_ + 1] != 0xD0 + number)
        return false;
    next_ += 2;
    begin_segment();
    return true;
}

bool ScanBytes::skip_restarts(int count, int number) {
    for (; count > 0; --count, number = (number + 1) & 7) {
        while (!at_marker_) { // to the next 0xFF that is not a stuffed one
            const std::span<const uint8_t> rest = data_.subspan(next_);
            const void *found = rest.size() > 1 ? std::memchr(rest.data(), 0xFF, rest.size() - 1) : nullptr;
            if (found == nullptr)
                return false;
            next_ += static_cast<size_t>(static_cast<const uint8_t *>(found) - rest.data());
            at_marker_ = data_[next_ + 1] != 0x00;
            next_ += at_marker_ ? 0 : 2;
        }
        if (!skip_restart(number))
            return false;
    }
    return true;
}

// All that is copied lies before next_, and has no marker; what follows may be data that nobody needed.  Source:
// libjpeg-turbo, jdmarker.c, read_markers.
bool ScanBytes::is_followed_by_end() const {
    constexpr uint8_t kEnd = 0xD9, kTem = 0x01, kRst0 = 0xD0, kRst7 = 0xD7;
    for (size_t at = next_; at < data_.size();) {
        const void *const found = std::memchr(data_.data() + at, 0xFF, data_.size() - at);
        if (found == nullptr)
            break;
        at = static_cast<size_t>(static_cast<const uint8_t *>(found) - data_.data());
        while (at < data_.size() && data_[at] == 0xFF) // any number of them
            ++at;
        if (at == data_.size())
            break;
        const uint8_t marker = data_[at++];
        if (marker != 0 && marker != kTem && (marker < kRst0 || kRst7 < marker))
            return marker == kEnd;
    }
    return false;
}

// Source: Giesen, "Reading bits in far too many ways", part 2, variant 4: bits are read again rather than counted.
inline void BitWindow::refill() {
    bits |= load_big_endian(at) >> count;
    at += (63 - count) >> 3;
    count |= 56;
}

// A code longer than kBits.  At least 16 bits must be there; -1 when no code begins so.
int HuffmanTable::symbol(BitWindow &window) const {
    const uint32_t prefix = window.top(kMostCodeBits);
    for (size_t length = kBits + 1; length <= kMostCodeBits; ++length)
        if (prefix < limit_[length]) {
            const int code = static_cast<int>(prefix >> (kMostCodeBits - length));
            window.drop(static_cast<int>(length));
            return values_[static_cast<size_t>(code + offset_[length]) & 0xFF];
        }
    return -1;
}

inline int read_value(BitWindow &window, int size) {
    const int bits = static_cast<int>(window.top(size));
    window.drop(size);
    return extended(bits, size);
}

bool HuffmanTable::read_dc(BitWindow &window, int &difference) const {
    window.refill();
    const int32_t entry = entries_[window.top(kBits)];
    difference = entry >> kValueShift;
    window.drop(entry & 0xFF);
    if (difference != 0)
        return (entry >> kRunShift & 15) == 0;
    const int size = (entry & 0xFF) != 0 ? entry >> kRunShift & 0xFF : symbol(window);
    const int bits = (entry & 0xFF) != 0 ? size >> 4 : size; // the entry has the run below the size
    if (size < 0 || bits > 15 || ((entry & 0xFF) != 0 && (size & 15) != 0))
        return false;
    difference = bits > 0 ? read_value(window, bits) : 0;
    return true;
}

template <bool kStore> bool HuffmanTable::read_ac(BitWindow &shared, int16_t *coefficients) const {
    BitWindow window = shared;
    int k = 0; // the coefficient read last
    const auto take = [&](int run, int value) {
        k += run + 1;
        if constexpr (kStore)
            coefficients[kZigzag[static_cast<size_t>(k)]] = static_cast<int16_t>(value);
    };
    while (k < kLastCoefficient) {
        window.refill();
        int32_t entry = entries_[window.top(kBits)];
        if (entry >> kValueShift != 0) { // 56 bits are there: five of these
            for (int fifth = 0; fifth < 5; ++fifth) {
                window.drop(entry & 63);
                take(entry >> kRunShift & 15, entry >> kValueShift);
                entry = entries_[window.top(kBits)];
                if (k >= kLastCoefficient || entry >> kValueShift == 0)
                    break;
            }
            continue;
        }
        window.drop(entry & 63);
        int run = entry >> kRunShift & 15, size = entry >> kSizeShift & 15;
        if ((entry & 63) == 0) {
            const int both = symbol(window);
            if (both < 0)
                return false;
            run = both >> 4;
            size = both & 15;
        }
        if (size != 0)
            take(run, read_value(window, size));
        else if (run == 15)
            k += 16;
        else
            break; // end of block
    }
    shared = window;
    return k <= kLastCoefficient;
}

void BlockReader::open(std::span<const uint8_t> data) {
    bytes_.open(data);
    place_ = {};
    window_ = {0, 0, bytes_.begin()};
}

void BlockReader::prepare(int blocks) {
    const size_t bytes = static_cast<size_t>(blocks) * kMostBlockBytes + 2 * sizeof(uint64_t);
    // Bits already taken from before `at` stay in the window, so only `at` itself moves.
    if (bytes_.left(window_.at) < static_cast<ptrdiff_t>(bytes))
        window_.at = bytes_.ensure(window_.at, bytes);
}

bool BlockReader::is_complete() const {
    return !bytes_.at_marker() || bytes_.left(consumed_up_to()) >= 0;
}

bool BlockReader::restart(int number) {
    window_.at = bytes_.ensure(window_.at, kMostBlockBytes);
    // A whole byte left over would be what libjpeg calls extraneous.
    if (!bytes_.at_marker() || bytes_.left(consumed_up_to()) != 0 || !bytes_.skip_restart(number))
        return false;
    window_ = {0, 0, bytes_.begin()};
    return true;
}

bool BlockReader::skip_restarts(int count, int number) {
    if (!bytes_.skip_restarts(count, number))
        return false;
    window_ = {0, 0, bytes_.begin()};
    return true;
}

bool BlockReader::seek(uint64_t bit) {
    if (!bytes_.seek(static_cast<size_t>(bit / 8)))
        return false;
    place_ = {};
    window_ = {0, 0, bytes_.ensure(bytes_.begin(), kMostBlockBytes)};
    window_.refill();
    window_.drop(static_cast<int>(bit % 8));
    return true;
}

uint64_t BlockReader::bit() {
    const uint64_t read = uint64_t{8} * bytes_.since_segment(window_.at) - static_cast<uint64_t>(window_.count);
    return place_.bit(bytes_.data(), bytes_.segment(), read);
}

bool BlockReader::read(const BlockTables &tables, int &dc, int16_t *coefficients) {
    int difference = 0;
    if (!tables.dc->read_dc(window_, difference))
        return false;
    dc += difference;
    if (dc < -(1 << 20) || dc > 1 << 20)
        return false;
    if (coefficients == nullptr)
        return tables.ac->read_ac<false>(window_, nullptr);
    coefficients[0] = static_cast<int16_t>(dc);
    return tables.ac->read_ac<true>(window_, coefficients);
}

} // namespace fastdata

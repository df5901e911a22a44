#include "jpeg/jpeg_encode.h"

#include <bit>
#include <cstdlib>

namespace fastdata {
namespace {

constexpr int kMostRun = 15, kZeroRun = 0xF0, kMostCategory = 15;

// Places of coefficients in natural order, as they follow one another in a file.  Source: ITU T.81, figure 5.
constexpr std::array<uint8_t, DCTSIZE2> kNaturalOrder = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

} // namespace

int natural_order(int number) {
    return kNaturalOrder[static_cast<size_t>(number)];
}

void ScanWriter::fill_byte() {
    if (const int free = -count_ & 7; free != 0)
        put(padding_ != 0 ? (1U << free) - 1 : 0, free);
    for (; count_ > 0; count_ -= 8)
        put_byte(static_cast<uint8_t>(held_ >> (count_ - 8)));
}

void ScanWriter::put_restart(int number) {
    prepare();
    fill_byte();
    to_[at_++] = 0xFF;
    to_[at_++] = static_cast<uint8_t>(0xD0 + number);
}

void ScanWriter::finish() {
    prepare();
    fill_byte();
    to_.resize(at_);
}

bool CodeTable::build(const JHUFF_TBL *source) {
    if (source == nullptr)
        return false;
    sizes_.fill(0);
    uint32_t code = 0;
    size_t symbol = 0;
    for (int size = 1; size <= 16; ++size, code <<= 1)
        for (int i = 0; i < source->bits[size]; ++i, ++code, ++symbol) {
            if (symbol >= 256 || code >= uint32_t{1} << size)
                return false;
            codes_[source->huffval[symbol]] = static_cast<uint16_t>(code);
            sizes_[source->huffval[symbol]] = static_cast<uint8_t>(size);
        }
    return true;
}

bool EntropyEncoder::begin(const jpeg_decompress_struct &jpeg, std::vector<uint8_t> &to, int padding) {
    writer_.emplace(to, padding);
    restarts_ = Restarts(jpeg.restart_interval);
    for (int i = 0; i < jpeg.comps_in_scan; ++i) {
        const jpeg_component_info &info = *jpeg.cur_comp_info[i];
        Component &component = components_[static_cast<size_t>(i)];
        component.last_dc = 0;
        if (info.dc_tbl_no < 0 || info.dc_tbl_no >= NUM_HUFF_TBLS || info.ac_tbl_no < 0 ||
            info.ac_tbl_no >= NUM_HUFF_TBLS || !component.dc.build(jpeg.dc_huff_tbl_ptrs[info.dc_tbl_no]) ||
            !component.ac.build(jpeg.ac_huff_tbl_ptrs[info.ac_tbl_no]))
            return false;
    }
    return true;
}

bool EntropyEncoder::encode(const jpeg_decompress_struct &jpeg, const int16_t *const *blocks) {
    if (const int marker = restarts_.before_mcu(); marker >= 0) {
        writer_->put_restart(marker);
        for (Component &component : components_)
            component.last_dc = 0;
    }
    for (int i = 0; i < jpeg.blocks_in_MCU; ++i) {
        Component &own = components_[static_cast<size_t>(jpeg.MCU_membership[i])];
        writer_->prepare();
        if (!put_block(*writer_, own.dc, own.ac, own.last_dc, blocks[i]))
            return false;
    }
    return true;
}

// T.81, F.1.2.1 and F.1.2.2.
bool put_value(ScanWriter &to, const CodeTable &table, int zeros, int value) {
    const int category = static_cast<int>(std::bit_width(static_cast<unsigned>(std::abs(value))));
    const auto bits = static_cast<uint32_t>(value < 0 ? value - 1 : value) & ((1U << category) - 1);
    return category <= kMostCategory && table.put(to, zeros << 4 | category, bits, category);
}

bool put_block(ScanWriter &to, const CodeTable &dc, const CodeTable &ac, int &last_dc, const int16_t *block) {
    if (!put_value(to, dc, 0, block[0] - last_dc))
        return false;
    last_dc = block[0];
    uint64_t there = 0; // coefficients, in the order of the file
    for (size_t k = 1; k < kNaturalOrder.size(); ++k)
        there |= uint64_t{block[kNaturalOrder[k]] != 0} << k;
    int last = 0;
    for (; there != 0; there &= there - 1) {
        const int k = std::countr_zero(there);
        int zeros = k - last - 1;
        for (; zeros > kMostRun; zeros -= kMostRun + 1)
            if (!ac.put(to, kZeroRun))
                return false;
        if (!put_value(to, ac, zeros, block[kNaturalOrder[static_cast<size_t>(k)]]))
            return false;
        last = k;
    }
    return last == DCTSIZE2 - 1 || ac.put(to, 0); // the end of the block
}

} // namespace fastdata

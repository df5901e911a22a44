// Records of open coefficients, of JPEGs and back.
#include "crc32c.h"
#include "jpeg_encode.h"
#include "jpeg_state.h"

#include <algorithm>

namespace fastdata {
namespace {

// The coefficients of one MCU, and where each block of it begins.
struct McuBlocks {
    std::array<Block, kMostBlocksInMcu> blocks;
    std::array<int16_t *, kMostBlocksInMcu> places;

    McuBlocks() {
        for (size_t i = 0; i < blocks.size(); ++i)
            places[i] = blocks[i].data();
    }
    void clear() { blocks.fill({}); }
};

} // namespace

fd_status JpegDecoder::unpack(int padding, std::vector<uint8_t> &record) {
    if (state_->is_record || data_.size() > UINT32_MAX)
        return FD_UNSUPPORTED;
    UnpackedWriter writer;
    return with_scan([&] {
        const jpeg_decompress_struct &jpeg = state_->jpeg;
        const ScanShape shape = shape_of(jpeg);
        const size_t scan = data_.size() - std::min(jpeg.src->bytes_in_buffer, data_.size());
        if (!state_->entropy.install(state_->jpeg, 0, shape.columns - 1))
            return FD_CORRUPT;
        UnpackedHead head = {
            static_cast<uint32_t>(data_.size()), crc32c(data_), tile_for(shape), padding, data_.first(scan), {}};
        writer.begin(head, shape);
        McuBlocks mcu;
        for (int64_t mcus = int64_t{shape.columns} * shape.rows; mcus > 0; --mcus) {
            mcu.clear();
            if (!state_->entropy.decode(jpeg, mcu.places.data()))
                return FD_CORRUPT;
            if (!writer.add_mcu(std::span(mcu.blocks).first(static_cast<size_t>(shape.blocks))))
                return FD_UNSUPPORTED;
        }
        size_t end = std::min(scan + state_->entropy.bytes_read(), data_.size());
        if (end < data_.size() && data_[end - 1] == 0xFF && data_[end] == 0)
            ++end; // the last byte is stuffed
        writer.end_at(data_.subspan(end));
        record = writer.finish();
        return FD_OK;
    });
}

fd_status JpegDecoder::restore(std::vector<uint8_t> &file) {
    if (!state_->is_record)
        return FD_UNSUPPORTED;
    const UnpackedHead &head = state_->record.head();
    EntropyEncoder encoder;
    file.assign(head.head.begin(), head.head.end());
    constexpr size_t kMostAtOnce = size_t{64} << 20; // of what a record claims
    file.reserve(std::min<size_t>(head.jpeg_bytes, kMostAtOnce));
    return with_scan([&] {
        const jpeg_decompress_struct &jpeg = state_->jpeg;
        const ScanShape shape = shape_of(jpeg);
        if (!state_->record.begin(shape, 0, shape.columns - 1) || !encoder.begin(jpeg, file, head.padding))
            return FD_CORRUPT;
        McuBlocks mcu;
        for (int64_t mcus = int64_t{shape.columns} * shape.rows; mcus > 0; --mcus) {
            mcu.clear();
            if (!state_->record.read_mcu(mcu.places.data()) || !encoder.encode(jpeg, mcu.places.data()))
                return FD_CORRUPT;
        }
        encoder.finish();
        file.insert(file.end(), head.tail.begin(), head.tail.end());
        return file.size() == head.jpeg_bytes && crc32c(file) == head.jpeg_crc ? FD_OK : FD_CORRUPT;
    });
}

} // namespace fastdata

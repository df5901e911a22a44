// Records of open coefficients, of JPEGs and back.
#include "base/crc32c.h"
#include "jpeg/jpeg_encode.h"
#include "jpeg/jpeg_scans.h"
#include "jpeg/jpeg_state.h"

#include <algorithm>
#include <cstring>

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

bool is_file_of(const UnpackedHead &head, const std::vector<uint8_t> &file) {
#if defined(FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION) // a fuzzer would hardly guess them
    return !file.empty() && head.jpeg_bytes != 0;
#endif
    return file.size() == head.jpeg_bytes && crc32c(file) == head.jpeg_crc;
}

} // namespace

fd_status JpegDecoder::unpack(int padding, std::vector<uint8_t> &record) {
    if (state_->is_record || data_.size() > UINT32_MAX)
        return FD_UNSUPPORTED;
    if (!has_one_scan())
        return unpack_scans(padding, record);
    UnpackedWriter writer;
    return with_scan([&] {
        const jpeg_decompress_struct &jpeg = state_->jpeg;
        const ScanShape shape = shape_of(jpeg);
        const size_t scan = data_.size() - std::min(jpeg.src->bytes_in_buffer, data_.size());
        if (!state_->entropy.install(state_->jpeg, 0, shape.columns - 1))
            return FD_CORRUPT;
        UnpackedHead head = {static_cast<uint32_t>(data_.size()),
                             crc32c(data_),
                             tile_for(shape),
                             padding,
                             RecordKind::one_scan,
                             data_.first(scan),
                             {}};
        writer.begin(head, shape);
        McuBlocks mcu;
        for (int64_t mcus = int64_t{shape.columns} * shape.rows; mcus > 0; --mcus) {
            mcu.clear();
            if (!state_->entropy.decode(jpeg, mcu.places.data()))
                return FD_CORRUPT;
            if (!writer.add_mcu(std::span(mcu.blocks).first(static_cast<size_t>(shape.blocks))))
                return FD_UNSUPPORTED;
        }
        if (!state_->entropy.finish(state_->jpeg)) // Pillow decides
            return FD_UNSUPPORTED;
        size_t end = std::min(scan + state_->entropy.bytes_read(), data_.size());
        if (end < data_.size() && data_[end - 1] == 0xFF && data_[end] == 0)
            ++end; // the last byte is stuffed
        writer.end_at(data_.subspan(end));
        record = writer.finish();
        return FD_OK;
    });
}

// The same for a file with other scans, which libjpeg reads.
fd_status JpegDecoder::unpack_scans(int padding, std::vector<uint8_t> &record) {
    const std::vector<uint8_t> skeleton = without_scans(data_), head_bytes = head_of_one_scan(skeleton);
    if (head_bytes.empty() || state_->jpeg.arith_code)
        return FD_UNSUPPORTED;
    const auto file_bytes = static_cast<uint32_t>(data_.size());
    UnpackedHead head = {file_bytes, crc32c(data_), 1, padding, RecordKind::other_scans, head_bytes, skeleton};
    UnpackedWriter writer;
    const fd_status status = write_scans(head, writer);
    if (status == FD_OK)
        record = writer.finish();
    return status;
}

fd_status JpegDecoder::write_scans(UnpackedHead &head, UnpackedWriter &writer) {
    State &state = *state_;
    jpeg_decompress_struct &jpeg = state.jpeg;
    state.status = FD_OK;
    if (setjmp(state.jump) == 0) {
        McuBlocks mcu;
        jvirt_barray_ptr *const planes = jpeg_read_coefficients(&jpeg);
        const ScanShape shape = shape_of_all(jpeg);
        if (is_unfinished(jpeg) || shape.blocks > kMostBlocksInMcu)
            state.stop(FD_UNSUPPORTED);
        head.tile = tile_for(shape);
        writer.begin(head, shape);
        for (int row = 0; row < shape.rows; ++row)
            for (int column = 0; column < shape.columns; ++column) {
                size_t number = 0;
                for_each_block(jpeg, column, row, [&](int component, int x, int y) {
                    JBLOCKARRAY rows = jpeg.mem->access_virt_barray(
                        reinterpret_cast<j_common_ptr>(&jpeg), planes[component], static_cast<JDIMENSION>(y), 1, FALSE);
                    std::memcpy(mcu.places[number++], rows[0][x], sizeof(Block));
                });
                if (!writer.add_mcu(std::span(mcu.blocks).first(static_cast<size_t>(shape.blocks))))
                    state.stop(FD_UNSUPPORTED);
            }
    }
    jpeg_abort_decompress(&jpeg);
    return state.status;
}

// Makes such a file again.
fd_status JpegDecoder::restore_scans(std::vector<uint8_t> &file) {
    const UnpackedHead &head = state_->record.head();
    CoefficientPlanes planes;
    McuBlocks mcu;
    const fd_status status = with_scan([&] {
        const jpeg_decompress_struct &jpeg = state_->jpeg;
        const ScanShape shape = shape_of(jpeg);
        if (!state_->record.begin(shape, 0, shape.columns - 1))
            return FD_CORRUPT;
        if (!planes.begin(jpeg, limits_.memory_bytes))
            return FD_LIMIT;
        for (int row = 0; row < shape.rows; ++row)
            for (int column = 0; column < shape.columns; ++column) {
                mcu.clear();
                if (!state_->record.read_mcu(mcu.places.data()))
                    return FD_CORRUPT;
                size_t number = 0;
                for_each_block(jpeg, column, row,
                               [&](int component, int x, int y) { planes.at(component, x, y) = mcu.blocks[number++]; });
            }
        return FD_OK;
    });
    if (status != FD_OK)
        return status;
    file.clear();
    const bool is_made = with_scans(head.tail, planes, head.padding, {head.jpeg_bytes, limits_.scans}, file);
    return is_made && is_file_of(head, file) ? FD_OK : FD_CORRUPT;
}

fd_status JpegDecoder::restore(std::vector<uint8_t> &file) {
    if (!state_->is_record)
        return FD_UNSUPPORTED;
    const UnpackedHead &head = state_->record.head();
    if (head.kind == RecordKind::other_scans)
        return restore_scans(file);
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
        return is_file_of(head, file) ? FD_OK : FD_CORRUPT;
    });
}

} // namespace fastdata

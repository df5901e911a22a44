// What a JpegDecoder holds of libjpeg.
#pragma once

#include "jpeg/jpeg_entropy.h"
#include "jpeg/jpeg_pixels.h"
#include "jpeg/jpeg_window.h"
#include "jpeg/unpacked.h"

#include <csetjmp>
#include <jpeglib.h>

namespace fastdata {

// libjpeg reports errors by jumping out, so nothing between setjmp and its calls may own memory on the stack.
struct JpegDecoder::State {
    jpeg_decompress_struct jpeg{};
    jpeg_error_mgr errors{};
    std::jmp_buf jump{};
    fd_status status = FD_OK;
    EntropyDecoder entropy;
    UnpackedReader record;
    JpegPixels pixels;
    bool is_record = false;
    char message[JMSG_LENGTH_MAX] = "";

    // The coefficients of the scan's next MCU; blocks: as for UnpackedReader::read_mcu.
    bool read_mcu(int16_t *const *blocks) { return is_record ? record.read_mcu(blocks) : entropy.decode(jpeg, blocks); }

    [[noreturn]] void stop(fd_status why) {
        status = why;
        std::longjmp(jump, 1);
    }
};

// Does something with the only scan of the image, whose decoding has been started.
template <class Work> fd_status JpegDecoder::with_scan(Work work) {
    State &state = *state_;
    state.status = FD_OK;
    if (setjmp(state.jump) == 0) {
        state.status = FD_UNSUPPORTED;
        if (has_one_scan()) { // else all scans would be read first
            start(1, false);
            state.status = work();
        }
    }
    jpeg_abort_decompress(&state.jpeg);
    return state.status;
}

// True when a progressive file leaves coefficients out or unrefined.  libjpeg then smooths blocks, and does so
// otherwise from version to version and at the edges of a crop.
inline bool is_unfinished(const jpeg_decompress_struct &jpeg) {
    if (!jpeg.progressive_mode || jpeg.coef_bits == nullptr)
        return false;
    for (int component = 0; component < jpeg.num_components; ++component)
        for (int k = 0; k < DCTSIZE2; ++k)
            if (jpeg.coef_bits[component][k] != 0)
                return true;
    return false;
}

// Calls visit(component, column, row), in blocks of the component, for each block of an MCU of such a scan.
template <class Visit>
void for_each_block(const jpeg_decompress_struct &jpeg, int mcu_column, int mcu_row, const Visit &visit) {
    const bool is_alone = jpeg.num_components == 1;
    for (int i = 0; i < jpeg.num_components; ++i) {
        const int across = is_alone ? 1 : jpeg.comp_info[i].h_samp_factor;
        const int down = is_alone ? 1 : jpeg.comp_info[i].v_samp_factor;
        for (int block = 0; block < across * down; ++block)
            visit(i, mcu_column * across + block % across, mcu_row * down + block / across);
    }
}

// How the blocks of the image's only scan follow one another.
inline ScanShape shape_of(const jpeg_decompress_struct &jpeg) {
    ScanShape shape = {static_cast<int>(jpeg.MCUs_per_row),
                       static_cast<int>(jpeg.MCU_rows_in_scan),
                       jpeg.comps_in_scan,
                       jpeg.blocks_in_MCU,
                       {}};
    for (int i = 0; i < jpeg.blocks_in_MCU; ++i)
        shape.component_of[static_cast<size_t>(i)] = static_cast<uint8_t>(jpeg.MCU_membership[i]);
    return shape;
}

} // namespace fastdata

#include "jpeg/jpeg_window.h"

#include "jpeg/jpeg_hook.h"
#include "jpeg/jpeg_state.h"

#include <algorithm>
#include <cstring>
#include <new>

// jerror.h is not needed: any complaint of libjpeg makes Pillow decode the image, so kinds do not matter.

namespace fastdata {
namespace {

constexpr int kMostRowsPerCall = 16;

// The margin of columns and rows where chroma is subsampled: fancy upsampling looks one chroma sample further than the
// pixel it makes, so only the outermost pixels of what is decoded differ from those of the whole image.  Nor may a
// component have less than two samples across: libjpeg then widens all of them in another way.
constexpr int kMarginPixels = 2;

bool is_power_of_scale(int denominator) {
    return denominator == 1 || denominator == 2 || denominator == 4 || denominator == 8;
}

// What follows the first scan header.
struct Scans {
    int count = 1;
    bool complete = false; // there is an end marker
};

// Walks from marker to marker without decoding.  data: from the first byte of entropy-coded data.
Scans walk_scans(std::span<const uint8_t> data) {
    Scans scans;
    for (size_t at = 0; at + 1 < data.size();) {
        const void *found = std::memchr(data.data() + at, 0xFF, data.size() - 1 - at);
        if (found == nullptr)
            break;
        at = static_cast<size_t>(static_cast<const uint8_t *>(found) - data.data()) + 1;
        const uint8_t marker = data[at];
        const bool inside_scan = marker == 0x00 || marker == 0xFF || (0xD0 <= marker && marker <= 0xD7);
        if (marker == 0xD9) {
            scans.complete = true;
            break;
        }
        if (inside_scan) {
            at += marker == 0xFF ? 0 : 1;
            continue;
        }
        scans.count += marker == 0xDA ? 1 : 0;
        if (at + 2 >= data.size())
            break;
        at += 1 + (static_cast<size_t>(data[at + 1]) << 8 | data[at + 2]);
    }
    return scans;
}

} // namespace

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {
    State &state = *state_;
    state.jpeg.err = jpeg_std_error(&state.errors);
    state.jpeg.client_data = &state;
    state.errors.error_exit = [](j_common_ptr jpeg) {
        auto &failed = *static_cast<State *>(jpeg->client_data);
        jpeg->err->format_message(jpeg, failed.message);
        failed.stop(FD_CORRUPT);
    };
    state.errors.emit_message = [](j_common_ptr jpeg, int level) {
        if (level < 0) // a warning: the data is damaged
            jpeg->err->error_exit(jpeg);
    };
    state.errors.output_message = [](j_common_ptr) {};
    if (setjmp(state.jump) != 0) // another version of libjpeg than this was compiled for
        throw std::bad_alloc();
    jpeg_create_decompress(&state.jpeg);
}

JpegDecoder::~JpegDecoder() {
    if (setjmp(state_->jump) == 0)
        jpeg_destroy_decompress(&state_->jpeg);
}

int JpegDecoder::width() const {
    return static_cast<int>(state_->jpeg.image_width);
}
int JpegDecoder::height() const {
    return static_cast<int>(state_->jpeg.image_height);
}
const char *JpegDecoder::message() const {
    return state_->message;
}

fd_status JpegDecoder::open(std::span<const uint8_t> data, const JpegLimits &limits, const StoredIndex &index) {
    data_ = data;
    index_ = index;
    limits_ = limits;
    index_use_ = FD_INDEX_UNUSED;
    state_->is_record = is_unpacked(data);
    if (state_->is_record) {
        state_->message[0] = '\0';
        if (!state_->record.open(data, index.file_crc >= 0))
            return FD_CORRUPT;
        data_ = state_->record.head().head;
        index_ = {};
    }
    return reopen();
}

fd_status JpegDecoder::reopen() {
    State &state = *state_;
    state.message[0] = '\0';
    state.status = FD_OK;
    if (setjmp(state.jump) == 0) {
        // An abort keeps quantisation and Huffman tables, by which the next file would be decoded if it lacks its own.
        jpeg_destroy_decompress(&state.jpeg);
        jpeg_create_decompress(&state.jpeg);
        state.status = open_guarded(data_, limits_);
    }
    if (state.status != FD_OK)
        jpeg_abort_decompress(&state.jpeg);
    return state.status;
}

fd_status JpegDecoder::open_guarded(std::span<const uint8_t> data, const JpegLimits &limits) {
    jpeg_decompress_struct &jpeg = state_->jpeg;
    if (data.size() < 4 || data[0] != 0xFF || data[1] != 0xD8)
        return FD_UNSUPPORTED;
    if (!is_countable(data))
        return FD_UNSUPPORTED;
    jpeg.mem->max_memory_to_use = limits.memory();
    jpeg_mem_src(&jpeg, data.data(), static_cast<unsigned long>(data.size()));
    if (jpeg_read_header(&jpeg, TRUE) != JPEG_HEADER_OK)
        return FD_UNSUPPORTED;
    const bool colours = jpeg.jpeg_color_space == JCS_YCbCr || jpeg.jpeg_color_space == JCS_GRAYSCALE ||
                         jpeg.jpeg_color_space == JCS_RGB;
    if (!colours || jpeg.data_precision != 8)
        return FD_UNSUPPORTED;
    if (static_cast<int64_t>(jpeg.image_width) * jpeg.image_height > limits.pixels) {
        std::snprintf(state_->message, sizeof state_->message, "%u x %u pixels", jpeg.image_width, jpeg.image_height);
        return FD_LIMIT;
    }
    if (state_->is_record) // of which the head ends where data would begin
        return has_one_scan() && jpeg.src->bytes_in_buffer == 0 ? FD_OK : FD_CORRUPT;
    const auto scanned = data.last(std::min(jpeg.src->bytes_in_buffer, data.size()));
    const bool at_end = scanned.size() >= 2 && scanned[scanned.size() - 2] == 0xFF && scanned.back() == 0xD9;
    if (at_end && !jpeg_has_multiple_scans(&jpeg))
        return FD_OK;
    const Scans scans = walk_scans(scanned);
    if (scans.count > limits.scans) {
        std::snprintf(state_->message, sizeof state_->message, "more than %d scans", limits.scans);
        return FD_LIMIT;
    }
    // Rows below the window are never read, so a file that ends too soon must be noticed here; Pillow decides.
    return scans.complete ? FD_OK : FD_UNSUPPORTED;
}

fd_status JpegDecoder::decode(const Box &window, int denominator, bool fast, RowSink *sink) {
    const fd_status status = decode_once(window, denominator, fast, sink);
    if (status == FD_OK || index_use_ != FD_INDEX_USED)
        return status;
    index_ = {}; // whose fault it may be
    if (const fd_status opened = reopen(); opened != FD_OK)
        return opened;
    index_use_ = FD_INDEX_WRONG;
    return decode_once(window, denominator, fast, sink);
}

fd_status JpegDecoder::decode_once(const Box &window, int denominator, bool fast, RowSink *sink) {
    State &state = *state_;
    if (!is_power_of_scale(denominator))
        return FD_BAD_REQUEST;
    state.status = FD_OK;
    if (setjmp(state.jump) == 0) {
        start(denominator, fast);
        const auto width = static_cast<int>(state.jpeg.output_width);
        const auto height = static_cast<int>(state.jpeg.output_height);
        if (is_unfinished(state.jpeg))
            state.status = FD_UNSUPPORTED;
        else if (!window.is_inside(width, height))
            state.status = FD_BAD_REQUEST;
        else
            read_window(window, sink);
    }
    jpeg_abort_decompress(&state.jpeg);
    return state.status;
}

void JpegDecoder::start(int denominator, bool fast) {
    jpeg_decompress_struct &jpeg = state_->jpeg;
    jpeg.out_color_space = JCS_EXT_RGBX;
    jpeg.scale_num = 1;
    jpeg.scale_denom = static_cast<unsigned>(denominator);
    jpeg.do_fancy_upsampling = fast ? FALSE : TRUE;
    jpeg_start_decompress(&jpeg);
}

// True for scans of which entropy.install() takes over the decoding.
bool JpegDecoder::has_one_scan() const {
    jpeg_decompress_struct &jpeg = state_->jpeg;
    return !jpeg.arith_code && !jpeg.progressive_mode && !jpeg_has_multiple_scans(&jpeg);
}

fd_status JpegDecoder::make_index(int step, std::vector<uint8_t> &index) {
    index.clear();
    if (state_->is_record)
        return FD_UNSUPPORTED;
    return with_scan([&] {
        const int none = -1;
        if (!state_->entropy.install(state_->jpeg, 0, none))
            return FD_CORRUPT;
        index = state_->entropy.make_index(state_->jpeg, data_, step);
        return index.empty() ? FD_UNSUPPORTED : FD_OK;
    });
}

// Prepares for the coefficients of some columns of MCUs.
void JpegDecoder::start_coefficients(int first_column, int last_column) {
    State &state = *state_;
    const bool started = state.is_record ? state.record.begin(shape_of(state.jpeg), first_column, last_column)
                                         : state.entropy.install(state.jpeg, first_column, last_column, data_, index_);
    if (!started)
        state.stop(FD_CORRUPT);
    if (!index_.bytes.empty())
        index_use_ = state.entropy.has_index() ? FD_INDEX_USED : FD_INDEX_WRONG;
}

// Call when the last of them has been read.
void JpegDecoder::finish_coefficients() {
    if (!state_->is_record && !state_->entropy.finish(state_->jpeg))
        state_->stop(FD_CORRUPT);
}

void JpegDecoder::read_window(const Box &window, RowSink *sink) {
    State &state = *state_;
    JpegPixels &pixels = state.pixels;
    if (!has_one_scan() || !pixels.begin(state.jpeg, window, pixels_, sink))
        return read_window_by_libjpeg(window);
    start_coefficients(pixels.first_column(), pixels.last_column());
    const int columns = static_cast<int>(state.jpeg.MCUs_per_row);
    for (int row = 0; row <= pixels.last_row(); ++row) {
        const bool is_above = row < pixels.first_row();
        const int end = row == pixels.last_row() ? pixels.last_column() + 1 : columns;
        for (int column = 0; column < end; ++column) {
            const bool is_inside = !is_above && pixels.first_column() <= column && column <= pixels.last_column();
            if (is_inside)
                pixels.clear_blocks();
            if (!state.read_mcu(is_above ? nullptr : pixels.blocks()))
                state.stop(FD_CORRUPT);
            if (is_inside)
                pixels.add_mcu();
        }
    }
    finish_coefficients();
    rows_ = pixels.rows();
}

void JpegDecoder::read_window_by_libjpeg(const Box &window) {
    jpeg_decompress_struct &jpeg = state_->jpeg;
    const bool replaces = has_one_scan() && replaces_decode_mcu();
    if (state_->is_record && !replaces)
        state_->stop(FD_UNSUPPORTED); // libjpeg has no data to decode
#if JPEG_LIB_VERSION >= 70
    const int scaled_block = jpeg.min_DCT_v_scaled_size;
#else
    const int scaled_block = jpeg.min_DCT_scaled_size;
#endif
    const int margin = jpeg.max_h_samp_factor > 1 ? std::max(kMarginPixels, jpeg.max_h_samp_factor) : 0;
    const auto full_width = static_cast<int>(jpeg.output_width);
    auto left = static_cast<JDIMENSION>(std::max(0, window.left - margin));
    auto width = static_cast<JDIMENSION>(std::min(full_width, window.right + margin)) - left;
    if (static_cast<int>(width) < full_width)
        jpeg_crop_scanline(&jpeg, &left, &width); // moves left to the edge of an iMCU
    else
        left = 0;
    if (replaces) {
        // In a scan of one component an MCU is one block, whatever its sampling factors.
        const int mcu_width = (jpeg.comps_in_scan == 1 ? 1 : jpeg.max_h_samp_factor) * scaled_block;
        const int last = (static_cast<int>(left + width) - 1) / mcu_width;
        start_coefficients(static_cast<int>(left) / mcu_width, last);
        replace_decode_mcu(jpeg, [](j_decompress_ptr running, JBLOCKROW *blocks) -> boolean {
            auto &state = *static_cast<State *>(running->client_data);
            if (!state.read_mcu(reinterpret_cast<int16_t **>(blocks)))
                state.stop(FD_CORRUPT);
            return TRUE;
        });
    }
    const int mcu_height = jpeg.max_v_samp_factor * scaled_block;
    const int above = jpeg.max_v_samp_factor > 1 ? kMarginPixels : 0;
    const int top = std::max(0, window.top - above) / mcu_height * mcu_height;
    if (top > 0 && jpeg_skip_scanlines(&jpeg, static_cast<JDIMENSION>(top)) != static_cast<JDIMENSION>(top))
        state_->stop(FD_CORRUPT);
    const ptrdiff_t stride = static_cast<ptrdiff_t>(jpeg.output_width) * kPixelBytes;
    const size_t needed = static_cast<size_t>(stride) * static_cast<size_t>(window.bottom - top);
    uint8_t *const pixels = pixels_.take(needed).data();
    while (static_cast<int>(jpeg.output_scanline) < window.bottom) {
        JSAMPROW rows[kMostRowsPerCall];
        const int at = static_cast<int>(jpeg.output_scanline);
        const int wanted = std::min(kMostRowsPerCall, window.bottom - at);
        for (int i = 0; i < wanted; ++i)
            rows[i] = pixels + (at - top + i) * stride;
        if (jpeg_read_scanlines(&jpeg, rows, static_cast<JDIMENSION>(wanted)) == 0)
            state_->stop(FD_CORRUPT);
    }
    if (replaces)
        finish_coefficients();
    const Rows all = {pixels, stride, static_cast<int>(jpeg.output_width), window.bottom - top};
    const int shift = static_cast<int>(left);
    rows_ = all.part({window.left - shift, window.top - top, window.right - shift, window.bottom - top});
}

#define FASTDATA_TEXT(x) #x
#define FASTDATA_TEXT_OF(x) FASTDATA_TEXT(x)

const char *jpeg_library() {
#if defined(LIBJPEG_TURBO_VERSION)
    return "libjpeg-turbo " FASTDATA_TEXT_OF(LIBJPEG_TURBO_VERSION);
#else
#error "the native core needs libjpeg-turbo; another libjpeg cannot skip scanlines"
#endif
}

} // namespace fastdata

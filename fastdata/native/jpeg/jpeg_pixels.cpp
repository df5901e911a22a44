#include "jpeg/jpeg_pixels.h"

#include "kernels/kernels.h"

#include <algorithm>
#include <cstring>

namespace fastdata {
namespace {

constexpr int kFewestWidened = 3;      // samples in a row that libjpeg widens by a filter
constexpr size_t kBefore = kJpegSlack; // room before each row of samples, of which the filter reads the last

size_t rounded_up(size_t bytes) {
    return (bytes + kJpegSlack - 1) / kJpegSlack * kJpegSlack;
}

} // namespace

bool JpegPixels::plan(const jpeg_decompress_struct &jpeg, const Box &window) {
    window_ = window;
    loops_ = kernels().jpeg;
    if (loops_ == nullptr || !take_shape(jpeg))
        return false;
    choose_mcus(shape_of_all(jpeg));
    return true;
}

bool JpegPixels::begin(const jpeg_decompress_struct &jpeg, const Box &window, Buffer &pixels, RowSink *sink) {
    sink_ = sink;
    if (!plan(jpeg, window))
        return false;
    make_room(pixels);
    row_ = first_row_;
    next_row_ = window.top;
    waiting_ = 0;
    point_behind();
    begin_row();
    return true;
}

bool JpegPixels::take_shape(const jpeg_decompress_struct &jpeg) {
    const bool is_grey = jpeg.num_components == 1 && jpeg.jpeg_color_space == JCS_GRAYSCALE;
    const bool is_colour = jpeg.num_components == 3 && jpeg.jpeg_color_space == JCS_YCbCr;
    if ((!is_grey && !is_colour) || jpeg.comps_in_scan != jpeg.num_components || !jpeg.do_fancy_upsampling ||
        jpeg.scale_num != jpeg.scale_denom || jpeg.dct_method != JDCT_ISLOW)
        return false;
    count_ = jpeg.num_components;
    mcu_blocks_ = shape_of_all(jpeg).blocks;
    // In a scan of one component an MCU is one block, whatever its sampling factors.
    const int across = is_grey ? 1 : jpeg.max_h_samp_factor, down = is_grey ? 1 : jpeg.max_v_samp_factor;
    halved_x_ = across - 1;
    halved_y_ = down - 1;
    if (across > 2 || down > across) // 4:4:4, 4:2:2 and 4:2:0
        return false;
    for (int i = 0; i < count_; ++i) {
        const jpeg_component_info &component = jpeg.comp_info[i];
        Plane &plane = planes_[static_cast<size_t>(i)];
        plane.across = i == 0 ? across : 1;
        plane.down = i == 0 ? down : 1;
        const bool is_usual = component.h_samp_factor == plane.across && component.v_samp_factor == plane.down;
        const int table = component.quant_tbl_no;
        if ((!is_usual && !is_grey) || jpeg.cur_comp_info[i] != &component || table < 0 || table >= NUM_QUANT_TBLS ||
            jpeg.quant_tbl_ptrs[table] == nullptr)
            return false;
        plane.width = static_cast<int>(component.downsampled_width);
        plane.height = static_cast<int>(component.downsampled_height);
        std::copy_n(jpeg.quant_tbl_ptrs[table]->quantval, DCTSIZE2, plane.steps.begin());
    }
    mcu_width_ = across * DCTSIZE;
    mcu_height_ = down * DCTSIZE;
    return halved_x_ == 0 || planes_[1].width >= kFewestWidened;
}

// The filters look one chroma sample beyond those of a pixel.
void JpegPixels::choose_mcus(const ScanShape &shape) {
    first_column_ = std::max(0, window_.left - halved_x_) / mcu_width_;
    first_row_ = std::max(0, window_.top - halved_y_) / mcu_height_;
    last_column_ = std::min((window_.right - 1 + halved_x_) / mcu_width_, shape.columns - 1);
    last_row_ = std::min((window_.bottom - 1 + halved_y_) / mcu_height_, shape.rows - 1);
}

void JpegPixels::make_room(Buffer &pixels) {
    const auto columns = static_cast<size_t>(last_column_ - first_column_ + 1);
    std::array<size_t, 3> begins{};
    size_t bytes = 0;
    for (size_t i = 0; i < static_cast<size_t>(count_); ++i) {
        Plane &plane = planes_[i];
        const size_t width = columns * static_cast<size_t>(plane.across) * DCTSIZE;
        plane.stride = static_cast<ptrdiff_t>(kBefore + rounded_up(width) + kJpegSlack);
        plane.rows = 2 * plane.down * DCTSIZE;
        plane.first = first_column_ * plane.across * DCTSIZE;
        begins[i] = bytes + kBefore;
        bytes += static_cast<size_t>(plane.stride) * static_cast<size_t>(plane.rows);
    }
    uint8_t *const samples = samples_.take(bytes + kJpegSlack).data();
    for (size_t i = 0; i < static_cast<size_t>(count_); ++i)
        planes_[i].samples = samples + begins[i];
    wide_.take(2 * (rounded_up(static_cast<size_t>(window_.width()) + 2) + 2 * size_t{kJpegSlack}));
    stride_ = static_cast<ptrdiff_t>(window_.width()) * kPixelBytes;
    const int height = sink_ == nullptr ? window_.height() : mcu_height_ + halved_y_; // see put_rows()
    const size_t bytes_of_all = static_cast<size_t>(stride_) * static_cast<size_t>(height);
    pixels_ = pixels.take(bytes_of_all + size_t{kJpegSlack} * kPixelBytes).data();
}

void JpegPixels::clear_blocks() {
    std::memset(pointers_[0], 0, sizeof coefficients_[0] * static_cast<size_t>(mcu_blocks_));
}

// Where the blocks of a row's first MCU go.
void JpegPixels::begin_row() {
    size_t number = 0;
    for (size_t i = 0; i < static_cast<size_t>(count_); ++i) {
        const Plane &plane = planes_[i];
        for (int down = 0; down < plane.down; ++down)
            for (int across = 0; across < plane.across; ++across, ++number)
                next_[number] = {nullptr, plane.steps.data(),
                                 plane.row((row_ * plane.down + down) * DCTSIZE) + across * DCTSIZE, plane.stride};
    }
    column_ = first_column_;
}

// The next MCU's coefficients lie behind those that wait.
void JpegPixels::point_behind() {
    for (size_t i = 0; i < static_cast<size_t>(mcu_blocks_); ++i)
        pointers_[i] = coefficients_[waiting_ + i].data();
}

void JpegPixels::add_mcu() {
    size_t number = 0;
    for (size_t i = 0; i < static_cast<size_t>(count_); ++i)
        for (int block = planes_[i].across * planes_[i].down; block > 0; --block, ++number) {
            IdctBlock &next = next_[number];
            idct_[waiting_ + number] = next;
            idct_[waiting_ + number].coefficients = pointers_[number];
            next.out += planes_[i].across * DCTSIZE;
        }
    waiting_ += number;
    const bool ends_row = column_++ == last_column_;
    if (ends_row || waiting_ + number > kMostWaiting) {
        loops_->idct(idct_.data(), static_cast<int>(waiting_));
        waiting_ = 0;
    }
    point_behind();
    if (!ends_row)
        return;
    put_rows();
    if (row_++ < last_row_)
        begin_row();
}

// Gives out the rows of pixels whose samples are there.
void JpegPixels::put_rows() {
    const int ready = row_ == last_row_ ? window_.bottom : (row_ + 1) * mcu_height_ - halved_y_;
    const int first = next_row_, top = sink_ == nullptr ? window_.top : first;
    for (; next_row_ < std::min(ready, window_.bottom); ++next_row_)
        put_row(next_row_, pixels_ + (next_row_ - top) * stride_);
    if (sink_ != nullptr && next_row_ > first)
        sink_->take({pixels_, stride_, window_.width(), next_row_ - first}, first - window_.top);
}

void JpegPixels::put_row(int y, uint8_t *pixels) {
    const int width = window_.width();
    const uint8_t *const luma = planes_[0].row(y) + (window_.left - planes_[0].first);
    if (count_ == 1)
        return loops_->grey_to_rgb(luma, width, pixels);
    const size_t half = rounded_up(static_cast<size_t>(width) + 2) + 2 * size_t{kJpegSlack};
    loops_->to_rgb(luma, chroma_row(planes_[1], y, wide_.data()), chroma_row(planes_[2], y, wide_.data() + half), width,
                   pixels);
}

// The samples of a row of pixels, from the window's left edge on.  wide: room for them.
const uint8_t *JpegPixels::chroma_row(Plane &plane, int y, uint8_t *wide) {
    if (halved_x_ == 0)
        return plane.row(y) + (window_.left - plane.first);
    const int first = window_.left / 2, count = (window_.right + 1) / 2 - first;
    const int near = y >> halved_y_;
    uint8_t *const row = plane.row(near);
    extend(plane, row);
    const ptrdiff_t begin = first - plane.first;
    if (halved_y_ == 0) {
        loops_->widen(row + begin, count, wide);
    } else {
        uint8_t *const other = plane.row(std::clamp(near + (y % 2 == 0 ? -1 : 1), 0, plane.height - 1));
        extend(plane, other);
        loops_->widen_between(row + begin, other + begin, count, wide);
    }
    return wide + window_.left % 2;
}

// Beyond the image its outermost samples are repeated.
void JpegPixels::extend(Plane &plane, uint8_t *row) const {
    if (plane.first == 0)
        row[-1] = row[0];
    const int behind = plane.width - plane.first;
    if (behind <= (last_column_ - first_column_ + 1) * DCTSIZE)
        row[behind] = row[behind - 1];
}

} // namespace fastdata

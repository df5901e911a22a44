#include "batch/image.h"

#include "effects/packed_steps.h"
#include "kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace fastdata {
namespace {

// The largest of 8, 4, 2, 1 by which the window can shrink and still not be smaller than the result.
int dct_denominator(const View &view) {
    for (const int denominator : {8, 4, 2})
        if (view.window.width() >= denominator * view.resize_width &&
            view.window.height() >= denominator * view.resize_height)
            return denominator;
    return 1;
}

// A stretch of source pixels at 1/denominator, and the whole pixels that hold it.
struct ScaledSide {
    int begin, end;
    Stretch stretch;
};

ScaledSide scaled_side(int begin, int end, int image_size, int denominator) {
    const int scaled_size = (image_size + denominator - 1) / denominator;
    const double scale = static_cast<double>(scaled_size) / image_size;
    const double from = begin * scale;
    const double to = std::min<double>(end * scale, scaled_size);
    const int first = static_cast<int>(from);
    const int last = std::min(static_cast<int>(std::ceil(to)), scaled_size);
    return {first, last, {from - first, to - first}};
}

// Appends the taps of all results as packed.h has them; returns where.
int32_t put_taps(const Axis &axis, std::vector<uint8_t> &packed) {
    const auto at = static_cast<int32_t>(packed.size());
    const auto put = [&packed](const int32_t *numbers, int count) {
        const auto *const bytes = reinterpret_cast<const uint8_t *>(numbers);
        packed.insert(packed.end(), bytes, bytes + static_cast<size_t>(count) * sizeof *numbers);
    };
    for (int result = 0; result < axis.results(); ++result) {
        const int32_t first = axis.first(result);
        put(&first, 1);
    }
    put(axis.weights(0), axis.results() * axis.taps());
    return at;
}

Box moved(const Box &box, int x, int y) {
    return {box.left + x, box.top + y, box.right + x, box.bottom + y};
}

} // namespace

bool is_valid(const fd_options &options) {
    return (options.pass_order == FD_HORIZONTAL_FIRST || options.pass_order == FD_SHRINK_FIRST) &&
           options.max_scans > 0 && options.max_pixels > 0 && options.max_memory_bytes > 0 &&
           options.max_file_bytes > 0;
}

fd_status ImageDecoder::open(std::span<const uint8_t> data, const fd_options &options, const StoredIndex &index) {
    kind_ = PngDecoder::is_png(data) ? Kind::png : NpyDecoder::is_npy(data) ? Kind::npy : Kind::jpeg;
    switch (kind_) {
    case Kind::png:
        return png_.open(data, options.max_pixels);
    case Kind::npy:
        return npy_.open(data, options.max_pixels);
    default:
        return jpeg_.open(data, {options.max_pixels, options.max_memory_bytes, options.max_scans}, index);
    }
}

int ImageDecoder::width() const {
    return kind_ == Kind::png ? png_.width() : kind_ == Kind::npy ? npy_.width() : jpeg_.width();
}

int ImageDecoder::height() const {
    return kind_ == Kind::png ? png_.height() : kind_ == Kind::npy ? npy_.height() : jpeg_.height();
}

fd_status ImageDecoder::read_window(const Box &window, int denominator, bool fast, RowSink *sink, Rows &rows) {
    fd_status status = FD_OK;
    switch (kind_) {
    case Kind::png:
        status = png_.decode(window);
        rows = png_.rows();
        break;
    case Kind::npy:
        status = npy_.decode(window);
        rows = npy_.rows();
        break;
    default:
        status = jpeg_.decode(window, denominator, fast, sink);
        rows = jpeg_.rows();
    }
    return status;
}

// Resizes, crops and flips the resampler's window of the image, does what is to be done to the result, and stores it.
void ImageDecoder::finish(const Rows &window, const View &view, const Target &target) {
    const int width = view.crop.width(), height = view.crop.height();
    const auto run = [&](const fd_format &format, void *out) {
        RowWriter writer(format, out, width, height, view.flip_horizontal, view.flip_vertical, mirror_);
        resampler_.run(window, writer);
    };
    if (target.effects.empty())
        return run(target.format, target.out);
    const size_t row_bytes = static_cast<size_t>(width) * kPixelBytes;
    uint8_t *const canvas = canvas_.take(row_bytes * static_cast<size_t>(height)).data();
    run(kPixelFormat, canvas);
    apply_effects(target.effects, canvas, width, height);
    RowWriter writer(target.format, target.out, width, height, false, false, mirror_);
    for (int y = 0; y < height; ++y)
        writer.write(y, canvas + static_cast<size_t>(y) * row_bytes);
}

fd_status ImageDecoder::decode(const View &view, const Target &target, const fd_options &options) {
    if (!view.window.is_inside(width(), height()))
        return FD_BAD_REQUEST;
    const bool fast = options.fast != 0;
    const int denominator = fast && kind_ == Kind::jpeg ? dct_denominator(view) : 1;
    const Box &window = view.window;
    const ScaledSide x = scaled_side(window.left, window.right, width(), denominator);
    const ScaledSide y = scaled_side(window.top, window.bottom, height(), denominator);
    resampler_.prepare(view, {x.end - x.begin, y.end - y.begin, x.stretch, y.stretch},
                       options.pass_order == FD_SHRINK_FIRST);
    const Box source = resampler_.source();
    Rows rows{};
    if (source.width() > 0) // else only black is seen
        if (const fd_status status = read_window(moved(source, x.begin, y.begin), denominator, fast,
                                                 resampler_.takes_rows() ? &resampler_ : nullptr, rows);
            status != FD_OK)
            return status;
    finish(rows, view, target);
    return FD_OK;
}

// The pixels of the image that a view needs; prepares the resampler for it.  None if only black is seen.
Box ImageDecoder::source_of(const View &view, const fd_options &options) {
    const Box &window = view.window;
    resampler_.prepare(view, Source::whole(window.width(), window.height()), options.pass_order == FD_SHRINK_FIRST);
    return moved(resampler_.source(), window.left, window.top);
}

fd_status ImageDecoder::decode(std::span<const View> views, std::span<const Target> targets,
                               const fd_options &options) {
    Box all = {width(), height(), 0, 0};
    for (const View &view : views) {
        if (!view.window.is_inside(width(), height()))
            return FD_BAD_REQUEST;
        const Box source = source_of(view, options);
        if (source.width() > 0)
            all = {std::min(all.left, source.left), std::min(all.top, source.top), std::max(all.right, source.right),
                   std::max(all.bottom, source.bottom)};
    }
    Rows rows{};
    if (all.width() > 0)
        if (const fd_status status = read_window(all, 1, false, nullptr, rows); status != FD_OK)
            return status;
    for (size_t i = 0; i < views.size(); ++i) {
        const Box source = source_of(views[i], options);
        finish(source.width() > 0 ? rows.part(moved(source, -all.left, -all.top)) : Rows{}, views[i], targets[i]);
    }
    return FD_OK;
}

fd_status ImageDecoder::pack(const View &view, Effects effects, const fd_options &options,
                             std::vector<uint8_t> &packed) {
    if (kind_ != Kind::jpeg || options.fast != 0)
        return FD_UNSUPPORTED;
    if (!view.window.is_inside(width(), height()))
        return FD_BAD_REQUEST;
    const Box source = source_of(view, options);
    if (!resampler_.is_plain())
        return FD_UNSUPPORTED;
    const Axis &across = resampler_.horizontal(), &down = resampler_.vertical();
    PackedHead head{};
    packed.assign(sizeof head, 0);
    head.across_at = put_taps(across, packed);
    head.down_at = put_taps(down, packed);
    const auto fits = [](int64_t width, int64_t height) { return 3 * width * height <= INT32_MAX; };
    if (!fits(source.width(), source.height()) || !fits(source.width(), down.results()) ||
        !fits(across.results(), source.height()) || !fits(across.results(), down.results()))
        return FD_UNSUPPORTED; // for numbers of 32 bits
    const PackedSteps steps = pack_effects(effects, across.results(), down.results(), packed);
    if (steps.count < 0)
        return FD_UNSUPPORTED;
    head.steps = steps.count;
    head.effects_at = steps.at;
    head.blurs = steps.blurs ? 1 : 0;
    if (const fd_status status = jpeg_.pack(source, head, packed); status != FD_OK)
        return status;
    head.left = source.left;
    head.top = source.top;
    head.source_width = source.width();
    head.source_height = source.height();
    head.result_width = across.results();
    head.result_height = down.results();
    head.across_taps = across.taps();
    head.down_taps = down.taps();
    head.down_first = resampler_.is_vertical_first() ? 1 : 0;
    head.flip_x = view.flip_horizontal ? 1 : 0;
    head.flip_y = view.flip_vertical ? 1 : 0;
    constexpr size_t kAligned = 16;
    packed.resize((packed.size() / kAligned + 2) * kAligned, 0); // 16 zeros at least
    head.bytes = static_cast<int32_t>(packed.size());
    std::memcpy(packed.data(), &head, sizeof head);
    return FD_OK;
}

fd_status ImageDecoder::resize(const Rows &window, const View &view, const Target &target, const fd_options &options) {
    resampler_.prepare(view, Source::whole(window.width, window.height), options.pass_order == FD_SHRINK_FIRST);
    const Box source = resampler_.source();
    finish(source.width() > 0 ? window.part(source) : Rows{}, view, target);
    return FD_OK;
}

fd_status ImageDecoder::convert(const uint8_t *rgb, int width, int height, const Target &target) {
    const size_t row_bytes = static_cast<size_t>(width) * kPixelBytes;
    const bool whole = !target.effects.empty(); // effects need all rows at once
    uint8_t *const canvas = canvas_.take(row_bytes * (whole ? static_cast<size_t>(height) : 1)).data();
    RowWriter writer(target.format, target.out, width, height, false, false, mirror_);
    for (int y = 0; y < height; ++y, rgb += static_cast<ptrdiff_t>(width) * 3) {
        uint8_t *const row = canvas + (whole ? static_cast<size_t>(y) * row_bytes : 0);
        kernels().unpack(rgb, width, row);
        if (!whole)
            writer.write(y, row);
    }
    if (!whole)
        return FD_OK;
    apply_effects(target.effects, canvas, width, height);
    for (int y = 0; y < height; ++y)
        writer.write(y, canvas + static_cast<size_t>(y) * row_bytes);
    return FD_OK;
}

ImageDecoder &ImageDecoder::of_this_thread() {
    static thread_local ImageDecoder decoder;
    return decoder;
}

} // namespace fastdata

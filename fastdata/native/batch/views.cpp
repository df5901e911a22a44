#include "batch/views.h"

#include "base/philox.h"

#include <algorithm>
#include <cmath>

namespace fastdata {
namespace {

constexpr int kTries = 10; // torchvision's RandomResizedCrop gives up after ten windows that do not fit

struct Size {
    int64_t width, height;
};

// A rectangle in 64 bits, since crops of absurd transforms must not wrap before they are refused.
struct Rectangle {
    int64_t left, top, right, bottom;

    Size size() const { return {right - left, bottom - top}; }
    Rectangle moved(int64_t x, int64_t y) const { return {left + x, top + y, right + x, bottom + y}; }
    static Rectangle of(Size size) { return {0, 0, size.width, size.height}; }
};

double uniform(uint32_t word) {
    return word * 0x1p-32;
}

std::array<uint32_t, 4> words(const Draw &draw, size_t op, int attempt) {
    return philox4x32({static_cast<uint32_t>(draw.index), static_cast<uint32_t>(draw.occurrence),
                       static_cast<uint32_t>(attempt), static_cast<uint32_t>(op)},
                      draw.key);
}

struct Flips {
    bool horizontal = false, vertical = false;
};

// A view under construction: a window in the source, perhaps a resize, a crop of the result, at last flips.
struct Frame {
    explicit Frame(Size size) : window(Rectangle::of(size)), crop(window) {}

    Rectangle window;
    Flips window_flips{}; // before the resize
    bool is_resized = false;
    Size resize{};
    Filter filter = Filter::bilinear;
    Rectangle crop;
    Outside outside{};
    Flips flips{};

    // Moves a crop of an unresized image into the window, so that only the window is decoded; where what is outside
    // repeats the image, all of it is the window.
    void fold() {
        if (is_resized || outside.mode != FD_CONSTANT)
            return;
        const Size size = window.size();
        const Rectangle inside = {
            std::clamp<int64_t>(crop.left, 0, size.width), std::clamp<int64_t>(crop.top, 0, size.height),
            std::clamp<int64_t>(crop.right, 0, size.width), std::clamp<int64_t>(crop.bottom, 0, size.height)};
        crop = crop.moved(-inside.left, -inside.top);
        window = inside.moved(window.left, window.top);
    }

    void resize_to(Size size, Filter by) {
        fold();
        window_flips = flips;
        flips = {};
        is_resized = true;
        resize = size;
        filter = by;
        crop = Rectangle::of(size);
    }

    // To a box of what is seen, which may be in a mirror.
    void crop_to(Rectangle box) {
        const Size size = crop.size();
        if (flips.horizontal)
            box = {size.width - box.right, box.top, size.width - box.left, box.bottom};
        if (flips.vertical)
            box = {box.left, size.height - box.bottom, box.right, size.height - box.top};
        crop = box.moved(crop.left, crop.top);
    }
};

Outside outside_of(const fd_op &op) {
    const auto level = [&](int channel) { return static_cast<uint8_t>(op.outside[1 + channel]); };
    return {op.outside[0], {level(0), level(1), level(2), 0}};
}

bool reaches_out(const Rectangle &box, Size size) {
    return box.left < 0 || box.top < 0 || box.right > size.width || box.bottom > size.height;
}

// One of the filters; nothing is drawn where there is only one.
Filter draw_filter(const fd_op &op, const Draw &draw, size_t number) {
    int64_t chosen = 0;
    if (const int64_t *given = draw.given_for(number); given != nullptr)
        chosen = std::clamp<int64_t>(given[4], 0, op.filter_count - 1);
    else if (op.filter_count > 1)
        chosen = static_cast<int64_t>(uniform(words(draw, number, kTries)[0]) * op.filter_count);
    return static_cast<Filter>(op.filters[chosen]);
}

bool try_window(const fd_op &op, Size size, const std::array<uint32_t, 4> &word, Rectangle &box) {
    const double area =
        static_cast<double>(size.width * size.height) * (op.scale[0] + uniform(word[0]) * (op.scale[1] - op.scale[0]));
    const double aspect = portable_exp(op.log_ratio[0] + uniform(word[1]) * (op.log_ratio[1] - op.log_ratio[0]));
    const auto width = static_cast<int64_t>(std::nearbyint(std::sqrt(area * aspect)));
    const auto height = static_cast<int64_t>(std::nearbyint(std::sqrt(area / aspect)));
    if (width <= 0 || width > size.width || height <= 0 || height > size.height)
        return false;
    const auto left = static_cast<int64_t>(uniform(word[2]) * static_cast<double>(size.width - width + 1));
    const auto top = static_cast<int64_t>(uniform(word[3]) * static_cast<double>(size.height - height + 1));
    box = {left, top, left + width, top + height};
    return true;
}

Rectangle fallback_window(const fd_op &op, Size size) {
    const double ratio = static_cast<double>(size.width) / static_cast<double>(size.height);
    const double low = std::min(op.ratio[0], op.ratio[1]), high = std::max(op.ratio[0], op.ratio[1]);
    Size box = size;
    if (ratio > high)
        box.width = static_cast<int64_t>(std::nearbyint(static_cast<double>(size.height) * high));
    if (ratio < low)
        box.height = static_cast<int64_t>(std::nearbyint(static_cast<double>(size.width) / low));
    return Rectangle::of(box).moved((size.width - box.width) / 2, (size.height - box.height) / 2);
}

// Source: torchvision.transforms.RandomResizedCrop.get_params.
Rectangle random_window(const fd_op &op, Size size, const Draw &draw, size_t number) {
    if (const int64_t *given = draw.given_for(number); given != nullptr)
        return {given[0], given[1], given[2], given[3]};
    Rectangle box;
    for (int attempt = 0; attempt < kTries; ++attempt)
        if (try_window(op, size, words(draw, number, attempt), box))
            return box;
    return fallback_window(op, size);
}

// Source: torchvision's _compute_resized_output_size.
Size resized_size(const fd_op &op, Size size) {
    if (op.shorter <= 0)
        return {op.width, op.height};
    const auto [small, large] = std::minmax(size.width, size.height);
    int64_t new_small = op.shorter;
    auto new_large = static_cast<int64_t>(static_cast<double>(op.shorter * large) / static_cast<double>(small));
    if (op.longest > 0 && new_large > op.longest) {
        new_small = static_cast<int64_t>(static_cast<double>(op.longest * new_small) / static_cast<double>(new_large));
        new_large = op.longest;
    }
    return size.width <= size.height ? Size{new_small, new_large} : Size{new_large, new_small};
}

// Where a centred crop begins; black is added first where the image is smaller.  Source: torchvision's center_crop.
int64_t centre(int64_t size, int64_t crop) {
    const int64_t before = std::max<int64_t>(crop - size, 0) / 2;
    return static_cast<int64_t>(std::nearbyint(static_cast<double>(std::max(size, crop) - crop) / 2.0)) - before;
}

Rectangle centre_box(const fd_op &op, Size size) {
    return Rectangle::of({op.width, op.height}).moved(centre(size.width, op.width), centre(size.height, op.height));
}

// Where a random crop begins, in pixels of the image without its padding.
struct Start {
    int64_t at;
    bool fits;
};

Start random_start(int64_t size, int64_t crop, int64_t before, int64_t after, bool pad_if_needed, uint32_t word) {
    int64_t padded = size + before + after;
    if (pad_if_needed && padded < crop) {
        before += crop - padded;
        padded += 2 * (crop - padded);
    }
    return {static_cast<int64_t>(uniform(word) * static_cast<double>(padded - crop + 1)) - before, padded >= crop};
}

// Source: torchvision.transforms.RandomCrop.  False when the padded image is smaller than the crop.
bool random_box(const fd_op &op, Size size, const std::array<uint32_t, 4> &word, Rectangle &box) {
    const bool more = op.pad_if_needed != 0;
    const Start left = random_start(size.width, op.width, op.padding[0], op.padding[2], more, word[0]);
    const Start top = random_start(size.height, op.height, op.padding[1], op.padding[3], more, word[1]);
    box = Rectangle::of({op.width, op.height}).moved(left.at, top.at);
    return left.fits && top.fits;
}

// Source: timm's ResizeKeepRatio.
Size size_keeping_ratio(const fd_op &op, Size size, const Draw &draw, size_t number) {
    if (const int64_t *given = draw.given_for(number); given != nullptr)
        return {given[0], given[1]};
    const double height = static_cast<double>(size.height), width = static_cast<double>(size.width);
    const double tall = height / op.height, wide = width / op.width;
    const double ratio = std::max(tall, wide) * op.p + std::min(tall, wide) * (1.0 - op.p);
    const std::array<uint32_t, 4> word = words(draw, number, 0);
    double down = 1.0, across = 1.0;
    if (uniform(word[0]) < op.chances[0]) {
        const double scale = op.scale[0] + uniform(word[1]) * (op.scale[1] - op.scale[0]);
        down = across = op.scale_is_of_area != 0 ? 1.0 / std::sqrt(scale) : scale;
    }
    if (uniform(word[2]) < op.chances[1]) {
        const double aspect =
            std::sqrt(portable_exp(op.log_ratio[0] + uniform(word[3]) * (op.log_ratio[1] - op.log_ratio[0])));
        down /= aspect;
        across *= aspect;
    }
    return {static_cast<int64_t>(std::nearbyint(width * across / ratio)),
            static_cast<int64_t>(std::nearbyint(height * down / ratio))};
}

// Where timm's RandomCropOrPad begins.
int64_t crop_or_pad_start(int64_t size, int64_t crop, uint32_t word) {
    const int64_t more = std::abs(size - crop);
    const auto start = static_cast<int64_t>(uniform(word) * static_cast<double>(more + 1));
    return size < crop ? -start : start;
}

// The box of a crop or of padding; false when the image is smaller than a random crop.
bool box_of(const fd_op &op, Size size, const Draw &draw, size_t number, Rectangle &box) {
    const int64_t *const given = draw.given_for(number);
    if (given != nullptr && (op.kind == FD_RANDOM_CROP || op.kind == FD_RANDOM_CROP_OR_PAD)) {
        box = Rectangle::of({op.width, op.height}).moved(given[0], given[1]);
        return true;
    }
    switch (op.kind) {
    case FD_CENTER_CROP:
        box = centre_box(op, size);
        return true;
    case FD_RANDOM_CROP:
        return random_box(op, size, words(draw, number, 0), box);
    case FD_RANDOM_CROP_OR_PAD: {
        const std::array<uint32_t, 4> word = words(draw, number, 0);
        box = Rectangle::of({op.width, op.height})
                  .moved(crop_or_pad_start(size.width, op.width, word[0]),
                         crop_or_pad_start(size.height, op.height, word[1]));
        return true;
    }
    default:
        box = {-op.padding[0], -op.padding[1], size.width + op.padding[2], size.height + op.padding[3]};
        return true;
    }
}

bool is_mirrored(const fd_op &op, const Draw &draw, size_t number) {
    const int64_t *const given = draw.given_for(number);
    return given != nullptr ? given[0] != 0 : uniform(words(draw, number, 0)[0]) < op.p;
}

bool apply(const fd_op &op, size_t number, const Draw &draw, Frame &frame) {
    const Size size = frame.crop.size();
    Rectangle box{};
    switch (op.kind) {
    case FD_RANDOM_RESIZED_CROP:
        frame.crop_to(random_window(op, size, draw, number));
        frame.resize_to({op.width, op.height}, draw_filter(op, draw, number));
        return true;
    case FD_RESIZE:
        frame.resize_to(resized_size(op, size), draw_filter(op, draw, number));
        return true;
    case FD_RESIZE_KEEP_RATIO:
        frame.resize_to(size_keeping_ratio(op, size, draw, number), draw_filter(op, draw, number));
        return true;
    case FD_FLIP_HORIZONTAL:
        frame.flips.horizontal ^= is_mirrored(op, draw, number);
        return true;
    case FD_FLIP_VERTICAL:
        frame.flips.vertical ^= is_mirrored(op, draw, number);
        return true;
    default:
        if (!box_of(op, size, draw, number, box))
            return false;
        if (reaches_out(box, size))
            frame.outside = outside_of(op);
        frame.crop_to(box);
        return true;
    }
}

// Beyond these a view is refused anyway (View::is_valid), and in between all fits an int.
int narrow(int64_t value) {
    return static_cast<int>(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX));
}

Box narrow(const Rectangle &box) {
    return {narrow(box.left), narrow(box.top), narrow(box.right), narrow(box.bottom)};
}

} // namespace

double portable_exp(double x) {
    if (!(std::fabs(x) < 700))
        return x > 0 ? INFINITY : 0.0;
    const double turns = std::nearbyint(x * 1.4426950408889634);                           // 1 / ln 2
    const double rest = (x - turns * 0.6931471803691238) - turns * 1.9082149292705877e-10; // ln 2 in two parts
    double sum = 1.0;
    for (int term = 13; term > 0; --term)
        sum = 1.0 + sum * rest / term;
    return std::ldexp(sum, static_cast<int>(turns));
}

bool is_valid(const fd_op &op) {
    const bool has_size = op.width > 0 && op.height > 0;
    const bool has_filters =
        0 < op.filter_count && op.filter_count <= 4 && std::all_of(op.filters, op.filters + op.filter_count, is_filter);
    const bool has_padding =
        FD_CONSTANT <= op.outside[0] && op.outside[0] <= FD_SYMMETRIC &&
        std::all_of(op.outside + 1, op.outside + 4, [](int32_t level) { return 0 <= level && level <= 255; }) &&
        std::all_of(std::begin(op.padding), std::end(op.padding), [](int32_t side) { return side >= 0; });
    switch (op.kind) {
    case FD_RESIZE:
        return (op.shorter > 0 || has_size) && has_filters;
    case FD_RANDOM_RESIZED_CROP:
    case FD_RESIZE_KEEP_RATIO:
        return has_size && has_filters;
    case FD_CENTER_CROP:
    case FD_RANDOM_CROP:
    case FD_RANDOM_CROP_OR_PAD:
        return has_size && has_padding;
    case FD_PAD:
        return has_padding;
    case FD_FLIP_HORIZONTAL:
    case FD_FLIP_VERTICAL:
        return true;
    default:
        return false;
    }
}

bool draw_view(std::span<const fd_op> ops, int width, int height, const Draw &draw, View &view) {
    Frame frame({width, height});
    for (size_t number = 0; number < ops.size(); ++number)
        if (!apply(ops[number], number, draw, frame))
            return false;
    frame.fold();
    const Size resize = frame.is_resized ? frame.resize : frame.window.size();
    view = {narrow(frame.window),   narrow(resize.width), narrow(resize.height),         narrow(frame.crop),
            frame.flips.horizontal, frame.flips.vertical, frame.window_flips.horizontal, frame.window_flips.vertical,
            frame.filter,           frame.outside};
    return true;
}

} // namespace fastdata

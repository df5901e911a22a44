#include "png/png.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(FASTDATA_DEFLATE)
#include <libdeflate.h>
#endif

namespace fastdata {
namespace {

constexpr uint8_t kSignature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
constexpr size_t kHeaderBytes = 13;
constexpr size_t kMostTextBytes = size_t{1} << 20;
constexpr int64_t kSlackBytes = 8;       // behind the rows, for reading whole vectors
constexpr int64_t kMostInflation = 1032; // deflate cannot do better

enum Colour { kGrey = 0, kRgb = 2, kPalette = 3, kGreyAlpha = 4, kRgba = 6 };

constexpr uint32_t chunk(const char (&name)[5]) {
    return static_cast<uint32_t>(name[0]) << 24 | static_cast<uint32_t>(name[1]) << 16 |
           static_cast<uint32_t>(name[2]) << 8 | static_cast<uint32_t>(name[3]);
}

uint32_t read_u32(std::span<const uint8_t> data, size_t at) {
    return uint32_t{data[at]} << 24 | uint32_t{data[at + 1]} << 16 | uint32_t{data[at + 2]} << 8 | data[at + 3];
}

// The channels of one pixel, widened so that sums do not wrap.
#if defined(__GNUC__)
typedef uint8_t Narrow __attribute__((vector_size(8)));
typedef int16_t Wide __attribute__((vector_size(16)));

Wide widen(const uint8_t *from) {
    Narrow bytes;
    std::memcpy(&bytes, from, sizeof bytes); // for fewer channels also the next bytes, whose results are not stored
    return __builtin_convertvector(bytes, Wide);
}

template <int Step> void narrow(const Wide &wide, uint8_t *to) {
    const Narrow bytes = __builtin_convertvector(wide, Narrow);
    std::memcpy(to, &bytes, Step);
}

Wide absolute(const Wide &x) {
    return x > -x ? x : -x;
}

Wide nearest(const Wide &left, const Wide &above, const Wide &corner) {
    const Wide to_left = absolute(above - corner), to_above = absolute(left - corner);
    const Wide to_corner = absolute(left + above - corner - corner);
    const Wide other = to_above <= to_corner ? above : corner;
    return ((to_left <= to_above) & (to_left <= to_corner)) ? left : other;
}
#else
struct Wide {
    int channel[4];
};
#endif

// Undoes filters 1, 3 and 4, whose predictions need the pixel to the left.  Eight bytes after the row may be read.
template <int Step, typename Predict>
void add_predictions(std::span<uint8_t> row, const uint8_t *above, Predict predict) {
    Wide left{}, corner{};
    uint8_t *at = row.data();
    for (size_t pixel = 0; pixel < row.size() / Step; ++pixel, at += Step, above += Step) {
        const Wide up = widen(above);
        left = (widen(at) + predict(left, up, corner)) & 255;
        narrow<Step>(left, at);
        corner = up;
    }
}

// Undoes a row's filter in place.  above: the row before it, zeros for the first.  Source: PNG specification, 9.2.
template <int Step> bool unfilter(int filter, std::span<uint8_t> row, const uint8_t *above) {
    switch (filter) {
    case 0:
        return true;
    case 1:
        add_predictions<Step>(row, above, [](const Wide &left, const Wide &, const Wide &) { return left; });
        return true;
    case 2:
        for (size_t i = 0; i < row.size(); ++i)
            row[i] = static_cast<uint8_t>(row[i] + above[i]);
        return true;
    case 3:
        add_predictions<Step>(row, above,
                              [](const Wide &left, const Wide &up, const Wide &) { return (left + up) >> 1; });
        return true;
    case 4:
        add_predictions<Step>(row, above, nearest);
        return true;
    default:
        return false;
    }
}

using Unfilter = bool (*)(int filter, std::span<uint8_t> row, const uint8_t *above);

Unfilter unfilter_for(int bits_per_pixel) {
    switch (bits_per_pixel) {
    case 16:
        return unfilter<2>;
    case 24:
        return unfilter<3>;
    case 32:
        return unfilter<4>;
    default: // fewer bits count as a byte
        return unfilter<1>;
    }
}

// A sample of 1, 2, 4 or 8 bits.
int sample(const uint8_t *row, int x, int depth) {
    if (depth == 8)
        return row[x];
    const int per_byte = 8 / depth;
    return row[x / per_byte] >> (8 - depth * (x % per_byte + 1)) & ((1 << depth) - 1);
}

void put(uint8_t *to, int red, int green, int blue) {
    to[0] = static_cast<uint8_t>(red);
    to[1] = static_cast<uint8_t>(green);
    to[2] = static_cast<uint8_t>(blue);
}

} // namespace

#if defined(FASTDATA_DEFLATE)

struct PngDecoder::Inflater {
    libdeflate_decompressor *const handle = libdeflate_alloc_decompressor();

    Inflater() {
        if (handle == nullptr)
            throw std::bad_alloc();
    }
    ~Inflater() { libdeflate_free_decompressor(handle); }
    Inflater(const Inflater &) = delete;
    Inflater &operator=(const Inflater &) = delete;

    // True when `from` is one zlib stream, with the right checksum, of exactly as many bytes as `to` holds.
    bool inflate(std::span<const uint8_t> from, std::span<uint8_t> to) {
#if defined(FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION)
        size_t got = 0; // without checksums, which no mutation would get right
        if (from.size() < 2 || libdeflate_deflate_decompress(handle, from.data() + 2, from.size() - 2, to.data(),
                                                             to.size(), &got) != LIBDEFLATE_SUCCESS)
            return false;
        std::fill(to.begin() + static_cast<ptrdiff_t>(got), to.end(), uint8_t{0});
        return true;
#endif
        return libdeflate_zlib_decompress(handle, from.data(), from.size(), to.data(), to.size(), nullptr) ==
               LIBDEFLATE_SUCCESS;
    }
    // The same, of at most kMostTextBytes.
    bool inflate_within(std::span<const uint8_t> from, std::span<uint8_t> to) {
        size_t got = 0;
        return libdeflate_zlib_decompress(handle, from.data(), from.size(), to.data(), kMostTextBytes, &got) ==
               LIBDEFLATE_SUCCESS;
    }
    static bool has_crc32(std::span<const uint8_t> data, uint32_t expected) {
#if defined(FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION)
        return expected != 0;
#endif
        return libdeflate_crc32(0, data.data(), data.size()) == expected;
    }
};

bool PngDecoder::is_png(std::span<const uint8_t> data) {
    return data.size() >= sizeof kSignature && std::equal(std::begin(kSignature), std::end(kSignature), data.begin());
}

const char *png_library() {
    return "libdeflate " LIBDEFLATE_VERSION_STRING;
}

bool reads_pngs() {
    return true;
}

#else // built without libdeflate: every PNG is handed back

struct PngDecoder::Inflater {
    bool inflate(std::span<const uint8_t>, std::span<uint8_t>) { return false; }
    bool inflate_within(std::span<const uint8_t>, std::span<uint8_t>) { return false; }
    static bool has_crc32(std::span<const uint8_t>, uint32_t) { return false; }
};

bool PngDecoder::is_png(std::span<const uint8_t>) {
    return false;
}

const char *png_library() {
    return "no PNGs";
}

bool reads_pngs() {
    return false;
}

#endif

PngDecoder::PngDecoder() = default;
PngDecoder::~PngDecoder() = default;

int PngDecoder::Header::channels() const {
    switch (colour) {
    case kRgb:
        return 3;
    case kRgba:
        return 4;
    case kGreyAlpha:
        return 2;
    default:
        return 1;
    }
}

fd_status PngDecoder::open(std::span<const uint8_t> data, int64_t most_pixels) {
    header_ = {};
    palette_.clear();
    parts_.clear();
    if (!is_png(data))
        return FD_UNSUPPORTED;
    size_t text_bytes = 0;
    bool ended = false;
    for (size_t at = sizeof kSignature; !ended;) {
        if (data.size() - at < 12)
            return FD_CORRUPT;
        const size_t length = read_u32(data, at);
        if (length > data.size() - at - 12)
            return FD_CORRUPT;
        const uint32_t type = read_u32(data, at + 4);
        // Pillow skips the checksums of image data, which has one of its own.
        if (type != chunk("IDAT") &&
            !Inflater::has_crc32(data.subspan(at + 4, length + 4), read_u32(data, at + 8 + length)))
            return FD_CORRUPT;
        text_bytes += type == chunk("tEXt") ? length : 0;
        if ((at == sizeof kSignature) != (type == chunk("IHDR")) || text_bytes > kMostTextBytes)
            return FD_UNSUPPORTED;
        ended = type == chunk("IEND");
        const bool between = !parts_.empty() && parts_.back().data() + parts_.back().size() + 12 != &data[at] + 8;
        if (type == chunk("IDAT") && between)
            return FD_CORRUPT; // something lies between the parts of the image
        if (const fd_status status = read_chunk(type, data.subspan(at + 8, length)); status != FD_OK)
            return status;
        at += 12 + length;
    }
    if (int64_t{header_.width} * header_.height > most_pixels)
        return FD_LIMIT;
    if (int64_t{header_.width} * header_.height > kMostPixels)
        return FD_UNSUPPORTED;
    const bool needs_palette = header_.colour == kPalette;
    return parts_.empty() || (needs_palette && palette_.empty()) ? FD_CORRUPT : FD_OK;
}

fd_status PngDecoder::read_chunk(uint32_t type, std::span<const uint8_t> payload) {
    switch (type) {
    case chunk("IHDR"): {
        if (payload.size() != kHeaderBytes)
            return FD_CORRUPT;
        const uint32_t width = read_u32(payload, 0), height = read_u32(payload, 4);
        if (width == 0 || height == 0 || width > INT32_MAX || height > INT32_MAX)
            return FD_CORRUPT;
        header_ = {static_cast<int>(width), static_cast<int>(height), payload[8], payload[9]};
        const bool indexed = header_.colour == kGrey || header_.colour == kPalette;
        const bool colour = header_.colour == kRgb || header_.colour == kRgba || header_.colour == kGreyAlpha;
        const bool few = header_.depth == 1 || header_.depth == 2 || header_.depth == 4;
        const bool known = (header_.depth == 8 && (indexed || colour)) || (few && indexed);
        const bool plain = payload[10] == 0 && payload[11] == 0 && payload[12] == 0; // not interlaced
        return known && plain ? FD_OK : FD_UNSUPPORTED;
    }
    case chunk("PLTE"):
        if (!palette_.empty() || !parts_.empty() || payload.size() % 3 != 0 || payload.size() > 768)
            return FD_CORRUPT;
        for (size_t at = 0; at < payload.size(); at += 3)
            palette_.insert(palette_.end(), {payload[at], payload[at + 1], payload[at + 2], 0});
        return FD_OK;
    case chunk("IDAT"):
        parts_.push_back(payload);
        return FD_OK;
    case chunk("IEND"):
    case chunk("tRNS"): // convert("RGB") drops transparency
    case chunk("tEXt"):
    case chunk("gAMA"):
    case chunk("cHRM"):
    case chunk("sRGB"):
    case chunk("sBIT"):
    case chunk("pHYs"):
    case chunk("tIME"):
    case chunk("bKGD"):
        return FD_OK;
    case chunk("iCCP"):
        return is_sane_profile(payload) ? FD_OK : FD_UNSUPPORTED;
    default: // animations, compressed text, private chunks
        return FD_UNSUPPORTED;
    }
}

// Pillow unpacks colour profiles, up to its limit for texts, and refuses files with larger ones.
bool PngDecoder::is_sane_profile(std::span<const uint8_t> payload) {
    const auto name_end = std::find(payload.begin(), payload.end(), uint8_t{0});
    const auto rest = static_cast<size_t>(payload.end() - name_end);
    if (rest < 2 || *(name_end + 1) != 0)
        return false;
    if (std::equal(payload.begin(), payload.end(), sane_profile_.begin(), sane_profile_.end()))
        return true; // images of one origin carry the same
    if (!inflater().inflate_within(payload.last(rest - 2), scratch_.take(kMostTextBytes)))
        return false;
    sane_profile_.assign(payload.begin(), payload.end());
    return true;
}

PngDecoder::Inflater &PngDecoder::inflater() {
    if (inflater_ == nullptr)
        inflater_ = std::make_unique<Inflater>();
    return *inflater_;
}

fd_status PngDecoder::decode(const Box &window) {
    if (!window.is_inside(width(), height()))
        return FD_BAD_REQUEST;
    std::span<const uint8_t> stream = parts_.front();
    if (parts_.size() > 1) {
        size_t bytes = 0;
        for (const auto &part : parts_)
            bytes += part.size();
        const std::span<uint8_t> joined = joined_.take(bytes);
        auto end = joined.begin();
        for (const auto &part : parts_)
            end = std::copy(part.begin(), part.end(), end);
        stream = joined;
    }
    const int64_t row_bytes = header_.row_bytes();
    const int64_t whole = (row_bytes + 1) * height();
    if (whole > kMostInflation * static_cast<int64_t>(stream.size())) // before memory is taken for it
        return FD_CORRUPT;
    // One row of zeros comes first, for the filters of the first row.
    filtered_ = scratch_.take(static_cast<size_t>(whole + row_bytes + 1 + kSlackBytes));
    const std::span<uint8_t> rows = filtered_.subspan(static_cast<size_t>(row_bytes + 1), static_cast<size_t>(whole));
    if (!inflater().inflate(stream, rows))
        return FD_CORRUPT;
    std::fill_n(filtered_.begin(), row_bytes + 1, uint8_t{0});
    const Unfilter undo = unfilter_for(header_.bits_per_pixel());
    for (int y = 0; y < window.bottom; ++y) {
        uint8_t *const row = rows.data() + y * (row_bytes + 1);
        if (!undo(row[0], {row + 1, static_cast<size_t>(row_bytes)}, row - row_bytes))
            return FD_CORRUPT;
    }
    return expand(window);
}

// Source: Pillow, PngImagePlugin.py and Convert.c.
fd_status PngDecoder::expand(const Box &window) {
    const int64_t row_bytes = header_.row_bytes();
    const ptrdiff_t stride = static_cast<ptrdiff_t>(window.width()) * kPixelBytes;
    uint8_t *const pixels = pixels_.take(static_cast<size_t>(stride) * static_cast<size_t>(window.height())).data();
    const int channels = header_.channels(), depth = header_.depth;
    const int brightest = (1 << depth) - 1;
    const size_t entries = palette_.size() / 4;
    for (int y = window.top; y < window.bottom; ++y) {
        const uint8_t *const row = filtered_.data() + (y + 1) * (row_bytes + 1) + 1;
        uint8_t *to = pixels + (y - window.top) * stride;
        for (int x = window.left; x < window.right; ++x, to += kPixelBytes) {
            if (header_.colour == kRgb || header_.colour == kRgba) {
                const uint8_t *pixel = row + static_cast<ptrdiff_t>(x) * channels;
                put(to, pixel[0], pixel[1], pixel[2]);
            } else if (header_.colour == kPalette) {
                const auto entry = static_cast<size_t>(sample(row, x, depth));
                if (entry >= entries)
                    return FD_UNSUPPORTED;
                put(to, palette_[4 * entry], palette_[4 * entry + 1], palette_[4 * entry + 2]);
            } else {
                const int level = header_.colour == kGreyAlpha ? row[2 * x] : sample(row, x, depth) * 255 / brightest;
                put(to, level, level, level);
            }
        }
    }
    rows_ = {pixels, stride, window.width(), window.height()};
    return FD_OK;
}

} // namespace fastdata

#include "jpeg/jpeg_scans.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

namespace fastdata {
namespace {

enum Marker : uint8_t {
    kSof0 = 0xC0,
    kSof1 = 0xC1,
    kSof2 = 0xC2,
    kDht = 0xC4,
    kRst0 = 0xD0,
    kRst7 = 0xD7,
    kSoi = 0xD8,
    kEoi = 0xD9,
    kSos = 0xDA,
    kDqt = 0xDB,
    kDri = 0xDD,
    kApp0 = 0xE0,
    kApp14 = 0xEE,
    kApp15 = 0xEF,
    kCom = 0xFE,
};

constexpr int kMostCorrections = 1000 - DCTSIZE2 + 1; // libjpeg ends a run of blocks with more bits than these
constexpr int kMostRun = 0x7FFF;                      // blocks
constexpr int kZeroRun = 0xF0;

// A marker with what belongs to it, but for entropy-coded data.
struct Segment {
    uint8_t marker = 0;
    std::span<const uint8_t> all, body; // body: behind the length
};

// Takes the next one from the front of `rest`.
bool take_segment(std::span<const uint8_t> &rest, Segment &segment) {
    size_t at = 0;
    if (rest.empty() || rest[0] != 0xFF)
        return false;
    while (at < rest.size() && rest[at] == 0xFF) // any number of them
        ++at;
    if (at == rest.size() || rest[at] == 0)
        return false;
    segment.marker = rest[at++];
    size_t end = at;
    if (segment.marker != kSoi && segment.marker != kEoi) {
        if (rest.size() < at + 2)
            return false;
        end = at + (static_cast<size_t>(rest[at]) << 8 | rest[at + 1]);
        at += 2;
        if (end < at || end > rest.size())
            return false;
    }
    segment.all = rest.first(end);
    segment.body = rest.subspan(at, end - at);
    rest = rest.subspan(end);
    return true;
}

// Where, behind its 0xFF, the next marker stands that ends entropy-coded data: what is neither a stuffed byte, nor a
// restart, nor a fill byte.  The size of the data if there is none.
size_t next_marker(std::span<const uint8_t> data, size_t at) {
    while (at < data.size()) {
        const void *const found = std::memchr(data.data() + at, 0xFF, data.size() - at);
        if (found == nullptr)
            break;
        at = static_cast<size_t>(static_cast<const uint8_t *>(found) - data.data()) + 1;
        if (at < data.size() && data[at] != 0 && data[at] != 0xFF && (data[at] < kRst0 || kRst7 < data[at]))
            return at;
    }
    return data.size();
}

// Bytes of entropy-coded data; the fill bytes before the next marker belong to that.
size_t entropy_bytes(std::span<const uint8_t> rest) {
    size_t end = next_marker(rest, 0);
    if (end == rest.size())
        return end;
    while (end > 0 && rest[end - 1] == 0xFF)
        --end;
    return end;
}

void append(std::vector<uint8_t> &to, std::span<const uint8_t> bytes) {
    to.insert(to.end(), bytes.begin(), bytes.end());
}

bool is_frame(uint8_t marker) {
    return kSof0 <= marker && marker <= 0xCF && marker != kDht && marker != 0xC8 && marker != 0xCC;
}

// The tables and the interval that segments have defined so far.
class Tables {
  public:
    // False for a segment that makes no sense.
    bool take(const Segment &segment) {
        if (segment.marker == kDht)
            return take_codes(segment.body);
        if (segment.marker == kDri) {
            if (segment.body.size() < 2)
                return false;
            restart_interval = static_cast<unsigned>(segment.body[0] << 8 | segment.body[1]);
        }
        return true;
    }
    const CodeTable *dc(int number) const { return found(dc_, number); }
    const CodeTable *ac(int number) const { return found(ac_, number); }

    unsigned restart_interval = 0;

  private:
    struct Entry {
        CodeTable codes;
        bool is_there = false;
    };
    using Entries = std::array<Entry, NUM_HUFF_TBLS>;

    static const CodeTable *found(const Entries &entries, int number) {
        const auto at = static_cast<size_t>(number);
        return at < entries.size() && entries[at].is_there ? &entries[at].codes : nullptr;
    }

    bool take_codes(std::span<const uint8_t> body) {
        while (!body.empty()) {
            JHUFF_TBL source{};
            const size_t number = body[0] & 15, kind = body[0] >> 4;
            if (body.size() < 17 || number >= dc_.size() || kind > 1)
                return false;
            size_t symbols = 0;
            for (size_t size = 1; size <= 16; ++size) {
                source.bits[size] = body[size];
                symbols += body[size];
            }
            if (symbols > 256 || body.size() < 17 + symbols)
                return false;
            std::copy_n(body.begin() + 17, symbols, source.huffval);
            Entry &entry = (kind == 0 ? dc_ : ac_)[number];
            if (!entry.codes.build(&source))
                return false;
            entry.is_there = true;
            body = body.subspan(17 + symbols);
        }
        return true;
    }

    Entries dc_, ac_;
};

// What a scan is of.
struct Scan {
    struct Component {
        int number; // in the frame
        const CodeTable *dc, *ac;
    };
    std::array<Component, kMostComponents> components{};
    int count = 0;
    int first = 0, last = 0; // coefficients, in the order of the file
    int high = 0, low = 0;   // bits that were coded before, and that are left for later scans

    // ids: of the components, in the order of the frame.
    bool parse(std::span<const uint8_t> body, std::span<const uint8_t> ids, const Tables &tables) {
        count = body.empty() ? 0 : body[0];
        if (count < 1 || count > kMostComponents || body.size() != static_cast<size_t>(4 + 2 * count))
            return false;
        for (int i = 0; i < count; ++i) {
            const uint8_t id = body[static_cast<size_t>(1 + 2 * i)], numbers = body[static_cast<size_t>(2 + 2 * i)];
            const auto found = std::ranges::find(ids, id);
            if (found == ids.end())
                return false;
            components[static_cast<size_t>(i)] = {static_cast<int>(found - ids.begin()), tables.dc(numbers >> 4),
                                                  tables.ac(numbers & 15)};
        }
        const auto end = body.last(3);
        first = end[0];
        last = end[1];
        high = end[2] >> 4;
        low = end[2] & 15;
        return first <= last && last < DCTSIZE2 && (first == 0 || count == 1) && low <= 13;
    }
};

// Codes the blocks of a scan.
class ScanCoder {
  public:
    ScanCoder(const Scan &scan, bool is_progressive, unsigned restart_interval, int padding, std::vector<uint8_t> &to)
        : scan_(scan), is_progressive_(is_progressive), restarts_(restart_interval), writer_(to, padding) {}

    bool begin_mcu() {
        const int marker = restarts_.before_mcu();
        if (marker < 0)
            return true;
        if (!end_run())
            return false;
        writer_.put_restart(marker);
        last_dc_.fill(0);
        return true;
    }

    // number: of the component in the scan.  False if there is no code for it.
    bool put(int number, const int16_t *block) {
        const Scan::Component &component = scan_.components[static_cast<size_t>(number)];
        int &last_dc = last_dc_[static_cast<size_t>(number)];
        writer_.prepare();
        if (!is_progressive_)
            return component.dc != nullptr && component.ac != nullptr &&
                   put_block(writer_, *component.dc, *component.ac, last_dc, block);
        if (scan_.first != 0)
            return component.ac != nullptr &&
                   (scan_.high == 0 ? put_first(*component.ac, block) : put_refinement(*component.ac, block));
        const int dc = block[0] >> scan_.low;
        if (scan_.high != 0) {
            writer_.put(static_cast<uint32_t>(dc & 1), 1);
            return true;
        }
        const int difference = dc - last_dc;
        last_dc = dc;
        return component.dc != nullptr && put_value(writer_, *component.dc, 0, difference);
    }

    size_t file_bytes() const { return writer_.size(); }
    bool finish() {
        const bool good = end_run();
        writer_.finish();
        return good;
    }

  private:
    // The first bits of AC coefficients (G.1.2.2).
    bool put_first(const CodeTable &codes, const int16_t *block) {
        codes_ = &codes;
        int zeros = 0;
        for (int k = scan_.first; k <= scan_.last; ++k) {
            const int coefficient = block[natural_order(k)], value = std::abs(coefficient) >> scan_.low;
            if (value == 0) {
                ++zeros;
                continue;
            }
            if (!end_run())
                return false;
            for (; zeros > 15; zeros -= 16)
                if (!codes.put(writer_, kZeroRun))
                    return false;
            if (!put_value(writer_, codes, zeros, coefficient < 0 ? -value : value))
                return false;
            zeros = 0;
        }
        return zeros == 0 || ++run_ < kMostRun || end_run();
    }

    // One more bit of AC coefficients (G.1.2.3).  Bits of coefficients that were not zero before follow the next code.
    bool put_refinement(const CodeTable &codes, const int16_t *block) {
        codes_ = &codes;
        std::array<int, DCTSIZE2> values{};
        int last_new = 0;
        for (int k = scan_.first; k <= scan_.last; ++k) {
            values[static_cast<size_t>(k)] = std::abs(block[natural_order(k)]) >> scan_.low;
            if (values[static_cast<size_t>(k)] == 1)
                last_new = k;
        }
        int zeros = 0;
        std::array<uint8_t, DCTSIZE2> own{}; // corrections of this block
        size_t count = 0;
        const auto put_own = [&] {
            for (size_t i = 0; i < count; ++i)
                writer_.put(own[i], 1);
            count = 0;
        };
        for (int k = scan_.first; k <= scan_.last; ++k) {
            const int value = values[static_cast<size_t>(k)];
            if (value == 0) {
                ++zeros;
                continue;
            }
            for (; zeros > 15 && k <= last_new; zeros -= 16) {
                if (!end_run() || !codes.put(writer_, kZeroRun))
                    return false;
                put_own();
            }
            if (value > 1) {
                own[count++] = static_cast<uint8_t>(value & 1);
                continue;
            }
            if (!end_run() || !codes.put(writer_, zeros << 4 | 1, block[natural_order(k)] < 0 ? 0 : 1, 1))
                return false;
            put_own();
            zeros = 0;
        }
        if (zeros == 0 && count == 0)
            return true;
        corrections_.insert(corrections_.end(), own.begin(), own.begin() + static_cast<ptrdiff_t>(count));
        return (++run_ < kMostRun && corrections_.size() <= static_cast<size_t>(kMostCorrections)) || end_run();
    }

    // Codes how many blocks have ended since the last code, and their corrections.
    bool end_run() {
        if (run_ == 0)
            return true;
        writer_.prepare();
        const int size = static_cast<int>(std::bit_width(static_cast<unsigned>(run_))) - 1;
        const auto bits = static_cast<uint32_t>(run_) & ((1U << size) - 1);
        run_ = 0;
        if (!codes_->put(writer_, size << 4, bits, size))
            return false;
        for (const uint8_t bit : corrections_)
            writer_.put(bit, 1);
        corrections_.clear();
        writer_.prepare();
        return true;
    }

    const Scan &scan_;
    bool is_progressive_;
    Restarts restarts_;
    ScanWriter writer_;
    std::array<int, kMostComponents> last_dc_{};
    const CodeTable *codes_ = nullptr; // of AC coefficients
    int run_ = 0;
    std::vector<uint8_t> corrections_;
};

bool put_scan(const Scan &scan, ScanCoder &coder, CoefficientPlanes &planes, size_t most_bytes) {
    if (scan.count == 1) { // blocks one after the other, none that only fill MCUs
        const int number = scan.components[0].number;
        for (int row = 0; row < planes.rows(number) && coder.file_bytes() <= most_bytes; ++row)
            for (int column = 0; column < planes.columns(number); ++column)
                if (!coder.begin_mcu() || !coder.put(0, planes.at(number, column, row).data()))
                    return false;
        return coder.finish();
    }
    for (int mcu_row = 0; mcu_row < planes.mcu_rows() && coder.file_bytes() <= most_bytes; ++mcu_row)
        for (int mcu = 0; mcu < planes.mcu_columns(); ++mcu) {
            if (!coder.begin_mcu())
                return false;
            for (int i = 0; i < scan.count; ++i) {
                const int number = scan.components[static_cast<size_t>(i)].number;
                const int across = planes.across(number), down = planes.down(number);
                for (int y = 0; y < down; ++y)
                    for (int x = 0; x < across; ++x)
                        if (!coder.put(i, planes.at(number, mcu * across + x, mcu_row * down + y).data()))
                            return false;
            }
        }
    return coder.finish();
}

} // namespace

bool has_whole_scans(std::span<const uint8_t> file, size_t scan_at, bool one_scan) {
    size_t at = scan_at;
    while (at <= file.size() && file.size() - at >= 4) {
        at += 2 + (static_cast<size_t>(file[at + 2]) << 8 | file[at + 3]);
        at = next_marker(file, at);
        if (at >= file.size())
            return false;
        const uint8_t marker = file[at];
        if (marker == kEoi)
            return true;
        const bool between = marker == kDht || marker == kDqt || marker == kSos || marker == kDri || marker == kCom ||
                             (kApp0 <= marker && marker <= kApp15);
        if (one_scan || !between)
            return false;
        --at;
    }
    return false;
}

bool is_whole_jpeg(std::span<const uint8_t> file) {
    std::span<const uint8_t> rest = file;
    Segment segment;
    uint8_t frame = 0;
    size_t components = 0;
    while (take_segment(rest, segment)) {
        if (is_frame(segment.marker) && segment.body.size() > 5) {
            frame = segment.marker;
            components = segment.body[5];
        } else if (segment.marker == kSos) {
            if (frame == 0 || segment.body.empty())
                return false;
            const size_t behind = file.size() - rest.size();
            const size_t scan_at = behind - segment.body.size() - 4;
            return has_whole_scans(file, scan_at, (frame == kSof0 || frame == kSof1) && segment.body[0] == components);
        }
    }
    return false;
}

std::vector<uint8_t> without_scans(std::span<const uint8_t> file) {
    std::vector<uint8_t> skeleton;
    Segment segment;
    while (take_segment(file, segment)) {
        append(skeleton, segment.all);
        if (segment.marker == kSos)
            file = file.subspan(entropy_bytes(file));
        if (segment.marker == kEoi) {
            append(skeleton, file);
            return skeleton;
        }
    }
    return {};
}

// It has no Huffman tables: libjpeg-turbo (from 2.0) puts the usual ones in their place, which nobody reads.
std::vector<uint8_t> head_of_one_scan(std::span<const uint8_t> skeleton) {
    std::vector<uint8_t> head, scan;
    bool has_scan = false;
    for (Segment segment; take_segment(skeleton, segment) && segment.marker != kEoi;) {
        if (has_scan) {
            if (segment.marker == kDqt || is_frame(segment.marker)) // other steps than the head would have
                return {};
        } else if (is_frame(segment.marker)) {
            if (!scan.empty() || segment.body.size() < 6 || segment.marker > kSof2)
                return {};
            const size_t count = segment.body[5];
            if (count < 1 || count > kMostComponents || segment.body.size() != 6 + 3 * count)
                return {};
            const size_t at = head.size() + segment.all.size() - segment.body.size() - 3;
            append(head, segment.all);
            head[at] = kSof1; // sequential
            scan = {0xFF, kSos, 0, static_cast<uint8_t>(6 + 2 * count), static_cast<uint8_t>(count)};
            for (size_t i = 0; i < count; ++i)
                append(scan, std::array<uint8_t, 2>{segment.body[6 + 3 * i], 0});
            append(scan, std::array<uint8_t, 3>{0, DCTSIZE2 - 1, 0});
        } else if (segment.marker == kSos) {
            has_scan = true;
        } else if (segment.marker == kSoi || segment.marker == kDqt || segment.marker == kApp0 ||
                   segment.marker == kApp14) { // all that decides about pixels
            append(head, segment.all);
        }
    }
    if (!has_scan || scan.empty())
        return {};
    append(head, scan);
    return head;
}

bool CoefficientPlanes::begin(const jpeg_decompress_struct &jpeg, int64_t memory_bytes) {
    const auto blocks_of = [](JDIMENSION length, int factor, int largest) { // rounded up
        const auto size = static_cast<int64_t>(length) * factor;
        return static_cast<int>((size + int64_t{largest} * DCTSIZE - 1) / (int64_t{largest} * DCTSIZE));
    };
    count_ = jpeg.num_components;
    mcu_columns_ = blocks_of(jpeg.image_width, 1, jpeg.max_h_samp_factor);
    mcu_rows_ = blocks_of(jpeg.image_height, 1, jpeg.max_v_samp_factor);
    int64_t bytes = 0;
    for (int i = 0; i < count_; ++i) {
        const int64_t blocks = int64_t{jpeg.comp_info[i].h_samp_factor} * jpeg.comp_info[i].v_samp_factor;
        bytes += mcu_columns_ * blocks * mcu_rows_ * static_cast<int64_t>(sizeof(Block));
    }
    if (bytes > memory_bytes)
        return false;
    for (int i = 0; i < count_; ++i) {
        const jpeg_component_info &component = jpeg.comp_info[i];
        Plane &plane = planes_[static_cast<size_t>(i)];
        plane.across = component.h_samp_factor;
        plane.down = component.v_samp_factor;
        plane.columns = mcu_columns_ * plane.across;
        plane.real_columns = blocks_of(jpeg.image_width, plane.across, jpeg.max_h_samp_factor);
        plane.real_rows = blocks_of(jpeg.image_height, plane.down, jpeg.max_v_samp_factor);
        const int rows = mcu_rows_ * plane.down;
        plane.blocks.assign(static_cast<size_t>(plane.columns) * static_cast<size_t>(rows), Block{});
    }
    return true;
}

bool with_scans(std::span<const uint8_t> skeleton, CoefficientPlanes &planes, int padding, FileLimits limits,
                std::vector<uint8_t> &file) {
    Tables tables;
    std::array<uint8_t, kMostComponents> ids{};
    bool is_progressive = false;
    for (Segment segment; take_segment(skeleton, segment);) {
        append(file, segment.all);
        if (segment.marker == kEoi) {
            append(file, skeleton);
            return true;
        }
        if (!tables.take(segment))
            return false;
        if (is_frame(segment.marker)) {
            const auto count = static_cast<size_t>(planes.count());
            if (segment.body.size() != 6 + 3 * count)
                return false;
            for (size_t i = 0; i < count; ++i)
                ids[i] = segment.body[6 + 3 * i];
            is_progressive = segment.marker == kSof2;
        }
        if (segment.marker != kSos)
            continue;
        Scan scan;
        if (!scan.parse(segment.body, std::span(ids).first(static_cast<size_t>(planes.count())), tables))
            return false;
        ScanCoder coder(scan, is_progressive, tables.restart_interval, padding, file);
        if (--limits.scans < 0 || !put_scan(scan, coder, planes, limits.bytes) || file.size() > limits.bytes)
            return false;
    }
    return false;
}

} // namespace fastdata

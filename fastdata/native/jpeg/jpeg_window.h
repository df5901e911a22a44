// Part of a JPEG: rows above the window are skipped, rows below never decoded, columns cropped.  Headers, and the
// pixels of what jpeg_pixels.h leaves out, by libjpeg-turbo.
#pragma once

#include "base/buffer.h"
#include "base/geometry.h"
#include "fastdata_native.h"
#include "jpeg/jpeg_index.h"
#include "jpeg/packed.h"

#include <cstdint>
#include <cstdio> // jpeglib.h needs it
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace fastdata {

struct JpegLimits {
    int64_t pixels;
    int64_t memory_bytes;
    int scans;

    // As libjpeg takes it: a long, which has 32 bits on Windows, where 4 GiB would become 0: no limit.
    long memory() const { return static_cast<long>(std::min(memory_bytes, int64_t{std::numeric_limits<long>::max()})); }
};

// True for data that libjpeg can be given, which counts its bytes in a long, too.
inline bool is_countable(std::span<const uint8_t> data) {
    return uint64_t{data.size()} <= uint64_t{std::numeric_limits<unsigned long>::max()};
}

// One decoder, used for image after image by one thread.
//
// Between a call of open() and the next, `pixels` and `message` stay as they are.
class JpegDecoder {
  public:
    JpegDecoder();
    ~JpegDecoder();
    JpegDecoder(const JpegDecoder &) = delete;
    JpegDecoder &operator=(const JpegDecoder &) = delete;

    // Parses the header.  data: a file, or a record that unpack() gave; it must live until decode() has returned, and
    // so must what make_index() gave, the index.
    fd_status open(std::span<const uint8_t> data, const JpegLimits &limits, const StoredIndex &index = {});
    int width() const;
    int height() const;

    // Decodes at 1/denominator (1, 2, 4, 8) of the size.  window: in pixels of that size, inside the image.
    // fast: cheap chroma upsampling.  On success rows() shows exactly the window; it has no pixels if the sink, where
    // there is one, has taken them.
    fd_status decode(const Box &window, int denominator, bool fast, RowSink *sink);
    Rows rows() const { return rows_; }
    // What became of the index.
    fd_index_use index_use() const { return index_use_; }

    // An index of the image, see jpeg_index.h, with an entry for every step-th MCU of a row, or one for each row if
    // step is 0.  FD_UNSUPPORTED for images that are not decoded by it.
    fd_status make_index(int step, std::vector<uint8_t> &index);

    // The image as a record of open coefficients, see unpacked.h.  padding: the bit that fills bytes before markers.
    // FD_UNSUPPORTED for images that cannot be one.
    fd_status unpack(int padding, std::vector<uint8_t> &record);
    // The file that such a record was made of.
    fd_status restore(std::vector<uint8_t> &file);

    // The window of a record, or of a file with an index, as packed.h has it: appends what is needed, and says so in
    // the head.  FD_UNSUPPORTED for other images; they can be decoded as before.
    fd_status pack(const Box &window, PackedHead &head, std::vector<uint8_t> &packed);

    // libjpeg's words about the latest failure, or "".
    const char *message() const;

  private:
    struct State;
    fd_status open_guarded(std::span<const uint8_t> data, const JpegLimits &limits);
    template <class Work> fd_status with_scan(Work work);
    void start_coefficients(int first_column, int last_column);
    void finish_coefficients();
    fd_status unpack_scans(int padding, std::vector<uint8_t> &record);
    fd_status write_scans(struct UnpackedHead &head, class UnpackedWriter &writer);
    fd_status restore_scans(std::vector<uint8_t> &file);
    fd_status reopen();
    fd_status decode_once(const Box &window, int denominator, bool fast, RowSink *sink);
    void start(int denominator, bool fast);
    void read_window(const Box &window, RowSink *sink);
    void read_window_by_libjpeg(const Box &window);
    bool has_one_scan() const;
    fd_status pack_tiles(const struct ScanShape &shape, PackedHead &head, std::vector<uint8_t> &packed);
    fd_status pack_segments(const struct ScanShape &shape, PackedHead &head, std::vector<uint8_t> &packed);

    std::unique_ptr<State> state_;
    Buffer pixels_;
    Rows rows_{};
    std::span<const uint8_t> data_;
    StoredIndex index_;
    JpegLimits limits_{};
    fd_index_use index_use_ = FD_INDEX_UNUSED;
};

// The libjpeg this was linked with, for people.
const char *jpeg_library();

} // namespace fastdata

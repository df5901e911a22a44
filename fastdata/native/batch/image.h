// One image from compressed bytes to its place in the batch.
#pragma once

#include "base/buffer.h"
#include "batch/npy.h"
#include "effects/effects.h"
#include "fastdata_native.h"
#include "jpeg/jpeg_window.h"
#include "png/png.h"
#include "resize/resample.h"

#include <span>
#include <vector>

namespace fastdata {

bool is_valid(const fd_options &options);

// Where a finished image goes, and what is done to it before.
struct Target {
    void *out;
    const fd_format &format;
    Effects effects{};
};

// Everything a thread keeps from image to image.  Not shared between threads.
class ImageDecoder {
  public:
    // Parses the header.  data: must live until decode() has returned.  Throws std::bad_alloc, as all methods do.
    // index: of a JPEG; its bytes must live as long.
    fd_status open(std::span<const uint8_t> data, const fd_options &options, const StoredIndex &index = {});
    // What became of the index.
    fd_index_use index_use() const { return kind_ == Kind::jpeg ? jpeg_.index_use() : FD_INDEX_UNUSED; }
    int width() const;
    int height() const;

    // Decodes, resizes, crops, flips and stores the opened image.
    fd_status decode(const View &view, const Target &target, const fd_options &options);

    // The same for several views of the image, which is decoded once for all of them.
    fd_status decode(std::span<const View> views, std::span<const Target> targets, const fd_options &options);

    // The same for a window that has been decoded already.
    fd_status resize(const Rows &window, const View &view, const Target &target, const fd_options &options);

    // What a device needs to do it, instead; see jpeg/packed.h.  FD_UNSUPPORTED for what is to be decoded here.
    fd_status pack(const View &view, Effects effects, const fd_options &options, std::vector<uint8_t> &packed);

    fd_status convert(const uint8_t *rgb, int width, int height, const Target &target);

    // Why the latest call failed, or "".
    const char *message() const { return kind_ == Kind::jpeg ? jpeg_.message() : ""; }

    static ImageDecoder &of_this_thread();

  private:
    Box source_of(const View &view, const fd_options &options);
    void finish(const Rows &window, const View &view, const Target &target);
    fd_status read_window(const Box &window, int denominator, bool fast, RowSink *sink, Rows &rows);

    enum class Kind { jpeg, png, npy };
    Kind kind_ = Kind::jpeg;
    JpegDecoder jpeg_;
    PngDecoder png_;
    NpyDecoder npy_;
    Resampler resampler_;
    std::vector<uint8_t> mirror_;
    Buffer canvas_;
};

} // namespace fastdata

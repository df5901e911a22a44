// One image from compressed bytes to its place in the batch.
#pragma once

#include "fastdata_native.h"
#include "jpeg_window.h"
#include "resample.h"

#include <span>
#include <vector>

namespace fastdata {

bool is_valid(const fd_options &options);

// Everything a thread keeps from image to image.  Not shared between threads.
class ImageDecoder {
  public:
    // Decodes, resizes, crops, flips and stores one image.  Throws std::bad_alloc.
    fd_status decode(std::span<const uint8_t> data, const View &view, void *out, const fd_format &format,
                     const fd_options &options);

    // The same for a window that has been decoded already.
    fd_status resize(const Rows &window, const View &view, void *out, const fd_format &format,
                     const fd_options &options);

    fd_status convert(const uint8_t *rgb, int width, int height, void *out, const fd_format &format);

    const char *message() const { return jpeg_.message(); }

    static ImageDecoder &of_this_thread();

  private:
    JpegDecoder jpeg_;
    Resampler resampler_;
    std::vector<uint8_t> mirror_;
};

} // namespace fastdata

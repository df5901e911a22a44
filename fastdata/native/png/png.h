// PNG images by libdeflate, which inflates a whole stream at once.
#pragma once

#include "base/buffer.h"
#include "base/geometry.h"
#include "fastdata_native.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace fastdata {

// One decoder, used for image after image by one thread.
//
// It takes the PNGs that datasets hold: 8 bits a channel, or grey and palettes of fewer, not interlaced, not animated,
// no compressed text.  Whatever else there is, and whatever looks damaged, is Pillow's to judge.
class PngDecoder {
  public:
    PngDecoder();
    ~PngDecoder();
    PngDecoder(const PngDecoder &) = delete;
    PngDecoder &operator=(const PngDecoder &) = delete;

    // Parses the chunks.  data: must live until decode() has returned.
    fd_status open(std::span<const uint8_t> data, int64_t most_pixels);
    int width() const { return header_.width; }
    int height() const { return header_.height; }

    // Decodes a window inside the image; on success rows() shows exactly the window.
    fd_status decode(const Box &window);
    Rows rows() const { return rows_; }

    static bool is_png(std::span<const uint8_t> data);

  private:
    struct Header {
        int width, height, depth, colour;

        int channels() const;
        int bits_per_pixel() const { return depth * channels(); }
        int64_t row_bytes() const { return (int64_t{width} * bits_per_pixel() + 7) / 8; }
    };
    struct Inflater;

    fd_status read_chunk(uint32_t type, std::span<const uint8_t> payload);
    bool is_sane_profile(std::span<const uint8_t> payload);
    Inflater &inflater();
    fd_status expand(const Box &window);

    Header header_{};
    std::vector<uint8_t> palette_; // 4 bytes an entry
    std::vector<std::span<const uint8_t>> parts_;
    Buffer scratch_, joined_, pixels_;
    std::span<uint8_t> filtered_; // rows with their filters, inside scratch_
    std::vector<uint8_t> sane_profile_;
    Rows rows_{};
    std::unique_ptr<Inflater> inflater_;
};

// What unpacks PNGs, for people.
const char *png_library();

// False where it was built without libdeflate.
bool reads_pngs();

} // namespace fastdata

// JPEGs of several scans, progressive ones above all: what is left of a file without its entropy-coded data, and the
// file again from that and its coefficients.
//
// Source: ITU T.81, B.2 (markers) and G.1.2 (coding of progressive scans).
#pragma once

#include "jpeg/jpeg_encode.h"
#include "jpeg/unpacked.h"

#include <array>
#include <cstdint>
#include <cstdio> // jpeglib.h needs it
#include <jpeglib.h>
#include <span>
#include <vector>

namespace fastdata {

// True if the entropy-coded data, from the first scan's marker on, runs to an end marker and holds no marker that may
// not occur there.  one_scan: no other segment may follow before that.
bool has_whole_scans(std::span<const uint8_t> file, size_t scan_at, bool one_scan);

// The same for a file of which nothing is known; false for what is no JPEG.
bool is_whole_jpeg(std::span<const uint8_t> file);

// The file without entropy-coded data.  Empty if it is damaged, or what unscanned() could not make again.
std::vector<uint8_t> without_scans(std::span<const uint8_t> file);

// The head of a file with the same frame and one sequential scan of all components, from what without_scans() gave.
// Empty if there is none.
std::vector<uint8_t> head_of_one_scan(std::span<const uint8_t> skeleton);

// The coefficients of all components, in the order of the frame.
class CoefficientPlanes {
  public:
    // Zeros for the components of an image.  False if they would need more memory.
    bool begin(const jpeg_decompress_struct &jpeg, int64_t memory_bytes);
    // Of a component: its blocks, also those that fill the last MCUs.
    Block &at(int component, int column, int row) {
        Plane &plane = planes_[static_cast<size_t>(component)];
        return plane
            .blocks[static_cast<size_t>(row) * static_cast<size_t>(plane.columns) + static_cast<size_t>(column)];
    }
    int count() const { return count_; }
    // Sampling factors, and blocks across and down, without those that only fill MCUs.
    int across(int component) const { return planes_[static_cast<size_t>(component)].across; }
    int down(int component) const { return planes_[static_cast<size_t>(component)].down; }
    int columns(int component) const { return planes_[static_cast<size_t>(component)].real_columns; }
    int rows(int component) const { return planes_[static_cast<size_t>(component)].real_rows; }
    int mcu_columns() const { return mcu_columns_; }
    int mcu_rows() const { return mcu_rows_; }

  private:
    struct Plane {
        int across = 1, down = 1, columns = 0, real_columns = 0, real_rows = 0;
        std::vector<Block> blocks;
    };
    std::array<Plane, kMostComponents> planes_;
    int count_ = 0, mcu_columns_ = 0, mcu_rows_ = 0;
};

// Makes the file again, of so many bytes and scans at most.  False if the scans cannot be coded by their tables.
struct FileLimits {
    size_t bytes;
    int scans;
};
bool with_scans(std::span<const uint8_t> skeleton, CoefficientPlanes &planes, int padding, FileLimits limits,
                std::vector<uint8_t> &file);

} // namespace fastdata

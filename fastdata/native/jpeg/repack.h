// Stores a JPEG's coefficients anew: baseline, with Huffman tables made for it, and without metadata.
#pragma once

#include "fastdata_native.h"
#include "jpeg/jpeg_window.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fastdata {

// On success `repacked` decodes to the same pixels.  restart_rows: rows of MCUs between restart markers, 0 for none.
// FD_UNSUPPORTED for what baseline cannot hold, or another reader must judge.  Throws std::bad_alloc.
fd_status repack_jpeg(std::span<const uint8_t> data, const JpegLimits &limits, int restart_rows,
                      std::vector<uint8_t> &repacked, std::string &message);

} // namespace fastdata

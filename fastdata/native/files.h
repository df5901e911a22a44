// Files, or parts of them, read whole into memory.
#pragma once

#include "fastdata_native.h"

#include <cstdint>
#include <memory>
#include <string>

namespace fastdata {

struct Bytes {
    std::unique_ptr<uint8_t[]> data;
    int64_t size = 0;
};

// offset: from the file's beginning; length: negative for the rest of the file.
// On failure `reason` says why.
fd_status read_file(const char *path, int64_t offset, int64_t length, Bytes &bytes, std::string &reason);

} // namespace fastdata

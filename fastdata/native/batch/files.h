// Reads files, or parts of them, whole into memory.
#pragma once

#include "base/buffer.h"
#include "fastdata_native.h"

#include <cstdint>
#include <span>
#include <string>

namespace fastdata {

// Memory for one file after the other.  Not shared between threads.
class FileReader {
  public:
    // length: -1 for the rest of the file.  On success bytes() holds what was read, until the next call.  More than
    // most_bytes, and much that begins like no image, is refused before memory is taken for it.
    fd_status read(const char *path, int64_t offset, int64_t length, int64_t most_bytes);
    // How many bytes read() would read.
    fd_status measure(const char *path, int64_t offset, int64_t length, int64_t most_bytes, int64_t &bytes);
    // Into memory of the caller's, as much as there is of it in the file.
    fd_status read_into(std::span<uint8_t> &to, const char *path, int64_t offset);
    std::span<const uint8_t> bytes() const { return {memory_.data(), size_}; }
    const std::string &message() const { return message_; }
    // Of the whole file that was read: bytes, and when it was modified last, in nanoseconds; -1 where that is not
    // known.
    int64_t file_bytes() const { return state_.bytes; }
    int64_t modified_ns() const { return state_.modified_ns; }

    struct State {
        int64_t bytes = -1, modified_ns = -1;
    };

  private:
    fd_status unreadable();
    fd_status measure(int file, int64_t offset, int64_t length, int64_t most_bytes, int64_t &bytes);
    fd_status check(int file, int64_t offset, int64_t wanted, int64_t most_bytes);
    fd_status fill(int file, std::span<uint8_t> &to, int64_t offset);

    Buffer memory_;
    size_t size_ = 0;
    State state_;
    std::string message_;
};

} // namespace fastdata

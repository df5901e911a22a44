#include "batch/files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>

#if defined(_WIN32)
#include <io.h>
#include <vector>
#define NOMINMAX
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <unistd.h>
#endif

namespace fastdata {
namespace {

constexpr int64_t kMostAtOnce = int64_t{1} << 30;
constexpr int64_t kMuch = int64_t{16} << 20, kHeadBytes = 4096; // as in system/files.py

#if defined(_WIN32)
// path: UTF-8, as Python encodes paths.
int open_file(const char *path) {
    const int length = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, nullptr, 0);
    if (length <= 0) {
        errno = EINVAL;
        return -1;
    }
    std::vector<wchar_t> wide(static_cast<size_t>(length));
    MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide.data(), length);
    return _wopen(wide.data(), _O_RDONLY | _O_BINARY);
}
FileReader::State state_of(int file) {
    constexpr int64_t kFrom1601To1970 = 116'444'736'000'000'000; // in units of 100 ns
    FILETIME modified;
    const auto handle = reinterpret_cast<HANDLE>(_get_osfhandle(file));
    if (GetFileType(handle) != FILE_TYPE_DISK) {
        errno = ESPIPE;
        return {};
    }
    if (GetFileTime(handle, nullptr, nullptr, &modified) == 0)
        return {_filelengthi64(file), -1};
    const auto since_1601 = static_cast<int64_t>(uint64_t{modified.dwHighDateTime} << 32 | modified.dwLowDateTime);
    return {_filelengthi64(file), (since_1601 - kFrom1601To1970) * 100};
}
int64_t read_at(int file, uint8_t *to, int64_t bytes, int64_t offset) {
    if (_lseeki64(file, offset, SEEK_SET) < 0)
        return -1;
    return _read(file, to, static_cast<unsigned>(bytes));
}
void close_file(int file) {
    _close(file);
}
#else
int open_file(const char *path) {
    int file;
    do
        file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe is refused, not waited for
    while (file < 0 && errno == EINTR); // a signal came while a slow file system was asked
    return file;
}
FileReader::State state_of(int file) {
    struct stat entry;
    if (fstat(file, &entry) != 0)
        return {};
    if (!S_ISREG(entry.st_mode)) {
        errno = S_ISDIR(entry.st_mode) ? EISDIR : ESPIPE;
        return {};
    }
#if defined(__APPLE__)
    const timespec &modified = entry.st_mtimespec;
#else
    const timespec &modified = entry.st_mtim;
#endif
    return {static_cast<int64_t>(entry.st_size), int64_t{modified.tv_sec} * 1'000'000'000 + modified.tv_nsec};
}
int64_t read_at(int file, uint8_t *to, int64_t bytes, int64_t offset) {
    return pread(file, to, static_cast<size_t>(bytes), static_cast<off_t>(offset));
}
void close_file(int file) {
    close(file);
}
#endif

class OpenFile {
  public:
    explicit OpenFile(const char *path) : number_(open_file(path)) {}
    ~OpenFile() {
        if (number_ >= 0)
            close_file(number_);
    }
    OpenFile(const OpenFile &) = delete;
    OpenFile &operator=(const OpenFile &) = delete;
    int number() const { return number_; }

  private:
    int number_;
};

} // namespace

fd_status FileReader::unreadable() {
    message_ = std::strerror(errno);
    return FD_UNREADABLE;
}

fd_status FileReader::check(int file, int64_t offset, int64_t wanted, int64_t most_bytes) {
    if (wanted > most_bytes) {
        message_ = std::to_string(wanted) + " bytes are more than the limit of " + std::to_string(most_bytes);
        return FD_UNREADABLE;
    }
    if (wanted <= kMuch)
        return FD_OK;
    uint8_t head[kHeadBytes];
    const int64_t got = read_at(file, head, kHeadBytes, offset);
    if (got == kHeadBytes && std::all_of(head, head + kHeadBytes, [](uint8_t byte) { return byte == 0; })) {
        message_ = "it begins with zeros, as no image does";
        return FD_UNREADABLE;
    }
    return FD_OK; // an error of reading is met again
}

fd_status FileReader::measure(int file, int64_t offset, int64_t length, int64_t most_bytes, int64_t &bytes) {
    bytes = 0;
    state_ = {};
    message_.clear();
    if (file < 0)
        return unreadable();
    state_ = state_of(file);
    const int64_t size = state_.bytes;
    if (size < 0)
        return unreadable();
    if (offset < 0 || offset > size || (length >= 0 && length > size - offset)) {
        message_ = "the range lies outside the file of " + std::to_string(size) + " bytes";
        return FD_UNREADABLE;
    }
    bytes = length >= 0 ? length : size - offset;
    return check(file, offset, bytes, most_bytes);
}

fd_status FileReader::fill(int file, std::span<uint8_t> &to, int64_t offset) {
    size_t have = 0;
    while (have < to.size()) {
        const int64_t wanted = std::min(static_cast<int64_t>(to.size() - have), kMostAtOnce);
        const int64_t got = read_at(file, to.data() + have, wanted, offset + static_cast<int64_t>(have));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return unreadable();
        if (got == 0)
            break; // it became shorter since; what is there is judged like any other truncated file
        have += static_cast<size_t>(got);
    }
    to = to.first(have);
    return FD_OK;
}

fd_status FileReader::read(const char *path, int64_t offset, int64_t length, int64_t most_bytes) {
    size_ = 0;
    const OpenFile file(path);
    int64_t wanted = 0;
    if (const fd_status status = measure(file.number(), offset, length, most_bytes, wanted); status != FD_OK)
        return status;
    std::span<uint8_t> to = memory_.take(static_cast<size_t>(wanted));
    const fd_status status = fill(file.number(), to, offset);
    size_ = status == FD_OK ? to.size() : 0;
    return status;
}

fd_status FileReader::measure(const char *path, int64_t offset, int64_t length, int64_t most_bytes, int64_t &bytes) {
    return measure(OpenFile(path).number(), offset, length, most_bytes, bytes);
}

fd_status FileReader::read_into(std::span<uint8_t> &to, const char *path, int64_t offset) {
    message_.clear();
    const OpenFile file(path);
    return file.number() < 0 ? unreadable() : fill(file.number(), to, offset);
}

} // namespace fastdata

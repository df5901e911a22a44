// Keeping C++ inside: what is thrown becomes a status, and messages have their room.
#pragma once

#include "fastdata_native.h"

#include <cstdio>
#include <new>

namespace fastdata {

// Calls work, which returns a status, and turns what it throws into one.
template <typename Work> int32_t guarded(Work work) noexcept {
    try {
        return work();
    } catch (const std::bad_alloc &) {
        return FD_OUT_OF_MEMORY;
    } catch (...) { // threads that cannot be started
        return FD_BAD_REQUEST;
    }
}

// Puts the message of one of several images into its place.
inline void put_message(char *messages, int64_t item, const char *text) {
    if (messages != nullptr)
        std::snprintf(messages + item * FD_MESSAGE_BYTES, FD_MESSAGE_BYTES, "%s", text);
}

} // namespace fastdata

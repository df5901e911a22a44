// Many images with one call.
#pragma once

#include "fastdata_native.h"

#include "batch/image.h"
#include "batch/pool.h"

#include <functional>
#include <span>
#include <vector>

namespace fastdata {

bool is_valid(const fd_geometry &geometry);

// Calls work(item) for every item in [0, count).  pool: who works; null for the calling thread.
void run(Pool *pool, int64_t count, const std::function<void(int64_t)> &work);

int64_t now_ns();

// Memory for the caller, who frees it with fd_free.
fd_status handed_over(const std::vector<uint8_t> &bytes, uint8_t **memory, int64_t *memory_bytes);

// Where each of N strings begins; false when there are fewer.
bool split(const char *strings, int64_t bytes, int64_t count, std::vector<const char *> &begins);

inline int64_t value_or(const int64_t *column, int64_t item, int64_t otherwise) {
    return column != nullptr ? column[item] : otherwise;
}

// FD_CORRUPT, with a message, for bytes of another CRC-32C; expected: -1 if it is not known.
fd_status check(int64_t expected, std::span<const uint8_t> bytes, char *messages, int64_t item);

// These write a status for each image.  pool: who works; null for the calling thread.
void fill(Pool *pool, fd_recipes &recipes, const fd_geometry *geometry, const fd_format &format,
          const fd_options &options);
void read_files(Pool *pool, fd_recipes &recipes, const fd_options &options, uint8_t *const *data, uint8_t *whole);

// Draws N views.  Returns the first item without one, because its image is smaller than a random crop; -1 if all have
// one; -2 for sizes that cannot be.
int64_t draw_batch(int64_t count, const int64_t *sizes_px, const int64_t *indices, const int64_t *occurrences,
                   const int64_t *given, const fd_geometry &geometry, const fd_views &columns);

} // namespace fastdata

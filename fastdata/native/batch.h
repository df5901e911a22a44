// Many images with one call.
#pragma once

#include "fastdata_native.h"

#include "image.h"
#include "pool.h"

#include <functional>
#include <vector>

namespace fastdata {

bool is_valid(const fd_geometry &geometry);

// Calls work(item) for every item in [0, count).  pool: who works; null for the calling thread.
void run(Pool *pool, int64_t count, const std::function<void(int64_t)> &work);

int64_t now_ns();

// Memory for the caller, who frees it with fd_free.
fd_status handed_over(const std::vector<uint8_t> &bytes, uint8_t **memory, int64_t *memory_bytes);

// These write a status for each image.  pool: who works; null for the calling thread.
void load_batch(Pool *pool, fd_files &files, const fd_geometry &geometry, const fd_format &format,
                const fd_options &options);
void read_batch(Pool *pool, fd_files &files, const fd_options &options, uint8_t *const *data, uint8_t *whole);
void decode_batch(Pool *pool, const fd_images &images, const fd_format &format, const fd_options &options);

// Draws N views.  Returns the first item without one, because its image is smaller than a random crop; -1 if all have
// one; -2 for sizes that cannot be.
int64_t draw_batch(int64_t count, const int64_t *sizes_px, const int64_t *indices, const int64_t *occurrences,
                   const int64_t *given, const fd_geometry &geometry, const fd_views &columns);

} // namespace fastdata

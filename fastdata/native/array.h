// Images that lie in memory as one array: nothing is decoded, only cropped, resized, flipped and stored.
#pragma once

#include "fastdata_native.h"

#include "pool.h"

namespace fastdata {

// Writes a status for each image.  pool: who works; null for the calling thread.
void load_arrays(Pool *pool, fd_arrays &arrays, const fd_geometry &geometry, const fd_format &format,
                 const fd_options &options);

} // namespace fastdata

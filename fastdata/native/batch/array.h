// Images that lie in memory as one array: nothing is decoded, only cropped, resized, flipped and stored.
#pragma once

#include "fastdata_native.h"

#include "resize/resample.h"

namespace fastdata {

bool is_valid(const fd_array &array);

// A window of one image as 4-byte pixels, valid until this thread's next call.
Rows gather(const fd_array &array, int64_t row, const Box &window);

// Images that one thread takes at a time, so that small ones do not cost a look at the pool each.
// out_size_px: of the results; 0 where their sizes differ.
int64_t images_at_once(const fd_array &array, const int32_t out_size_px[2]);

} // namespace fastdata

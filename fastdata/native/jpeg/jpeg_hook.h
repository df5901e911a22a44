// The one place where a private struct of libjpeg's is written.
#pragma once

#include <cstdio> // jpeglib.h needs it
#include <jpeglib.h>

namespace fastdata {

// What libjpeg calls for each MCU; the decoder's owner, found by client_data, supplies it.
using DecodeMcu = boolean (*)(j_decompress_ptr, JBLOCKROW *);

// Call between jpeg_start_decompress and the first row, if replaces_decode_mcu().
void replace_decode_mcu(jpeg_decompress_struct &jpeg, DecodeMcu decode_mcu);

// True if that was seen to work, when this library was loaded: in a process with another libjpeg, whose functions may
// come before those that this was built with, it might not.
bool replaces_decode_mcu();

} // namespace fastdata

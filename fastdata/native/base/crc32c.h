// CRC-32C (Castagnoli), by which shards tell whether an image is as it was written.  Source: RFC 3720, appendix B.4.
#pragma once

#include <cstdint>
#include <span>

namespace fastdata {

uint32_t crc32c(std::span<const uint8_t> data);

} // namespace fastdata

// Memory that one owner uses again for image after image.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace fastdata {

// The only place that makes room.  Memory is not zeroed and keeps nothing across calls of take().  Room for one huge
// image is given back with the next smaller one.  Not shared between threads.
class Buffer {
  public:
    // Exactly so many bytes, valid until the next call.  Throws std::bad_alloc.
    std::span<uint8_t> take(size_t bytes) {
        if (room_ < bytes || (room_ > kKeptBytes && bytes < room_ / 2)) {
            memory_.reset(); // before taking more
            room_ = 0;
            memory_.reset(new uint8_t[bytes]);
            room_ = bytes;
        }
        return {memory_.get(), bytes};
    }
    uint8_t *data() const { return memory_.get(); }
    size_t room() const { return room_; }

  private:
    static constexpr size_t kKeptBytes = size_t{16} << 20;

    std::unique_ptr<uint8_t[]> memory_;
    size_t room_ = 0;
};

} // namespace fastdata

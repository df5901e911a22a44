// libFuzzer target: any bytes as raw pixels, and what is done to them: converted with effects, resized by any view, and
// moved.  Plain loops must give what the processor's own give, and a mistake in sizes must be an answer, not a crash.
#include "fastdata_native.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace {

constexpr size_t kChoiceBytes = 24, kMostEffects = 3;
constexpr int kMostSide = 72;
constexpr fd_options kOptions = {0, 0, 20, int64_t{1} << 16, int64_t{4} << 20, int64_t{1} << 30};

using Pixels = std::vector<uint8_t>;

// What `work` gives by the processor's own loops and by plain ones must be the same.
template <typename Work> void compare(size_t out_bytes, Work work) {
    static const std::string own = fd_kernels();
    Pixels fast(out_bytes), plain(out_bytes);
    const int32_t status = work(fast.data());
    fd_choose_kernels("plain");
    const int32_t again = work(plain.data());
    fd_choose_kernels(own.c_str());
    if (status != again || (status == FD_OK && fast != plain))
        std::abort();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < kChoiceBytes)
        return 0;
    const std::span<const uint8_t> choice(data + size - kChoiceBytes, kChoiceBytes);
    const int width = 1 + choice[0] % kMostSide, height = 1 + choice[1] % kMostSide;
    Pixels rgb(static_cast<size_t>(width) * static_cast<size_t>(height) * 3, choice[2]);
    std::memcpy(rgb.data(), data, std::min(rgb.size(), size - kChoiceBytes));
    std::array<fd_effect, kMostEffects> effects{};
    for (size_t number = 0; number < kMostEffects; ++number) {
        fd_effect &effect = effects[number];
        effect.kind = choice[3 + number] % (FD_EFFECT_KINDS + 1); // the last does not exist
        effect.filter = choice[6] >> (2 * number) & 3;
        const bool moves = effect.kind == FD_AFFINE || effect.kind == FD_PERSPECTIVE;
        for (size_t i = 0; i < 8; ++i)
            effect.values[i] = moves ? (choice[8 + i] - 128) / (i < 6 ? 32.0 : 4096.0) : choice[8 + i] % 24 / 4.0;
    }
    static const std::vector<uint32_t> table(3 * 256, 1);
    const bool looked_up = (choice[7] & 1) != 0;
    const fd_format format = {
        choice[7] >> 1 & 1, looked_up ? FD_TABLE_32BIT : FD_UINT8, 3, looked_up ? table.data() : nullptr, {0, 0}};
    compare(rgb.size() * 4, [&](uint8_t *out) {
        return fd_convert(rgb.data(), width, height, effects.data(), choice[6] & 3, out, &format);
    });

    const int32_t out_size[2] = {1 + choice[16] % kMostSide, 1 + choice[17] % kMostSide};
    const size_t out_pixels = static_cast<size_t>(out_size[0]) * static_cast<size_t>(out_size[1]);
    compare(out_pixels * 3,
            [&](uint8_t *out) { return fd_warp(rgb.data(), width, height, effects.data(), out_size, out); });

    int32_t window[4] = {choice[18] % width, choice[19] % height, width, height};
    int32_t resize[2] = {out_size[0], out_size[1]};
    int32_t crop[4] = {choice[20] % 20 - 10, choice[21] % 20 - 10, 0, 0};
    crop[2] = crop[0] + out_size[0], crop[3] = crop[1] + out_size[1];
    uint8_t flips[4] = {}, outside[4] = {static_cast<uint8_t>(choice[22] >> 4 & 3), choice[0], choice[1], 9};
    for (size_t i = 0; i < 4; ++i)
        flips[i] = choice[22] >> i & 1;
    int32_t filter = choice[23] % (FD_TENSOR_BICUBIC + 2); // the last does not exist
    const fd_views view = {window, resize, crop, flips, &filter, outside};
    const int64_t stride = int64_t{width} * 3, first = window[1] * stride + window[0] * 3;
    compare(out_pixels * 3 * 4, [&](uint8_t *out) {
        return fd_resize(rgb.data() + first, static_cast<int64_t>(rgb.size()) - first, 3, stride, &view, out, &format,
                         &kOptions);
    });
    return 0;
}

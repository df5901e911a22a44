// What kernels on a device rely on without looking: an image for one (jpeg/packed.h) must be so, whatever it is of.
#pragma once

#include "effects/packed_steps.h"
#include "jpeg/packed.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace fastdata {

inline void check_packed(const uint8_t *packed, int64_t packed_bytes) {
    const auto must = [](bool is_so) {
        if (!is_so)
            std::abort();
    };
    PackedHead head;
    must(packed_bytes >= static_cast<int64_t>(sizeof head) && packed_bytes % 16 == 0);
    std::memcpy(&head, packed, sizeof head);
    must(head.bytes == packed_bytes);
    const auto number_at = [&](int64_t at) {
        must(at >= 0 && at % 4 == 0 && at + 4 <= packed_bytes);
        int32_t number = 0;
        std::memcpy(&number, packed + at, sizeof number);
        return number;
    };
    const bool is_grey = head.components == 1;
    must(is_grey || head.components == 3);
    const int across = is_grey ? 1 : 1 + head.halved_x, down = is_grey ? 1 : 1 + head.halved_y;
    // The samples of all pixels that are resized, and those beside them that chroma is made of.
    const auto has_samples = [&](int begin, int length, int whole, int first_mcu, int mcus, int mcu_size, int halved) {
        const int from = std::max(0, begin - halved), to = std::min(whole, begin + length + halved);
        must(begin >= 0 && length > 0 && begin + length <= whole);
        must(first_mcu * mcu_size <= from && to <= (first_mcu + mcus) * mcu_size);
    };
    has_samples(head.left, head.source_width, head.width, head.first_column, head.columns, 8 * across, across - 1);
    has_samples(head.top, head.source_height, head.height, head.first_row, head.rows, 8 * down, down - 1);
    const int in_mcu = across * down + head.components - 1;
    must(int64_t{head.columns} * head.rows * in_mcu * 64 <= INT32_MAX);
    for (int step = 0; step < 64 * head.components; ++step)
        must(number_at(head.steps_at + 4 * step) >= 0);
    const auto has_taps = [&](int at, int results, int taps, int source) {
        must(results > 0 && taps > 0);
        for (int result = 0; result < results; ++result) {
            const int first = number_at(at + 4 * result);
            must(first >= 0 && first + taps <= source);
        }
        number_at(at + 4 * (int64_t{results} * (1 + taps) - 1));
    };
    has_taps(head.across_at, head.result_width, head.across_taps, head.source_width);
    has_taps(head.down_at, head.result_height, head.down_taps, head.source_height);
    must(head.steps >= 0);
    for (int number = 0; number < head.steps; ++number) {
        PackedStep step;
        const int64_t at = head.effects_at + static_cast<int64_t>(sizeof step) * number;
        must(at >= 0 && at % 4 == 0 && at + static_cast<int64_t>(sizeof step) <= packed_bytes);
        std::memcpy(&step, packed + at, sizeof step);
        const int places = head.result_width + head.result_height;
        const int needed = step.kind == kStepLevels  ? 3 * 256
                           : step.kind == kStepScale ? 4 * places
                           : step.kind == kStepBlur  ? 4 * (step.values[0] + step.values[1])
                           : step.kind == kStepWarp  ? 64
                                                     : 0;
        must(step.kind >= kStepLevels && step.kind <= kStepWarp);
        must(step.kind != kStepWarp || step.data_at % 8 == 0);
        must(step.kind != kStepBlur ||
             (head.blurs == 1 && step.values[0] / 2 < head.result_width && step.values[1] / 2 < head.result_height));
        must(step.data_at >= 0 && step.data_at % 4 == 0 && int64_t{step.data_at} + needed <= packed_bytes);
    }
    const int in_row = head.tile > 0 ? (head.columns + head.tile - 1) / head.tile : 0;
    must(head.tiles == in_row * head.rows && head.tiles > 0 && head.tiles_at <= head.bytes - 16);
    if (head.is_entropy_coded == 0) {
        must(head.tile * in_mcu <= kMostPackedBlocks);
        for (int tile = 0; tile < head.tiles; ++tile)
            must(number_at(head.begins_at + 4 * tile) <= number_at(head.begins_at + 4 * (tile + 1)));
        must(number_at(head.begins_at) == 0);
        must(head.tiles_at + number_at(head.begins_at + 4 * head.tiles) <= head.bytes - 16);
        return;
    }
    for (int tile = 0; tile < head.tiles; ++tile) {
        const int bit = number_at(head.begins_at + static_cast<int64_t>(sizeof(PackedSegment)) * tile);
        must(bit >= 0 && head.tiles_at + bit / 8 < head.bytes);
    }
    for (int component = 0; component < 2 * head.components; ++component) {
        const int at = head.codes_at[component];
        must(at % 4 == 0 && at > 0 && at + static_cast<int64_t>(sizeof(PackedTable)) <= head.bytes);
        for (int code = 0; code < 1 << kPackedBits; ++code) {
            int16_t entry = 0;
            std::memcpy(&entry, packed + at + 2 * code, sizeof entry);
            must(entry >= 0 && entry >> 8 <= kPackedBits);
        }
    }
}

} // namespace fastdata

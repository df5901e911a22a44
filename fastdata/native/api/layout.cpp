// Sizes and offsets of the interface's structs, so that nobody who repeats them reads other memory than is meant.
#include "fastdata_native.h"
#include "jpeg/packed.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

namespace {

#define AT(member) offsetof(Struct, member)

template <typename Struct> struct LayoutOf;

template <> struct LayoutOf<fd_format> {
    using Struct = fd_format;
    static constexpr size_t numbers[] = {sizeof(Struct), AT(layout), AT(element), AT(channels), AT(table), AT(strides)};
};

template <> struct LayoutOf<fd_options> {
    using Struct = fd_options;
    static constexpr size_t numbers[] = {sizeof(Struct), AT(pass_order),       AT(fast),          AT(max_scans),
                                         AT(max_pixels), AT(max_memory_bytes), AT(max_file_bytes)};
};

template <> struct LayoutOf<fd_indexes> {
    using Struct = fd_indexes;
    static constexpr size_t numbers[] = {sizeof(Struct), AT(data),        AT(data_bytes),
                                         AT(file_bytes), AT(modified_ns), AT(uses)};
};

template <> struct LayoutOf<fd_views> {
    using Struct = fd_views;
    static constexpr size_t numbers[] = {sizeof(Struct), AT(windows_px), AT(resizes_px), AT(crops_px),
                                         AT(flips),      AT(filters),    AT(outside)};
};

template <> struct LayoutOf<fd_op> {
    using Struct = fd_op;
    static constexpr size_t numbers[] = {
        sizeof(Struct),    AT(kind),    AT(width),     AT(height),  AT(shorter),      AT(longest),
        AT(pad_if_needed), AT(padding), AT(outside),   AT(filters), AT(filter_count), AT(scale_is_of_area),
        AT(scale),         AT(ratio),   AT(log_ratio), AT(p),       AT(chances)};
};

template <> struct LayoutOf<fd_geometry> {
    using Struct = fd_geometry;
    static constexpr size_t numbers[] = {sizeof(Struct), AT(ops), AT(op_count), AT(key)};
};

template <> struct LayoutOf<fd_array> {
    using Struct = fd_array;
    static constexpr size_t numbers[] = {sizeof(Struct),    AT(memory),  AT(memory_bytes), AT(first_byte),
                                         AT(strides_bytes), AT(images),  AT(width),        AT(height),
                                         AT(channels),      AT(reserved)};
};

template <> struct LayoutOf<fd_recipes> {
    using Struct = fd_recipes;
    static constexpr size_t numbers[] = {sizeof(Struct),  AT(count),        AT(paths),
                                         AT(paths_bytes), AT(offsets),      AT(lengths),
                                         AT(crcs),        AT(data),         AT(data_bytes),
                                         AT(array),       AT(rows),         AT(same_as),
                                         AT(indexes),     AT(views),        AT(indices),
                                         AT(occurrences), AT(given),        AT(out_size_px),
                                         AT(out),         AT(effects),      AT(effects_per_image),
                                         AT(kept),        AT(statuses),     AT(messages),
                                         AT(read_bytes),  AT(records),      AT(record_bytes),
                                         AT(packed),      AT(packed_bytes), AT(read_ns),
                                         AT(decode_ns)};
};

template <> struct LayoutOf<fd_effect> {
    using Struct = fd_effect;
    static constexpr size_t numbers[] = {sizeof(Struct), AT(kind), AT(filter), AT(values)};
};

template <> struct LayoutOf<fastdata::PackedHead> {
    using Struct = fastdata::PackedHead;
    static constexpr size_t numbers[] = {sizeof(Struct),  AT(bytes),        AT(components),    AT(halved_x),
                                         AT(halved_y),    AT(width),        AT(height),        AT(left),
                                         AT(top),         AT(source_width), AT(source_height), AT(first_column),
                                         AT(first_row),   AT(columns),      AT(rows),          AT(is_entropy_coded),
                                         AT(tile),        AT(tiles),        AT(result_width),  AT(result_height),
                                         AT(across_taps), AT(down_taps),    AT(down_first),    AT(flip_x),
                                         AT(flip_y),      AT(steps),        AT(effects_at),    AT(blurs),
                                         AT(steps_at),    AT(across_at),    AT(down_at),       AT(begins_at),
                                         AT(tiles_at),    AT(codes_at[0]),  AT(codes_at[1]),   AT(codes_at[2]),
                                         AT(codes_at[3]), AT(codes_at[4]),  AT(codes_at[5])};
};

#undef AT

struct Layout {
    const char *name;
    std::span<const size_t> numbers; // the size, and where each member begins
};

const Layout kLayouts[] = {
    {"fd_format", LayoutOf<fd_format>::numbers},
    {"fd_options", LayoutOf<fd_options>::numbers},
    {"fd_indexes", LayoutOf<fd_indexes>::numbers},
    {"fd_views", LayoutOf<fd_views>::numbers},
    {"fd_op", LayoutOf<fd_op>::numbers},
    {"fd_geometry", LayoutOf<fd_geometry>::numbers},
    {"fd_array", LayoutOf<fd_array>::numbers},
    {"fd_recipes", LayoutOf<fd_recipes>::numbers},
    {"PackedHead", LayoutOf<fastdata::PackedHead>::numbers},
    {"fd_effect", LayoutOf<fd_effect>::numbers},
};

} // namespace

int32_t fd_struct_layout(const char *name, int32_t *numbers, int32_t most) {
    if (name == nullptr || (numbers == nullptr && most > 0))
        return 0;
    for (const Layout &layout : kLayouts) {
        if (std::strcmp(name, layout.name) != 0)
            continue;
        const size_t count = std::min(layout.numbers.size(), static_cast<size_t>(std::max(0, most)));
        for (size_t i = 0; i < count; ++i)
            numbers[i] = static_cast<int32_t>(layout.numbers[i]);
        return static_cast<int32_t>(layout.numbers.size());
    }
    return 0;
}

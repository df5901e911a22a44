// Compares the inner loops of this processor with plain C++, bit by bit, on random rows and filters.  Links only the
// kernels, so that it can be built for another processor and run in an emulator.
#include "kernels/kernels.h"
#include "kernels/unpacked_tile.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

using namespace fastdata;

namespace {

std::mt19937 generator(1);

int up_to(int most) {
    return std::uniform_int_distribution(1, most)(generator);
}

std::vector<uint8_t> noise(int bytes) {
    std::vector<uint8_t> values(static_cast<size_t>(bytes));
    for (uint8_t &value : values)
        value = static_cast<uint8_t>(generator());
    return values;
}

std::vector<uint8_t> room(int bytes) {
    return std::vector<uint8_t>(static_cast<size_t>(bytes));
}

// The fourth byte of a pixel is anything.
bool same_colours(const std::vector<uint8_t> &a, const std::vector<uint8_t> &b) {
    for (size_t i = 0; i < a.size(); ++i)
        if (i % kPixelBytes != 3 && a[i] != b[i])
            return false;
    return true;
}

bool horizontal_agrees(const Kernels &set, Filter filter) {
    const int width = up_to(200), height = up_to(9), results = up_to(150), stride = width * kPixelBytes;
    Axis axis;
    axis.build(filter, width, {0, static_cast<double>(width)}, results, 0, results);
    if (axis.is_identity())
        return true;
    const std::vector<uint8_t> pixels = noise(stride * height);
    const Rows rows = {pixels.data() + axis.source_begin() * kPixelBytes, stride,
                       axis.source_end() - axis.source_begin(), height};
    std::vector<uint8_t> ours = room(results * height * kPixelBytes), plain = ours;
    set.horizontal(rows, axis, ours.data(), results * kPixelBytes);
    kPlainKernels.horizontal(rows, axis, plain.data(), results * kPixelBytes);
    return same_colours(ours, plain);
}

bool vertical_agrees(const Kernels &set, Filter filter) {
    const int width = up_to(90), height = up_to(200), results = up_to(150), stride = width * kPixelBytes;
    Axis axis;
    axis.build(filter, height, {0, static_cast<double>(height)}, results, 0, results);
    if (axis.is_identity())
        return true;
    const std::vector<uint8_t> pixels = noise(stride * height);
    std::vector<uint8_t> ours = room(stride), plain = ours;
    for (int result = 0; result < results; ++result) {
        const uint8_t *first = pixels.data() + (axis.source_begin() + axis.first(result)) * stride;
        set.vertical(first, stride, axis, result, ours.data(), stride);
        kPlainKernels.vertical(first, stride, axis, result, plain.data(), stride);
        if (ours != plain)
            return false;
    }
    return true;
}

bool moves_agree(const Kernels &set) {
    const int count = up_to(200);
    const std::vector<uint8_t> pixels = noise(count * kPixelBytes);
    std::vector<uint8_t> ours = room(count * 3), plain = ours, mirrored = room(count * kPixelBytes), mirror = mirrored;
    set.pack(pixels.data(), count, ours.data());
    kPlainKernels.pack(pixels.data(), count, plain.data());
    bool same = ours == plain;
    set.split(pixels.data(), count, ours.data(), ours.data() + count, ours.data() + 2 * count);
    kPlainKernels.split(pixels.data(), count, plain.data(), plain.data() + count, plain.data() + 2 * count);
    same = same && ours == plain;
    set.reverse(pixels.data(), count, mirrored.data());
    kPlainKernels.reverse(pixels.data(), count, mirror.data());
    same = same && mirrored == mirror;
    set.unpack(ours.data(), count, mirrored.data());
    kPlainKernels.unpack(ours.data(), count, mirror.data());
    return same && mirrored == mirror;
}

bool sums_agree(const Kernels &set) {
    const int count = up_to(300), taps = up_to(31);
    const size_t step = static_cast<size_t>(up_to(9));
    const std::vector<uint8_t> noisy = noise(count + taps * static_cast<int>(step) + taps);
    const std::vector<float> rows(noisy.begin(), noisy.end());
    std::vector<float> weights(noisy.end() - taps, noisy.end());
    for (float &weight : weights)
        weight /= 1000.0F;
    std::vector<float> ours(static_cast<size_t>(count)), plain = ours;
    set.weighted_sum(rows.data(), step, weights.data(), taps, ours.data(), ours.size());
    kPlainKernels.weighted_sum(rows.data(), step, weights.data(), taps, plain.data(), plain.size());
    return ours == plain;
}

bool maps_agree(const Kernels &set) {
    const int width = up_to(40), height = up_to(40), count = up_to(100), stride = width * kPixelBytes;
    const std::vector<uint8_t> pixels = noise(stride * height);
    const Rows image = {pixels.data(), stride, width, height};
    std::vector<double> x, y;
    std::vector<int32_t> columns;
    for (int i = 0; i < count; ++i) {
        x.push_back(std::uniform_real_distribution(0.0, static_cast<double>(width))(generator));
        y.push_back(std::uniform_real_distribution(0.0, static_cast<double>(height))(generator));
        columns.push_back(i);
    }
    const Places places = {x.data(), y.data(), columns.data(), count};
    std::vector<uint8_t> ours = room(count * kPixelBytes), plain = ours;
    set.bilinear(image, places, ours.data());
    kPlainKernels.bilinear(image, places, plain.data());
    bool same = same_colours(ours, plain);
    set.bicubic(image, places, ours.data());
    kPlainKernels.bicubic(image, places, plain.data());
    return same && same_colours(ours, plain);
}

bool effects_agree(const Kernels &set) {
    const int width = up_to(50), height = up_to(20);
    const std::vector<uint8_t> pixels = noise(width * height * kPixelBytes);
    const auto count = static_cast<size_t>(width * height);
    const float factor = std::uniform_real_distribution(-0.5F, 3.0F)(generator);
    const BoxWeights box = {up_to(9), 700'000, 90'000};
    const auto run = [&](const EffectLoops &loops) {
        std::vector<uint8_t> all = pixels, other = pixels;
        std::vector<float> sums(all.size(), 3.0F);
        if (width > 2)
            loops.sharpen_row(pixels.data(), pixels.data(), pixels.data(), other.data(),
                              static_cast<size_t>(width) * kPixelBytes, factor);
        loops.saturate(all.data(), count, factor);
        loops.add_weighted(all.data(), all.size(), factor, sums.data());
        loops.blend_with_sums(all.data(), all.size(), sums.data(), factor);
        std::vector<float> levels(other.begin(), other.end());
        loops.blend_into_sums(pixels.data(), pixels.size(), factor, levels.data());
        all.insert(all.end(), levels.begin(), levels.end());
        all.insert(all.end(), other.begin(), other.end());
        loops.box_down(pixels.data(), other.data(), width, height, box);
        all.insert(all.end(), other.begin(), other.end());
        loops.make_grey(other.data(), count);
        all.insert(all.end(), other.begin(), other.end());
        all.push_back(static_cast<uint8_t>(loops.luma_sum(pixels.data(), count) % 251));
        const TensorBlend blend = {factor, 1.0F - factor};
        other = pixels;
        loops.tensors_turn_hue(other.data(), count, factor / 6);
        all.insert(all.end(), other.begin(), other.end());
        loops.tensors_saturate(other.data(), count, blend);
        all.push_back(static_cast<uint8_t>(loops.tensors_grey_sum(other.data(), count) % 251));
        if (width > 2)
            loops.tensors_sharpen_row(pixels.data(), pixels.data(), pixels.data(), other.data(),
                                      static_cast<size_t>(width) * kPixelBytes, factor);
        all.insert(all.end(), other.begin(), other.end());
        loops.tensors_make_grey(other.data(), count);
        all.insert(all.end(), other.begin(), other.end());
        return all;
    };
    return run(set.effects) == run(kPlainKernels.effects);
}

bool normals_agree(const Kernels &set) {
    const auto word = [] { return static_cast<uint32_t>(generator()); };
    const NormalDraws draws = {word(), word(), word(), {word(), word()}};
    std::vector<float> ours(4 * kNormalCounters), plain = ours;
    const uint32_t first = word();
    set.normals(draws, first, ours.data());
    kPlainKernels.normals(draws, first, plain.data());
    return std::memcmp(ours.data(), plain.data(), ours.size() * sizeof ours[0]) == 0;
}

// From coefficients to pixels.  Some blocks are flat, and some have values that no image has.
bool jpegs_agree(const Kernels &set) {
    constexpr int kBlocks = 5, kPixels = 64 * kBlocks;
    alignas(16) std::array<int16_t, kPixels> coefficients{};
    alignas(16) std::array<uint16_t, 64> steps;
    const int bits = up_to(16), most_steps = up_to(3) == 1 ? 65535 : 40;
    for (size_t block = 0; block < kBlocks; ++block)
        for (int values = up_to(5) == 1 ? 0 : up_to(64); values > 0; --values) {
            const bool in_first_row = block == 0 || up_to(3) == 1;
            const auto place = static_cast<size_t>(up_to(in_first_row ? 8 : 64)) - 1;
            coefficients[64 * block + place] = static_cast<int16_t>(static_cast<uint16_t>(generator()) >> (16 - bits));
            if (up_to(2) == 1)
                coefficients[64 * block + place] = static_cast<int16_t>(~coefficients[64 * block + place]);
        }
    for (uint16_t &step : steps)
        step = static_cast<uint16_t>(up_to(most_steps));
    const int count = up_to(150);
    const std::vector<uint8_t> row = noise(count + 2 * kJpegSlack + 1), other = noise(count + 2 * kJpegSlack + 1);
    const std::vector<uint8_t> luma = noise(2 * count + kJpegSlack);
    const auto run = [&](const JpegLoops &loops) {
        std::vector<uint8_t> all = room(kPixels);
        std::array<IdctBlock, kBlocks> blocks;
        for (size_t i = 0; i < kBlocks; ++i)
            blocks[i] = {coefficients.data() + 64 * i, steps.data(), all.data() + 8 * i, 8 * kBlocks};
        loops.idct(blocks.data(), kBlocks);
        std::vector<uint8_t> wide = room(2 * (count + kJpegSlack)), between = wide;
        std::vector<uint8_t> pixels = room((2 * count + kJpegSlack) * kPixelBytes), grey = pixels;
        loops.widen(row.data() + kJpegSlack, count, wide.data());
        loops.widen_between(row.data() + kJpegSlack, other.data() + kJpegSlack, count, between.data());
        loops.to_rgb(luma.data(), wide.data(), between.data(), 2 * count, pixels.data());
        loops.grey_to_rgb(luma.data(), 2 * count, grey.data());
        pixels.resize(static_cast<size_t>(2 * count * kPixelBytes));
        grey.resize(pixels.size());
        all.insert(all.end(), pixels.begin(), pixels.end());
        all.insert(all.end(), grey.begin(), grey.end());
        return all;
    };
    return set.jpeg == nullptr || run(*set.jpeg) == run(kPlainJpegLoops);
}

// Blocks of random tiles, whose values may end too soon.
bool blocks_agree(const Kernels &set) {
    constexpr int kBlocks = 6;
    constexpr std::array<uint8_t, kBlocks> kComponents = {0, 0, 0, 0, 1, 2};
    std::vector<uint8_t> groups = noise(kBlocks), differences = noise(64), classes = noise(64), masks = noise(64);
    const std::vector<uint8_t> values = noise(kBlocks * 8 * 12 + 16);
    const auto value_bits = static_cast<size_t>(up_to(kBlocks * 8 * 12 * 8));
    if (up_to(2) == 1) // narrow widths, as in most images
        for (uint8_t &each : classes)
            each &= 0x49;
    const auto run = [&](const Kernels &used, std::vector<int16_t> &blocks) {
        UnpackedTile tile;
        tile.dc_width = {5, 16, 0, 0};
        tile.groups = groups.data();
        tile.differences = differences.data();
        tile.classes = classes.data();
        tile.masks = masks.data();
        tile.values = values.data();
        tile.value_bits = value_bits;
        std::array<int16_t *, kBlocks> places;
        for (size_t i = 0; i < kBlocks; ++i)
            places[i] = blocks.data() + 64 * i;
        const bool complete = used.read_blocks(tile, kComponents.data(), kBlocks, places.data());
        return std::array<size_t, 3>{complete ? tile.value_bit : 0, tile.class_bit, tile.difference_bit};
    };
    std::vector<int16_t> ours(64 * kBlocks), plain = ours;
    return run(set, ours) == run(kPlainKernels, plain) && ours == plain;
}

// Blocks of few values, most of them small, which are written, and read again where that was possible.
bool groups_agree(const Kernels &set) {
    constexpr int kBlocks = 6;
    constexpr std::array<uint8_t, kBlocks> kComponents = {};
    std::vector<int16_t> blocks(64 * kBlocks);
    const int values = up_to(300), bits = up_to(40) == 1 ? 16 : up_to(12);
    for (int i = 0; i < values; ++i)
        blocks[static_cast<size_t>(up_to(64 * kBlocks) - 1)] =
            static_cast<int16_t>(up_to(1 << bits) - up_to(1 << bits) + (bits == 16 && i == 0 ? -32768 : 0));
    struct Written {
        bool is_complete;
        std::vector<uint8_t> groups, masks, classes, values;
        bool operator==(const Written &) const = default;
    };
    const auto run = [&](const Kernels &used) {
        Written made{false, room(kBlocks), room(8 * kBlocks), room(3 * kBlocks + 4), room(kBlocks * 8 * 12 + 8 + 16)};
        TileGroups to{made.groups.data(), made.masks.data(), BitPacker(made.classes.data()),
                      WideBitPacker(made.values.data())};
        made.is_complete = used.write_groups(blocks.data(), kBlocks, to);
        if (!made.is_complete)
            return Written{};
        std::fill(to.masks, made.masks.data() + made.masks.size(), uint8_t{0});
        std::fill(to.classes.finish(), made.classes.data() + made.classes.size(), uint8_t{0});
        std::fill(to.values.finish(), made.values.data() + made.values.size(), uint8_t{0});
        return made;
    };
    const Written ours = run(set), plain = run(kPlainKernels);
    if (!(ours == plain))
        return false;
    if (!ours.is_complete)
        return bits > 11;
    UnpackedTile tile;
    std::vector<uint8_t> differences(64);
    tile.groups = ours.groups.data();
    tile.masks = ours.masks.data();
    tile.classes = ours.classes.data();
    tile.values = ours.values.data();
    tile.differences = differences.data();
    tile.value_bits = 8 * ours.values.size();
    std::vector<int16_t> again(64 * kBlocks);
    std::array<int16_t *, kBlocks> places;
    for (size_t i = 0; i < kBlocks; ++i) {
        places[i] = again.data() + 64 * i;
        blocks[64 * i] = 0; // DC values are written elsewhere
    }
    return kPlainKernels.read_blocks(tile, kComponents.data(), kBlocks, places.data()) && again == blocks;
}

} // namespace

int main() {
    const Kernels &set = kernels();
    for (int round = 0; round < 600; ++round) {
        constexpr Filter kFilters[] = {Filter::nearest,         Filter::lanczos,       Filter::bilinear,
                                       Filter::bicubic,         Filter::box,           Filter::hamming,
                                       Filter::tensor_bilinear, Filter::tensor_bicubic};
        const Filter filter = kFilters[round % 8];
        if (!horizontal_agrees(set, filter) || !vertical_agrees(set, filter) || !moves_agree(set) || !sums_agree(set) ||
            !maps_agree(set) || !effects_agree(set) || !normals_agree(set) || !blocks_agree(set) ||
            !groups_agree(set) || !jpegs_agree(set)) {
            std::fprintf(stderr, "kernels_test: %s differs from plain C++ in round %d\n", set.name, round);
            return 1;
        }
    }
    std::printf("kernels_test: %s equals plain C++\n", set.name);
    return 0;
}

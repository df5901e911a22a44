"""Triton kernels that make pixels of packed records: the same to the last bit as libjpeg-turbo's and Pillow's.

Every kernel works on the images of a batch at once: program (p, i) does part p of image i.  What they know of an image
is in its head, in front of its data (`fastdata/native/jpeg/packed.h`), and in a row of the table `Places`.  Heads are
the core's, and so are taps; tiles may be anybody's: a checksum says no more than that they are what was written.  So
every load of a tile's bytes is bounded by the image's end, and a tile that has fewer values than it says is told.

Sources: libjpeg-turbo, jidctint.c with the 16-bit products of its vector code, jdsample.c (fancy upsampling),
jdcolor.c; Pillow, Resample.c.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
from __future__ import annotations

import triton
import triton.language as tl

from fastdata.tables import PACKED_HEAD

__all__ = ["IS_INTERPRETED", "PLACES", "copy_rows", "huffman", "idct", "resample", "to_rgb", "unpack"]

PLACES = ("head", "coefficients", "samples", "pixels", "between", "row", "canvas")  # int64 columns of a batch's table

# Where an image's head has its members, counted in 32 bits.
(
    _BYTES,
    _COMPONENTS,
    _HALVED_X,
    _HALVED_Y,
    _WIDTH,
    _HEIGHT,
    _LEFT,
    _TOP,
    _SOURCE_WIDTH,
    _SOURCE_HEIGHT,
    _FIRST_COLUMN,
    _FIRST_ROW,
    _COLUMNS,
    _ROWS,
    _IS_ENTROPY_CODED,
    _TILE,
    _TILES,
    _RESULT_WIDTH,
    _RESULT_HEIGHT,
    _ACROSS_TAPS,
    _DOWN_TAPS,
    _DOWN_FIRST,
    _FLIP_X,
    _FLIP_Y,
    _STEPS,
    _EFFECTS_AT,
    _BLURS,
    _STEPS_AT,
    _ACROSS_AT,
    _DOWN_AT,
    _BEGINS_AT,
    _TILES_AT,
    _CODES_AT,
    *_,
) = (tl.constexpr(at) for at in range(len(PACKED_HEAD)))

_PLACES = tl.constexpr(len(PLACES))
_HEAD_AT, _COEFFICIENTS_AT, _SAMPLES_AT, _PIXELS_AT, _BETWEEN_AT, _ROW_AT, _CANVAS_AT = (
    tl.constexpr(at) for at in range(len(PLACES))
)

_MOST_BLOCKS = tl.constexpr(64)  # of a tile; kMostPackedBlocks
_WEIGHT_BITS = tl.constexpr(22)  # Pillow's PRECISION_BITS
_HALF_WEIGHT = tl.constexpr(1 << 21)


@triton.jit
def _ones(byte):
    """How many bits of a byte are set."""
    pairs = byte - ((byte >> 1) & 0x55)
    fours = (pairs & 0x33) + ((pairs >> 2) & 0x33)
    return (fours + (fours >> 4)) & 0xF


@triton.jit
def _word(data, first, bit, end, wanted):
    """At least 25 bits from a bit behind byte `first` on, of bytes before `end`; 0 where it is not wanted."""
    at = first + (bit >> 3)
    inside = wanted & (at + 3 < end)
    word = tl.load(data + at, inside, 0).to(tl.uint32)
    word |= tl.load(data + at + 1, inside, 0).to(tl.uint32) << 8
    word |= tl.load(data + at + 2, inside, 0).to(tl.uint32) << 16
    word |= tl.load(data + at + 3, inside, 0).to(tl.uint32) << 24
    return (word >> (bit & 7).to(tl.uint32)).to(tl.int32)


@triton.jit
def _mcu(words):
    """Blocks of an MCU: of luma side by side, of luma in all, and of all components."""
    components = tl.load(words + _COMPONENTS)
    across = tl.where(components == 1, 1, 1 + tl.load(words + _HALVED_X))
    luma = across * tl.where(components == 1, 1, 1 + tl.load(words + _HALVED_Y))
    return across, luma, luma + components - 1


@triton.jit
def unpack(arena, words, table, coefficients, wrong):
    """Tiles to coefficients in natural order; program (t, i) does tile t of image i.

    Args:
        arena: uint8: the batch's packed images.
        words: int32: the same memory.
        table: int64, (N, PLACES).
        coefficients: int16 result, 64 for each block, MCU by MCU.
        wrong: int32 result, (N,): 1 for an image of which a tile has fewer values than it says, or a segment is not
            what its index says; the caller clears it.
    """
    image = tl.program_id(1)
    head = tl.load(table + image * _PLACES + _HEAD_AT)
    words += head // 4
    number = tl.program_id(0)
    if (number < tl.load(words + _TILES)) & (tl.load(words + _IS_ENTROPY_CODED) == 0):
        data = arena + head  # offsets in an image fit 32 bits
        limit = tl.load(words + _BYTES)
        components = tl.load(words + _COMPONENTS)
        _across, luma, in_mcu = _mcu(words)
        columns, tile = tl.load(words + _COLUMNS), tl.load(words + _TILE)
        in_row = tl.cdiv(columns, tile)
        first_mcu = number // in_row * columns + number % in_row * tile
        mcus = tl.minimum(tile, columns - number % in_row * tile)
        count = mcus * in_mcu
        begins = words + tl.load(words + _BEGINS_AT) // 4 + number
        begin = tl.load(words + _TILES_AT) + tl.load(begins)
        end = tl.load(words + _TILES_AT) + tl.load(begins + 1)
        out = coefficients + (tl.load(table + image * _PLACES + _COEFFICIENTS_AT) + first_mcu * in_mcu) * 64

        # DC values: those of a component follow one another.
        block = tl.arange(0, _MOST_BLOCKS)
        is_block = block < count
        component = tl.maximum(block % in_mcu - (luma - 1), 0)
        first_dc = tl.load(data + begin + 3 * component, is_block, 0).to(tl.int32)
        first_dc |= tl.load(data + begin + 3 * component + 1, is_block, 0).to(tl.int32) << 8
        width = tl.load(data + begin + 3 * component + 2, is_block, 0).to(tl.int32)
        groups_at = begin + 3 * components
        differences_at = groups_at + count
        bits_before = tl.cumsum(width, 0) - width
        zigzag = _word(data, differences_at, bits_before, limit, is_block & (width > 0)) & ((1 << width) - 1)
        difference = (zigzag >> 1) ^ -(zigzag & 1)
        dc = first_dc
        for each in tl.static_range(3):
            own = tl.where(component == each, difference, 0)
            dc += tl.where(component == each, tl.cumsum(own, 0), 0)

        # Groups of eight coefficients, in the order of the stream.
        slot = tl.arange(0, 8 * _MOST_BLOCKS)
        owner, group = slot >> 3, slot & 7
        is_slot = owner < count
        there = (tl.load(data + groups_at + owner, is_slot, 0).to(tl.int32) >> group) & 1
        ordinal = tl.cumsum(there, 0) - there
        groups = tl.sum(there, 0)
        classes_at = differences_at + ((tl.sum(width, 0) + 7) >> 3)
        masks_at = classes_at + ((3 * groups + 7) >> 3)
        values_at = masks_at + groups
        is_there = is_slot & (there == 1)
        kind = _word(data, classes_at, 3 * ordinal, limit, is_there) & 7
        bits = tl.where(kind < 6, kind + 1, tl.where(kind == 6, 8, 12))
        mask = tl.load(data + masks_at + ordinal, is_there & (masks_at + ordinal < limit), 0).to(tl.int32)
        all_bits = tl.where(is_there, _ones(mask) * bits, 0)
        first_bit = tl.cumsum(all_bits, 0) - all_bits
        if tl.sum(all_bits, 0) > 8 * (end - values_at):
            tl.store(wrong + image, 1)
        place = owner * 64 + (group & 3) * 16 + (group >> 2) * 4
        for each in tl.static_range(8):
            here = is_there & (((mask >> each) & 1) == 1)
            value = _word(data, values_at, first_bit + _ones(mask & ((1 << each) - 1)) * bits, limit, here)
            value = (value << (32 - bits)) >> (32 - bits)  # with its sign
            value = tl.where(here, tl.where(value >= 0, value + 1, value), 0)
            is_ac = is_slot & ~((group == 0) & (each == 0))
            tl.store(out + place + (each // 4) * 8 + each % 4, value.to(tl.int16), is_ac)
        tl.store(out + block * 64, dc.to(tl.int16), is_block)


@triton.jit
def huffman(arena, words, halves, table, zigzag, coefficients, wrong, LANES: tl.constexpr):
    """Segments of entropy-coded data to coefficients; program (p, i) does LANES segments of image i side by side.

    Args:
        arena, words, table, wrong: as for `unpack`.
        halves: int16: the same memory.
        zigzag: int32, (64,): place of each coefficient in natural order.
        coefficients: as for `unpack`; the caller clears them.
    """
    image = tl.program_id(1)
    head = tl.load(table + image * _PLACES + _HEAD_AT)
    words += head // 4
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    lanes = tl.load(words + _TILES)
    if (tl.program_id(0) * LANES < lanes) & (tl.load(words + _IS_ENTROPY_CODED) == 1):
        data, codes = arena + head, halves + head // 2
        limit = tl.load(words + _BYTES)
        _across, luma, in_mcu = _mcu(words)
        columns, tile = tl.load(words + _COLUMNS), tl.load(words + _TILE)
        in_row = tl.cdiv(columns, tile)
        is_lane = lane < lanes
        count = tl.where(is_lane, tl.minimum(tile, columns - lane % in_row * tile) * in_mcu, 0)
        out = coefficients + tl.load(table + image * _PLACES + _COEFFICIENTS_AT) * 64
        out += (lane // in_row * columns + lane % in_row * tile) * in_mcu * 64
        segment = words + tl.load(words + _BEGINS_AT) // 4 + lane * 8
        tiles_at = tl.load(words + _TILES_AT)
        bit = tl.load(segment, is_lane, 0)
        dc_0 = tl.load(segment + 1, is_lane, 0)
        dc_1 = tl.load(segment + 2, is_lane, 0)
        dc_2 = tl.load(segment + 3, is_lane, 0)

        at = tiles_at + (bit >> 3)  # the next byte
        byte = tl.load(data + at, is_lane & (at < limit), 0).to(tl.int64)
        held = 8 - (bit & 7)  # bits that have been read and not used, the lowest of `bits`
        bits = byte & ((1 << held) - 1).to(tl.int64)
        stuffed = tl.where(byte == 255, 1, 0)  # a bit for each byte that was read: it has a zero behind it
        at += 1 + stuffed
        block, k = lane * 0, lane * 0  # the next coefficient
        is_bad = lane < 0
        while tl.max(tl.where(block < count, 1, 0), 0) > 0:
            on = block < count
            for _ in tl.static_range(4):
                more = on & (held <= 32)
                byte = tl.load(data + at, more & (at < limit), 0).to(tl.int64)
                bits = tl.where(more, (bits << 8) | byte, bits)
                held = tl.where(more, held + 8, held)
                stuffed = tl.where(more, (stuffed << 1) | tl.where(byte == 255, 1, 0), stuffed)
                at = tl.where(more, at + 1 + (stuffed & 1), at)
            component = tl.maximum(block % in_mcu - (luma - 1), 0)
            is_dc = k == 0
            codes_at = tl.load(words + _CODES_AT + 2 * component + tl.where(is_dc, 0, 1), on, 0)
            ahead = ((bits >> tl.maximum(held - 16, 0).to(tl.int64)) & 0xFFFF).to(tl.int32)
            entry = tl.load(codes + codes_at // 2 + (ahead >> 6), on, 0).to(tl.int32)
            length, symbol = entry >> 8, entry & 255
            is_long = on & (entry == 0)
            longer = words + (codes_at + 2048) // 4  # the limits of codes of 11 to 16 bits
            for each in tl.static_range(6):
                fits = is_long & (length == 0) & (ahead < tl.load(longer + each, is_long, 0))
                length = tl.where(fits, 11 + each, length)
            is_bad |= is_long & (length == 0)
            is_long &= length > 0
            offset = tl.load(longer + 6 + length - 11, is_long, 0)
            place = ((ahead >> (16 - length)) + offset) & 255
            symbol = tl.where(is_long, tl.load(data + codes_at + 2096 + place, is_long, 0).to(tl.int32), symbol)
            held -= length
            size = tl.where(is_dc, symbol, symbol & 15)
            held -= size
            value = ((bits >> held.to(tl.int64)) & ((1 << size) - 1).to(tl.int64)).to(tl.int32)
            value = tl.where(value < (1 << tl.maximum(size - 1, 0)), value - (1 << size) + 1, value)
            value = tl.where(size > 0, value, 0)
            difference = tl.where(on & is_dc, value, 0)
            dc_0 += tl.where(component == 0, difference, 0)
            dc_1 += tl.where(component == 1, difference, 0)
            dc_2 += tl.where(component == 2, difference, 0)
            dc = tl.where(component == 0, dc_0, tl.where(component == 1, dc_1, dc_2))
            tl.store(out + block * 64, dc.to(tl.int16), on & is_dc)
            here = k + (symbol >> 4)
            has_value = on & (k > 0) & (size > 0)
            is_ac = has_value & (here < 64)
            tl.store(out + block * 64 + tl.load(zigzag + here, is_ac, 0), value.to(tl.int16), is_ac)
            behind = tl.where(is_dc, 1, tl.where(size > 0, here + 1, tl.where(symbol == 0xF0, k + 16, 64)))
            is_bad |= on & (behind > 64)
            ends = on & (behind >= 64)
            k = tl.where(on, tl.where(ends, 0, behind), k)
            block = tl.where(is_bad, count, block + tl.where(ends, 1, 0))

        # A segment ends where the next one begins, with its predictors: a wrong index would give wrong pixels.
        end_bit = tl.load(segment + 4, is_lane, -1)
        is_known = is_lane & (end_bit >= 0)
        unread = held >> 3
        for _ in tl.static_range(5):  # back to the first byte that is not used
            at -= tl.where(unread > 0, 1 + (stuffed & 1), 0)
            stuffed = tl.where(unread > 0, stuffed >> 1, stuffed)
            unread -= tl.where(unread > 0, 1, 0)
        rest = held & 7
        begun = at - 1 - (stuffed & 1)
        found = tl.where(rest > 0, begun * 8 + 8 - rest, at * 8) - tiles_at * 8
        differs = (found != end_bit) | (dc_0 != tl.load(segment + 5, is_known, 0))
        differs |= (dc_1 != tl.load(segment + 6, is_known, 0)) | (dc_2 != tl.load(segment + 7, is_known, 0))
        tl.store(wrong + image + lane * 0, lane * 0 + 1, is_bad | (is_known & differs))


@triton.jit
def _wrapped(value):
    """To 16 bits, as the vector code of libjpeg-turbo multiplies and adds."""
    return value.to(tl.int16).to(tl.int32)


@triton.jit
def _saturated(value):
    return tl.minimum(tl.maximum(value, -32768), 32767)


@triton.jit
def _one_way(v0, v1, v2, v3, v4, v5, v6, v7, SHIFT: tl.constexpr):
    """The inverse DCT of eight values, each a tensor; the factors have 13 bits."""
    even_2 = v2 * 4433 + v6 * (4433 - 15137)
    even_3 = v2 * (4433 + 6270) + v6 * 4433
    even_0 = _wrapped(v0 + v4) << 13
    even_1 = _wrapped(v0 - v4) << 13
    sum_0, sum_1, sum_2, sum_3 = even_0 + even_3, even_1 + even_2, even_1 - even_2, even_0 - even_3
    z3, z4 = _wrapped(v7 + v3), _wrapped(v5 + v1)
    odd_3 = z3 * (9633 - 16069) + z4 * 9633
    odd_4 = z3 * 9633 + z4 * (9633 - 3196)
    d0 = v7 * (-7373) + v1 * (12299 - 7373) + odd_4
    d1 = v5 * (-20995) + v3 * (25172 - 20995) + odd_3
    d2 = v5 * (16819 - 20995) + v3 * (-20995) + odd_4
    d3 = v7 * (2446 - 7373) + v1 * (-7373) + odd_3
    half: tl.constexpr = 1 << (SHIFT - 1)
    return (
        _saturated((sum_0 + d0 + half) >> SHIFT),
        _saturated((sum_1 + d1 + half) >> SHIFT),
        _saturated((sum_2 + d2 + half) >> SHIFT),
        _saturated((sum_3 + d3 + half) >> SHIFT),
        _saturated((sum_3 - d3 + half) >> SHIFT),
        _saturated((sum_2 - d2 + half) >> SHIFT),
        _saturated((sum_1 - d1 + half) >> SHIFT),
        _saturated((sum_0 - d0 + half) >> SHIFT),
    )


@triton.jit
def _transposed(a0, a1, a2, a3, a4, a5, a6, a7, BLOCKS: tl.constexpr):
    """Eight (BLOCKS, 8), one for each row of blocks, to eight, one for each column."""
    joined = tl.join(tl.join(tl.join(a0, a4), tl.join(a2, a6)), tl.join(tl.join(a1, a5), tl.join(a3, a7)))
    bits = tl.reshape(joined, (BLOCKS, 2, 2, 2, 2, 2, 2))  # of the column, then of the row
    bits = tl.reshape(tl.permute(bits, (0, 4, 5, 6, 1, 2, 3)), (BLOCKS, 8, 2, 2, 2))
    even, odd = tl.split(bits)
    even_0, even_1 = tl.split(even)
    odd_0, odd_1 = tl.split(odd)
    b0, b4 = tl.split(even_0)
    b2, b6 = tl.split(even_1)
    b1, b5 = tl.split(odd_0)
    b3, b7 = tl.split(odd_1)
    return b0, b1, b2, b3, b4, b5, b6, b7


@triton.jit
def _row_of(coefficients, ROW: tl.constexpr, wanted):
    return tl.load(coefficients + 8 * ROW, wanted, 0).to(tl.int32)


@triton.jit
def _times(values, steps, ROW: tl.constexpr, wanted):
    return _wrapped(values * tl.load(steps + 8 * ROW, wanted, 0))


@triton.jit
def _put_column(samples, stride, COLUMN: tl.constexpr, values, wanted):
    level = tl.minimum(tl.maximum(values, -128), 127) + 128
    tl.store(samples + COLUMN, level.to(tl.uint8), wanted)


@triton.jit
def idct(words, table, coefficients, samples, BLOCKS: tl.constexpr):
    """Coefficients to samples; program (p, i) does BLOCKS blocks of image i.

    Args:
        words, table, coefficients: as for `unpack`.
        samples: uint8 result: a plane for each component, of the MCUs that are there.
    """
    image = tl.program_id(1)
    head = tl.load(table + image * _PLACES + _HEAD_AT)
    words += head // 4
    across, luma, in_mcu = _mcu(words)
    columns, rows = tl.load(words + _COLUMNS), tl.load(words + _ROWS)
    first = tl.program_id(0) * BLOCKS
    if first < columns * rows * in_mcu:
        block = first + tl.arange(0, BLOCKS)[:, None]
        lane = tl.arange(0, 8)[None, :]  # a column at first, a row at the end
        wanted = (block < columns * rows * in_mcu) & (lane < 8)
        in_its_mcu, mcu = block % in_mcu, block // in_mcu
        component = tl.maximum(in_its_mcu - (luma - 1), 0)
        own = coefficients + (tl.load(table + image * _PLACES + _COEFFICIENTS_AT) + block) * 64 + lane
        steps = words + tl.load(words + _STEPS_AT) // 4 + component * 64 + lane
        k0 = _row_of(own, 0, wanted)
        k1 = _row_of(own, 1, wanted)
        k2 = _row_of(own, 2, wanted)
        k3 = _row_of(own, 3, wanted)
        k4 = _row_of(own, 4, wanted)
        k5 = _row_of(own, 5, wanted)
        k6 = _row_of(own, 6, wanted)
        k7 = _row_of(own, 7, wanted)
        v0 = _times(k0, steps, 0, wanted)
        r0, r1, r2, r3, r4, r5, r6, r7 = _one_way(
            v0,
            _times(k1, steps, 1, wanted),
            _times(k2, steps, 2, wanted),
            _times(k3, steps, 3, wanted),
            _times(k4, steps, 4, wanted),
            _times(k5, steps, 5, wanted),
            _times(k6, steps, 6, wanted),
            _times(k7, steps, 7, wanted),
            11,
        )
        # Of blocks with nothing but zeros below the first row the vector code has another way, which wraps.
        below = k1 | k2 | k3 | k4 | k5 | k6 | k7
        is_flat = tl.max(tl.where(below != 0, 1, 0), 1)[:, None] == 0
        flat = _wrapped(v0 << 2)
        r0, r1, r2 = tl.where(is_flat, flat, r0), tl.where(is_flat, flat, r1), tl.where(is_flat, flat, r2)
        r3, r4, r5 = tl.where(is_flat, flat, r3), tl.where(is_flat, flat, r4), tl.where(is_flat, flat, r5)
        r6, r7 = tl.where(is_flat, flat, r6), tl.where(is_flat, flat, r7)
        c0, c1, c2, c3, c4, c5, c6, c7 = _transposed(r0, r1, r2, r3, r4, r5, r6, r7, BLOCKS)
        s0, s1, s2, s3, s4, s5, s6, s7 = _one_way(c0, c1, c2, c3, c4, c5, c6, c7, 18)
        is_luma = component == 0
        here = tl.where(is_luma, across, 1)  # blocks of the component in a row of the MCU
        x = mcu % columns * here + tl.where(is_luma, in_its_mcu % across, 0)
        y = mcu // columns * tl.where(is_luma, luma // across, 1) + tl.where(is_luma, in_its_mcu // across, 0)
        plane = tl.where(is_luma, 0, (luma + component - 1) * columns * rows * 64)
        stride = columns * here * 8
        out = samples + tl.load(table + image * _PLACES + _SAMPLES_AT) + plane + (y * 8 + lane) * stride + x * 8
        _put_column(out, stride, 0, s0, wanted)
        _put_column(out, stride, 1, s1, wanted)
        _put_column(out, stride, 2, s2, wanted)
        _put_column(out, stride, 3, s3, wanted)
        _put_column(out, stride, 4, s4, wanted)
        _put_column(out, stride, 5, s5, wanted)
        _put_column(out, stride, 6, s6, wanted)
        _put_column(out, stride, 7, s7, wanted)


@triton.jit
def _chroma(plane, near_row, far_row, near, far, rounding, wanted):
    """A chroma sample of each pixel, from four of its plane: 9, 3, 3 and 1 sixteenths."""
    n = 3 * tl.load(plane + near_row + near, wanted, 0).to(tl.int32)
    n += tl.load(plane + far_row + near, wanted, 0).to(tl.int32)
    f = 3 * tl.load(plane + near_row + far, wanted, 0).to(tl.int32)
    f += tl.load(plane + far_row + far, wanted, 0).to(tl.int32)
    return ((3 * n + f + rounding) >> 4) - 128


@triton.jit
def _level(value):
    return tl.minimum(tl.maximum(value, 0), 255)


@triton.jit
def to_rgb(words, table, samples, pixels, PIXELS: tl.constexpr):
    """Samples to the pixels that are resized; program (p, i) does PIXELS pixels of image i.

    Args:
        words, table, samples: as for `idct`.
        pixels: uint8 result: red, green and blue planes of the image's source.
    """
    image = tl.program_id(1)
    head = tl.load(table + image * _PLACES + _HEAD_AT)
    words += head // 4
    width, height = tl.load(words + _SOURCE_WIDTH), tl.load(words + _SOURCE_HEIGHT)
    first = tl.program_id(0) * PIXELS
    if first < width * height:
        at = first + tl.arange(0, PIXELS)
        wanted = at < width * height
        x, y = tl.load(words + _LEFT) + at % width, tl.load(words + _TOP) + at // width
        components = tl.load(words + _COMPONENTS)
        is_grey = components == 1
        halved_x = tl.where(is_grey, 0, tl.load(words + _HALVED_X))
        halved_y = tl.where(is_grey, 0, tl.load(words + _HALVED_Y))
        columns, rows = tl.load(words + _COLUMNS), tl.load(words + _ROWS)
        first_x, first_y = tl.load(words + _FIRST_COLUMN) * 8, tl.load(words + _FIRST_ROW) * 8  # in chroma samples
        stride = columns * 8
        luma = samples + tl.load(table + image * _PLACES + _SAMPLES_AT)
        in_luma = (y - (first_y << halved_y)) * (stride << halved_x) + x - (first_x << halved_x)
        level = tl.load(luma + in_luma, wanted, 0).to(tl.int32)
        red, green, blue = level, level, level
        if components == 3:
            near_x, near_y = x >> halved_x, y >> halved_y
            last_x = ((tl.load(words + _WIDTH) + halved_x) >> halved_x) - 1
            last_y = ((tl.load(words + _HEIGHT) + halved_y) >> halved_y) - 1
            far_x = tl.minimum(tl.maximum(near_x + halved_x * (2 * (x & 1) - 1), 0), last_x)
            far_y = tl.minimum(tl.maximum(near_y + halved_y * (2 * (y & 1) - 1), 0), last_y)
            rounding = tl.where(halved_y == 1, 8 - (x & 1), 4 + 4 * (x & 1))
            near_row, far_row = (near_y - first_y) * stride - first_x, (far_y - first_y) * stride - first_x
            planes = luma + (columns * rows * 64 << (halved_x + halved_y))
            cb = _chroma(planes, near_row, far_row, near_x, far_x, rounding, wanted)
            cr = _chroma(planes + columns * rows * 64, near_row, far_row, near_x, far_x, rounding, wanted)
            red = _level(level + ((91881 * cr + 32768) >> 16))
            green = _level(level + ((-22554 * cb - 46802 * cr + 32768) >> 16))
            blue = _level(level + ((116130 * cb + 32768) >> 16))
        out = pixels + tl.load(table + image * _PLACES + _PIXELS_AT) + at
        tl.store(out, red.to(tl.uint8), wanted)
        tl.store(out + width * height, green.to(tl.uint8), wanted)
        tl.store(out + 2 * width * height, blue.to(tl.uint8), wanted)


@triton.jit
def _put_level(out, levels, channel, value, wanted, HAS_LEVELS: tl.constexpr):
    if HAS_LEVELS:
        tl.store(out, tl.load(levels + channel * 256 + value, wanted, 0), wanted)
    else:
        tl.store(out, value.to(tl.uint8), wanted)


@triton.jit
def resample(
    words,
    table,
    source,
    out,
    canvas,
    levels,
    stride_n,
    stride_c,
    stride_y,
    stride_x,
    LAST: tl.constexpr,
    HAS_LEVELS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """One pass of a resize, along rows or columns, in Pillow's arithmetic; program (p, i) does PIXELS of image i.

    Args:
        words, table: as for `unpack`.
        source: uint8: the planes of `pixels`, or for the last pass those of `between`.
        out: result: planes of `between`, or for the last pass the batch.
        canvas: uint8 result of the last pass: planes of images that have effects.
        levels: (3, 256): the batch's element for each level, if it HAS_LEVELS.
        stride_n, stride_c, stride_y, stride_x: elements of the batch from one image, channel, row and column to the
            next.
    """
    image = tl.program_id(1)
    head = tl.load(table + image * _PLACES + _HEAD_AT)
    words += head // 4
    width, height = tl.load(words + _SOURCE_WIDTH), tl.load(words + _SOURCE_HEIGHT)
    result_width, result_height = tl.load(words + _RESULT_WIDTH), tl.load(words + _RESULT_HEIGHT)
    down_first = tl.load(words + _DOWN_FIRST) == 1
    if LAST:
        source += tl.load(table + image * _PLACES + _BETWEEN_AT)
        is_down = down_first == 0
        width = tl.where(is_down, result_width, width)
        height = tl.where(is_down, height, result_height)
    else:
        source += tl.load(table + image * _PLACES + _PIXELS_AT)
        is_down = down_first
        result_width = tl.where(is_down, width, result_width)
        result_height = tl.where(is_down, result_height, height)
    first = tl.program_id(0) * PIXELS
    if first < result_width * result_height:
        at = first + tl.arange(0, PIXELS)
        wanted = at < result_width * result_height
        x, y = at % result_width, at // result_width
        result = tl.where(is_down, y, x)
        taps_at = tl.where(is_down, tl.load(words + _DOWN_AT), tl.load(words + _ACROSS_AT)) // 4
        taps = tl.where(is_down, tl.load(words + _DOWN_TAPS), tl.load(words + _ACROSS_TAPS))
        begin = tl.load(words + taps_at + result, wanted, 0)
        weights = words + taps_at + tl.where(is_down, result_height, result_width) + result * taps
        step = tl.where(is_down, width, 1)
        pixel = source + tl.where(is_down, begin * width + x, y * width + begin)
        plane = width * height
        red = tl.full((PIXELS,), _HALF_WEIGHT, tl.int32)
        green, blue = red, red
        for tap in range(taps):
            weight = tl.load(weights + tap, wanted, 0)
            red += weight * tl.load(pixel + tap * step, wanted, 0).to(tl.int32)
            green += weight * tl.load(pixel + tap * step + plane, wanted, 0).to(tl.int32)
            blue += weight * tl.load(pixel + tap * step + 2 * plane, wanted, 0).to(tl.int32)
        red, green, blue = _level(red >> _WEIGHT_BITS), _level(green >> _WEIGHT_BITS), _level(blue >> _WEIGHT_BITS)
        if LAST:
            x = tl.where(tl.load(words + _FLIP_X) == 1, result_width - 1 - x, x)
            y = tl.where(tl.load(words + _FLIP_Y) == 1, result_height - 1 - y, y)
            if tl.load(words + _STEPS) == 0:
                place = out + tl.load(table + image * _PLACES + _ROW_AT) * stride_n + y * stride_y + x * stride_x
                _put_level(place, levels, 0, red, wanted, HAS_LEVELS)
                _put_level(place + stride_c, levels, 1, green, wanted, HAS_LEVELS)
                _put_level(place + 2 * stride_c, levels, 2, blue, wanted, HAS_LEVELS)
            else:  # effects come first
                drawn = canvas + tl.load(table + image * _PLACES + _CANVAS_AT) + y * result_width + x
                tl.store(drawn, red.to(tl.uint8), wanted)
                tl.store(drawn + result_width * result_height, green.to(tl.uint8), wanted)
                tl.store(drawn + 2 * result_width * result_height, blue.to(tl.uint8), wanted)
        else:
            place = out + tl.load(table + image * _PLACES + _BETWEEN_AT) + at
            tl.store(place, red.to(tl.uint8), wanted)
            tl.store(place + result_width * result_height, green.to(tl.uint8), wanted)
            tl.store(place + 2 * result_width * result_height, blue.to(tl.uint8), wanted)


@triton.jit
def copy_rows(
    arena,
    table,
    out,
    levels,
    width,
    height,
    stride_n,
    stride_c,
    stride_y,
    stride_x,
    HAS_LEVELS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Images that the host has decoded, RGB (height, width, 3) in the arena, to their places in the batch.

    Args:
        arena, table: as for `unpack`; of the table `head` and `row` count.
        out, levels, strides: as for the last pass of `resample`.
        width, height: of every image.
    """
    image = tl.program_id(1)
    at = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    wanted = at < width * height
    pixel = arena + tl.load(table + image * _PLACES + _HEAD_AT) + at * 3
    out += tl.load(table + image * _PLACES + _ROW_AT) * stride_n + at // width * stride_y + at % width * stride_x
    for channel in tl.static_range(3):
        level = tl.load(pixel + channel, wanted, 0).to(tl.int32)
        _put_level(out + channel * stride_c, levels, channel, level, wanted, HAS_LEVELS)


IS_INTERPRETED = not isinstance(unpack, triton.runtime.JITFunction)  # TRITON_INTERPRET=1

"""Triton kernels that do effects to resized images: the same to the last bit as the core does them on the host.

All images change at once: the effect with one number of each is done, from one canvas to the other.  What an effect is,
and its numbers, are in the image's steps (`fastdata/native/effects/packed_steps.h`).  Products and sums of floats are
never fused: start these kernels with `enable_fp_fusion=False`.

Sources: Pillow, ImageEnhance, ImageOps, Convert.c (rgb2hsv, hsv2rgb), Geometry.c.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
from __future__ import annotations

import triton
import triton.language as tl

from fastdata.device.decode_kernels import (
    _CANVAS_AT,
    _EFFECTS_AT,
    _HEAD_AT,
    _PLACES,
    _RESULT_HEIGHT,
    _RESULT_WIDTH,
    _ROW_AT,
    _STEPS,
    _level,
    _put_level,
)

__all__ = ["COUNTS", "change", "measure", "store", "tabulate"]

_LEVELS, _CONTRAST, _AUTOCONTRAST, _EQUALIZE, _SATURATION, _HUE, _GREY = (tl.constexpr(kind) for kind in range(1, 8))
_SHARPNESS, _FLIP, _PERMUTE, _MOVE, _SCALE, _BLUR, _WARP = (tl.constexpr(kind) for kind in range(8, 15))
_STEP_WORDS = tl.constexpr(12)  # of PackedStep
_FACTOR, _DATA_AT, _VALUES = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
COUNTS = 3 * 256 + 4  # of an image: of each channel's levels, and the sum of its luma; a multiple of 16 bytes
_COUNTS = tl.constexpr(COUNTS)


@triton.jit
def _luma(red, green, blue):
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


@triton.jit
def _blended(one, other, share):
    """Between one level (0) and another (1), or beyond."""
    value = one.to(tl.float32) + share * (other - one).to(tl.float32)
    return tl.minimum(tl.maximum(value, 0.0), 255.0).to(tl.int32)


@triton.jit
def _reflected(at, size):
    """Mirrors an index that lies beyond an edge, which is not repeated."""
    at = tl.where(at < 0, -at, at)
    return tl.where(at < size, at, 2 * (size - 1) - at)


@triton.jit(do_not_specialize=["number"])
def measure(words, floats, table, canvas, counts, sums, number, PIXELS: tl.constexpr):
    """Counts levels, sums up luma and blurs along rows: what effects need to know of the whole image.

    Program (p, i) does PIXELS pixels of image i.

    Args:
        words, table: as for the kernels that decode.
        floats: float32: the memory of `words`.
        canvas: uint8: red, green and blue planes of each image.
        counts: int32 result, (N, COUNTS); the caller clears it.
        sums: float32 result, one for each level of the canvas: the first pass of a blur.
        number: number of the effect.
    """
    image = tl.program_id(1)
    head = tl.load(table + image * _PLACES + _HEAD_AT)
    words += head // 4
    width = tl.load(words + _RESULT_WIDTH)
    pixels = width * tl.load(words + _RESULT_HEIGHT)
    first = tl.program_id(0) * PIXELS
    if (number < tl.load(words + _STEPS)) & (first < pixels):
        step = words + tl.load(words + _EFFECTS_AT) // 4 + number * _STEP_WORDS
        kind = tl.load(step)
        at = first + tl.arange(0, PIXELS)
        wanted = at < pixels
        place = tl.load(table + image * _PLACES + _CANVAS_AT)
        own = canvas + place
        counted = counts + image * _COUNTS
        if kind == _CONTRAST:
            red = tl.load(own + at, wanted, 0).to(tl.int32)
            green = tl.load(own + pixels + at, wanted, 0).to(tl.int32)
            blue = tl.load(own + 2 * pixels + at, wanted, 0).to(tl.int32)
            tl.atomic_add(counted + 768, tl.sum(tl.where(wanted, _luma(red, green, blue), 0), 0), sem="relaxed")
        if (kind == _AUTOCONTRAST) | (kind == _EQUALIZE):
            for channel in tl.static_range(3):
                level = tl.load(own + channel * pixels + at, wanted, 0).to(tl.int32)
                tl.atomic_add(counted + channel * 256 + level, 1, wanted, sem="relaxed")
        if kind == _BLUR:
            weights = floats + head // 4 + tl.load(step + _DATA_AT) // 4
            taps = tl.load(step + _VALUES)
            x, y = at % width, at // width
            for channel in tl.static_range(3):
                total = tl.zeros((PIXELS,), tl.float32)
                for tap in range(taps):
                    origin = channel * pixels + y * width + _reflected(x + tap - taps // 2, width)
                    total += tl.load(weights + tap) * tl.load(own + origin, wanted, 0).to(tl.float32)
                tl.store(sums + place + channel * pixels + at, total, wanted)


@triton.jit(do_not_specialize=["number"])
def tabulate(words, table, counts, tables, number):
    """Makes the table of levels of an effect that has one; program (c, i) does channel c of image i.

    Args:
        words, table, counts, number: as for `measure`.
        tables: uint8 result, (N, 3, 256).
    """
    image, channel = tl.program_id(1), tl.program_id(0)
    words += tl.load(table + image * _PLACES + _HEAD_AT) // 4
    if number < tl.load(words + _STEPS):
        step = words + tl.load(words + _EFFECTS_AT) // 4 + number * _STEP_WORDS
        kind = tl.load(step)
        level = tl.arange(0, 256)
        pixels = tl.load(words + _RESULT_WIDTH) * tl.load(words + _RESULT_HEIGHT)
        counted = counts + image * _COUNTS
        out = tables + (image * 3 + channel) * 256 + level
        if kind == _CONTRAST:
            mean = (tl.load(counted + 768).to(tl.float64) / pixels.to(tl.float64) + 0.5).to(tl.int32)
            factor = tl.load(step + _FACTOR).to(tl.float32, bitcast=True)
            tl.store(out, _blended(mean, level, factor).to(tl.uint8))
        if (kind == _AUTOCONTRAST) | (kind == _EQUALIZE):
            found = tl.load(counted + channel * 256 + level)
            low = tl.min(tl.where(found > 0, level, 255), 0)
            high = tl.max(tl.where(found > 0, level, 0), 0)
            if kind == _AUTOCONTRAST:
                spread = tl.maximum(high - low, 1).to(tl.float64)
                scale = tl.where(high > low, 255.0 / spread, 1.0)
                offset = tl.where(high > low, -low.to(tl.float64) * scale, 0.0)
                tl.store(out, _level((level.to(tl.float64) * scale + offset).to(tl.int32)).to(tl.uint8))
            else:
                step_size = (pixels - tl.sum(tl.where(level == high, found, 0), 0)) // 255
                below = step_size // 2 + tl.cumsum(found, 0) - found
                equal = tl.minimum(below // tl.maximum(step_size, 1), 255)
                tl.store(out, tl.where(step_size == 0, level, equal).to(tl.uint8))


@triton.jit
def _between(first, second, third, fourth, right, down, has_below):
    """A level between four, left above, right above, left below and right below."""
    one, three = first.to(tl.float64), third.to(tl.float64)
    high = one + (second - first).to(tl.float64) * right
    low = tl.where(has_below, three + (fourth - third).to(tl.float64) * right, high)
    return (high + (low - high) * down).to(tl.int32)


@triton.jit
def _bilinear(plane, left, right, above, below, share_x, share_y, has_below, inside):
    first = tl.load(plane + above + left, inside, 0).to(tl.int32)
    second = tl.load(plane + above + right, inside, 0).to(tl.int32)
    third = tl.load(plane + below + left, inside, 0).to(tl.int32)
    fourth = tl.load(plane + below + right, inside, 0).to(tl.int32)
    return _between(first, second, third, fourth, share_x, share_y, has_below)


@triton.jit
def _hue_turned(red, green, blue, shift):
    """Pixels whose hue was turned, in Pillow's hue, saturation and value of 8 bits."""
    high = tl.maximum(tl.maximum(red, green), blue)
    low = tl.minimum(tl.minimum(red, green), blue)
    third = red + green + blue - high - low
    highest = tl.where(red == high, 0, tl.where(green == high, 1, 2))
    lowest = tl.where(blue == low, 2, tl.where(green == low, 1, 0))
    spread = tl.maximum(high - low, 1)
    share = tl.div_rn((high - third).to(tl.float32), spread.to(tl.float32)).to(tl.float64)
    # Of the six ways to order three levels, those in which the third share counts up.
    base = tl.where(
        highest == 0,
        tl.where(lowest == 1, -1.0, 1.0),
        tl.where(highest == 1, tl.where(lowest == 2, 1.0, 3.0), tl.where(lowest == 1, 5.0, 3.0)),
    )
    rises = ((highest == 0) & (lowest == 1)) | ((highest == 1) & (lowest == 2)) | ((highest == 2) & (lowest == 0))
    sector = (base + tl.where(rises, share, -share)).to(tl.float32).to(tl.float64)
    circle = sector / 6.0 + 1.0
    hue = ((circle - tl.floor(circle)).to(tl.float32).to(tl.float64) * 255.0).to(tl.int32)
    hue = _level(hue)
    of_high = tl.div_rn(spread.to(tl.float32), tl.maximum(high, 1).to(tl.float32)).to(tl.float64)
    saturation = _level((of_high * 255.0).to(tl.int32))
    saturated = (saturation.to(tl.float64) / 255.0).to(tl.float32)
    value = high.to(tl.float64)
    least = tl.floor(value * (1.0 - saturated.to(tl.float64)) + 0.5).to(tl.int32)
    sextants = ((hue + shift) & 255).to(tl.float64) * 6.0 / 255.0
    whole = sextants.to(tl.int32)
    rest = (sextants - whole.to(tl.float64)).to(tl.float32)
    sextant = whole % 6
    lack_falling = (saturated * rest).to(tl.float64)
    lack_rising = saturated.to(tl.float64) * (1.0 - rest.to(tl.float64))
    lack = tl.where((sextant & 1) == 1, lack_falling, lack_rising)
    between = (value * (1.0 - lack) + 0.5).to(tl.int32)
    new_red = tl.where((sextant == 0) | (sextant == 5), high, tl.where((sextant == 1) | (sextant == 4), between, least))
    new_green = tl.where(
        (sextant == 1) | (sextant == 2), high, tl.where((sextant == 0) | (sextant == 3), between, least)
    )
    new_blue = tl.where(
        (sextant == 3) | (sextant == 4), high, tl.where((sextant == 2) | (sextant == 5), between, least)
    )
    is_grey = high == low
    is_pale = saturation == 0
    return (
        tl.where(is_grey | is_pale, high, new_red),
        tl.where(is_grey | is_pale, high, new_green),
        tl.where(is_grey | is_pale, high, new_blue),
    )


@triton.jit
def _sharpened(plane, at, width, is_inner, factor, here):
    """A channel's levels, blended with the mean around each."""
    total = 4 * here
    for dy in tl.static_range(3):
        for dx in tl.static_range(3):
            total += tl.load(plane + at + (dy - 1) * width + dx - 1, is_inner, 0).to(tl.int32)
    mean = (2 * total + 13) // 26
    return tl.where(is_inner, _blended(mean, here, factor), here)


@triton.jit(do_not_specialize=["number"])
def change(arena, words, floats, doubles, table, source, sums, out, tables, number, PIXELS: tl.constexpr):
    """Does an effect; program (p, i) does PIXELS pixels of image i.

    Args:
        arena: uint8: the batch's packed images.
        words, table, number: as for `measure`.
        floats, doubles: float32 and float64: the same memory.
        source: uint8: the canvas before.
        sums: float32: what `measure` has made of it.
        out: uint8 result: the canvas behind it.
        tables: uint8, (N, 3, 256): of effects that count levels.
    """
    image = tl.program_id(1)
    head = tl.load(table + image * _PLACES + _HEAD_AT)
    words += head // 4
    width, height = tl.load(words + _RESULT_WIDTH), tl.load(words + _RESULT_HEIGHT)
    pixels = width * height
    first = tl.program_id(0) * PIXELS
    if (number < tl.load(words + _STEPS)) & (first < pixels):
        step = words + tl.load(words + _EFFECTS_AT) // 4 + number * _STEP_WORDS
        kind, data_at, values = tl.load(step), tl.load(step + _DATA_AT), step + _VALUES
        factor = tl.load(step + _FACTOR).to(tl.float32, bitcast=True)
        at = first + tl.arange(0, PIXELS)
        wanted = at < pixels
        x, y = at % width, at // width
        from_x, from_y = x, y
        fill = kind * 0
        if kind == _FLIP:
            from_x = tl.where(tl.load(values) == 1, width - 1 - x, x)
            from_y = tl.where(tl.load(values + 1) == 1, height - 1 - y, y)
        if kind == _MOVE:
            a, b, d, e = tl.load(values), tl.load(values + 1), tl.load(values + 2), tl.load(values + 3)
            from_x = (tl.load(values + 4) + y * b + x * a) >> 16
            from_y = (tl.load(values + 5) + y * e + x * d) >> 16
            fill = tl.load(values + 6)
        if kind == _SCALE:
            from_x = tl.load(words + data_at // 4 + x, wanted, 0)
            from_y = tl.load(words + data_at // 4 + width + y, wanted, 0)
            fill = tl.load(values + 6)
        is_warped = kind == _WARP
        place_x, place_y = x.to(tl.float64) + 0.5, y.to(tl.float64) + 0.5
        if kind == _WARP:
            of = doubles + head // 8 + data_at // 8
            old_x, old_y = place_x, place_y
            place_x = tl.load(of) * old_x + tl.load(of + 1) * old_y + tl.load(of + 2)
            place_y = tl.load(of + 3) * old_x + tl.load(of + 4) * old_y + tl.load(of + 5)
            if tl.load(values) == 1:
                depth = tl.load(of + 6) * old_x + tl.load(of + 7) * old_y + 1.0
                place_x, place_y = place_x / depth, place_y / depth
            is_seen = (place_x >= 0.0) & (place_x < width) & (place_y >= 0.0) & (place_y < height)
            from_x = tl.where(is_seen, place_x, -1.0).to(tl.int32)
            from_y = tl.where(is_seen, place_y, -1.0).to(tl.int32)
            fill = tl.load(values + 6)
        inside = wanted & (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
        place = tl.load(table + image * _PLACES + _CANVAS_AT)
        own = source + place
        origin = tl.where(inside, from_y * width + from_x, 0)
        red = tl.load(own + origin, inside, 0).to(tl.int32)
        green = tl.load(own + pixels + origin, inside, 0).to(tl.int32)
        blue = tl.load(own + 2 * pixels + origin, inside, 0).to(tl.int32)
        if is_warped & (tl.load(values + 1) == 1):
            edge_x, edge_y = tl.where(inside, place_x, 0.5) - 0.5, tl.where(inside, place_y, 0.5) - 0.5
            corner_x = tl.where(edge_x < 0, -1, edge_x.to(tl.int32))
            corner_y = tl.where(edge_y < 0, -1, edge_y.to(tl.int32))
            share_x, share_y = edge_x - corner_x.to(tl.float64), edge_y - corner_y.to(tl.float64)
            left, right = tl.maximum(corner_x, 0), tl.minimum(corner_x + 1, width - 1)
            above, below = tl.maximum(corner_y, 0) * width, tl.minimum(corner_y + 1, height - 1) * width
            has_below = corner_y + 1 < height
            red = _bilinear(own, left, right, above, below, share_x, share_y, has_below, inside)
            green = _bilinear(own + pixels, left, right, above, below, share_x, share_y, has_below, inside)
            blue = _bilinear(own + 2 * pixels, left, right, above, below, share_x, share_y, has_below, inside)
        red = tl.where(inside, red, fill & 255)
        green = tl.where(inside, green, (fill >> 8) & 255)
        blue = tl.where(inside, blue, (fill >> 16) & 255)
        if kind == _LEVELS:
            levels = arena + head + data_at
            red = tl.load(levels + red, wanted, 0).to(tl.int32)
            green = tl.load(levels + 256 + green, wanted, 0).to(tl.int32)
            blue = tl.load(levels + 512 + blue, wanted, 0).to(tl.int32)
        if (kind == _CONTRAST) | (kind == _AUTOCONTRAST) | (kind == _EQUALIZE):
            made = tables + image * 768
            red = tl.load(made + red, wanted, 0).to(tl.int32)
            green = tl.load(made + 256 + green, wanted, 0).to(tl.int32)
            blue = tl.load(made + 512 + blue, wanted, 0).to(tl.int32)
        if (kind == _SATURATION) | (kind == _GREY):
            grey = _luma(red, green, blue)
            is_grey = kind == _GREY
            red = tl.where(is_grey, grey, _blended(grey, red, factor))
            green = tl.where(is_grey, grey, _blended(grey, green, factor))
            blue = tl.where(is_grey, grey, _blended(grey, blue, factor))
        if kind == _HUE:
            red, green, blue = _hue_turned(red, green, blue, tl.load(values))
        if kind == _SHARPNESS:
            is_inner = wanted & (x > 0) & (x < width - 1) & (y > 0) & (y < height - 1)
            red = _sharpened(own, at, width, is_inner, factor, red)
            green = _sharpened(own + pixels, at, width, is_inner, factor, green)
            blue = _sharpened(own + 2 * pixels, at, width, is_inner, factor, blue)
        if kind == _BLUR:
            weights = floats + head // 4 + data_at // 4 + tl.load(values)
            taps = tl.load(values + 1)
            smoothed = sums + place
            sum_red = tl.zeros((PIXELS,), tl.float32)
            sum_green, sum_blue = sum_red, sum_red
            for tap in range(taps):
                weight = tl.load(weights + tap)
                row = _reflected(y + tap - taps // 2, height) * width + x
                sum_red += weight * tl.load(smoothed + row, wanted, 0.0)
                sum_green += weight * tl.load(smoothed + pixels + row, wanted, 0.0)
                sum_blue += weight * tl.load(smoothed + 2 * pixels + row, wanted, 0.0)
            red, green, blue = (
                (sum_red + 0.5).to(tl.int32),
                (sum_green + 0.5).to(tl.int32),
                (sum_blue + 0.5).to(tl.int32),
            )
        if kind == _PERMUTE:
            p, q, r = tl.load(values), tl.load(values + 1), tl.load(values + 2)
            old_red, old_green, old_blue = red, green, blue
            red = tl.where(p == 0, old_red, tl.where(p == 1, old_green, old_blue))
            green = tl.where(q == 0, old_red, tl.where(q == 1, old_green, old_blue))
            blue = tl.where(r == 0, old_red, tl.where(r == 1, old_green, old_blue))
        result = out + place + at
        tl.store(result, red.to(tl.uint8), wanted)
        tl.store(result + pixels, green.to(tl.uint8), wanted)
        tl.store(result + 2 * pixels, blue.to(tl.uint8), wanted)


@triton.jit
def store(
    words,
    table,
    first_canvas,
    other_canvas,
    out,
    levels,
    stride_n,
    stride_c,
    stride_y,
    stride_x,
    HAS_LEVELS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Images with effects to their places in the batch; program (p, i) does PIXELS pixels of image i.

    Args:
        words, table: as for `measure`.
        first_canvas, other_canvas: uint8: the images after an even and an odd number of effects.
        out, levels, strides: as for the last pass of `resample`.
    """
    image = tl.program_id(1)
    words += tl.load(table + image * _PLACES + _HEAD_AT) // 4
    width, height = tl.load(words + _RESULT_WIDTH), tl.load(words + _RESULT_HEIGHT)
    pixels, steps = width * height, tl.load(words + _STEPS)
    first = tl.program_id(0) * PIXELS
    if (steps > 0) & (first < pixels):
        at = first + tl.arange(0, PIXELS)
        wanted = at < pixels
        own = tl.load(table + image * _PLACES + _CANVAS_AT) + at
        is_even = steps % 2 == 0
        place = out + tl.load(table + image * _PLACES + _ROW_AT) * stride_n
        place += at // width * stride_y + at % width * stride_x
        for channel in tl.static_range(3):
            even = tl.load(first_canvas + own + channel * pixels, wanted & is_even, 0).to(tl.int32)
            odd = tl.load(other_canvas + own + channel * pixels, wanted & (is_even == 0), 0).to(tl.int32)
            value = tl.where(is_even, even, odd)
            _put_level(place + channel * stride_c, levels, channel, value, wanted, HAS_LEVELS)

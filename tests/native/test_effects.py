"""What the core does to finished pixels, beside Pillow and torchvision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from core_alone import fill, of_files
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from images import jpeg
from PIL import Image
from torchvision.transforms import functional

from fastdata import native
from fastdata.loaders.pillow_effects import MIXES, NOT_PILLOWS, apply, core_agrees
from fastdata.tables import EFFECT, EffectKind, Format

KINDS = [kind for kind in EffectKind if kind not in NOT_PILLOWS]
MAPS = (EffectKind.AFFINE, EffectKind.PERSPECTIVE)
FACTORS = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.floats(0, 3))
IMAGES = st.one_of(
    arrays.arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40), st.just(3))),
    st.builds(
        lambda height, width, seed, low, high: np.random.default_rng(seed).integers(
            low, high, (height, width, 3), dtype=np.uint8
        ),
        *(st.integers(1, 70), st.integers(1, 70), st.integers(0, 99), st.integers(0, 120), st.integers(121, 256)),
    ),
)


def effect(kind: EffectKind, *values: float, filter: int = 0) -> Any:  # noqa: A002 - the core's word
    made = np.zeros((1, 1), EFFECT)
    made["kind"], made["filter"] = kind, filter
    made["values"][0, 0, : len(values)] = values
    return made


@st.composite
def effects(draw: st.DrawFn, only: EffectKind | None = None) -> Any:
    kind = only if only is not None else draw(st.sampled_from(KINDS))
    if kind in MAPS:
        share, shift = st.floats(-0.5, 0.5), st.one_of(st.integers(-9, 9).map(float), st.floats(-30, 30))
        keeps_rows = draw(st.booleans())
        slants = [0.0, 0.0] if keeps_rows else [draw(share), draw(share)]
        depth = [draw(st.floats(-0.004, 0.004)) for _ in range(2)] if kind is EffectKind.PERSPECTIVE else [0, 0]
        numbers = [1 + draw(share), slants[0], draw(shift), slants[1], 1 + draw(share), draw(shift)]
        fill = [draw(st.integers(0, 255)) for _ in range(3)]
        return effect(kind, *numbers, *depth, *fill, filter=draw(st.sampled_from([0, 2, 3])))
    if kind is EffectKind.PERMUTE:
        return effect(kind, *draw(st.permutations([0, 1, 2])))
    if kind in (EffectKind.HUE, EffectKind.POSTERIZE):
        return effect(kind, draw(st.integers(0, 255) if kind is EffectKind.HUE else st.integers(1, 8)))
    if kind is EffectKind.SOLARIZE_ADD:
        return effect(kind, draw(st.integers(0, 128)), draw(st.integers(0, 256)))
    if kind is EffectKind.FLIP:
        return effect(kind, draw(st.integers(0, 1)), draw(st.integers(0, 1)))
    if kind is EffectKind.BOX_BLUR:
        return effect(kind, draw(st.one_of(st.floats(0, 3), st.floats(0, 60))))
    return effect(kind, draw(FACTORS) * (100 if kind is EffectKind.SOLARIZE else 1))


def by_core(pixels: np.ndarray, table: Any) -> np.ndarray:
    pixels = np.ascontiguousarray(pixels)
    result = np.empty_like(pixels)
    native.load().convert(pixels, result.ctypes.data, Format(), table)
    return result


def by_pillow(pixels: np.ndarray, table: Any) -> np.ndarray:
    image = Image.fromarray(pixels)
    for each in table[0]:
        image = apply(image, each)
    return np.asarray(image)


@pytest.mark.parametrize("examples", [100, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_effect_has_pillows_bits(kind: EffectKind, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(IMAGES, effects(kind))
    def check(pixels: np.ndarray, table: Any) -> None:
        assert np.array_equal(by_core(pixels, table), by_pillow(pixels, table))

    check()


@settings(max_examples=300, deadline=None)
@given(IMAGES, st.lists(effects(), min_size=2, max_size=6))
def test_effects_one_after_the_other(pixels: np.ndarray, tables: list[Any]) -> None:
    table = np.concatenate(tables, axis=1)
    assert np.array_equal(by_core(pixels, table), by_pillow(pixels, table))


def test_hues_of_all_colours() -> None:
    levels = np.arange(256, dtype=np.uint8)
    for red in range(0, 256, 3):
        pixels = np.stack(np.broadcast_arrays(np.uint8(red), levels[:, None], levels), axis=2)
        table = effect(EffectKind.HUE, (red * 7) % 256)
        assert np.array_equal(by_core(pixels, table), by_pillow(pixels, table)), red


@settings(max_examples=60, deadline=None)
@given(
    st.integers(12, 60),
    st.integers(12, 60),
    st.sampled_from([(3, 3), (5, 9), (23, 23), (1, 7)]),
    st.floats(0.1, 5),
    st.integers(0, 9),
)
def test_a_blur_is_torchvisions_but_for_single_levels(
    height: int, width: int, taps: tuple[int, int], sigma: float, seed: int
) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    wanted = np.asarray(functional.gaussian_blur(Image.fromarray(pixels), list(taps), [sigma, sigma]))
    difference = np.abs(wanted.astype(int) - by_core(pixels, effect(EffectKind.BLUR, *taps, sigma, sigma)))
    assert difference.max() <= 1
    assert (difference > 0).sum() <= max(2, difference.size // 1000)


@settings(max_examples=100, deadline=None)
@given(
    IMAGES, st.lists(st.tuples(effects(), st.floats(0, 1, width=32)), min_size=1, max_size=4), st.floats(0, 1, width=32)
)
def test_mixed_images_are_timms(pixels: np.ndarray, chains: list[Any], share: float) -> None:
    mixed, tables = np.zeros(pixels.shape, np.float32), [effect(EffectKind.MIX_BEGIN)]
    for table, weight in chains:
        mixed += np.float32(weight) * np.asarray(by_pillow(pixels, table), np.float32)
        tables += [table, effect(EffectKind.MIX_ADD, weight)]
    other = Image.fromarray(np.clip(mixed, 0, 255).astype(np.uint8))
    wanted = Image.blend(Image.fromarray(pixels), other, np.float32(share))
    table = np.concatenate([*tables, effect(EffectKind.MIX_END, share)], axis=1)
    assert np.array_equal(by_core(pixels, table), np.asarray(wanted))


def test_parts_of_a_mix_alone_do_nothing() -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    for kind in MIXES:
        assert np.array_equal(by_core(pixels, effect(kind, 0.5)), pixels)


@pytest.mark.parametrize("count", [0, 1, 4, 7, 20_000])
def test_normal_numbers(count: int) -> None:
    drawn = native.load().normals(count, 5, 0, 4000, (1, 2))
    assert len(drawn) == count
    assert np.array_equal(drawn, native.load().normals(20_000, 5, 0, 4000, (1, 2))[:count])
    if count == 20_000:
        shares = np.searchsorted(np.sort(drawn), [-2, -1, 0, 1, 2]) / count
        assert np.abs(shares - [0.02275, 0.15866, 0.5, 0.84134, 0.97725]).max() < 1.95 / np.sqrt(count)
        assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 4 / np.sqrt(count)
        others = native.load().normals(count, 6, 0, 4000, (1, 2))
        assert abs(np.corrcoef(drawn, others)[0, 1]) < 4 / np.sqrt(count)


def test_the_installed_pillow_is_the_one_that_is_meant() -> None:
    assert core_agrees()


NONSENSE = {
    "unknown": effect(EffectKind.NONE),
    "NaN": effect(EffectKind.BRIGHTNESS, float("nan")),
    "huge": effect(EffectKind.CONTRAST, 1e300),
    "bits": effect(EffectKind.POSTERIZE, 9),
    "even": effect(EffectKind.BLUR, 4, 3, 1, 1),
    "channel": effect(EffectKind.PERMUTE, 0, 1, 3),
    "filter": effect(EffectKind.AFFINE, 1, 0, 0, 0, 1, 0, filter=1),
    "infinite": effect(EffectKind.AFFINE, float("inf"), 0, 0, 0, 1, 0),
    "fill": effect(EffectKind.PERSPECTIVE, 1, 0, 0, 0, 1, 0, 0, 0, 300),
}
NONSENSE["unknown"]["kind"] = 99


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot convert"):
        by_core(np.zeros((4, 4, 3), np.uint8), NONSENSE[name])


@pytest.mark.parametrize("shape", [(3,), (2, 1), (1, 1, 1)])
def test_tables_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="effects of dtype"):
        native.load().convert(np.zeros((2, 2, 3), np.uint8), 0, Format(), np.zeros(shape, EFFECT))


@pytest.mark.parametrize("values", [(1e300, 0, 0, 0, 1e300, 0), (1, 1e9, -1e9, 5, 1, 0), (0, 0, 1e18, 0, 0, -1e18)])
@pytest.mark.parametrize("filter_", [0, 2, 3])
@pytest.mark.parametrize("kind", MAPS)
def test_maps_that_lead_far_away(kind: EffectKind, filter_: int, values: tuple[float, ...]) -> None:
    assert by_core(np.full((5, 7, 3), 9, np.uint8), effect(kind, *values, filter=filter_)).shape == (5, 7, 3)


def test_in_a_batch_every_image_has_its_own(tmp_path: Any) -> None:
    paths = []
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(40, 30, seed=number))
        paths.append(str(tmp_path / f"{number}.jpg"))
    table = np.zeros((4, 2), EFFECT)
    table["kind"][1, 0] = EffectKind.INVERT
    table["kind"][2] = EffectKind.EQUALIZE, EffectKind.GREY
    out = [np.zeros((4, 8, 8, 3), np.uint8) for _ in range(2)]
    for given_, place in zip((None, table), out, strict=True):
        fill(of_files(paths, place, effects=given_))
    plain, changed = out
    assert plain.any()
    assert np.array_equal(changed[[0, 3]], plain[[0, 3]])
    for row in (1, 2):
        assert np.array_equal(changed[row], by_pillow(plain[row], table[row : row + 1]))

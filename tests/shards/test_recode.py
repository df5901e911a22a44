"""What a conversion does to images: what says how pixels look stays, damage is an error, nothing becomes larger."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps

from fastdata.errors import ConversionError
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding

PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
SHRINKING = {"max side": {"max_side": 100}, "min side": {"min_side": 60}, "quality": {"quality": 80}}


def photo(**options: Any) -> bytes:
    """Turned, with a colour profile and with words that nobody needs."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a description"
    options = {"exif": exif, "icc_profile": PROFILE, "comment": b"hello", **options}
    return images.saved(400, 300, **options)


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


@pytest.mark.parametrize("options", [*SHRINKING.values(), {"lossless": True}], ids=[*SHRINKING, "lossless"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_orientation_and_profile_stay_and_other_metadata_go(options: dict[str, Any], kind: str) -> None:
    before = photo(kind=kind)
    made = Recoding(**options).apply(before)
    assert (made.width, made.height) == opened(made.data).size  # not turned
    assert opened(made.data).getexif()[0x0112] == 6
    assert opened(made.data).info["icc_profile"] == PROFILE
    turned = ImageOps.exif_transpose(opened(made.data))
    assert turned.height > turned.width
    if made.extension == "jpg":
        assert made.data != before
        assert b"description" not in made.data
        assert b"hello" not in made.data


def test_repacked_pixels_are_the_same_for_every_reader() -> None:
    before = photo()
    made = Recoding(lossless=True).apply(before).data
    assert len(made) < len(before)
    for view in (lambda image: image, ImageOps.exif_transpose):
        np.testing.assert_array_equal(np.asarray(view(opened(made))), np.asarray(view(opened(before))))


def test_a_profile_of_many_segments_stays() -> None:
    large = PROFILE[:16] + b"RGB " + PROFILE[20:] + bytes(150_000)
    for options in ({"lossless": True}, {"max_side": 100}):
        made = Recoding(**options).apply(photo(icc_profile=large)).data
        assert opened(made).info["icc_profile"] == large


def test_a_profile_of_other_colours_does_not_stay_with_rgb_pixels() -> None:
    cmyk = PROFILE[:16] + b"CMYK" + PROFILE[20:]
    made = Recoding(max_side=100).apply(photo(mode="CMYK", icc_profile=cmyk))
    assert opened(made.data).mode == "RGB"
    assert "icc_profile" not in opened(made.data).info


def test_a_tiff_that_pillow_turns_is_not_turned_twice() -> None:
    made = Recoding(max_side=100).apply(photo(kind="TIFF"))
    assert opened(made.data).size == (75, 100)
    assert opened(made.data).getexif().get(0x0112, 1) == 1


def test_lossless_makes_nothing_larger() -> None:
    for data in (images.saved(24, 16, optimize=True), images.saved(300, 200, progressive=True, optimize=True)):
        assert Recoding(lossless=True).apply(data).data == data
    for name, data in images.odd_files().items():
        assert len(Recoding(lossless=True).apply(data).data) <= len(data), name


@pytest.mark.parametrize("size", [0.5, 0.9])
def test_lossless_does_not_take_a_jpeg_that_is_cut_short(tmp_path: Path, size: float) -> None:
    (tmp_path / "source" / "a").mkdir(parents=True)
    whole = images.jpeg(200, 150)
    (tmp_path / "source" / "a" / "0.jpg").write_bytes(whole)
    (tmp_path / "source" / "a" / "1.jpg").write_bytes(whole[: int(size * len(whole))])
    lossless = Recoding(lossless=True)
    with pytest.raises(ConversionError, match=r"1\.jpg .*cannot be converted: .*truncated"):
        convert(str(tmp_path / "source"), tmp_path / "out", ConvertOptions(recoding=lossless))
    summary = convert(str(tmp_path / "source"), tmp_path / "out", ConvertOptions(recoding=lossless, on_error="skip"))
    assert summary.manifests[""].samples == 1
    assert "skipped a/1: image file is truncated" in str(summary)

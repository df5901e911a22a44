"""Every public attribute and method of Pillow's images and of tensors, on pending ones and on real ones."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import images
import numpy as np
import PIL.Image
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps, ImagePalette
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from torchvision.transforms import functional as F  # noqa: N812 - as everybody calls it
from torchvision.transforms import v2

from fastdata.lazy.opening import opening_encoded
from fastdata.lazy.pending_tensor import is_pending

EXIF = Image.Exif()
EXIF[274], EXIF[271] = 6, "a maker"
FILES = {
    "jpeg": lambda: images.saved(60, 50, dpi=(72, 96), comment=b"a comment"),
    "exif.jpeg": lambda: images.saved(60, 50, exif=EXIF.tobytes(), icc_profile=b"profile" * 20),
    "grey.jpeg": lambda: images.saved(60, 50, mode="L"),
    "progressive.jpeg": lambda: images.saved(60, 50, progressive=True),
    "png": lambda: images.saved(60, 50, kind="PNG", dpi=(72, 72)),
    "grey.png": lambda: images.saved(60, 50, kind="PNG", mode="L"),
    "alpha.png": lambda: images.saved(60, 50, kind="PNG", mode="RGBA"),
}
STATES: dict[str, Callable[[Any], Any]] = {
    "opened": lambda image: image,
    "converted": lambda image: image.convert("RGB"),
    "used": lambda image: (image.load(), image)[1],
    "decoded": lambda image: (image.getpixel((0, 0)), image)[1],
    "cropped": lambda image: image.convert("RGB").crop((3, 4, 44, 39)),
    "resized": lambda image: image.convert("RGB").resize((20, 24)),
    "flipped": lambda image: image.convert("RGB").transpose(Image.Transpose.FLIP_LEFT_RIGHT),
}
CELL = (4, 5, 14, 11)


def small(mode: str = "RGB") -> Image.Image:
    return Image.fromarray(np.arange(6 * 10 * 3, dtype=np.uint8).reshape(6, 10, 3)).convert(mode)


# Arguments that methods are called with, beside none.
ARGUMENTS: dict[str, list[tuple[Any, ...]]] = {
    "alpha_composite": [(small("RGBA"),)],
    "apply_transparency": [()],
    "convert": [("RGB",), ("L",), ("RGBA",), ("P",), ("1",), ("YCbCr",), ("nonsense",), (None, (1.0,) * 12)],
    "crop": [(CELL,), (None,), ((-3, -2, 70, 60),), ((5, 5, 2, 2),), ((1.4, 2.6, 20.5, 30.5),), ((1, 2),)],
    "draft": [("L", (20, 20)), ("RGB", (10, 10)), (None, None)],
    "effect_spread": [(0,)],
    "entropy": [(), (small("1").resize((60, 50)),)],
    "filter": [(ImageFilter.GaussianBlur(2),), (ImageFilter.SHARPEN,), ("nonsense",)],
    "frombytes": [(bytes(60 * 50 * 3),), (b"",)],
    "getchannel": [(0,), ("G",), (7,), ("X",)],
    "getcolors": [(), (5,)],
    "getdata": [(), (0,)],
    "getextrema": [()],
    "getpalette": [(), ("RGBA",)],
    "getpixel": [((3, 4),), ([3, 4],), ((100, 100),), ((-1, -1),)],
    "get_flattened_data": [(), (1,)],
    "histogram": [(), (small("1").resize((60, 50)),)],
    "paste": [
        (7,),
        ((1, 2, 3), CELL),
        (small(), (2, 3)),
        (small(), (2, 3), small("L")),
        ("red",),
        (small(), (0, 0, 3, 3)),
    ],
    "point": [(lambda value: value // 2,), ([7] * 768,), ([1, 2],)],
    "putalpha": [(7,), (small("L").resize((60, 50)),), (small("L"),)],
    "putdata": [([(1, 2, 3)] * 10,), ([1] * 10,)],
    "putpalette": [(list(range(256)) * 3,)],
    "putpixel": [((3, 4), (1, 2, 3)), ((3, 4), 9), ((100, 100), 0)],
    "quantize": [(4,), (4, 9)],
    "reduce": [(2,), ((2, 3),), (2, CELL), (0,)],
    "remap_palette": [([1, 0],)],
    "resize": [
        ((20, 24),),
        ((20, 24), 2),
        ((20, 24), 3, CELL),
        ((20, 24), 2, None, 2.0),
        ((0, 5),),
        (5,),
        ((20, 24), 9),
        ((2.5, 3),),
    ],
    "rotate": [(30,), (90,), (180, 0, True), (10, 2, False, None, (3, 3), (1, 2, 3))],
    "save": [("BYTES",), ("BYTES", "PNG"), ("BYTES", "JPEG"), ("BYTES", "nonsense"), ("name.nonsense",)],
    "seek": [(0,), (1,), (-1,)],
    "thumbnail": [((20, 20),), ((20, 20), 2, None), ((500, 500),)],
    "tobytes": [(), ("raw", "BGR"), ("nonsense",)],
    "transform": [
        ((20, 20), Image.Transform.EXTENT, CELL),
        ((9, 9), Image.Transform.AFFINE, (1, 0, 2, 0, 1, 3), 2),
        ((9, 9), 99),
    ],
    "transpose": [*((each,) for each in Image.Transpose), (99,)],
}
# Looked at by hand below, or by other tests; or what they give lies outside of Pillow's promises.
LEFT_OUT = {
    "load_djpeg": "runs a program",
    "load_end": "of the decoder",
    "show": "opens a window",
    "frombytes": "of a file that has not been loaded, Pillow fails an assertion",
    "toqimage": "needs Qt",
    "toqpixmap": "needs Qt",
    "im": "the core's own object",
    "fp": "an encoded image keeps no file open",
    "tile": "an encoded image has been read, or will be, by another decoder",
    "decodermaxblock": "of the decoder",
    "decoderconfig": "of the decoder",
    "map": "of the decoder",
    "png": "Pillow's reader of a PNG",
}
# Only `readonly` tells when; pixels are the same.
LOADED_AT_ANOTHER_TIME = [("opened", "putpalette"), ("opened", "get_child_images")]


def names() -> list[str]:
    found = {
        name for cls in (Image.Image, JpegImageFile, PngImageFile) for name in dir(cls) if not name.startswith("_")
    }
    for data in (FILES["exif.jpeg"](), FILES["png"]()):
        found |= {name for name in vars(Image.open(io.BytesIO(data))) if not name.startswith("_")}
    return sorted(found - {name for name in LEFT_OUT if name != "tobitmap"})


def plain(value: Any) -> Any:
    """What there is to compare of a value."""
    if isinstance(value, Image.Image):
        told: list[Any] = [value.__class__]
        for name in ("mode", "size", "info", "format", "filename", "readonly", "tobytes", "getpalette"):
            try:
                found = getattr(value, name, "none")
                told.append(plain(found() if callable(found) else found))
            except Exception as error:  # noqa: BLE001 - of Pillow's many kinds
                told.append(failure(error))
        return told
    if isinstance(value, Image.Exif):
        return [type(value), dict(value)]
    if isinstance(value, ImagePalette.ImagePalette):
        return [type(value), value.mode, bytes(value.palette)]
    if isinstance(value, np.ndarray):
        return [value.dtype, value.shape, value.strides, value.tobytes()]
    if isinstance(value, dict):
        return [type(value), [(key, plain(each)) for key, each in value.items()]]
    if isinstance(value, list | tuple):
        return [type(value), [plain(each) for each in value]]
    if type(value).__name__ in ("PixelAccess", "PixelsOnDemand"):
        return ["pixels", value[3, 4], value[10, 0]]
    if type(value).__name__ == "ImagingCore":
        return ["core", value.mode, value.size, list(value)]
    if (
        type(value).__name__ == "PyCapsule"
        or callable(value)
        or inspect.isgenerator(value)
        or isinstance(value, io.BytesIO)
    ):
        return type(value)
    return [type(value), value] if value == value or not isinstance(value, float) else "not a number"


def failure(error: BaseException) -> list[Any]:
    told = re.sub(r"0x[0-9a-fA-F]+", "0x", str(error))
    return ["error", type(error), re.sub(r"^\w+(?=\.\w+\(\) missing)", "class", told)]


def outcome(image: Any, name: str, arguments: tuple[Any, ...] | None) -> list[Any]:
    """What an attribute is, or gives when it is called, and what becomes of the image by that."""
    file = io.BytesIO()
    try:
        found = getattr(image, name)
        if arguments is not None and callable(found):
            found = found(*(file if each == "BYTES" else copy.copy(each) for each in arguments))
        told = plain(found)
    except Exception as error:  # noqa: BLE001 - of Pillow's many kinds
        told = failure(error)
    return [told, file.getvalue(), plain(image)]


def first_difference(ours: Any, theirs: Any) -> str:
    """The innermost values that differ first, in words."""
    if isinstance(ours, list | tuple) and type(ours) is type(theirs) and len(ours) == len(theirs):
        return next(first_difference(mine, other) for mine, other in zip(ours, theirs, strict=True) if mine != other)
    return f"{ours!r:.150} instead of {theirs!r:.150}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("images")
    for name, made in FILES.items():
        (place / name).write_bytes(made())
    return place


def both(path: Any, state: str) -> tuple[Any, Any]:
    """An encoded image, and Pillow's."""
    with opening_encoded():
        ours = STATES[state](PIL.Image.open(path))
    return ours, STATES[state](PIL.Image.open(path))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("file", FILES)
def test_attributes_and_methods(folder: Path, file: str, state: str) -> None:
    different = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names():
            for arguments in (None, (), *ARGUMENTS.get(name, [])):
                ours, theirs = both(folder / file, state)
                with opening_encoded():
                    mine = outcome(ours, name, arguments)
                expected = outcome(theirs, name, arguments)
                if mine != expected and (state, name) not in LOADED_AT_ANOTHER_TIME:
                    given = "" if arguments is None else f"({', '.join(f'{each!r:.30}' for each in arguments)})"
                    different.append(f"{name}{given}: {first_difference(mine, expected)}")
    assert not different, "\n".join(different)


PROTOCOLS: dict[str, Callable[[Any], Any]] = {
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle": lambda image: pickle.loads(pickle.dumps(image)),
    "pickle 2": lambda image: pickle.loads(pickle.dumps(image, 2)),
    "hash": hash,
    "bool": bool,
    "len": len,
    "iter": iter,
    "repr": lambda image: re.sub("0x[0-9A-F]+", "0x", repr(image)),
    "equal": lambda image: [image == image.copy(), image == image.convert("L"), image == 3, image != image.copy()],
    "array": np.asarray,
    "array of levels": lambda image: np.array(image, np.float32),
    "bytes of an array": lambda image: np.ascontiguousarray(image).data.tobytes(),
    "picture of a notebook": lambda image: image._repr_png_(),
    "exif of a private method": lambda image: image._getexif(),
    "an unknown attribute": lambda image: image.nonsense,
    "set an attribute": lambda image: [setattr(image, "mine", 3), image.mine, image.copy().mine],
    "set the size": lambda image: setattr(image, "size", (3, 4)),
    "lists in info": lambda image: _lists_in_info(image),
    "in a with block": lambda image: image.__enter__() and image.__exit__(None, None, None),
    "types": lambda image: [image.__class__, isinstance(image, JpegImageFile), type(image) in {Image.Image: 1}],
}


def _lists_in_info(image: Any) -> list[Any]:
    image.info["list"] = values = [1]
    made = [image.copy(), image.convert("RGB"), image.resize((5, 5)), image.crop((0, 0, 4, 4)), image.convert("L")]
    values.append(2)
    return [each.info["list"] for each in made]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("file", FILES)
def test_protocols(folder: Path, file: str, state: str) -> None:
    different = []
    for name, call in PROTOCOLS.items():
        found = []
        for image in both(folder / file, state):
            try:
                told = plain(call(image))
            except Exception as error:  # noqa: BLE001 - of many kinds
                told = failure(error)
            found.append([told, plain(image)])
        if found[0] != found[1]:
            different.append(f"{name}: {first_difference(*found)}")
    assert not different, "\n".join(different)


OPENED: dict[str, Callable[[Path], Any]] = {
    "str": str,
    "bytes": lambda path: str(path).encode(),
    "Path": lambda path: path,
    "BytesIO": lambda path: io.BytesIO(path.read_bytes()),
    "file": lambda path: path.open("rb"),
}


@pytest.mark.parametrize("opened", OPENED)
@pytest.mark.parametrize("file", FILES)
def test_file_names(folder: Path, file: str, opened: str) -> None:
    given, others = OPENED[opened](folder / file), OPENED[opened](folder / file)
    with opening_encoded():
        ours = PIL.Image.open(given)
    theirs = PIL.Image.open(others)
    for _ in range(2):
        assert (type(ours.filename), ours.filename) == (type(theirs.filename), theirs.filename)
        assert plain(ours) == plain(theirs)
    again, other = (pickle.loads(pickle.dumps(image)) for image in (ours, theirs))
    assert (again.filename, plain(again)) == (other.filename, plain(other))
    for each in (ours, theirs, given, others):
        if hasattr(each, "close"):
            each.close()


# ---- tensors


SMALL = images.saved(24, 20)


def opened() -> Image.Image:
    return PIL.Image.open(io.BytesIO(SMALL)).convert("RGB")


TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "floats": lambda: F.to_tensor(opened()),
    "bytes": lambda: F.pil_to_tensor(opened()),
    "of torchvision": lambda: v2.functional.to_image(opened()),
    "normalized": lambda: F.normalize(F.to_tensor(opened()), [0.5] * 3, [0.25] * 3),
    "batch": lambda: torch.stack([F.to_tensor(opened()), F.to_tensor(opened())]),
}
NOT_COMPARED = {
    "const_data_ptr": "an address",
    "data_ptr": "an address",
    "new": "memory that nobody has written",
    "new_empty": "memory that nobody has written",
    "new_empty_strided": "memory that nobody has written",
    "empty_like": "memory that nobody has written",
}
OPERATORS = {
    *("array", "len", "iter", "contains", "bool", "int", "float", "index", "getitem", "add", "radd", "iadd", "sub"),
    *("rsub", "mul", "truediv", "rtruediv", "floordiv", "mod", "pow", "rpow", "matmul", "rmatmul", "and", "or", "xor"),
    *("invert", "neg", "pos", "abs", "eq", "ne", "lt", "le", "gt", "ge", "repr", "format", "reversed", "deepcopy"),
    *("dlpack_device", "setitem", "lshift"),
}


def tensor_names() -> list[str]:
    own = {f"__{name}__" for name in OPERATORS}
    names = (name for name in dir(torch.Tensor) if not name.startswith("_") or name in own)
    return sorted({*names} - NOT_COMPARED.keys())


def tensor_arguments(like: torch.Tensor) -> list[tuple[Any, ...]]:
    """Arguments of every method: most fit some of them, and all others have errors to compare."""
    other = torch.full(like.shape, 2, dtype=like.dtype)
    return [
        *((), (0,), (1,), (2.0,), (-1,), (0, 1), (1, 0, 2), (0, 0, 2), (0, 1, 3), ((3, -1),), (2, 3, 4, 5)),
        *((other,), (other, 2), (other, other), (other > 1,), (other > 1, 5), (torch.zeros(20, 4, dtype=like.dtype),)),
        *((torch.float64,), (torch.uint8,), ("cpu",), (None,), ([1, 2],), ("nonsense",), (slice(1, 3),)),
        *((0, torch.tensor([0, 2])), (0, torch.tensor([0, 2]), 3.0)),
    ]


def plain_tensor(value: Any) -> Any:
    """What there is to compare of a value."""
    if isinstance(value, torch.Tensor):
        told = [value.__class__, value.dtype, tuple(value.shape), value.device, value.requires_grad, value.layout]
        if min(value.shape, default=0) < 0:  # torch's resize_(-1) leaves it so, with an error
            return told
        if value.layout is not torch.strided or value.is_quantized:
            return [*told, repr(value)]
        return [*told, value.stride(), value.detach().resolve_conj().resolve_neg().numpy().tobytes()]
    if isinstance(value, list | tuple):
        return [type(value), [plain_tensor(each) for each in value]]
    if isinstance(value, np.ndarray):
        return [value.dtype, value.shape, value.strides, value.tobytes()]
    if callable(value):
        return "callable"
    if type(value).__module__ not in ("builtins", "torch") or type(value).__name__ in ("PyCapsule", "generator"):
        return type(value)
    return [type(value), re.sub("0x[0-9a-f]+", "0x", repr(value))]


def tensor_outcome(tensor: torch.Tensor, name: str, arguments: tuple[Any, ...] | None) -> list[Any]:
    """What an attribute is, or gives when it is called, and what becomes of the tensor by that."""
    torch.manual_seed(3)
    try:
        found: Any = getattr(tensor, name)
        if arguments is not None and callable(found):
            found = found(*(each.clone() if isinstance(each, torch.Tensor) else each for each in arguments))
        told = plain_tensor(found)
    except Exception as error:  # noqa: BLE001 - of torch's many kinds
        told = failure(error)
    return [told, plain_tensor(tensor)]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("kind", TENSORS)
def test_tensors(kind: str, part: int) -> None:
    different = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = TENSORS[kind]()
        for name in tensor_names()[part::8]:
            for arguments in (None, *tensor_arguments(theirs)):
                with opening_encoded():
                    ours = TENSORS[kind]()
                    assert is_pending(ours)
                    mine = tensor_outcome(ours, name, arguments)
                expected = tensor_outcome(TENSORS[kind](), name, arguments)
                if mine != expected:
                    given = "" if arguments is None else f"({', '.join(f'{each!r:.30}' for each in arguments)})"
                    different.append(f"{name}{given}: {first_difference(mine, expected)}")
    assert not different, "\n".join(different)


def test_metadata_behind_a_pngs_pixels_are_found(tmp_path: Path) -> None:
    """Pillow reads them when it loads the image, and then turns it."""
    encoded = images.saved(60, 50, kind="PNG", exif=EXIF.tobytes())
    begin = encoded.index(b"eXIf") - 4
    end = begin + 12 + int.from_bytes(encoded[begin : begin + 4], "big")
    (tmp_path / "late.png").write_bytes(encoded[:begin] + encoded[end:-12] + encoded[begin:end] + encoded[-12:])
    ours, theirs = both(tmp_path / "late.png", "opened")
    assert dict(ours.getexif()) == dict(theirs.getexif()) == dict(EXIF)
    assert plain(ImageOps.exif_transpose(ours)) == plain(ImageOps.exif_transpose(theirs))

"""Sources of images that stay encoded: a file that can be read again, or bytes in memory.

An open file keeps its bytes even if its path is deleted or replaced.  So only the path is kept for files that are
expected to stay: regular files, older than this program, on a disk of this machine.  The path is the real path, so
links may be switched.  Device, inode, size and times are kept with it, and compared after the file has been read.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import weakref
from typing import Any, TypeGuard

from fastdata.limits import is_above_limit
from fastdata.loaders.backend import Encoded, Pixels
from fastdata.loaders.fallback import inspect
from fastdata.loaders.unpacked import as_file
from fastdata.native import available
from fastdata.system.file_systems import is_on_this_machine
from fastdata.system.files import open_file
from fastdata.tables import Stamp
from fastdata.views.header import ImageHeader, has_whole_scans, parse_header
from fastdata.views.view import View

__all__ = ["EncodedSource", "find_source"]

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_ENDS = {"jpeg": b"\xff\xd9", "png": b"IEND\xae\x42\x60\x82"}
_PNG_MODES = {0: "L", 2: "RGB", 6: "RGBA"}  # by PNG colour type; others have palettes, or may be transparent
_HEAD_BYTES = 4096  # holds the headers of most files; other files are read whole
_MPO = b"MPF\0"  # a JPEG that holds several images
# Below, a header, a view and a decoding of its own cost what native decoding saves.
_SMALL_JPEG_PX = 160 * 160
_SMALL_PNG_PX, _SMALL_PNG_FOR_PILLOW_PX = 64 * 64, 96 * 96  # libdeflate is much faster than zlib


class EncodedSource:
    """The encoded bytes of an ordinary JPEG or PNG, or of an unpacked JPEG's record, in memory or in a file.

    Args:
        header: header of the image; None after the source was sent to another process, which does not need it.
        path: a file that can be read again; "" for none.
        data: encoded bytes; None to read them from `path` when they are needed.
        name: the path that was given to Pillow, unchanged; "" if it was not a path.
        mode: Pillow's mode of the opened image.
        origin: the file that `data` was read from, by which its index is found; "" if it is not known.
        stamp: state of the file at `path` or `origin`, when it was opened.

    Attributes:
        images: weak references to the images made from it.
        pixels: RGB (height, width, 3) of the whole image, kept once another view is wanted or expected.
        is_asked: user code called a method for which Pillow would have decoded it.
        is_converted: it was used, whole, in another mode than RGB.
        is_in_rgb: it was used in RGB.
        is_in_vain: a view of it has been decoded by itself, not with its batch, in no less time than without us.
        is_seen: a view of it has been decoded in this process.
        only_core: what the core does not decode is an error here: another decoder than Pillow will decide about it.
        is_kept: the dataset keeps an image of it, and is expected to use it again.
        file: the file object that it was opened from, until the user's code asks for pixels.
        info: the metadata that Pillow reads from the file; None until somebody asks for it.
        latest: the view that was decoded last; with its pixels, if it is expected to be wanted again.
    """

    __slots__ = (
        "data",
        "file",
        "header",
        "images",
        "info",
        "is_asked",
        "is_converted",
        "is_in_rgb",
        "is_in_vain",
        "is_kept",
        "is_seen",
        "latest",
        "mode",
        "name",
        "only_core",
        "origin",
        "path",
        "pixels",
        "stamp",
    )

    def __init__(
        self,
        header: ImageHeader | None,
        *,
        path: str,
        data: bytes | None,
        name: str,
        mode: str = "RGB",
        origin: str = "",
        stamp: Stamp | None = None,
    ) -> None:
        self.header, self.path, self.data, self.name, self.mode = header, path, data, name, mode
        self.origin, self.stamp = origin or path, stamp
        self.images: list[weakref.ref[Any]] = []
        self.pixels: Pixels | None = None
        self.is_asked = self.is_seen = self.is_kept = self.only_core = False
        self.is_converted = self.is_in_rgb = self.is_in_vain = False
        self.file: Any = None
        self.info: dict[Any, Any] | None = None
        self.latest: tuple[View | None, Pixels | None] = (None, None)

    @classmethod
    def of_pixels(cls, pixels: Pixels) -> EncodedSource:
        """The source of RGB pixels (height, width, 3) that are there already; it stays in this process."""
        source = cls(None, path="", data=None, name="")
        source.pixels = pixels
        return source

    @property
    def is_decoded(self) -> bool:
        """True if it has nothing but its pixels."""
        return self.data is None and not self.path

    @property
    def is_for_others(self) -> bool:
        """True if leaving it encoded has gained nothing over the library that the user's code opens it with."""
        return self.is_in_vain or (self.is_converted and not self.is_in_rgb)

    def note_alone(self, view: View, *, for_pillow: bool) -> bool:
        """Notes that a view is decoded by itself, also to give Pillow its pixels; True if that gains nothing.

        That is so for small ones, and for whole tensors of torchvision's.
        """
        header, small = self.header, _SMALL_JPEG_PX
        if header is not None and header.kind == "png":
            small = _SMALL_PNG_FOR_PILLOW_PX if for_pillow else _SMALL_PNG_PX
        is_in_vain = header is not None and header.width * header.height < small
        is_in_vain |= self.only_core and self.shows_nearly_all(view)
        self.is_in_vain |= is_in_vain
        return is_in_vain

    def has_late_metadata(self) -> bool:
        """True if a PNG may have text or EXIF behind its first pixels: then Pillow finds it when it loads the image."""
        data = self.read()
        pixels = data.find(b"IDAT")
        return any(data.find(kind, pixels) >= 0 for kind in (b"eXIf", b"tEXt", b"zTXt", b"iTXt"))

    def shows_nearly_all(self, view: View) -> bool:
        """True for a view of the encoded image's own pixels, and of more than half of them."""
        if self.header is None or view.is_resized:
            return False
        height, width = view.size
        return 2 * height * width > self.header.width * self.header.height

    def __reduce__(self) -> tuple[Any, ...]:
        return _sent, (self.path, self.data, self.name, self.origin, self.stamp, self.only_core)

    def note_image(self, image: Any) -> None:
        """Notes an image that is made from it; those that are gone are forgotten whenever their number has doubled."""
        if (number := len(self.images)) & (number - 1) == 0:
            self.images = [each for each in self.images if each() is not None]
        self.images.append(weakref.ref(image))

    def ask(self) -> None:
        """Notes that Pillow would decode it now.

        Raises:
            ValueError: the program has closed the file meanwhile; the file's own error, as with Pillow.
        """
        self.is_asked = True
        if self.file is not None and getattr(self.file, "closed", False):
            self.file.seek(0, os.SEEK_CUR)  # which raises
        self.file = None

    def is_held(self) -> bool:
        """True if an image made from it still exists."""
        return any(image() is not None for image in self.images)

    def has_changed(self) -> bool:
        """True if the file at the path is no longer the one that was opened, or has changed since."""
        if self.data is not None or self.stamp is None:
            return False
        try:
            return _stamp_of(os.stat(self.path)) != self.stamp
        except OSError:
            return True

    def read(self) -> bytes:
        """Returns the bytes of the whole file, for a record of its JPEG; bytes read from a path are not kept.

        Raises:
            OSError: it cannot be read any more, has changed, or the record is damaged.
        """
        if self.data is not None:
            if self.header is None or self.header.kind == "unpacked":
                self.data = as_file(self.data)  # once, however many views are decoded one by one
                self.header = parse_header(self.data)
            return self.data
        with open_file(self.path) as file:
            data = file.read()
            if self.stamp is not None and _stamp_of(os.fstat(file.fileno())) != self.stamp:
                raise OSError(errno.ESTALE, "the file has changed since it was opened", self.path)
        return data

    def encoded(self) -> Encoded:
        """Reads the image and returns it with its header and size, as backends take it.

        Raises:
            OSError: it cannot be read any more, or is no image any more.
        """
        data = self.read()
        if self.header is None:
            return inspect(data)
        return Encoded(data=data, header=self.header, width=self.header.width, height=self.header.height)

    def location(self) -> str:
        """The name of the image in messages: its path, or its size in bytes."""
        return self.name or self.origin or f"an image of {len(self.data or b'')} bytes in memory"


def _sent(path: str, data: bytes | None, name: str, origin: str, stamp: Stamp | None, only_core: bool) -> EncodedSource:
    source = EncodedSource(None, path=path, data=data, name=name, origin=origin, stamp=stamp)
    source.only_core = only_core
    return source


def _stamp_of(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def find_source(opened: Any, *, keep_paths_before: float = 0.0) -> EncodedSource | None:
    """Returns the source of a whole, ordinary JPEG or PNG that `PIL.Image.open` is called with; None for others.

    Args:
        opened: a path, or a file object, whose position is 0 afterwards.
        keep_paths_before: time in seconds since 1970; files last changed before it are read again when they are
            decoded.  Others may be temporary, so they are read now.

    Raises:
        OSError: the file cannot be opened, as Pillow would raise it.
    """
    if isinstance(opened, str | bytes | os.PathLike):
        name = os.fsdecode(opened)
        if not stat.S_ISREG(os.stat(name).st_mode):  # opening a pipe, and closing it, would end its writer
            return None
        with open(name, "rb", buffering=0, opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or is_above_limit(status.st_size):  # a pipe can be read only once
                return None
            path = _lasting_path(file.fileno(), status, keep_paths_before)
            return _from_ends(file, path, name, status) if path else _from_whole(file, name, _absolute(name), status)
    source = _source_of_object(opened, keep_paths_before)
    if source is not None:
        source.file = opened
    return source


def _source_of_object(opened: Any, keep_paths_before: float) -> EncodedSource | None:
    file_name = getattr(opened, "name", None)
    is_file = isinstance(opened, io.BufferedReader) and isinstance(opened.raw, io.FileIO)  # not a member of a tar file
    if is_file and isinstance(file_name, str):
        opened.seek(0)
        status = os.fstat(opened.fileno())
        if is_above_limit(status.st_size):
            return None
        path = _lasting_path(opened.fileno(), status, keep_paths_before)
        return _from_ends(opened, path, "", status) if path else _from_whole(opened, "", _absolute(file_name), status)
    return _from_whole(opened, "", "")


def _without_waiting(name: str, flags: int) -> int:
    """Opens a file; does not wait for a writer if it is a pipe."""
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def _absolute(name: str) -> str:
    """Returns a path that does not depend on the process's working folder."""
    return name if os.path.isabs(name) else os.path.join(os.getcwd(), name)


def _lasting_path(number: int, status: os.stat_result, before: float) -> str | None:
    """Returns the real path of an open file that is expected to stay as it is; None for others.

    Args:
        number: file descriptor.
        status: result of `os.fstat` for it.
        before: seconds since 1970; the file must not have changed since then.
    """
    if not stat.S_ISREG(status.st_mode) or max(status.st_ctime, status.st_mtime) >= before:
        return None
    if not is_on_this_machine(status.st_dev):
        return None
    try:
        path = os.readlink(f"/proc/self/fd/{number}")
        return path if os.path.samestat(os.lstat(path), status) else None
    except OSError:  # no such folder: another system than Linux
        return None


def _from_ends(file: Any, path: str, name: str, status: os.stat_result) -> EncodedSource | None:
    """Makes a source from a file's first and last bytes; None if it is no ordinary image.  Decoding reads the rest."""
    whole, head = None, file.read(_HEAD_BYTES)
    if not head.startswith((_JPEG, _PNG)):
        file.seek(0)
        return None
    header = parse_header(head)
    if header is None or len(head) < _HEAD_BYTES:
        file.seek(0)
        whole = head = file.read()
        header = parse_header(head)
    else:
        end = _ENDS[header.kind]
        file.seek(-len(end), os.SEEK_END)
        if file.read(len(end)) != end:  # other bytes may follow the end marker
            file.seek(0)
            whole = file.read()
    file.seek(0)
    if not _is_ordinary(header, head, whole):
        return None
    stamp = _stamp_of(status)
    return EncodedSource(header, path=path, data=None, name=name, mode=_mode_of(header, head), stamp=stamp)


def _from_whole(file: Any, name: str, origin: str, status: os.stat_result | None = None) -> EncodedSource | None:
    try:
        file.seek(0)
        start = file.read(len(_PNG))
        data = start + file.read() if start.startswith((_JPEG, _PNG)) else None
        file.seek(0)
    except (AttributeError, TypeError, io.UnsupportedOperation):  # sockets and the like: Pillow knows what to do
        return None
    header = parse_header(data) if data is not None else None
    if data is None or not _is_ordinary(header, data, data):
        return None
    stamp = _stamp_of(status) if status is not None else None
    return EncodedSource(header, path="", data=data, name=name, mode=_mode_of(header, data), origin=origin, stamp=stamp)


def _is_ordinary(header: ImageHeader | None, head: bytes, whole: bytes | None) -> TypeGuard[ImageHeader]:
    """True for images that the core decodes and Pillow accepts, judged by the first bytes and perhaps the whole file.

    A file that ends with an end marker is taken to be whole; if it is not, decoding it fails later.
    """
    if header is None:
        return False
    if header.kind == "png":
        return _is_ordinary_png(head) and (whole is None or whole.endswith(_ENDS["png"]))
    if (frame := header.jpeg) is None:
        return False
    is_plain = frame.precision_bits == 8 and frame.components in (1, 3)
    if not is_plain or head.find(_MPO, 0, frame.scan_at) >= 0:
        return False
    return whole is None or whole.endswith(_ENDS["jpeg"]) or has_whole_scans(whole, frame)


def _is_ordinary_png(head: bytes) -> bool:
    """True for a PNG of 8 bits per channel, not interlaced, without a tRNS or acTL chunk before its pixels."""
    pixels = head.find(b"IDAT")
    core = available()
    if core is None or not core.reads_pngs:
        return False
    if pixels < 0 or head[24] != 8 or head[25] not in _PNG_MODES or head[28] != 0:
        return False
    return not any(head.find(chunk, 0, pixels) >= 0 for chunk in (b"tRNS", b"acTL"))


def _mode_of(header: ImageHeader, head: bytes) -> str:
    """Returns Pillow's mode of the opened image."""
    if header.jpeg is not None:
        return "L" if header.jpeg.components == 1 else "RGB"
    return _PNG_MODES[head[25]]

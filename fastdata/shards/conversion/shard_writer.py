"""ShardWriter: shards of samples that Python code makes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from fastdata.errors import ConversionError, in_words
from fastdata.shards.conversion.job import ConvertOptions, check_apart
from fastdata.shards.conversion.recode import Recoding
from fastdata.shards.conversion.samples import Keys, sample_of
from fastdata.shards.conversion.shard_plan import room_in, stored_bytes
from fastdata.shards.format import MANIFEST_NAME, Manifest, ShardInfo, crc32c
from fastdata.shards.patterns import refuse_url
from fastdata.shards.writer import TarWriter
from fastdata.system.disk_space import space_errors
from fastdata.system.files import write_whole

__all__ = ["ShardWriter"]

_HELP = "free some space and write the samples again, into an empty folder"


class ShardWriter:
    """Writes samples to shards, as `fastdata convert` does: plain WebDataset tar files, each with an index.

    A shard gets its final name when it is full, the folder its manifest when the writer is closed.  After an error in
    the `with` block, or if the program is killed, the shards that were full are there without a manifest; `fastdata
    index FOLDER` makes a dataset of them.  A source that should be continued after interruptions is better written as a
    function, for `fastdata convert --from module:function`, which also uses all CPUs.

    Args:
        folder: a local folder that is empty or does not exist.
        classes: class names by number; None for none.
        shard_bytes: largest amount of data in a shard, in bytes.
        recoding: conversion to apply to every image; by default its bytes are kept.

    Raises:
        ConversionError: there is something in the folder, or the disk is full.
        OptionError: the folder is a URL, or shard_bytes is not positive.

    Example:
        >>> with ShardWriter("captions") as writer:
        ...     writer.write({"__key__": "0001", "jpg": Path("1.jpg").read_bytes(), "txt": "a dog", "mask.png": mask})
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        classes: Sequence[str] | None = None,
        shard_bytes: int = 256 << 20,
        recoding: Recoding | None = None,
    ) -> None:
        refuse_url(folder)
        self._folder = Path(folder)
        self._options = ConvertOptions(shard_bytes=shard_bytes, recoding=recoding or Recoding())
        self._classes = list(classes) if classes is not None else None
        self._keys, self._room = Keys(), 0
        self._shards: list[ShardInfo] = []
        self._open: TarWriter | None = None
        self._samples = self._bytes = 0
        self._folder.mkdir(parents=True, exist_ok=True)
        if any(self._folder.iterdir()):
            raise ConversionError(f"{self._folder} is not empty; choose another folder, or remove what is in it")

    def write(self, sample: Mapping[str, Any]) -> None:
        """Appends a sample.

        Args:
            sample: "__key__", its name, unique in the dataset; the image under an extension of image files (or
                "image"): the bytes of a file, or a `pathlib.Path` of one, or for "png" an array or image of Pillow's;
                "cls", its class number, where it has one; and any other fields by the extensions that their members
                get: bytes or a Path, or a str for txt, what JSON can hold for json, an array for npy, an array or image
                for "mask.png".

        Raises:
            ConversionError: the sample has no key or image, its image cannot be opened, or a value is not one for its
                field; the writer goes on with the next sample.  Or the disk is full.
        """
        where = f"sample {self._samples}"
        made = sample_of(dict(sample), where)
        try:
            image = self._options.recoding.apply(made.data)
        except Exception as error:
            raise ConversionError(f"{where} ({made.key}): the image cannot be converted: {in_words(error)}") from error
        check_apart(image.extension, made.key, [name for name, _ in made.parts])
        size = stored_bytes(len(made.data), *(len(data) for _, data in made.parts))
        with space_errors(self._folder, _HELP):
            writer = self._writer_for(size)
            key = self._keys.unique(made.key)
            writer.add(key, image.extension, image.data, made.label, image.width, image.height, made.parts)
        self._samples, self._bytes = self._samples + 1, self._bytes + len(made.data)

    def _writer_for(self, size: int) -> TarWriter:
        """The open shard, or a new one where the open one has no room for so many bytes."""
        if self._open is not None and size > self._room:
            self._finish_shard(self._open)
        if self._open is None:
            self._open = TarWriter(self._folder, f"shard-{len(self._shards):06}.tar")
            self._room = room_in(self._options)
        self._room -= size
        return self._open

    def _finish_shard(self, writer: TarWriter) -> None:
        with writer:
            self._shards.append(writer.finish())
        self._open = None

    def close(self) -> Manifest:
        """Finishes the last shard and writes the manifest, which it returns.

        Raises:
            ConversionError: no sample was written, or the disk is full.
        """
        if not self._samples:
            raise ConversionError(f"no sample was written to {self._folder}, so it is no dataset")
        with space_errors(self._folder, _HELP):
            if self._open is not None:
                self._finish_shard(self._open)
            checksums = ",".join(str(shard.tar_crc32c) for shard in self._shards)
            source = {"samples": self._samples, "bytes": self._bytes, "fingerprint": crc32c(checksums.encode())}
            manifest = Manifest(
                classes=self._classes, shards=self._shards, options=self._options.to_dict(), source=source
            )
            write_whole(Path(self._folder, MANIFEST_NAME), manifest.to_text().encode())
        return manifest

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif self._open is not None:
            self._open.__exit__(kind, error, trace)  # removes what has no final name

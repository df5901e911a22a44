"""The native core, loaded with ctypes: it fills a batch from compressed bytes without the interpreter.

It takes integers and pointers and knows nothing of transforms; `fastdata.views.to_native` and `fastdata.loaders.native`
describe the work to it.  The package works without it: `load` then raises with the reason.
"""

from __future__ import annotations

from fastdata.native.abi import COp, IndexUse, NativeMissing, OpKind, PassOrder, Status
from fastdata.native.core import Core, Pool, available, load
from fastdata.native.describe import Geometry, JpegIndexes, Options, Results
from fastdata.native.one_at_a_time import OneImage, OneView
from fastdata.native.read import FileReader

__all__ = [
    "COp",
    "Core",
    "FileReader",
    "Geometry",
    "IndexUse",
    "JpegIndexes",
    "NativeMissing",
    "OneImage",
    "OneView",
    "OpKind",
    "Options",
    "PassOrder",
    "Pool",
    "Results",
    "Status",
    "available",
    "load",
]

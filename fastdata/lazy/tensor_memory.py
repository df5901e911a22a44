"""Memory of pending tensors: refused before their images are decoded, and the decoded images' afterwards.

Code in C++ reads a tensor's memory without calling `__torch_function__`: `torch.utils.dlpack.to_dlpack`, extensions.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["refuse_memory", "take_over"]

_MESSAGE = (
    "this tensor has no memory yet, since fastdata leaves its image encoded while a dataset makes samples. "
    "Call tensor.data_ptr() first, which decodes the image, or use torch.from_dlpack(tensor)."
)
_throws = getattr(torch._C, "_set_throw_on_mutable_data_ptr", None)
_set_message = getattr(torch._C, "_set_storage_data_ptr_access_error_msg", None)
_set_class: Any = object.__dict__["__class__"].__set__


def refuse_memory(tensor: torch.Tensor) -> None:
    """Makes torch raise a RuntimeError where the memory of a tensor without memory is asked for."""
    if _throws is None:
        return
    with torch._C.DisableTorchFunctionSubclass():
        if _set_message is not None:
            _set_message(tensor.untyped_storage()._cdata, _MESSAGE)
        _throws(tensor)


def take_over(tensor: Any, value: torch.Tensor) -> bool:
    """Turns a pending tensor into `value`, with its class and memory; its Python attributes stay.

    Args:
        tensor: the pending tensor.
        value: the decoded tensor; not to be used afterwards.

    Returns:
        False if C++ code holds weak references to the tensor: it keeps its class, and shares the memory of `value`.
    """
    users_class = type(value)
    try:
        torch._C._swap_tensor_impl(tensor, value)
    except RuntimeError:
        with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch():
            tensor.data = value
        return False
    _set_class(tensor, users_class)
    del tensor.__dict__["undecoded"]
    return True

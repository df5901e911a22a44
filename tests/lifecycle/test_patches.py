"""Functions of other libraries are replaced while somebody needs it, and nothing is left behind."""

from __future__ import annotations

import functools
import os
import threading
from typing import Any

import PIL.Image
import pytest
import torch
import torchvision.transforms.functional as functional_v1
import torchvision.transforms.v2.functional as functional_v2
from torch.utils.data import TensorDataset, dataloader
from torch.utils.data._utils import collate

from fastdata import DataLoader, FastdataError
from fastdata.lazy.opening import opening_encoded
from fastdata.patches import torch_internals
from fastdata.patches.replacements import Replacements

NAMESPACES: list[dict[Any, Any]] = [
    vars(PIL.Image),
    vars(functional_v1),
    vars(functional_v2),
    collate.default_collate_fn_map,
]


def snapshot() -> list[dict[Any, Any]]:
    return [dict(each) for each in NAMESPACES]


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_behind(fails: bool) -> None:
    before = snapshot()
    try:
        with opening_encoded():
            assert all(each != other for each, other in zip(snapshot(), before, strict=True))
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert snapshot() == before


def test_what_is_replaced_stays_until_the_last_user_leaves() -> None:
    namespace = {"a": 1}
    replacements = Replacements(lambda mine: mine.replace(namespace, "a", lambda original: original + 1))
    threads = [threading.Thread(target=replacements.install) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(8):
        assert namespace == {"a": 2}
        replacements.uninstall()
    assert namespace == {"a": 1}


def test_what_somebody_else_has_put_there_meanwhile_stays() -> None:
    namespace = {"a": 1, "b": 1}

    def replace_all(mine: Replacements) -> None:
        for name in "ab":
            mine.replace(namespace, name, lambda original: original + 1)

    replacements = Replacements(replace_all)
    replacements.install()
    namespace["a"] = 7
    replacements.uninstall()
    assert namespace == {"a": 7, "b": 1}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
def test_a_process_that_was_forked_while_the_lock_was_held_can_go_on() -> None:
    replacements = Replacements(lambda mine: None)
    with replacements._lock:
        child = os.fork()
        if child == 0:
            replacements.install()
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_this_torch_has_what_is_relied_on() -> None:
    assert torch_internals.missing_names() == []


@pytest.fixture
def checked_anew() -> Any:
    torch_internals.check_torch.cache_clear()
    yield
    torch_internals.check_torch.cache_clear()


@pytest.mark.usefixtures("checked_anew")
def test_a_torch_without_a_method_is_told_when_a_loader_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dataloader._MultiProcessingDataLoaderIter, "_process_data")
    with pytest.raises(FastdataError, match=r"torch \S+ has no _MultiProcessingDataLoaderIter._process_data: private"):
        DataLoader(TensorDataset(torch.arange(3)))


@pytest.mark.usefixtures("checked_anew")
def test_a_torch_without_an_attribute_is_told_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(dataloader._BaseDataLoaderIter):
        """An iterator whose methods use other names."""

    for name in torch_internals._OF_PROCESSES:
        setattr(Other, name, lambda self: None)
    monkeypatch.setattr(dataloader, "_MultiProcessingDataLoaderIter", Other)
    with pytest.raises(FastdataError, match=r"Other._data_queue, .*Other._rcvd_idx.* fastdata knows \(2.6 to"):
        DataLoader(TensorDataset(torch.arange(3)))


def test_what_a_program_puts_back_is_not_wrapped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = PIL.Image.open
    while getattr(real, "leaves_encoded", None) is real:  # another test has put ours back
        real = real.__wrapped__
    monkeypatch.setattr(PIL.Image, "open", real)
    with opening_encoded():
        ours: Any = PIL.Image.open
    assert PIL.Image.open is real

    @functools.wraps(ours)
    def of_the_program(*arguments: Any, **named: Any) -> Any:
        return ours(*arguments, **named)

    for left, wrapped in ((ours, real), (of_the_program, of_the_program)):
        monkeypatch.setattr(PIL.Image, "open", left)
        with opening_encoded():
            again: Any = PIL.Image.open
            assert again is not left
            assert again.__wrapped__ is wrapped
        assert PIL.Image.open is left

"""Activation checkpointing: the same gradients from fewer activations."""

from __future__ import annotations

import copy

import pytest
import torch
from small_training import CLASSES, close, data, options, plain_model
from torch import nn

from fastdata import OptionError
from fastdata.errors import TrainError
from fastdata.models import create_model, small_resnet
from fastdata.models.recompute import checkpoint_activations, checkpoint_modules
from fastdata.train import fit


def test_recomputed_activations_give_the_same_gradients() -> None:
    torch.manual_seed(0)
    model = small_resnet(CLASSES)
    other = copy.deepcopy(model)
    assert checkpoint_activations(other, 2) == ["1", "3"]
    images, labels = next(iter(data()))
    kept = []

    def count_and_grad(module: nn.Module) -> list[torch.Tensor]:
        saved = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal saved
            saved += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = nn.functional.cross_entropy(module(images), labels)
        kept.append(saved)
        loss.backward()
        return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]

    assert close(count_and_grad(model), count_and_grad(other))
    assert kept[1] < 0.75 * kept[0]
    with pytest.raises(TrainError, match="no repeated blocks"):
        checkpoint_activations(plain_model(), 1)


def test_recomputed_blocks_can_be_copied_and_count_batches_once() -> None:
    torch.manual_seed(0)
    plain = small_resnet(CLASSES)
    model = copy.deepcopy(plain)
    checkpoint_activations(model, 1)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    images, labels = next(iter(data()))
    for each in (plain, other):
        nn.functional.cross_entropy(each(images), labels).backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), other.buffers(), strict=True))


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("mobilenet_v2", "features.1"),
        ("convnext_tiny", "features.1.0"),
        ("vit_b_16", "encoder.layers.encoder_layer_0"),
    ],
)
def test_blocks_of_known_models(name: str, first: str) -> None:
    assert checkpoint_activations(create_model(name, 4), 1)[0] == first


def test_modules_named_are_recomputed() -> None:
    model = small_resnet(CLASSES)
    checkpoint_modules(model, ["1", "3.body"])
    assert [type(model[1]).__qualname__, type(model[3].body).__qualname__] == ["_recompute.<locals>.Recomputed"] * 2
    losses = [
        fit(small_resnet(CLASSES), data(), options=options(checkpoint_modules=names)).losses
        for names in (None, "1,3.body")
    ]
    assert len(losses[0]) == len(losses[1])
    with pytest.raises(OptionError, match=r"no module '3\.bodi'; it has 3\.body"):
        checkpoint_modules(model, ["3.bodi"])


@pytest.mark.slow
def test_compiled_blocks_are_recomputed_as_well() -> None:
    torch.manual_seed(0)
    model = small_resnet(CLASSES)
    other = copy.deepcopy(model)
    plain = fit(model, data(16), options=options()).losses
    found = fit(other, data(16), options=options(compile="default", checkpoint_every_k=1)).losses
    assert found == pytest.approx(plain, rel=1e-3)
    for name, value in other.state_dict().items():
        assert torch.allclose(value.float(), model.state_dict()[name].float(), rtol=0.01, atol=1e-3), name


def test_synchronised_statistics_count_a_recomputed_batch_once() -> None:
    torch.manual_seed(0)
    plain = nn.SyncBatchNorm.convert_sync_batchnorm(small_resnet(CLASSES))
    model = copy.deepcopy(plain)
    checkpoint_activations(model, 1)
    images, labels = next(iter(data()))
    for each in (plain, model):
        nn.functional.cross_entropy(each(images), labels).backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), model.buffers(), strict=True))

"""What can be seen of a model before training."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fastdata.errors import TrainError
from fastdata.models import checks, small_resnet


class Biased(nn.Module):
    """Biases before BatchNorm: one useless, one used twice, one before nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12)
        self.second, self.again = nn.Conv2d(12, 8, 3), nn.BatchNorm2d(8)
        self.last = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(torch.relu(self.norm(self.first(x))))
        return self.last((self.again(x) + x).mean((2, 3)))


def trained() -> Biased:
    torch.manual_seed(0)
    model = Biased()
    for _ in range(5):
        model(torch.randn(8, 3, 12, 12))
    return model


def test_biases_before_a_norm_are_found_and_removed_without_a_trace() -> None:
    model = trained()
    assert checks.useless_biases(model) == ["first"]
    images = torch.randn(4, 3, 12, 12)
    before = model.eval()(images)
    assert checks.remove_useless_biases(model, images) == ["first"]
    assert model.first.bias is None
    assert model.second.bias is not None
    assert torch.allclose(model(images), before, atol=1e-5)
    assert checks.useless_biases(small_resnet(4)) == []


def test_a_removal_that_changes_the_output_is_taken_back() -> None:
    class OverRows(nn.Module):
        """The norm's channels are rows, to which the bias of the columns does not belong."""

        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.linear(x))

    model = OverRows()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TrainError, match="the model is unchanged"):
        checks.remove_useless_biases(model, torch.randn(4, 6, 6))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training


def test_a_model_that_cannot_be_traced_says_so() -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(TrainError, match="cannot be traced"):
        checks.useless_biases(Branching())
    assert "cannot be traced" in checks.advice(Branching(), torch.zeros(1, 3, 8, 8), batch_size=8)


def test_sizes_that_are_no_multiples_of_8_are_named() -> None:
    found = checks.odd_sizes(Biased(), 12)
    assert found == [
        "batch_size=12 is not a multiple of 8",
        "first has 12 outputs, not a multiple of 8",
        "second has 12 inputs, not a multiple of 8",
        "last has 10 outputs, not a multiple of 8",
    ]
    assert "bias: first" in checks.advice(Biased(), torch.zeros(2, 3, 12, 12), batch_size=16)
    assert "nothing found" in checks.advice(small_resnet(16), torch.zeros(2, 3, 32, 32), batch_size=16)


def test_padded_classes_change_no_output() -> None:
    model = trained().eval()
    images = torch.randn(4, 3, 12, 12)
    before = model(images)
    padded = checks.PaddedClasses(copy.deepcopy(model), 10)
    assert torch.allclose(padded(images), before, atol=1e-6)
    assert padded.model.last.out_features == 16
    assert checks.odd_sizes(padded.model.last, 8) == []
    with pytest.raises(TrainError, match=r"no nn\.Linear with 3 outputs"):
        checks.PaddedClasses(nn.Conv2d(3, 3, 1), 3)

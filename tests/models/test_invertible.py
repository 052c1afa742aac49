"""A reversible network gives one example away: its head's gradient shows features, and these the picture."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.core.types import (
    INPUT_SPACE,
    Batch,
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Reconstruction,
)
from seepage.models import MODELS
from seepage.models.invertible import inputs_of
from seepage.models.layers import trace_linear_layers
from seepage.protocol import local_update

SPEC = InputSpec(modality=Modality.IMAGE, shape=(3, 16, 16), num_classes=5, mean=(0.5,) * 3, std=(0.25,) * 3)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS["irevnet"].build(SPEC)


def attacked(model: nn.Module, raw: Tensor, labels: list[int]) -> Reconstruction:
    data = Batch(SPEC.to_model(raw), torch.tensor(labels))
    update = local_update(Broadcast(model), data, LocalTraining())
    seen = Exchange(broadcast=Broadcast(model), update=update, clients=(0,))
    return ATTACKS["analytic_extraction"]().run([seen], Knowledge(input=SPEC))


@pytest.mark.parametrize("seed", range(4))
def test_one_example_comes_back_exactly(seed: int) -> None:
    """To 1e-5 of the value range: the rounding of a float32 gradient, carried through eight convolutions."""
    model = network(seed)
    raw = torch.rand(1, *SPEC.shape)
    found = attacked(model, raw, [seed])
    assert found.space == INPUT_SPACE and not found.model_units
    assert len(found) == 1 and found.claimed is not None and bool(found.claimed[0])
    assert float((found.values - raw).abs().max()) < 1e-5
    assert found.label_counts is not None and int(found.label_counts.argmax()) == seed
    assert any("run backwards" in note for note in found.notes)


def test_mixtures_of_several_examples_are_not_claimed() -> None:
    found = attacked(network(), torch.rand(4, *SPEC.shape), [0, 1, 2, 2])
    assert found.claimed is not None and not found.claimed.any()


class WrongInverse(nn.Sequential):
    def features_to_input(self, features: Tensor) -> Tensor:
        return torch.zeros(len(features), *SPEC.shape)


def test_a_wrong_inverse_is_not_believed() -> None:
    torch.manual_seed(0)
    model = WrongInverse(nn.PixelUnshuffle(2), nn.Flatten(), nn.Tanh(), nn.Linear(768, 5))
    raw = torch.rand(1, *SPEC.shape)
    found = attacked(model, raw, [1])
    assert found.space == "3"
    torch.testing.assert_close(found.values, model[:3](SPEC.to_model(raw)), rtol=1e-4, atol=1e-5)


def test_inputs_of_needs_a_reversible_model_and_candidates() -> None:
    model = network()
    (layer,) = trace_linear_layers(model, SPEC)
    assert inputs_of(model, layer, torch.zeros(0, 768), SPEC) is None
    assert inputs_of(nn.Sequential(model), layer, torch.rand(1, 768), SPEC) is None
    smaller = dataclasses.replace(layer, in_features=700)
    assert inputs_of(model, smaller, torch.rand(1, 700), SPEC) is None

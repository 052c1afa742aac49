"""The reversible network: nothing is lost before the head, by the inverse and by the Jacobian."""

from __future__ import annotations

import pytest
import torch

from seepage.core.errors import ModelError
from seepage.core.types import InputSpec, Modality
from seepage.models.zoo.reversible import irevnet


def spec(channels: int, height: int, width: int) -> InputSpec:
    return InputSpec(modality=Modality.IMAGE, shape=(channels, height, width), num_classes=3)


def head_input(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    seen: list[torch.Tensor] = []
    handle = model.get_submodule("head").register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    model(x)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize(
    ("shape", "options"),
    [((3, 32, 32), {}), ((1, 28, 28), {}), ((2, 8, 4), {"blocks": 3}), ((1, 2, 6), {"stages": 1})],
)
def test_features_invert_to_the_input(shape: tuple[int, int, int], options: dict[str, int]) -> None:
    torch.manual_seed(0)
    model = irevnet(spec(*shape), **options).double()
    x = torch.rand(3, *shape, dtype=torch.float64)
    features = head_input(model, x).detach()
    assert features.shape == (3, x[0].numel())
    torch.testing.assert_close(model.features_to_input(features), x, rtol=0, atol=1e-12)
    moved = features.sort(dim=1).values - x.flatten(1).sort(dim=1).values
    assert float(moved.abs().max()) > 1e-3  # more than a shuffle


def test_the_volume_is_kept() -> None:
    """Additive coupling and moving pixels have Jacobians of determinant +-1 (Dinh et al. 2015, NICE)."""
    torch.manual_seed(0)
    model = irevnet(spec(1, 4, 4)).double()
    jacobian = torch.autograd.functional.jacobian(
        lambda x: head_input(model, x.reshape(1, 1, 4, 4))[0], torch.rand(16, dtype=torch.float64)
    )
    assert float(torch.linalg.det(jacobian).abs()) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    ("shape", "options", "words"),
    [
        ((1, 7, 7), {}, "halves the sides of an image 2 time"),
        ((1, 6, 8), {"stages": 2}, "resize the images to a multiple of 4"),
        ((1, 8, 8), {"blocks": 0}, "blocks must be a positive whole number"),
    ],
)
def test_impossible_sizes(shape: tuple[int, int, int], options: dict[str, int], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        irevnet(spec(*shape), **options)

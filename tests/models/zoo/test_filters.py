"""Fixed filters: nothing is trained, no example sees another, and fast clipping behind them is right."""

from __future__ import annotations

import pytest
import torch

from seepage.core.errors import ModelError
from seepage.core.types import Batch, InputSpec, Modality
from seepage.defenses.dense_clipping import is_plain_dense
from seepage.defenses.per_example import clipped_sum, loop_gradients
from seepage.models.zoo.filters import FixedFilters, filtered_mlp

SPEC = InputSpec(shape=(1, 14, 14), num_classes=4, modality=Modality.IMAGE)


def test_clipping_behind_filters_equals_a_loop_over_examples() -> None:
    torch.manual_seed(0)
    model = filtered_mlp(SPEC, hidden=(6,), orientations=2)
    assert is_plain_dense(model)
    batch = Batch(torch.rand(5, 1, 14, 14), torch.tensor([0, 1, 2, 3, 0]))
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    found = clipped_sum(model, parameters, buffers, batch, "auto", clip=0.1)
    each = loop_gradients(model, parameters, buffers, batch, "auto")
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
    assert float(norms.min()) > 0.1  # all of them are clipped
    for name, grads in each.items():
        wanted = sum(g * 0.1 / n for g, n in zip(grads, norms, strict=True))
        assert torch.allclose(found[name], wanted, atol=1e-6), name


def test_filters_have_no_weights_and_look_at_each_picture_by_itself() -> None:
    filters = FixedFilters(orientations=4)
    assert not list(filters.parameters())
    pictures = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    alone = torch.cat([filters(one.unsqueeze(0)) for one in pictures])
    assert torch.allclose(filters(pictures), alone, atol=1e-5)


def test_a_wave_answers_to_its_own_direction() -> None:
    """Stripes across the first orientation excite it more than the one at a right angle to it."""
    filters = FixedFilters(orientations=2)
    columns = torch.arange(28).float()
    upright = (1.5 * columns).cos().expand(1, 1, 28, 28)  # it varies along x
    energy = torch.nn.functional.conv2d(upright, filters.get_buffer("waves")).square().mean(dim=(0, 2, 3))
    along_x, along_y = energy.unflatten(0, (2, 2, 2))[0].sum(dim=1)  # at scale 1
    assert along_x > 10 * along_y


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(ModelError, match="at least 7 x 7"):
        filtered_mlp(InputSpec(shape=(30,), num_classes=2, modality=Modality.TABULAR))

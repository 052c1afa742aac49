"""Whole batches from a layer without a bias, in [0, 1] and with mean and std."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.reading.patterns.test_by_alphabet import pictures
from tests.attacks.reading.peeling.builders import errors, sent
from torch import nn

from seepage.attacks.reading.exact_extraction import exact_extraction
from seepage.attacks.reading.patterns.doubt import Doubt
from seepage.attacks.reading.peeling.codes import NumberCode
from seepage.core.types import Batch, InputSpec, Modality

RAW = InputSpec(modality=Modality.IMAGE, shape=(1, 12, 12), num_classes=5, value_range=(0.0, 1.0))
NORMALISED = InputSpec(
    modality=Modality.IMAGE, shape=(1, 12, 12), num_classes=5, value_range=(0.0, 1.0), mean=(0.1,), std=(0.3,)
)


def network() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 300, bias=False), nn.ReLU(), nn.Linear(300, 5))


@pytest.mark.parametrize("spec", [RAW, NORMALISED], ids=["in [0, 1]", "mean and std"])
def test_a_batch_that_single_rows_show_a_part_of_is_read_whole(spec: InputSpec) -> None:
    raw = pictures(8)
    model = network()
    batch = Batch(spec.to_model(raw.inputs), raw.labels)
    fires = model[1](batch.inputs.flatten(1)) > 0
    assert not bool((fires & (fires.sum(0) == 1)).any(1).all())  # not all have a row of their own
    exchange, known = sent(model, batch, spec)
    result = exact_extraction().run([exchange], known)
    assert result.complete and int(result.claimed.sum()) == 8
    assert float(errors(result.values[result.claimed], raw.inputs).amin(0).max()) <= 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_the_mean_of_two_that_are_nearly_alike_is_not_claimed(seed: int) -> None:
    """It lies on the grid, but has sent twice what one example would."""
    one = pictures(4, seed=seed)
    steps = (one.inputs * 255).round().clamp(2, 253)
    moved = steps + 2 * torch.randint(-1, 2, steps.shape, generator=torch.Generator().manual_seed(seed))
    batch = Batch(torch.cat([steps, steps + 2 if seed == 0 else moved]) / 255, one.labels.repeat(2))
    exchange, known = sent(network(), batch, RAW)
    result = exact_extraction().run([exchange], known)
    claimed = result.values[result.claimed]
    assert int((errors(claimed, batch.inputs) > 1e-4).all(1).sum()) == 0


@pytest.mark.parametrize("spec", [RAW, NORMALISED], ids=["in [0, 1]", "mean and std"])
def test_two_strokes_on_black_are_not_alike_and_two_of_one_kind_are(spec: InputSpec) -> None:
    raw = torch.zeros(3, 1, 12, 12)
    raw[0, :, :, 2], raw[1, :, :, 9], raw[2, :, :, 9] = 0.8, 0.8, 0.79
    alike = Doubt(NumberCode(spec)).alike(spec.to_model(raw).flatten(1))
    assert alike.tolist() == [False, True, True]

"""Algorithm 1 and how its rows are put into a layer, against what the paper says of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.attacks.traps.carried import Hiding, at_the_input
from seepage.attacks.traps.scale_tuning import (
    Trial,
    default_scale,
    firing_scales,
    scale_from_examples,
    scale_from_rounds,
)
from seepage.attacks.traps.traps import Rows, draw_trap_rows, install, lonely
from seepage.core.types import InputSpec, Modality

from .helpers import image_spec


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("length", "scale"), [(36, 0.7), (37, 0.95)])
def test_each_row_pairs_negatives_with_scaled_positives(length: int, scale: float) -> None:
    rows = draw_trap_rows(50, length, scale=scale, sigma=0.5, generator=generator())
    assert bool((rows.bias == 0).all())
    for row in rows.weight:
        negative, positive = -row[row < 0], row[row > 0]
        assert len(negative) == len(positive) == length // 2
        assert torch.allclose(positive.sort().values, scale * negative.sort().values, rtol=1e-6)


def test_samples_are_half_normal_and_places_differ_between_rows() -> None:
    rows = draw_trap_rows(400, 100, scale=1.0, sigma=0.5, generator=generator())
    magnitude = rows.weight.abs()
    # A half-normal has mean sigma * sqrt(2 / pi); 40,000 samples come within a per cent of it.
    assert abs(float(magnitude.mean()) - 0.5 * (2 / torch.pi) ** 0.5) < 0.005
    share_negative = (rows.weight < 0).float().mean(dim=0)
    assert float(share_negative.min()) > 0.3 and float(share_negative.max()) < 0.7


def test_rescaling_touches_positive_weights_only() -> None:
    drawn = draw_trap_rows(20, 30, scale=1.0, sigma=0.5, generator=generator(3))
    direct = draw_trap_rows(20, 30, scale=0.8, sigma=0.5, generator=generator(3))
    assert torch.allclose(drawn.scaled(0.8).weight, direct.weight)


def test_activation_probability_rises_with_the_scale() -> None:
    rows = draw_trap_rows(200, 100, scale=1.0, sigma=0.5, generator=generator())
    values = torch.rand(50, 100, generator=generator(1))
    shares = [
        float((values @ rows.scaled(s).weight.T > 0).float().mean()) for s in (0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
    ]
    assert shares == sorted(shares)
    assert shares[0] < 0.01 and 0.4 < shares[-1] < 0.6


def test_firing_scales_are_where_neurons_start_to_fire() -> None:
    rows = draw_trap_rows(40, 30, scale=1.0, sigma=0.5, generator=generator())
    values = torch.rand(20, 30, generator=generator(1))
    thresholds = firing_scales(rows, values)
    for s in (0.6, 0.8, 0.9, 1.0):
        assert torch.equal(thresholds < s, values @ rows.scaled(s).weight.T > 1e-7)


def test_lonely_examples_against_a_loop() -> None:
    active = torch.rand(30, 60, generator=generator()) < 0.05
    expected = [
        any(bool(active[i, j]) and int(active[:, j].sum()) == 1 for j in range(60)) for i in range(30)
    ]
    assert lonely(active).tolist() == expected


@pytest.mark.parametrize(
    "spec",
    [
        image_spec((3, 4, 4), normalised=True),
        InputSpec(modality=Modality.IMAGE, shape=(1, 5, 5), num_classes=2, value_range=(-1.0, 1.0)),
        InputSpec(
            modality=Modality.TABULAR,
            shape=(4,),
            num_classes=2,
            value_range=(0.0, 10.0),
            mean=(1.0, 2.0, 3.0, 4.0),
            std=(1.0, 2.0, 0.5, 5.0),
        ),
    ],
    ids=["normalised", "minus one to one", "table"],
)
def test_the_trap_acts_on_raw_values_whatever_the_model_is_fed(spec: InputSpec) -> None:
    assert spec.value_range is not None
    low, high = spec.value_range
    unit = torch.rand(40, *spec.shape, generator=generator())
    size = unit[0].numel()
    layer = nn.Linear(size, 60)
    rows = draw_trap_rows(60, size, scale=0.9, sigma=0.5, generator=generator(1))
    install(rows, layer, at_the_input(spec, spec.value_range, layer), Hiding(False, generator()))
    on_raw = unit.flatten(1) @ rows.weight.T
    on_model = layer(spec.to_model(low + (high - low) * unit).flatten(1)).detach()
    assert torch.allclose(on_raw, on_model, atol=1e-4)
    clear = on_raw.abs() > 1e-4
    assert torch.equal((on_raw > 0)[clear], (on_model > 0)[clear])


def test_rows_for_plain_inputs_are_written_as_they_are() -> None:
    spec = image_spec((1, 4, 4))
    layer = nn.Linear(16, 8)
    rows = draw_trap_rows(8, 16, scale=0.9, sigma=0.5, generator=generator())
    install(rows, layer, at_the_input(spec, (0.0, 1.0), layer), Hiding(False, generator()))
    assert torch.equal(layer.weight, rows.weight) and bool((layer.bias == 0).all())


def test_tuning_on_examples_finds_the_best_scale_of_a_fine_search() -> None:
    rows = draw_trap_rows(100, 64, scale=1.0, sigma=0.5, generator=generator())
    values = torch.rand(40, 64, generator=generator(2))

    def caught(s: float) -> int:
        return int(lonely(values @ rows.scaled(s).weight.T > 0).sum())

    best = max(caught(0.4 + 0.6 * i / 600) for i in range(601))
    assert caught(scale_from_examples(rows, values, batch_size=40)) >= best - 2


def test_tuning_over_rounds_closes_in_on_the_best_scale() -> None:
    """A made-up layer: recall peaks at s = .7, and the active share rises with s, as in Table 5."""

    def shown(s: float) -> Trial:
        return Trial(s, active=min(1.0, max(0.0, (s - 0.45) * 3.2)), found=round(100 - 300 * abs(s - 0.7)))

    trials: list[Trial] = []
    for _ in range(7):
        trials.append(shown(scale_from_rounds(trials, default_scale(784))))
    assert max(trial.found for trial in trials) >= 90


def test_a_silent_example_gives_no_scale_but_the_default() -> None:
    rows = Rows(torch.tensor([[-1.0, 1.0]]), torch.zeros(1))
    assert scale_from_examples(rows, torch.zeros(3, 2), batch_size=3) == default_scale(1.5)


def test_one_minus_a_spread_scale_falls_in_even_ratios_over_the_rows() -> None:
    rows = draw_trap_rows(4, 40, scale=1.0, sigma=0.5, generator=torch.Generator().manual_seed(0))
    spread = rows.scaled(0.2, 0.9).weight
    ratio = spread.clamp_min(0).sum(dim=1) / -spread.clamp_max(0).sum(dim=1)
    assert torch.allclose(ratio, torch.tensor([0.2, 0.6, 0.8, 0.9]), atol=1e-5)
    assert torch.equal(rows.scaled(0.9).weight, rows.scaled(0.9, 0.9).weight)

"""Small values that were sent as 0: what a reading may lack is bounded, and not vouched for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import seepage
from seepage.attacks.reading import cut
from seepage.attacks.reading.cut import hidden_values, smallest_sent


def products(seed: int, rows: int = 200, columns: int = 64, examples: int = 4) -> tuple[Tensor, Tensor]:
    """The gradient of a layer whose rows hold up to `examples` pictures of 17 grey levels, and its bias."""
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.randint(0, 17, (examples, columns), generator=generator) / 16
    signals = torch.randn(rows, examples, generator=generator)
    signals *= torch.rand(rows, examples, generator=generator) < 0.5
    return signals @ pictures, signals.sum(1)


@pytest.mark.parametrize("examples", [1, 4])
def test_whole_gradients_have_no_edge(examples: int) -> None:
    seen = [smallest_sent(*products(seed, examples=examples)) > 0 for seed in range(300)]
    assert sum(seen) <= 4  # 2 ** -8 of 300 is 1.2


def test_nothing_sent_and_equal_signals_have_no_edge() -> None:
    assert smallest_sent(torch.zeros(30, 5), torch.zeros(30)) == 0.0
    picture = torch.linspace(0.1, 1.0, 5)
    assert smallest_sent(picture.expand(30, 5), torch.ones(30)) == 0.0


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_an_edge_is_where_the_values_were_cut(share: float) -> None:
    weight, bias = products(7)
    edge = float(weight[weight != 0].abs().quantile(share))
    sent = torch.where(weight.abs() < edge, 0.0, weight)
    assert edge <= smallest_sent(sent, bias) <= 1.05 * edge


@pytest.mark.parametrize("edge_rows", [7, 8, 12, 20])
def test_an_edge_is_seen_over_a_plateau(edge_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "_EDGE_ROWS", edge_rows)
    for seed in range(20):
        weight, bias = products(seed)
        sent = torch.where(weight.abs() < weight.abs().median(), 0.0, weight)
        assert smallest_sent(sent, bias) > 0
        assert smallest_sent(weight, bias) == 0.0


def test_what_a_row_hides_is_bounded() -> None:
    weight, bias = products(3, examples=1)
    edge = float(weight[weight != 0].abs().quantile(0.4))
    sent = torch.where(weight.abs() < edge, 0.0, weight)
    rows = (sent != 0).any(1).nonzero().squeeze(1)
    hidden = hidden_values(sent, smallest_sent(sent, bias), rows, bias[rows])
    lost = (weight[rows] - sent[rows]).abs().amax(1) / bias[rows].abs()
    assert bool((lost <= hidden).all())
    assert bool((lost > 0).any())
    whole = hidden_values(weight + 1.0, 0.5, rows, bias[rows])
    assert not bool(whole.any())  # no value is 0, so none was cut


@pytest.mark.parametrize("attack", ["exact_extraction", "analytic_extraction"])
def test_no_false_claim_under_pruning(attack: str) -> None:
    log = seepage.audit(
        model="mlp",
        data="digits",
        attacks=[attack],
        defenses=[{"name": "pruning", "share": 0.5}],
        batch_size=8,
        seeds=[1],
        engine="here",
        advice=False,
    )
    counted = log.to_frame().query("attack != 'prior_only'")
    assert len(counted) == 2  # the plain server and the one that knows the defense
    assert (counted["claims"] == counted["claims_right"]).all()
    assert (counted["exact"] > 0).all()

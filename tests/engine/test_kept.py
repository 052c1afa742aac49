"""Which values stay of very many examples, against a sort of all of them."""

from __future__ import annotations

import pytest
import torch

from seepage.engine.kept import Kept
from seepage.record import shown
from seepage.record.shown import EXTREMES, drawn

EXAMPLES = 500


def scores() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    psnr = torch.rand(EXAMPLES, dtype=torch.float64) * 30
    exact = torch.zeros(EXAMPLES, dtype=torch.float64)
    psnr[[7, 300]], exact[[7, 300]] = 100.0, 1.0
    return {"psnr": psnr, "exact": exact}


def kept(order: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, whole, keep = torch.arange(EXAMPLES).float().view(-1, 1), scores(), Kept(EXAMPLES, "image")
    for rows in order.split(block):
        found = torch.ones(len(rows), dtype=torch.bool)
        keep.add(rows, values[rows], recovered=found, scores={name: s[rows] for name, s in whole.items()})
    return keep.done()


def test_everything_is_kept_where_it_fits() -> None:
    rows, values = kept(torch.arange(EXAMPLES), 64)
    assert rows.tolist() == values.flatten().tolist() == list(range(EXAMPLES))


@pytest.mark.parametrize("block", [1, 37, EXAMPLES])
def test_the_extremes_and_the_drawn_ones_are_kept_however_they_come(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "KEPT_BYTES", 4 * 20)  # 20 examples of one float32
    by_leak = scores()["psnr"].argsort(descending=True).tolist()
    expected = sorted({*drawn(EXAMPLES, 4), *by_leak[:EXTREMES], *by_leak[-EXTREMES:]})
    assert len(drawn(EXAMPLES, 4)) == 20
    rows, values = kept(torch.randperm(EXAMPLES), block)
    assert rows.tolist() == values.flatten().tolist() == expected

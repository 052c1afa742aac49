"""Shifted rows: a change of rank one that no look at the weights tells from training.

From some rows of the first dense layer a multiple of the mean input is subtracted, W' = W - c m^T, with c_j
such that row j fires for a small share of inputs. Rows, biases and everything else stay what honest training
made them; ten per cent of the rows suffice to give most examples of a large batch neurons of their own, from
where peeling goes on. The direction m and the multiples come from auxiliary data.

Row j fires where (w_j x + b_j) - c_j (m x) > 0, so for m x > 0 where (w_j x + b_j) / (m x) > c_j: the
multiple is a quantile of that ratio.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.traps.crafted_extraction import READERS, Bait, CraftedExtraction, Secret, expected_batch
from seepage.attacks.traps.traps import draw_shares
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.registry import lookup
from seepage.core.types import Exchange, Grant, Knowledge
from seepage.models.choice import choose_layer
from seepage.models.hooks import layer_input

_USUAL_BATCH = 100
"""Examples behind an update, where nothing says. Paper: Boenisch et al. 2021, Tables 3 and 5."""
_FIRING = (0.5, 16.0)
"""Examples of a batch that fire a shifted row. Derived: those of `quantile_traps` for peeling."""


@dataclass(frozen=True, kw_only=True)
class RowShifter:
    """Shifts a share of the rows of the layer that reads the input."""

    share: float
    layer: str | None
    batch_size: int | None

    def check(self, model: nn.Module, known: Knowledge) -> None:
        layer = choose_layer(model, known.input, self.layer)
        if layer.reads == "features":
            raise NotApplicable(
                f"layer '{layer.name}' reads features and not the input, and nothing else is changed here: "
                "use trap_weights, which passes the input through, or a model with a dense first layer."
            )
        if known.auxiliary is None or len(known.auxiliary) < 2:
            raise NotApplicable(
                "the direction and size of the shift come from auxiliary data, and there are none: grant "
                "'auxiliary_data'."
            )

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge, *, seed: int) -> Bait:
        self.check(model, known)
        assert known.auxiliary is not None
        layer = choose_layer(model, known.input, self.layer)
        crafted = copy.deepcopy(model)
        generator = torch.Generator().manual_seed(seed)
        values = layer_input(crafted, layer.name, known.auxiliary.inputs)  # (n, d)
        weight, bias = crafted.get_parameter(layer.weight), crafted.get_parameter(str(layer.bias))
        chosen = torch.randperm(len(weight), generator=generator)[: max(1, round(self.share * len(weight)))]
        size = expected_batch(history, known, self.batch_size, _USUAL_BATCH)
        firing = draw_shares(len(chosen), _FIRING, size, generator)
        mean = values.mean(dim=0)
        with torch.no_grad():
            shift = shift_sizes(weight[chosen], bias[chosen], values, mean, firing)
            weight[chosen] -= shift.unsqueeze(1) * mean
        note = (
            f"From {len(chosen)} of {len(weight)} rows of '{layer.name}' a multiple of the mean input was "
            "subtracted; everything else is honest."
        )
        return Bait(crafted, Secret(layer=layer.name, notes=(note,)))


def shift_sizes(weight: Tensor, bias: Tensor, values: Tensor, mean: Tensor, share: Tensor) -> Tensor:
    """(N,) multiples of the mean (d,) after whose subtraction each row fires for its share (N,) of values.

    Never negative: a row that fires for fewer already stays as it is.

    >>> rows = torch.tensor([[1.0, 0.0]])
    >>> values = torch.tensor([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0], [4.0, 1.0]])
    >>> c = shift_sizes(rows, torch.zeros(1), values, torch.tensor([0.0, 1.0]), torch.tensor([0.5]))
    >>> int((values @ (rows - c[:, None] * torch.tensor([[0.0, 1.0]])).T > 0).sum())
    2
    """
    along = values @ mean  # (n,)
    usable = along > 0
    if not bool(usable.any()):
        raise NotApplicable(
            "no auxiliary example points along the mean of all of them, so a shift silences nobody: inputs "
            "are centred, for which quantile_traps is made."
        )
    ratio = (values[usable] @ weight.T + bias) / along[usable].unsqueeze(1)  # (n, N)
    ordered = ratio.sort(dim=0, descending=True).values
    place = (share.to(ratio) * len(ordered) - 0.5).clamp(0, len(ordered) - 1)
    before = place.floor().long().unsqueeze(0)
    after = (before + 1).clamp_max(len(ordered) - 1)
    wanted = torch.lerp(ordered.gather(0, before), ordered.gather(0, after), place - before)
    return wanted.squeeze(0).clamp_min(0)


def shifted_rows(
    *,
    share: float = 0.1,
    layer: str | None = None,
    batch_size: int | None = None,
    rounds: Sequence[int] = (0,),
    clients: Sequence[int] | None = None,
    read: str = "peel",
) -> CraftedExtraction:
    """Dishonest server, hard to see: a multiple of the mean input is subtracted from some rows (rank one).

    share: of the rows that are shifted. layer: the dense layer that reads the input, by default the first.
    batch_size: what the shift is made for; by default what the server knows of it, else 100.
    rounds, clients: when and to whom the crafted model is sent.
    read: "peel" takes found examples away and reads what they hid; "rows" reads each row by itself.
    """
    if not 0 < share <= 1:
        raise SpecError(f"share must lie above 0 and be at most 1, not {share}.")
    if batch_size is not None and batch_size < 2:
        raise SpecError(f"batch_size must be at least 2, not {batch_size}: one example needs no trap.")
    lookup(READERS, read, "reader")
    crafter = RowShifter(share=share, layer=layer, batch_size=batch_size)
    return CraftedExtraction(
        crafter, read=read, rounds=rounds, clients=clients, requires=frozenset({Grant.AUXILIARY})
    )

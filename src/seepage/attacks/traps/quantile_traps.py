"""Quantile traps: QBI (Nowak et al. 2024, "QBI: Quantile-Based Bias Initialization for Efficient Private Data
Reconstruction in Federated Learning").

A neuron is most likely to see exactly one of B examples when it fires for a share p = 1/B of all inputs:
B p (1 - p)^(B - 1) is largest there. Rows stay Gaussian, as in an honest initialisation; each bias is set to
the quantile of the row's own response. Responses come from auxiliary data where granted, else from the
assumption that normalised inputs are independent standard normal values, as the paper makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.traps.carried import Hiding
from seepage.attacks.traps.crafted_extraction import READERS, Bait, CraftedExtraction, Secret, expected_batch
from seepage.attacks.traps.placement import Placed, place
from seepage.attacks.traps.traps import (
    USUAL_SIGMA,
    Rows,
    draw_gaussian_rows,
    draw_shares,
    install,
    size_of_weights,
)
from seepage.core.errors import SpecError
from seepage.core.registry import lookup
from seepage.core.types import Exchange, Knowledge

_USUAL_BATCH = 100
"""Examples behind an update, where nothing says. Paper: Boenisch et al. 2021, Tables 3 and 5."""
FIRING = {"rows": (1.0, 1.0), "bare": (1.0, 1.0), "peel": (0.5, 16.0)}
"""Examples of a batch that fire a neuron. Paper: Nowak et al. 2024, p = 1/B, where rows are read by
themselves. Peeling is a fountain code's decoder: like one it wants neurons of many degrees, some alone to
begin with and some shared by many so that nobody is left out. Tested:
test_constants_of_traps_lie_on_a_plateau."""
_UNIFORM_STD = 12**-0.5
"""Standard deviation of a value where nothing else is known. Derived: that of one which is uniform on [0,
1]."""


@dataclass(frozen=True, kw_only=True)
class QuantileCrafter:
    """Gaussian rows with quantile biases at one layer, with the way to it cleared."""

    sigma: float | None
    layer: str | None
    hidden: bool
    batch_size: int | None
    firing: tuple[float, float]

    def check(self, model: nn.Module, known: Knowledge) -> None:
        self._place(model, known, seed=known.seed)

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge, *, seed: int) -> Bait:
        placed = self._place(model, known, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        rows = draw_gaussian_rows(
            placed.layer.out_features,
            len(placed.carried.where),
            sigma=USUAL_SIGMA * size_of_weights(known) if self.sigma is None else self.sigma,
            generator=generator,
        )
        size = expected_batch(history, known, self.batch_size, _USUAL_BATCH)
        share = draw_shares(len(rows.bias), self.firing, size, generator)
        if known.auxiliary is not None and len(known.auxiliary) > 1:
            values = placed.unit_values(known.auxiliary.inputs)
            bias, source = -response_quantile(rows, values, share), "auxiliary examples"
        else:
            mean, std = _assumed(known, placed)
            bias, source = -normal_quantile(rows, mean, std, share), "an assumed distribution of inputs"
        biased = Rows(rows.weight, bias.cpu().to(rows.weight.dtype))
        install(biased, placed.module, placed.carried, Hiding(self.hidden, generator))
        low, high = self.firing
        many = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        note = f"Each neuron's bias lets about {many} in {size} inputs fire it, judged by {source}."
        notes = (note, *([placed.note] if placed.note else []))
        return Bait(placed.model, Secret(layer=placed.layer.name, decode=placed.decode, notes=notes))

    def _place(self, model: nn.Module, known: Knowledge, *, seed: int) -> Placed:
        hiding = Hiding(self.hidden, torch.Generator().manual_seed(seed + 1))
        # Normalised inputs are about N(0, 1), whatever their raw range; public examples say more still.
        known_spread = known.auxiliary is not None or known.normalised or known.input.mean is not None
        return place(model, known, layer=self.layer, hiding=hiding, needs_range=not known_spread)


def response_quantile(rows: Rows, values: Tensor, share: Tensor) -> Tensor:
    """(N,): what a row's response exceeds for its share (N,) of the examples (n, d).

    >>> rows = Rows(torch.tensor([[1.0]]), torch.zeros(1))
    >>> response_quantile(rows, torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([0.5])).item()
    1.5
    """
    ordered: Tensor = (values @ rows.weight.to(values).T).sort(dim=0, descending=True).values  # (n, N)
    n = len(ordered)
    # share * n examples shall lie above: half-way between the last of them and the next one.
    place = (share.to(values) * n - 0.5).clamp(0, n - 1).unsqueeze(0)  # (1, N)
    before = place.floor().long()
    after = (before + 1).clamp_max(n - 1)
    return torch.lerp(ordered.gather(0, before), ordered.gather(0, after), place - before).squeeze(0)


def normal_quantile(rows: Rows, mean: Tensor, std: Tensor, share: Tensor) -> Tensor:
    """(N,): the same for independent normal values with this mean and std (d,).

    >>> rows = Rows(torch.tensor([[3.0, 4.0]]), torch.zeros(1))
    >>> share = torch.tensor([0.1586553])                                         # one sigma
    >>> round(normal_quantile(rows, torch.zeros(2), torch.ones(2), share).item(), 3)
    5.0
    """
    weight = rows.weight.to(mean)
    spread: Tensor = (weight * std).norm(dim=1)
    z: Tensor = torch.special.ndtri(share.to(mean))
    return weight @ mean - z * spread


def _assumed(known: Knowledge, placed: Placed) -> tuple[Tensor, Tensor]:
    """Mean and std of each value on the [0, 1] scale: N(0, 1) in model units if clients normalise."""
    carried = placed.carried
    if known.input.mean is None and not known.normalised:
        half = torch.full_like(carried.low, 0.5)
        return half, torch.full_like(half, _UNIFORM_STD)
    span = carried.high - carried.low
    return -carried.low / span, 1 / span


def quantile_traps(
    *,
    sigma: float | None = None,
    layer: str | None = None,
    hidden: bool = False,
    batch_size: int | None = None,
    firing: Sequence[float] | None = None,
    rounds: Sequence[int] = (0,),
    clients: Sequence[int] | None = None,
    read: str = "peel",
) -> CraftedExtraction:
    """Dishonest server, no architecture change: Gaussian weights whose biases let one in B inputs fire each
    neuron (QBI, Nowak et al. 2024).

    sigma: spread of the weights; by default .5, and 1/64 of that where clients send weights instead of
    gradients, whose rounding would hide the small ones.
    layer: dense layer to trap, by default the first; the input is passed through whatever lies before it.
    hidden: make the pass-through look random (Boenisch et al. 2021, Appendix B).
    batch_size: B; by default what the server knows of it, else 100.
    firing: least and most examples of B that shall fire a neuron; by default .5 to 16 to peel, 1 for rows.
    rounds, clients: when and to whom the crafted model is sent.
    read: "peel" takes found examples away and reads what they hid; "rows" reads each row by itself, as in the
    paper.
    """
    if sigma is not None and sigma <= 0:
        raise SpecError(f"sigma must be positive, not {sigma}.")
    if batch_size is not None and batch_size < 2:
        raise SpecError(f"batch_size must be at least 2, not {batch_size}: one example needs no trap.")
    lookup(READERS, read, "reader")
    low, *between, high = FIRING[read] if firing is None else firing
    if between or not 0 < low <= high:
        raise SpecError(f"firing must be two positive numbers, the smaller first, not {firing}.")
    crafter = QuantileCrafter(
        sigma=sigma, layer=layer, hidden=hidden, batch_size=batch_size, firing=(low, high)
    )
    return CraftedExtraction(crafter, read=read, rounds=rounds, clients=clients)

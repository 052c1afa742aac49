"""Trap weights (Boenisch et al. 2021, "When the Curious Abandon Honesty", Sections 6 to 8, Appendix B).

An existing dense layer is re-initialised so that each neuron fires for few inputs; where one example is alone
at a neuron, its gradient row is that example. No layer is inserted and the architecture stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from seepage.attacks.traps.carried import Hiding
from seepage.attacks.traps.crafted_extraction import (
    Bait,
    CraftedExtraction,
    Reader,
    Secret,
    expected_batch,
    find_reader,
    read_bait,
)
from seepage.attacks.traps.placement import Placed, place
from seepage.attacks.traps.scale_tuning import (
    Trial,
    default_ladder,
    default_scale,
    effective_dimensions,
    scale_from_examples,
    scale_from_rounds,
)
from seepage.attacks.traps.traps import (
    USUAL_SIGMA,
    Rows,
    draw_trap_rows,
    install,
    lonely,
    peelable,
    size_of_weights,
)
from seepage.core.errors import SpecError
from seepage.core.types import Exchange, Knowledge

_USUAL_BATCH = 100
"""Examples behind an update, where nothing says. Paper: Boenisch et al. 2021, Tables 3 and 5."""
_MOST_TUNING_ROUNDS = 8
"""Rounds that may be spent on tuning. Cost: each is a round of training with a crafted model."""
_DISTANCE = {"rows": 2.5, "bare": 2.5, "peel": 1.7}
"""Of `default_scale`. Paper: 2.5 gives the best scales of Boenisch et al. 2021 (see there). Peeling wants
more neurons to fire, for it can part examples that share one. Tested:
test_constants_of_traps_lie_on_a_plateau."""


@dataclass(frozen=True, kw_only=True)
class TrapCrafter:
    """Algorithm 1 at one layer, with the way to it cleared."""

    scale: float | None
    scale_until: float | None
    sigma: float | None
    layer: str | None
    hidden: bool
    batch_size: int | None
    tuning_rounds: int
    read: str

    def check(self, model: nn.Module, known: Knowledge) -> None:
        self._place(model, known, seed=known.seed)

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge, *, seed: int) -> Bait:
        placed = self._place(model, known, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        rows = draw_trap_rows(
            placed.layer.out_features,
            len(placed.carried.where),
            scale=1.0,
            sigma=USUAL_SIGMA * size_of_weights(known) if self.sigma is None else self.sigma,
            generator=generator,
        )
        tried = _trials(history, known, find_reader(self.read)) if self._tunes_over_rounds(known) else ()
        scale, until, why = self._choose_scale(rows, placed, history, known, tried)
        spread = rows.scaled(scale, until)
        install(spread, placed.module, placed.carried, Hiding(self.hidden, generator))
        shown = f"{scale:.4g}" if until is None else f"{scale:.4g} to {until:.4g}"
        notes = (f"Trap weights with scale s = {shown} ({why}).", *([placed.note] if placed.note else []))
        secret = Secret(layer=placed.layer.name, decode=placed.decode, scale=scale, tried=tried, notes=notes)
        return Bait(placed.model, secret)

    def _place(self, model: nn.Module, known: Knowledge, *, seed: int) -> Placed:
        hiding = Hiding(self.hidden, torch.Generator().manual_seed(seed + 1))
        return place(model, known, layer=self.layer, hiding=hiding)

    def _tunes_over_rounds(self, known: Knowledge) -> bool:
        return self.scale is None and known.auxiliary is None and self.tuning_rounds > 1

    def _choose_scale(
        self,
        rows: Rows,
        placed: Placed,
        history: Sequence[Exchange],
        known: Knowledge,
        tried: Sequence[Trial],
    ) -> tuple[float, float | None, str]:
        """Section 6.2: given, from a public mini-batch, from earlier rounds, or by dimensionality.

        Returns the scale, the one it goes to over the rows (None: all rows have the same), and the reason.
        """
        if self.scale is not None:
            return self.scale, self.scale_until, "as given"
        if known.auxiliary is not None and len(known.auxiliary) > 1:
            values = placed.unit_values(known.auxiliary.inputs)
            size = expected_batch(history, known, self.batch_size, min(_USUAL_BATCH, len(values)))
            caught = peelable if self.read == "peel" else lonely
            scale = scale_from_examples(rows, values, batch_size=size, caught=caught)
            return scale, None, "tuned on auxiliary examples"
        counting = effective_dimensions(rows.weight.shape[1], known.input)
        if self._tunes_over_rounds(known):
            if len(tried) < self.tuning_rounds:
                start = default_scale(counting, distance=_DISTANCE[self.read])
                return scale_from_rounds(tried, start), None, f"tuned over rounds, trial {len(tried) + 1}"
            return max(tried, key=lambda trial: trial.found).scale, None, "the best of the tuning rounds"
        if self.read != "peel" and _statistics_known(known, placed):
            return default_scale(counting), None, "by the number of input values"
        return *default_ladder(counting), "a ladder over the rows, by the number of input values"


def _statistics_known(known: Knowledge, placed: Placed) -> bool:
    """Of the values that arrive: the data's published mean and std, or embeddings drawn by the server."""
    return placed.layer.embedding is not None or known.input.mean is not None


def _trials(history: Sequence[Exchange], known: Knowledge, read: Reader) -> tuple[Trial, ...]:
    """The trials so far: those that the last secret remembers, and the last one itself."""
    if not history:
        return ()
    newest = history[-1].broadcast.round
    last = [e for e in history if e.broadcast.round == newest]
    secret: Secret = last[0].secret
    assert secret.scale is not None
    found = [read_bait(exchange, known, read) for exchange in last]
    claimed = sum(int(f.claimed.sum()) for f in found if f.claimed is not None)
    active = [f.rows.active / f.rows.total for f in found if f.rows is not None]
    return (*secret.tried, Trial(secret.scale, sum(active) / len(active), claimed))


def trap_weights(
    *,
    scale: float | None = None,
    scale_until: float | None = None,
    sigma: float | None = None,
    layer: str | None = None,
    hidden: bool = False,
    batch_size: int | None = None,
    tuning_rounds: int = 1,
    rounds: Sequence[int] = (0,),
    clients: Sequence[int] | None = None,
    read: str = "peel",
) -> CraftedExtraction:
    """Dishonest server, no architecture change: a dense layer re-initialised so that few examples share a
    neuron (Boenisch et al. 2021).

    scale: s of Algorithm 1; by default tuned on auxiliary data if granted, else over `tuning_rounds` rounds
    (at most 8), else by the number of input values: a ladder of scales over the rows, unless published mean
    and std show which single one the paper's reading wants.
    scale_until: let s rise from `scale` to this over the rows (not in the paper; with "peel" it reaches dark
    and flat examples that no single s does).
    sigma: spread of the weights; by default .5 as in the paper, and 1/64 of that where clients send weights
    instead of gradients, whose rounding would hide the small ones.
    layer: dense layer to trap, by default the first; the input is passed through whatever lies before it.
    hidden: make the pass-through look random (Appendix B): permuted, random gains, random unused weights.
    batch_size: examples expected behind an update, for tuning.
    rounds, clients: when and to whom the crafted model is sent.
    read: "peel" takes found examples away and reads what they hid; "rows" reads each row by itself; "bare"
    does so as in the paper and neither infers labels nor vouches for anything.
    """
    if scale is not None and not 0 < scale <= 1:
        raise SpecError(f"scale must lie in (0, 1], not {scale}: Algorithm 1 makes positive weights smaller.")
    if scale_until is not None and (scale is None or not scale <= scale_until <= 1):
        raise SpecError(
            f"scale_until = {scale_until} needs a scale and must lie between it and 1, as in 0.95 and 0.99."
        )
    if sigma is not None and sigma <= 0:
        raise SpecError(f"sigma must be positive, not {sigma}.")
    if batch_size is not None and batch_size < 1:
        raise SpecError(f"batch_size must be at least 1, not {batch_size}.")
    if not 1 <= tuning_rounds <= _MOST_TUNING_ROUNDS:
        raise SpecError(f"tuning_rounds must lie between 1 and {_MOST_TUNING_ROUNDS}, not {tuning_rounds}.")
    crafter = TrapCrafter(
        scale=scale,
        scale_until=scale_until,
        sigma=sigma,
        layer=layer,
        hidden=hidden,
        batch_size=batch_size,
        tuning_rounds=tuning_rounds,
        read=read,
    )
    planned = sorted({*rounds, *range(tuning_rounds)}) if scale is None and tuning_rounds > 1 else rounds
    return CraftedExtraction(crafter, read=read, rounds=planned, clients=clients)

"""Label counts after several local steps: replays of growing cost, until one vouches for its counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.core.types import Exchange, Knowledge
from seepage.labels.evidence import example_stage, replay_stage
from seepage.labels.examples import fit_examples, pose_scene
from seepage.labels.fit import Fit, fit_replay
from seepage.labels.gradient import Evidence
from seepage.labels.methods import round_counts

CONSISTENT = 0.25
"""Examples by which counts from replays may miss an integer, still move or deviate, and be called certain.
Derived: half of the distance to the next rounding."""
OVERSHOT = 2.0
"""A change of the shares that local training amplifies beyond this may have led elsewhere and back. Tested:
test_constants_of_labels_lie_on_a_plateau."""
LOST = 1.0
"""Examples by which a replay that has found nothing still moves a count. Derived: a whole example."""
SEARCHES = 3
"""Fits of examples from different counts, where the first is not certain of its own. Cost: some 10 s each."""
EXPLAINED = 0.05
"""Part of the last layer's delta that fitted examples may leave open, and still be believed. No plateau test
yet."""


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What replays made of the counts."""

    counts: Tensor
    """(C,) int64"""
    method: str
    residual: float
    miss: float
    """Examples by which replays disagree with the counts, or with each other."""
    misfit: float
    """Part of the last layer's delta that the replay does not explain."""
    certain: bool
    note: str | None
    """Why they are uncertain."""


def settle_counts(exchange: Exchange, known: Knowledge, evidence: Evidence, first: Tensor) -> Settled | str:
    """Counts that a replay of local training bears out; else the reason why there are none.

    first: (C,) int64 counts to begin with. Replays on stand-ins come first; only where they are not certain
    are the examples themselves fitted, which costs ten times as much.
    """
    plain = _on_stand_ins(exchange, known, evidence, first, forced=False)
    batch = known.local and known.local.batch_size
    if batch and batch * max(1, len(exchange.clients)) < int(first.sum()):
        return plain  # what steps lack is another thing for every mini-batch
    if isinstance(plain, Settled) and plain.certain:
        return plain
    forced = _on_stand_ins(exchange, known, evidence, first, forced=True)
    both = [settled for settled in (plain, forced) if isinstance(settled, Settled)]
    best = min(both, key=lambda settled: (not settled.certain, settled.miss), default=None)
    if best is not None and best.certain:
        return best
    start = first if best is None else best.counts
    return _on_examples(exchange, known, evidence, start) or best or plain


def _on_stand_ins(
    exchange: Exchange, known: Knowledge, evidence: Evidence, first: Tensor, *, forced: bool
) -> Settled | str:
    stage, fits = replay_stage(exchange, known), []
    total = int(first.sum())
    if stage is not None:
        shares = first.to(evidence.weight) / total
        # where steps swing, several shares may end alike: a second start shows whether they do here
        starts = (shares, torch.ones_like(shares) / len(shares))
        clients = max(1, len(exchange.clients))
        fits = [
            fit
            for s in starts
            if (fit := fit_replay(stage, evidence, s, forced=forced, clients=clients)) is not None
        ]
    fit = min(fits, key=lambda fit: (fit.movement > CONSISTENT, fit.misfit), default=None)
    if fit is None or fit.movement > LOST:
        return "replays of it do not settle" if fit else "it could not be replayed (no bias, or too costly)"
    apart = max(float((fit.counts - other.counts).abs().max()) for other in fits)
    return _settled("replay", fit, total, apart=apart if len(fits) > 1 else LOST)


def _on_examples(exchange: Exchange, known: Knowledge, evidence: Evidence, start: Tensor) -> Settled | None:
    """Where the first search is not certain of its counts, others start from the next best."""
    stage = example_stage(exchange, known)
    scene = None if stage is None else pose_scene(stage, evidence)
    found: list[Settled] = []
    tried: list[Tensor] = []
    wanted: Tensor | None = start
    while scene is not None and wanted is not None and len(tried) < SEARCHES:
        fits = fit_examples(scene, evidence, wanted)
        settled = _of_examples(fits, int(start.sum()))
        if settled is None or (settled.certain and not found):
            return settled or _least_misfit(found)
        tried += [wanted, settled.counts]
        found.append(settled)
        best = min(found, key=lambda one: one.misfit)
        if best is settled:
            exact = fits[-1].counts
        wanted = _next_best(exact, best.counts, tried)
    return _least_misfit(found)


def _least_misfit(found: Sequence[Settled]) -> Settled | None:
    """Certain only if all searches ended at the same counts, and the best of them was certain."""
    if not found:
        return None
    best = min(found, key=lambda settled: settled.misfit)
    if all(torch.equal(best.counts, other.counts) for other in found):
        return best
    apart = max(best.miss, LOST)
    return replace(best, certain=False, miss=apart, note=_uncertain(apart))


def _of_examples(fits: Sequence[Fit], total: int) -> Settled | None:
    if len(fits) < 2 or fits[-1].movement > LOST or fits[-1].misfit > EXPLAINED:
        return None
    last, before = (round_counts(fit.counts, total) for fit in (fits[-1], fits[-2]))
    steady = torch.equal(last, before)
    return _settled("examples", fits[-1], total, apart=0.0 if steady else LOST)


def _next_best(exact: Tensor, counts: Tensor, tried: Sequence[Tensor]) -> Tensor | None:
    """The counts with one example moved that rounding was nearest to, and that were not tried yet.

    >>> exact, counts = torch.tensor([2.4, 0.7, 0.9]), torch.tensor([2, 1, 1])
    >>> _next_best(exact, counts, [counts]), _next_best(exact, counts, [torch.tensor([3, 0, 1])])
    (tensor([3, 0, 1]), tensor([3, 1, 0]))
    """
    gap = exact * (counts.sum() / exact.sum()) - counts
    gain = gap[:, None] - gap[None, :]  # of moving one example from the column's class to the row's
    gain.fill_diagonal_(-torch.inf)
    gain[:, counts == 0] = -torch.inf
    for index in gain.flatten().argsort(descending=True).tolist():
        to, out_of = divmod(index, len(counts))
        if gain[to, out_of] == -torch.inf:
            break
        moved = counts.clone()
        moved[to] += 1
        moved[out_of] -= 1
        if not any(torch.equal(moved, other) for other in tried):
            return moved
    return None


def _settled(method: str, fit: Fit, total: int, *, apart: float) -> Settled:
    exact = fit.counts * (total / fit.counts.sum())
    counts = round_counts(exact, total)
    residual = float((exact - counts).abs().max())
    miss = max(residual, fit.movement, fit.deviation, apart)
    certain = miss <= CONSISTENT and fit.swing <= OVERSHOT
    return Settled(
        counts=counts,
        method=method,
        residual=residual,
        miss=miss,
        misfit=fit.misfit,
        certain=certain,
        note=None if certain else _uncertain(miss, fit.swing),
    )


def _uncertain(miss: float, swing: float = 1.0) -> str:
    grows = f", and errors grow up to {swing:.1f} times on the way" if swing > 1 else ""
    return (
        "The label counts are uncertain: replays of local training agree with them, and with each other, "
        f"within {miss:.1f} examples{grows}."
    )

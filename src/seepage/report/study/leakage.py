"""What an attack got at one point, as one number from 0 to 1 that means the same for every kind of data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from seepage.core.types import INPUT_SPACE
from seepage.names.metrics import facts_of, leading
from seepage.record import SHARE, AttackRef, Cell, Estimate
from seepage.record.packed import where
from seepage.record.refs import Record


def value_of(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value


class Leak(Record):
    """One attack at one point, over all seeds."""

    attack: AttackRef
    status: str
    """done, partial, not_applicable, failed or not_run."""
    reason: str = ""
    space: str = INPUT_SPACE
    """What was rebuilt: inputs, or the features that enter the layer of this name."""
    exact: Estimate | None = None
    """Share of the examples that came back exactly."""
    exact_count: int = 0
    examples: int = 0
    metric: str = ""
    main: Estimate | None = None
    baseline: Estimate | None = None
    """The same metric for the best guess that saw no update."""
    leakage: Estimate | None = None
    """0: no better than that guess. 1: perfect copies."""
    rounds: int = 0
    adaptive: Leak | None = None
    """The same attack by a server that knows the defense; None where there is no answer to it."""

    @property
    def measured(self) -> bool:
        """Whether anything was rebuilt and scored: a leakage of 0 may also mean that it was stopped."""
        return self.main is not None

    def stopped(self) -> Leak:
        """An attack that works without the defense and cannot work with it took nothing."""
        # nothing was measured, so the ends are those of all shares
        nothing = Estimate(value=0.0, low=0.0, high=1.0, n=0, unit=SHARE, batches=0)
        return self.model_copy(update={"leakage": nothing, "exact": nothing})

    @property
    def both(self) -> tuple[Leak, ...]:
        return (self,) if self.adaptive is None else (self, self.adaptive)


def removed_error(scores: Mapping[str, float], guess: Mapping[str, float]) -> float:
    """The share of the guess's squared error (for texts: of its wrong words) that the attack removed.

    Below 0, which is worse than guessing, counts as 0: a server would keep the guess.

    >>> removed_error({"mse": 0.01}, {"mse": 0.04})
    0.75
    >>> removed_error({"rmse": 3.0}, {"rmse": 2.0})
    0.0
    """
    for name, power in (("mse", 1), ("rmse", 2), ("relative_error", 2)):
        if name in scores and name in guess:
            return _removed(scores[name] ** power, guess[name] ** power)
    if "token_accuracy" in scores and "token_accuracy" in guess:
        return _removed(1 - scores["token_accuracy"], 1 - guess["token_accuracy"])
    return scores.get("exact", 0.0)


def _removed(error: float, guess: float) -> float:
    if math.isnan(error) or math.isnan(guess):
        return math.nan  # not measured, which is not nothing
    if not (math.isfinite(error) and math.isfinite(guess)) or guess <= 0:
        return 0.0
    return max(0.0, 1 - error / guess)


def leak(attack: AttackRef, cells: Sequence[Cell], planned: int) -> Leak:
    """Sum up the cells of one attack at one point."""
    done = where(cells, lambda c: c.status == "done" and c.examples != ())
    if not done:
        first = cells[0] if cells else None
        return Leak(
            attack=attack,
            status=first.status if first else "not_run",
            reason=first.reason if first else "not run yet",
        )
    metric = leading(done[0].examples[0].scores).name
    others = [c.reason for c in cells if c.status != "done"]
    missing = planned - len(done)
    removed = [[removed_error(e.scores, e.baseline) for e in c.examples] for c in done]
    spoiled = any(math.isnan(share) for batch in removed for share in batch)
    # What the other examples gave away is a leak all the same; where it is nothing, nothing was measured.
    taken = Estimate.of(
        [[0.0 if math.isnan(share) else share for share in batch] for batch in removed], SHARE
    )
    if spoiled and taken.value <= 0:
        return Leak(attack=attack, status="failed", reason="some of its scores are no numbers")
    return Leak(
        attack=attack,
        status="partial" if missing or spoiled else "done",
        reason=f"{missing} of {planned} seeds missing{': ' + others[0] if others else ''}"
        if missing
        else "some of its scores are no numbers, and count as no leak"
        if spoiled
        else "",
        space=done[0].space,
        exact=_over_seeds(done, "exact"),
        exact_count=sum(int(e.scores.get("exact", 0.0) == 1.0) for c in done for e in c.examples),
        examples=sum(len(c.examples) for c in done),
        metric=metric,
        main=_over_seeds(done, metric),
        baseline=_over_seeds(done, metric, of_guess=True),
        leakage=taken,
        rounds=max((c.cost.rounds for c in done if c.cost is not None), default=0),
    )


def _over_seeds(cells: Sequence[Cell], metric: str, *, of_guess: bool = False) -> Estimate | None:
    batches = []
    for cell in cells:
        chosen = [e.baseline if of_guess else e.scores for e in cell.examples]
        batches.append([scores[metric] for scores in chosen if metric in scores])
    return Estimate.of(batches, facts_of(metric).unit, facts_of(metric).reach) if any(batches) else None

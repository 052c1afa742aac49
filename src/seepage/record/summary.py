"""From cells to figures: one summary an attack, each score with its interval and its baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from seepage.core.metric import MetricFacts
from seepage.record.cell import Cell, ColumnRecord
from seepage.record.estimate import Estimate
from seepage.record.logs import AuditLog
from seepage.record.packed import where
from seepage.record.refs import AttackRef, Record


class AttackSummary(Record):
    """All seeds of one attack taken together."""

    attack: AttackRef
    status: str
    """done, partial, not_applicable, failed or not_run."""
    reason: str = ""
    space: str = "input"
    cells: int = 0
    examples: int = 0
    exact: int = 0
    """Examples rebuilt within the stated tolerance."""
    claims: int = 0
    claims_right: int | None = 0
    """None: there was no truth to hold them against."""
    claimed_examples: int = 0
    """Different examples that right claims are about; without truth, that claims are about."""
    complete: int = 0
    """Runs in which the attack certifies that the update holds nothing else."""
    claims_if_declared: bool = False
    """As that of a cell, in any run."""
    scores: dict[str, Estimate]
    """By metric, over examples (psnr, ssim, exact, ...) or batches (extraction_recall, ...)."""
    baseline: dict[str, Estimate]
    """The per-example metrics again, for the best guess without any update on the same examples."""
    columns: tuple[ColumnRecord, ...] = ()
    """Of a table: its columns, those first that came out most often beyond the guess."""
    seconds: float = 0.0
    rounds: int = 0
    crafted: bool | None = None
    """Whether the server chose the weights it sent; None where the log does not say."""
    peak_memory_mb: float = 0.0
    knowledge: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


_Meaning = Callable[[str], MetricFacts]


def _of_batches(meaning: _Meaning, cells: Sequence[Cell]) -> dict[str, Estimate]:
    """Scores of whole batches. Where they count examples they become counts: 0.9 of 20 labels are 18 of 20.

    So all of the labels are n of n, not a few values of 1.
    """
    found = {}
    for name in dict.fromkeys(name for cell in cells for name in cell.batch_scores):
        own = [(c.batch_scores[name], len(c.examples)) for c in cells if name in c.batch_scores]
        counted = [(score * size, size) for score, size in own]
        facts = meaning(name)
        if facts.counts_examples and all(size and _whole(count) for count, size in counted):
            found[name] = Estimate.of_counts([(round(count), size) for count, size in counted])
        else:
            found[name] = Estimate.of([[score] for score, _ in own], facts.unit, facts.reach)
    return found


def _whole(count: float) -> bool:
    return math.isfinite(count) and abs(count - round(count)) < 1e-6


def _estimates(meaning: _Meaning, batches: Iterable[Sequence[Mapping[str, float]]]) -> dict[str, Estimate]:
    """For each metric: one batch a seed, one value an example.

    With several clients, examples of one client are more alike than those of two, but all of a seed share the
    model as well: the seed is what is independent.
    """
    groups: dict[str, list[list[float]]] = {}
    for batch in batches:
        for name in dict.fromkeys(name for scores in batch for name in scores):
            groups.setdefault(name, []).append([scores[name] for scores in batch if name in scores])
    return {
        name: Estimate.of(values, meaning(name).unit, meaning(name).reach) for name, values in groups.items()
    }


def _status(cells: Sequence[Cell], planned: int) -> tuple[str, str]:
    if not cells:
        return "not_run", "this attack has not been run yet"
    failed = where(cells, lambda c: c.status != "done")
    if len(failed) == len(cells):
        return cells[0].status, cells[0].reason
    if failed:
        return "partial", f"{len(failed)} of {planned} runs did not finish: {failed[0].reason}"
    if len(cells) < planned:
        return "partial", f"{planned - len(cells)} of {planned} runs are still missing"
    return "done", ""


def summarise_attack(log: AuditLog, attack: AttackRef) -> AttackSummary:
    cells = log.cells_of(attack)
    status, reason = _status(cells, len(log.header.seeds))
    done = where(cells, lambda c: c.status == "done")
    costs = [c.cost for c in done if c.cost is not None]
    meaning = log.header.metric
    return AttackSummary(
        attack=attack,
        status=status,
        reason=reason,
        space=done[0].space if done else "input",
        cells=len(done),
        examples=sum(len(c.examples) for c in done),
        exact=sum(int(e.scores.get("exact", 0.0) == 1.0) for c in done for e in c.examples),
        claims=sum(c.claims for c in done),
        claims_right=_right(done),
        claimed_examples=sum(c.claimed_examples for c in done),
        complete=sum(c.complete is True for c in done),
        claims_if_declared=any(c.claims_if_declared for c in done),
        scores=_estimates(meaning, ([e.scores for e in c.examples] for c in done))
        | _of_batches(meaning, done),
        baseline=_estimates(meaning, ([e.baseline for e in c.examples] for c in done)),
        columns=_columns(done),
        seconds=sum(c.seconds for c in costs) / max(1, len(costs)),
        rounds=max((c.rounds for c in costs), default=0),
        crafted=done[0].crafted if done else None,
        peak_memory_mb=max((c.peak_memory_mb for c in costs), default=0.0),
        knowledge=done[0].knowledge if done else (),
        notes=tuple(dict.fromkeys(note for c in done for note in (*c.notes, *c.hindrances))),
    )


def _right(cells: Sequence[Cell]) -> int | None:
    known = [c.claims_right for c in cells if c.claims_right is not None]
    return sum(known) if len(known) == len(cells) else None


def _columns(cells: Sequence[Cell]) -> tuple[ColumnRecord, ...]:
    """The same column of every cell taken together."""
    together = [
        column[0].model_copy(
            update={
                field: sum(getattr(c, field) for c in column) for field in ("right", "guessed", "examples")
            }
        )
        for column in zip(*(cell.columns for cell in cells if cell.columns), strict=True)
    ]
    return tuple(sorted(together, key=lambda column: -column.excess))


def summarise(log: AuditLog) -> list[AttackSummary]:
    """One summary for each attack of the log, in the order of the spec; the baseline first."""
    return [summarise_attack(log, attack) for attack in log.header.attacks]

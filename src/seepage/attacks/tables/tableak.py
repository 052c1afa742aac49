"""TabLeak (Vero et al. 2023): rows of a table by search, categories relaxed, several restarts that vote.

What can be read exactly is read first: where that is the whole batch nothing is searched, and rows that are
known are held while the others are searched for. What a search ends with is put into the layer's equations,
which give numbers to their last digit and a proof, if the categories are all right.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from seepage.attacks import ATTACKS, Attack
from seepage.attacks.base import PerUpdateAttack
from seepage.attacks.inversion.categories import Categories
from seepage.attacks.inversion.distances import DISTANCES
from seepage.attacks.inversion.gradient_inversion import Begun, GradientInversion, Outcome
from seepage.attacks.inversion.objective import Candidates, Objective
from seepage.attacks.inversion.problem import Problem
from seepage.attacks.inversion.search import Solution
from seepage.attacks.inversion.settings import assumed_training, check_settings, choose
from seepage.attacks.inversion.solvers import adam
from seepage.attacks.tables.confirming import confirm, held_of, proven
from seepage.attacks.tables.exact_table import ExactTable
from seepage.attacks.tables.held import Held, held_rows
from seepage.attacks.tables.pooling import guess_where_unsure, pool_restarts
from seepage.attacks.tables.proving import explains
from seepage.attacks.tables.sight import Sight, sight_of
from seepage.attacks.tables.usual import usual_values
from seepage.core.errors import NotApplicable
from seepage.core.progress import Clock
from seepage.core.types import Exchange, Knowledge, Modality, Reconstruction

ROUNDS = 4
"""Searches one after the other, each holding the rows that the ones before have found. Cost: time."""
_CERTAIN = 20.0
"""Free value of a known category beside 0 for the others. Derived: e^-20 is below float32's rounding."""


@dataclass(frozen=True, kw_only=True)
class TabLeak(GradientInversion):
    """A search for rows that begins with what is known and ends with a vote."""

    readers: Sequence[Attack] = ()
    """Read what can be read exactly, before anything is searched for."""
    held: Held | None = None
    """Rows that are known."""
    sight: Sight | None = None
    """What confirms rows that were found."""

    def check(self, model: nn.Module, known: Knowledge) -> None:
        if known.input.modality is not Modality.TABULAR:
            raise NotApplicable(
                "this attack searches for rows of tables: 'inverting_gradients' searches for pictures, 'tag' "
                "for texts."
            )
        super().check(model, known)

    def invert(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        self.check(exchange.broadcast.model, known)
        sight = _sight(exchange, known)
        read, whole = _read(self.readers, exchange, known)
        n = exchange.update.num_examples
        if read is not None and (read.complete or _claims(read) == n or (len(read) == n and whole)):
            return read.with_notes("All rows were read exactly: nothing was searched for.")
        if read is not None and sight is None and len(read) == n and read.complete is None:
            return read.with_notes(
                "As many rows as there are lie in the span; what each of them sent cannot be computed for "
                "this training, so that there is no proof: nothing was searched for."
            )
        held = None if read is None or sight is None else held_rows(read, sight, known)
        found = GradientInversion.invert(replace(self, held=held, sight=sight), exchange, known)
        return found if read is None or found.complete else _together(found, read)

    def _search(self, problem: Problem, clock: Clock) -> Outcome:
        """Search, hold what the layer's equations confirm, and search for the rest."""
        attack, outcome, confirmed = self, super()._search(problem, clock.share(ROUNDS)), 0
        for left in reversed(range(1, ROUNDS)):
            if attack.sight is None or clock.expired:
                break
            held = held_of(
                confirm(*_chosen(outcome), attack.sight, problem.known), attack.sight, problem.known
            )
            if not confirmed < len(held.labels) < problem.num_examples:
                break
            attack, confirmed = replace(attack, held=held), len(held.labels)
            outcome = GradientInversion._search(attack, problem, clock.share(left))
        return outcome

    def _begun(self, problem: Problem, categories: Categories, generator: torch.Generator) -> Begun:
        begun = super()._begun(problem, categories, generator)
        held, start = self.held, begun.start
        if held is None or start.labels.is_floating_point() or len(held.labels) >= problem.num_examples:
            return begun
        free = _free(held, categories, like=start.inputs)
        k = len(free)

        def hold(inputs: Tensor) -> Tensor:
            return torch.cat([free.expand(len(inputs), -1, -1), categories.project(inputs[:, k:])], dim=1)

        labels = torch.stack([_known_first(held.labels.to(y), y) for y in start.labels])
        note = f"{k} row(s) that were read exactly were held while the others were searched for."
        return Begun(Candidates(hold(start.inputs), labels), hold, (*begun.notes, note))

    def _ended(self, solution: Solution, categories: Categories, matching: Objective) -> Solution:
        """The restarts and their vote; the one that explains the update best is given."""
        found, best = solution.candidates, int(solution.values.argmin())
        hard = found.labels if not found.labels.is_floating_point() else found.labels.argmax(-1)
        pooled = pool_restarts(
            found.inputs.detach(), hard, categories.groups, best=best, unit=categories.problem.unit
        )
        inputs = categories.decoded(torch.cat([found.inputs.detach(), pooled.rows.unsqueeze(0)]))
        everything = Candidates(inputs, torch.cat([found.labels, found.labels[best : best + 1]]))
        several = len(found) > 1
        return replace(
            solution,
            candidates=everything,
            values=torch.cat([matching(everything.restart(r)).values for r in range(len(everything))]),
            origin=(*solution.origin, solution.origin[best]),
            start_values=torch.cat([solution.start_values, solution.start_values[best : best + 1]]),
            confidence=pooled.confidence.cpu() if several else None,
        )

    def _told(self, outcome: Outcome, notes: tuple[str, ...]) -> Reconstruction:
        said = super()._told(outcome, notes)
        restarts, chosen = len(outcome.solution.values) - 1, outcome.match.chosen
        if restarts > 1:
            which = "their vote" if chosen == restarts else "one of them"
            said = said.with_notes(
                f"{restarts} restarts were matched with one another; {which} explains the update best. "
                "Confidence falls with the entropy of their votes."
            )
        said = _guessed(said, outcome)
        if self.sight is None:
            return said
        rows = confirm(*_chosen(outcome), self.sight, outcome.problem.known)
        whole = proven(rows, self.sight, outcome.problem.exchange, outcome.problem.known)
        if whole is not None:
            return whole.with_notes(*said.notes)
        return said.with_notes(
            f"{int(rows.right.sum())} of {len(rows.right)} rows found lie in the spaces of the first layer's "
            "gradient and of its signals."
        )


def _guessed(said: Reconstruction, outcome: Outcome) -> Reconstruction:
    """With the commonest categories where the restarts tell less: an answer is not to be below a guess."""
    found, known = outcome.solution.candidates, outcome.problem.known
    usual = usual_values(known)
    restarts = len(found) - 1  # their vote is the last one
    if usual is None or restarts < 2 or said.model_units:
        return said
    labels = found.labels.argmax(-1) if found.labels.is_floating_point() else found.labels
    which = sorted({*range(restarts), outcome.match.chosen})
    rows, count = guess_where_unsure(
        said.values,
        found.inputs.detach()[which],
        labels[which],
        known.input.categories,
        best=outcome.match.chosen,
        unit=outcome.problem.unit,
        shares=usual.shares.to(said.values),
        typical=usual.numbers.to(said.values),
    )
    if count == 0:
        return said
    return replace(said, values=rows).with_notes(
        f"{count} values, on which restarts agree less often than a guess is right, are the commonest of "
        "their column."
    )


def _sight(exchange: Exchange, known: Knowledge) -> Sight | None:
    """What confirms rows; None where nothing does."""
    if known.normalised or not known.input.categories:
        return None
    try:
        sight = sight_of(exchange, known)
    except NotApplicable:
        return None
    return None if sight.signals is None else sight


def _chosen(outcome: Outcome) -> tuple[Tensor, Tensor]:
    """The rows that explain the update best, in model units, and their labels."""
    found = outcome.solution.candidates.restart(outcome.match.chosen)
    labels = found.labels[0]
    return found.inputs[0].detach(), labels.argmax(-1) if labels.is_floating_point() else labels


def _read(
    readers: Sequence[Attack], exchange: Exchange, known: Knowledge
) -> tuple[Reconstruction | None, bool]:
    """Of what reads rows exactly, the answer that claims most, and whether it explains the whole update."""
    found: list[Reconstruction] = []
    for attack in readers:
        try:
            found.append(attack.reconstruct([exchange], known))
        except NotApplicable:
            continue
        if found[-1].complete or (isinstance(attack, ExactTable) and explains(found[-1])):
            return found[-1], True
    return max(found, key=_claims, default=None), False


def _claims(read: Reconstruction) -> int:
    return 0 if read.claimed is None else int(read.claimed.sum())


def _free(held: Held, categories: Categories, *, like: Tensor) -> Tensor:
    """(k, D) known rows as free values of the search."""
    problem, free = categories.problem, held.rows.to(like)
    raw = problem.spec.to_raw(held.rows)
    for group in categories.groups:
        free[:, list(group)] = problem.centre + problem.unit * _CERTAIN * raw[:, list(group)].round().to(like)
    return free


def _known_first(known: Tensor, labels: Tensor) -> Tensor:
    """(n,) labels in another order: the known ones (k,), then what is left of the others."""
    rest = labels.tolist()
    for label in known.tolist():
        rest.remove(label if label in rest else rest[0])
    return torch.cat([known, known.new_tensor(rest)])


def _together(found: Reconstruction, read: Reconstruction) -> Reconstruction:
    """Claimed rows in place of those of the search that are nearest to them."""
    if read.claimed is None or not _claims(read) or found.model_units != read.model_units:
        return found
    claims = read.values[read.claimed].to(found.values)
    apart = torch.cdist(claims.double(), found.values.double())
    taken, _ = linear_sum_assignment(apart.T.cpu().numpy())
    rest = torch.ones(len(found), dtype=torch.bool)
    rest[torch.from_numpy(taken)] = False
    confidence = found.confidence
    if confidence is not None:
        confidence = torch.cat([confidence.new_ones(len(claims)), confidence[rest]])
    return replace(
        found,
        values=torch.cat([claims, found.values[rest.to(found.values.device)]]),
        claimed=torch.arange(len(claims) + int(rest.sum())) < len(claims),
        if_declared=read.if_declared,
        confidence=confidence,
    )


def _reader(name: str, budget: float | None) -> Attack:
    """An attack that reads updates, with half of the time where it takes a limit."""
    factory = ATTACKS.find(name)
    limited = budget is not None and "budget" in inspect.signature(factory).parameters
    attack = factory(budget=budget / 2) if limited and budget is not None else factory()
    if not isinstance(attack, PerUpdateAttack):
        raise ValueError(f"read_first names {name}, which does not read single updates: take 'exact_table'.")
    return attack


def tableak(
    *,
    steps: int = 1500,
    step_size: float = 0.3,
    distance: str = "absolute",
    restarts: int = 5,
    read_first: Sequence[str] = ("exact_table", "exact_extraction"),
    counts: Sequence[int] | None = None,
    budget: float | None = None,
    assume: Mapping[str, Any] | None = None,
) -> TabLeak:
    """Passive: searches for the rows of a table, categories as a softmax, by restarts that vote (TabLeak).

    The paper has 30 restarts of 1500 steps and the cosine; here the update is matched by absolute
    differences with signed steps, which gets further with fewer. Confidence is one minus the entropy of the
    restarts' votes.

    read_first: attacks that read rows exactly: those they claim are held, and where they claim all of them
    nothing is searched for. counts: numbers of examples to try where the update does not say. budget: seconds
    for the search of each update. assume: local training to simulate where it is not granted, as {"lr": 0.1}.
    """
    check_settings(steps=steps, restarts=restarts, step_size=step_size, counts=counts, budget=budget)
    return TabLeak(
        distance=choose(DISTANCES, distance, "distance"),
        solver=adam(steps=steps, step_size=step_size, signed=True, halving=False),
        restarts=restarts,
        readers=[_reader(name, budget) for name in read_first],
        counts=counts,
        budget=budget,
        assumed=assumed_training(assume),
    )

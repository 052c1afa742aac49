"""LAMP (Balunovic et al. 2022b): a search over embeddings, by turns with moves of the words it ends with.

Matching gradients finds words sooner than their order. So after some steps the embeddings are looked up, and
words are swapped, moved and replaced as long as the update that the texts themselves would send comes nearer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.inversion.bigrams import Surprise, bigram_surprise
from seepage.attacks.inversion.categories import Categories
from seepage.attacks.inversion.distances import DISTANCES, early_layers
from seepage.attacks.inversion.embeddings import look_up, tokens_in_question
from seepage.attacks.inversion.gradient_inversion import GradientInversion, Outcome
from seepage.attacks.inversion.objective import Candidates, Objective
from seepage.attacks.inversion.priors import usual_length
from seepage.attacks.inversion.problem import Problem
from seepage.attacks.inversion.rearranging import Score, rearranged
from seepage.attacks.inversion.search import Solution
from seepage.attacks.inversion.settings import assumed_training, check_settings, choose
from seepage.attacks.inversion.simulate import simulated_update
from seepage.attacks.inversion.solvers import adam
from seepage.core.errors import NotApplicable
from seepage.core.progress import Clock
from seepage.core.types import Exchange, Knowledge, Modality, Reconstruction

ROUNDING = 1e-12
"""Distance below which texts explain the update equally well. Derived: 1 - cos has the square of float32's
rounding, 1.4e-14, in each of some dozens of layers."""


@dataclass(frozen=True, kw_only=True)
class Lamp(GradientInversion):
    """Rounds of a search and of moves; the next round begins with the texts of the one before."""

    rounds: int
    steps: int
    """Of the solver, in a round."""
    moves: int
    """Tried in a round, for each restart."""
    language: float
    """Weight of the bigrams."""
    texts: Tensor | None = None
    """(R, n, length) tokens of the round before."""
    clock: Clock | None = None
    """Of a round."""
    chance: torch.Generator | None = None
    """Draws the moves."""

    def check(self, model: nn.Module, known: Knowledge) -> None:
        if known.input.modality is not Modality.TEXT:
            raise NotApplicable(
                "this attack searches for texts: 'inverting_gradients' searches for pictures, 'tableak' for "
                "rows of tables."
            )
        super().check(model, known)

    def invert(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        self.check(exchange.broadcast.model, known)
        return super().invert(exchange, known)

    def _search(self, problem: Problem, clock: Clock) -> Outcome:
        chance = torch.Generator().manual_seed(problem.known.seed)
        attack, first, values = replace(self, chance=chance), None, []
        each = self.steps + self.moves
        for done in range(self.rounds):
            left = self.rounds - done - 1
            own = clock.share(left + 1)
            # half of a round is for the moves
            part = own.share(2).part(before=done * each, after=left * each + self.moves)
            outcome = GradientInversion._search(replace(attack, clock=own), problem, part)
            first = first or outcome
            values.append(outcome.value)
            inputs = outcome.solution.candidates.inputs
            attack = replace(attack, start=lambda *_, at=inputs: at, texts=_tokens(problem, inputs))
            if not left or outcome.value <= 10 * ROUNDING or clock.expired:
                break
        assert first is not None
        fell = ", ".join(f"{value:.3g}" for value in values)
        note = f"{len(values)} round(s) of {self.steps} steps and {self.moves} moves of words led to {fell}."
        match = replace(outcome.match, start=first.match.start, moves=first.match.moves)
        return replace(outcome, match=match, notes=(*first.notes, note))

    def _ended(self, solution: Solution, categories: Categories, matching: Objective) -> Solution:
        """The nearest texts, or those of the round before, after the moves that bring them nearer."""
        problem, found = categories.problem, solution.candidates
        clock, chance = self.clock, self.chance
        assert clock is not None and chance is not None
        allowed = tokens_in_question(problem.model, str(problem.embedding), problem.exchange).tolist()
        surprise = _surprise(problem.known)
        texts, values = [], []
        for number, nearest in enumerate(_tokens(problem, found.inputs)):
            score = self._score(problem, found.labels[number], surprise)
            before = [nearest] if self.texts is None else [nearest, self.texts[number]]
            text, value = rearranged(
                min(before, key=score),
                score,
                allowed,
                tries=self.moves,
                generator=chance,
                clock=clock.share(len(found) - number),
                enough=ROUNDING if surprise is None else 0.0,
            )
            texts.append(text)
            values.append(value)
        candidates = Candidates(_table(problem)[torch.stack(texts)], found.labels)
        return replace(solution, candidates=candidates, values=solution.values.new_tensor(values))

    def _score(self, problem: Problem, labels: Tensor, surprise: Surprise | None) -> Score:
        """D (1 + weight x surprise): what explains the update better wins, and bigrams where it is equal."""
        table, weights = _table(problem), self.layer_weights(len(problem.observed))

        def score(tokens: Tensor) -> float:
            update = simulated_update(problem, table[tokens], labels)
            apart = float(self.distance(update, problem.observed, weights).detach())
            if surprise is None:
                return apart
            return max(apart, ROUNDING) * (1 + self.language * surprise(tokens))

        return score


def _table(problem: Problem) -> Tensor:
    return problem.model.get_submodule(str(problem.embedding)).get_parameter("weight").detach()


def _tokens(problem: Problem, inputs: Tensor) -> Tensor:
    """(R, n, length) of the nearest tokens."""
    found = [look_up(one, problem.model, str(problem.embedding), problem.exchange)[0] for one in inputs]
    return torch.stack(found)


def _surprise(known: Knowledge) -> Surprise | None:
    public = known.auxiliary
    if public is None or not len(public) or public.inputs.is_floating_point():
        return None
    return bigram_surprise(public.inputs, int(known.input.vocabulary or 0))


def lamp(
    *,
    steps: int = 125,
    moves: int = 200,
    rounds: int = 4,
    step_size: float = 0.1,
    distance: str = "cosine_by_layer",
    length: float = 0.01,
    language: float = 0.1,
    restarts: int = 2,
    counts: Sequence[int] | None = None,
    budget: float | None = None,
    assume: Mapping[str, Any] | None = None,
) -> Lamp:
    """Passive: for text; a search over embeddings by turns with moves of whole words (LAMP).

    steps, moves: of a round: of the search, and words that are swapped, moved or replaced in each restart,
    kept where the texts explain the update better. length: weight of embeddings' usual length. language:
    weight of how unusual pairs of words are beside public texts, where the server has some.

    counts: numbers of examples to try where the update does not say. budget: seconds for each update.
    assume: local training to simulate where it is not granted, as {"lr": 0.1}.

    >>> lamp(rounds=2).rounds
    2
    """
    check_settings(
        steps=steps,
        restarts=restarts,
        step_size=step_size,
        weights={"length": length, "language": language},
        counts=counts,
        budget=budget,
    )
    if rounds < 1 or moves < 0:
        raise ValueError(f"rounds must be at least 1 and moves 0 or more, not {rounds} and {moves}.")
    return Lamp(
        distance=choose(DISTANCES, distance, "distance"),
        layer_weights=early_layers,
        priors=(usual_length(length),),
        solver=adam(steps=steps, step_size=step_size, halving=False),
        rounds=rounds,
        steps=steps,
        moves=moves,
        language=language,
        restarts=restarts,
        counts=counts,
        budget=budget,
        assumed=assumed_training(assume),
    )

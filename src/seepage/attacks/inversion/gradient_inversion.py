"""The inversion loop: search for inputs whose update looks like the observed one.

Composed of parts: a distance between updates, priors on inputs, a start, labels, a solver. The published
attacks are compositions of these, each in a file of its own. Nothing in here sees the clients' examples:
steps, restarts and counts are all chosen by the objective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from seepage.attacks.base import Around, PerUpdateAttack
from seepage.attacks.inversion.categories import Categories, categories_of
from seepage.attacks.inversion.diagnosis import Match, check_signal, notes_after, notes_before
from seepage.attacks.inversion.directional import directional_matching
from seepage.attacks.inversion.distances import Distance, Weights, cosine, equal_layers
from seepage.attacks.inversion.embeddings import embedding_name, look_up
from seepage.attacks.inversion.initialise import Initialiser, gaussian
from seepage.attacks.inversion.memory import check_memory
from seepage.attacks.inversion.objective import (
    Candidates,
    Objective,
    Weighing,
    fastest_matching,
    sum_of,
    update_matching,
)
from seepage.attacks.inversion.positions import positions_first
from seepage.attacks.inversion.priors import PriorFactory
from seepage.attacks.inversion.problem import Problem, pose_problem
from seepage.attacks.inversion.relaxed_labels import LabelRule, label_counts, start_labels
from seepage.attacks.inversion.search import Search, Solution, Solver
from seepage.attacks.inversion.simulate import simulated_update
from seepage.attacks.inversion.single_backprop import single_backprop_matching
from seepage.core.checkpoint import Checkpoint, Identity, sketch
from seepage.core.errors import NotApplicable
from seepage.core.progress import Clock
from seepage.core.types import Exchange, Knowledge, LocalTraining, Modality, Reconstruction
from seepage.labels import infer_label_counts
from seepage.protocol import training_mode
from seepage.protocol.losses import PER_TOKEN, TOKEN_CLASS

SAME_FIT = 1.5
"""A larger count can always fit at least as well, so the smallest within this factor of the best is taken.
No plateau test yet."""


@dataclass(frozen=True)
class Begun:
    """Where a search begins."""

    start: Candidates
    hold: Callable[[Tensor], Tensor]
    """Keeps candidates where they may be."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """The search for one assumed number of examples."""

    problem: Problem
    solution: Solution
    match: Match
    notes: tuple[str, ...]

    @property
    def value(self) -> float:
        return float(self.solution.values.min())


@dataclass(frozen=True, kw_only=True)
class GradientInversion(PerUpdateAttack):
    """One composition of distance, priors, start, labels and solver."""

    replays: ClassVar[bool] = True  # type: ignore[misc]
    solver: Solver
    distance: Distance = cosine
    layer_weights: Callable[[int], Weights] = equal_layers
    priors: Sequence[PriorFactory] = ()
    weighing: Weighing = "fixed"
    """Of the priors beside the distance."""
    start: Initialiser = gaussian
    labels: LabelRule = "inferred"
    exact_gradients: bool = False
    """The solver needs gradients to the last digits, as one that estimates curvature: see `directional`."""
    restarts: int = 1
    counts: Sequence[int] | None = None
    """Numbers of examples to try where the update does not say; None: the one that the labels suggest."""
    budget: float | None = None
    """Seconds for each update."""
    assumed: LocalTraining | None = None
    """Local training to simulate where it was not granted."""

    def check(self, model: nn.Module, known: Knowledge) -> None:
        """Text needs an embedding to search in, and targets that are not the text itself."""
        if known.loss in PER_TOKEN:
            targets = (
                "classes that the server does not know" if known.loss == TOKEN_CLASS else "the texts' own"
            )
            raise NotApplicable(
                f"the targets of the loss are {targets}, one for each token, so there is no loss to search "
                "with: 'exact_text' and 'embedding_rows' read tokens from the update."
            )
        if known.input.modality is Modality.TEXT:
            embedding_name(model, known.input)

    def matching_by(self, around: Around) -> GradientInversion:
        return replace(self, distance=around(self.distance))

    def invert(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        """Search for every count in question and keep the one that explains the update best."""
        counts, count_notes = _counts(exchange, known, self.counts)
        clock = Clock(seconds=self.budget)
        outcomes: list[Outcome] = []
        for number, count in enumerate(counts):
            problem = pose_problem(exchange, known, num_examples=count, assumed=self.assumed)
            check_signal(problem)
            outcomes.append(self._search(problem.with_count(count), clock.share(len(counts) - number)))
        chosen = choose_count(outcomes)
        if len(counts) > 1:
            fits = ", ".join(f"{o.problem.num_examples}: {o.value:.3g}" for o in outcomes)
            count_notes += (f"Numbers of examples were tried by final objective ({fits}).",)
        return self._told(chosen, count_notes)

    def _search(self, problem: Problem, clock: Clock) -> Outcome:
        generator = torch.Generator().manual_seed(problem.known.seed)
        categories = categories_of(problem)
        begun = self._begun(problem, categories, generator)
        start = begun.start
        with _as_clients_train(problem):
            matching = self._matching(problem, categories.start(start))
            built = [prior for factory in self.priors if (prior := factory(problem)) is not None]
            begun_at = float(matching(categories.start(start)).values.nanmedian()) if built else 1.0
            objective = categories.searched(sum_of(matching, built, weighing=self.weighing, begun=begun_at))
            checkpoint = Checkpoint(lambda: _identity(problem, objective, start))
            search = Search(
                project=begun.hold,
                unit=problem.unit,
                clock=clock,
                generator=generator,
                checkpoint=checkpoint,
            )
            solution = self._ended(self.solver(objective, start, search), categories, matching)
            match = _match(problem, matching, categories.start(start), solution)
        said = (*begun.notes, *notes_before(problem), *categories.notes)
        notes = (*said, *solution.notes, *checkpoint.notes)
        return Outcome(problem, solution, match, notes)

    def _begun(self, problem: Problem, categories: Categories, generator: torch.Generator) -> Begun:
        labels = start_labels(problem, self.labels, restarts=self.restarts, generator=generator)
        start = Candidates(self.start(problem, self.restarts, generator), labels.labels)
        return Begun(start, categories.project, labels.notes)

    def _ended(self, solution: Solution, categories: Categories, matching: Objective) -> Solution:
        """What is made of where the solver ended; the one of least value is given."""
        return categories.ended(solution)

    def _told(self, outcome: Outcome, notes: tuple[str, ...]) -> Reconstruction:
        """What is said of the search that explains the update best."""
        problem, solution = outcome.problem, outcome.solution
        inputs = solution.candidates.inputs[outcome.match.chosen].detach()
        labels = solution.candidates.labels[outcome.match.chosen]
        values, decoded = _decoded(problem, inputs)
        return Reconstruction(
            values=values,
            model_units=problem.known.normalised,
            confidence=solution.confidence,
            label_counts=None if problem.spec.num_targets else label_counts(labels, problem.spec.num_classes),
            notes=(*notes, *outcome.notes, *notes_after(problem, solution, outcome.match), *decoded),
        )

    def _matching(self, problem: Problem, start: Candidates) -> Objective:
        weights = self.layer_weights(len(problem.observed))
        if weights is None and self.distance is cosine:
            weights = positions_first(problem)
        fixed = not start.labels.is_floating_point()
        if fixed and (self.exact_gradients or len(start) > 1):
            fast = single_backprop_matching(problem, self.distance, weights, start)
            if fast is not None:
                return fast
        try:
            update_matching(problem, self.distance, weights)(start.restart(0))
        except (RuntimeError, NotImplementedError) as error:
            reason = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
            raise NotApplicable(
                f"the model cannot be differentiated twice ({reason}): replace that layer, for instance by "
                "attention written out, or use an attack that reads gradients directly."
            ) from error
        check_memory(problem, start)
        if fixed and not self.exact_gradients:
            fast = directional_matching(problem, self.distance, weights, start)
            if fast is not None:
                return fast
        return fastest_matching(problem, self.distance, weights, start)[0]


@contextmanager
def _as_clients_train(problem: Problem) -> Iterator[None]:
    """The clients' mode, and attention by plain kernels: fused ones have no second derivative."""
    with training_mode(problem.model, problem.training.batch_norm == "train"), sdpa_kernel(SDPBackend.MATH):
        yield


def _identity(problem: Problem, objective: Objective, start: Candidates) -> Identity:
    """What tells this search from any other: the update, the start, and how well that one does."""
    exact = {
        "seed": problem.known.seed,
        "number of examples": problem.num_examples,
        "shape": list(start.inputs.shape),
        "type": str(start.inputs.dtype),
        "labels": None if start.labels.is_floating_point() else start.labels.tolist(),
    }
    # the objective at the start depends on the model, the distance and the priors
    return Identity(exact, sketch((*problem.observed, *start.free, objective(start).values)))


def _match(problem: Problem, matching: Objective, start: Candidates, solution: Solution) -> Match:
    """How the chosen restart explains the update, without the priors' say."""
    # by the objective alone: which restart is nearest to the truth is not the server's to know
    chosen = int(solution.values.argmin())
    candidates = solution.candidates.restart(chosen)
    before, after = matching(start.restart(solution.origin[chosen])), matching(candidates)
    update = simulated_update(problem, candidates.inputs[0], candidates.labels[0])
    return Match(
        chosen=chosen,
        start=float(before.values[0]),
        end=float(after.values[0]),
        moves=bool(before.gradients[0].any() or after.gradients[0].any()),
        simulated=tuple(tensor.detach() for tensor in update),
    )


def _counts(
    exchange: Exchange, known: Knowledge, wanted: Sequence[int] | None
) -> tuple[list[int], tuple[str, ...]]:
    """The numbers of examples to search with, and how they were come by."""
    sent = exchange.update.num_examples
    if sent is not None:
        return [sent], ()
    if wanted is not None:
        return sorted(set(wanted)), ("The number of examples was not sent.",)
    if exchange.labels is not None:
        return [len(exchange.labels)], ()
    try:
        return [infer_label_counts(exchange, known).num_examples], ()
    except NotApplicable as reason:
        raise NotApplicable(
            f"the number of examples was not sent and cannot be inferred ({str(reason).rstrip('.')}): give "
            "counts = [1, 2, 4], for instance, to try several."
        ) from None


def choose_count(outcomes: Sequence[Outcome]) -> Outcome:
    """The smallest count that fits nearly as well as the best one."""
    best = min(o.value for o in outcomes)
    # rounding alone moves 1 - cos by a few eps, below 0 even
    rounding = 10 * torch.finfo(outcomes[0].solution.values.dtype).eps
    fitting = [o for o in outcomes if o.value <= best + (SAME_FIT - 1) * abs(best) + rounding]
    return min(fitting or outcomes, key=lambda o: o.problem.num_examples)


def _decoded(problem: Problem, inputs: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """Raw values, or tokens."""
    if problem.embedding is not None:
        tokens, how = look_up(inputs, problem.model, problem.embedding, problem.exchange)
        return tokens, (how,)
    return problem.spec.to_raw(inputs), ()

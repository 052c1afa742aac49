"""Categories of a table: a column that can take one of k values is fed to the model as k one-hot columns.

Which columns belong together is part of the public schema (`InputSpec.categories`). Such a group is searched
as the softmax of free values, so that every candidate is a distribution over its categories, and ends as the
likeliest one. The search itself does not notice: free values lie where the columns do, in the same units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.inversion.objective import Candidates, Evaluation, Objective
from seepage.attacks.inversion.problem import Problem
from seepage.attacks.inversion.search import Solution
from seepage.core.types import Modality


@dataclass(frozen=True)
class Categories:
    """The groups of one problem; where there are none, nothing is changed."""

    problem: Problem
    groups: tuple[tuple[int, ...], ...]

    def inputs(self, free: Tensor) -> Tensor:
        """(..., columns) free values to model inputs: a softmax in place of each group."""
        centre, unit = self.problem.centre, self.problem.unit
        return self._filled(free, lambda values: ((values - centre) / unit).softmax(dim=-1))

    def decoded(self, free: Tensor) -> Tensor:
        """(..., columns) free values to model inputs with exactly one category in each group."""

        def likeliest(values: Tensor) -> Tensor:
            return torch.nn.functional.one_hot(values.argmax(dim=-1), values.shape[-1]).to(values)

        return self._filled(free, likeliest)

    def _filled(self, free: Tensor, probabilities: Callable[[Tensor], Tensor]) -> Tensor:
        if not self.groups:
            return free
        raw = torch.zeros_like(free)
        for group in self.groups:
            columns = torch.tensor(group, device=free.device)
            raw = raw.index_copy(-1, columns, probabilities(free[..., columns]))
        return torch.where(self._mask(free), self.problem.spec.to_model(raw), free)

    def _mask(self, like: Tensor) -> Tensor:
        """(columns,) true for those of a category."""
        mask = torch.zeros(like.shape[-1], dtype=torch.bool, device=like.device)
        mask[[column for group in self.groups for column in group]] = True
        return mask

    def project(self, free: Tensor) -> Tensor:
        """Numbers into their box; a softmax is inside whatever its free values are."""
        boxed = self.problem.project(free)
        return torch.where(self._mask(free), free, boxed) if self.groups else boxed

    def start(self, start: Candidates) -> Candidates:
        """What the model is fed for candidates in free values."""
        return replace(start, inputs=self.inputs(start.inputs)) if self.groups else start

    def searched(self, objective: Objective) -> Objective:
        """An objective of model inputs as one of free values."""
        if not self.groups:
            return objective

        def of_free_values(candidates: Candidates) -> Evaluation:
            free = candidates.inputs.detach().requires_grad_()
            inputs = self.inputs(free)
            found = objective(replace(candidates, inputs=inputs.detach()))
            (gradient,) = torch.autograd.grad(inputs, free, found.gradients[0])
            return Evaluation(found.values, (gradient, *found.gradients[1:]))

        return of_free_values

    def ended(self, solution: Solution) -> Solution:
        """The likeliest category of each group. Values stay those that the search ended with."""
        if not self.groups:
            return solution
        candidates = replace(solution.candidates, inputs=self.decoded(solution.candidates.inputs.detach()))
        return replace(solution, candidates=candidates)

    @property
    def notes(self) -> tuple[str, ...]:
        spec = self.problem.spec
        if spec.modality is not Modality.TABULAR:
            return ()
        if self.groups:
            return (
                f"{len(self.groups)} categorical column(s) were searched as a softmax over their categories; "
                "the likeliest one is given.",
            )
        if spec.categories:
            return (
                "Columns were searched as continuous values: some are categories, but not in known units, as "
                "normalisation was not granted.",
            )
        return ("Columns were searched as continuous values: which of them are categories is not known.",)


def categories_of(problem: Problem) -> Categories:
    """The groups that can be searched: of a table whose units are known."""
    known = problem.known
    usable = known.input.modality is Modality.TABULAR and not known.normalised
    return Categories(problem, known.input.categories if usable else ())

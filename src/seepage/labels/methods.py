"""Ways from the last layer's gradient to the number of examples of each class.

Softmax regression: grad_b[c] = mean_i (p_i[c] - y_i[c]) and grad_W[c] = mean_i (p_i[c] - y_i[c]) f_i.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.errors import NotApplicable
from seepage.labels.gradient import Evidence, Gradient

REFINEMENTS = 10
"""Alternations between counts and mean features. Tested: test_constants_of_labels_lie_on_a_plateau."""
PROBE_STRENGTH = 10.0
"""Weight of the probes' mean feature against the gradient's, in examples' variances. Tested:
test_constants_of_labels_lie_on_a_plateau."""
COUNT_FLOOR = 0.1
"""Added to counts before they serve as variances: an absent class is not infinitely precise. Tested:
test_constants_of_labels_lie_on_a_plateau."""
ABSENT = 0.5
"""A class with fewer estimated examples than this is taken for absent while refining. Derived: it rounds to
0."""


@dataclass(frozen=True, kw_only=True)
class Guess:
    """Estimated, not yet rounded counts; they sum to the number of examples."""

    counts: Tensor
    """(C,) float64"""
    notes: tuple[str, ...] = ()

    @property
    def residual(self) -> float:
        """Largest distance of a count from an integer: at most 0.5; small means consistent."""
        return float((self.counts - self.counts.round()).abs().max())


def round_counts(counts: Tensor, total: int) -> Tensor:
    """Largest-remainder rounding of non-negative counts to integers that sum to `total`.

    >>> round_counts(torch.tensor([1.6, -0.1, 2.45]), 4)
    tensor([2, 0, 2])
    """
    positive = counts.clamp(min=0)
    positive = positive * (total / positive.sum())
    floor = positive.floor()
    missing = total - int(floor.sum())
    order = (positive - floor).argsort(descending=True, stable=True)
    floor[order[:missing]] += 1
    return floor.long()


def idlg(evidence: Evidence, gradient: Gradient) -> Guess:
    """Zhao et al. 2020 (iDLG): for one example p_c - y_c is negative for the true class only.

    Without a bias, grad_W[c] = (p_c - y_c) f: the true row is the longest, as 1 - p_t >= p_c. Two rows are
    equally long, so there the sign against the probes' mean feature decides.
    """
    if gradient.num_examples != 1:
        raise NotApplicable(
            f"iDLG reads the label of a single example, but this update was made from "
            f"{gradient.num_examples}: use bias_counts or llg."
        )
    if gradient.bias is not None or evidence.num_classes == 2:
        score = evidence.bias_gradient(gradient)
    else:
        score = -gradient.weight.norm(dim=1)
    counts = torch.zeros_like(score)
    counts[score.argmin()] = 1
    return Guess(counts=counts)


def llg(evidence: Evidence, gradient: Gradient, *, use_model: bool = False) -> Guess:
    """Wainakh et al. 2021 (LLG): greedy extraction from row sums of the weight gradient.

    Impact m is what one more example of a class adds to its row sum, offset s what all the others add.
    LLG takes m from the shared gradient and s = 0. With `use_model`, both come from running the
    model on the probe examples: LLG* on dummy data, LLG+ on auxiliary data.
    """
    n, classes = gradient.num_examples, evidence.num_classes
    sums = gradient.weight.sum(1)
    if use_model:
        impact, offset = _impact_and_offset(evidence, n)
    else:
        impact, offset = sums.clamp(max=0).sum() / n * (1 + 1 / classes), torch.zeros_like(sums)
    if impact >= 0:
        raise NotApplicable(
            "LLG needs features that are mostly positive (a ReLU or sigmoid before the last layer), but a "
            "further example raises the row sums here: use bias_counts."
        )
    # Property 1: a negative sum can only come from a class that is present
    counts = (sums < 0).to(sums.dtype)
    if counts.sum() > n:
        counts = torch.zeros_like(sums).scatter_(0, sums.argsort()[:n], 1.0)
    sums = sums - counts * impact - offset
    while counts.sum() < n:
        smallest = sums.argmin()
        counts[smallest] += 1
        sums[smallest] -= impact
    return Guess(counts=counts)


def _impact_and_offset(evidence: Evidence, n: int) -> tuple[Tensor, Tensor]:
    """Mean over all classes of the row sum an example of the class gives, and of all the others."""
    classes = evidence.num_classes
    impacts, offsets = [], []
    for probe in evidence.probes:
        p, mass = probe.softmax(probe.features), probe.features.sum(1)
        rows = (p * mass[:, None]).mean(0)
        own = rows - mass.mean()
        if evidence.probe_labels is not None:
            truth = torch.nn.functional.one_hot(evidence.probe_labels, classes).to(p)
            others = 1 - truth
            own = ((p - 1) * mass[:, None] * truth).sum(0) / truth.sum(0).clamp(min=1)
            own = own[truth.sum(0) > 0]
            rows = (p * mass[:, None] * others).sum(0) / others.sum(0).clamp(min=1)
        impacts.append(own.mean() * (1 + 1 / classes) / n)
        offsets.append(rows)
    return evidence.average(impacts), evidence.average(offsets)


def bias_counts(evidence: Evidence, gradient: Gradient) -> Guess:
    """N_c = n (mean_p[c] - grad_b[c]), with mean_p from probes, then refined through grad_W.

    The first estimate uses the probes' predictions; the second replaces them by predictions at the
    victims' own mean features, read from grad_W. Counts are integers, so the one that lies closer to
    integers is kept: a choice that needs no truth.
    """
    start = _conditional_prediction(evidence)
    bias = evidence.bias_gradient(gradient)
    plain = Guess(counts=_solve(start, bias, gradient.num_examples))
    if gradient.num_examples == 1 or gradient.bias is None:
        return plain
    return min(plain, _refine(evidence, gradient, bias, start), key=lambda guess: guess.residual)


def _conditional_prediction(evidence: Evidence) -> Tensor:
    """(C, C): column k is the mean prediction on examples of class k, where the probes have classes."""
    predictions = evidence.average(probe.softmax(probe.features) for probe in evidence.probes)  # (m, C)
    overall = predictions.mean(0)
    if evidence.probe_labels is None:
        return overall[:, None].expand(-1, evidence.num_classes)
    truth = torch.nn.functional.one_hot(evidence.probe_labels, evidence.num_classes).to(predictions)
    per_class = predictions.T @ truth / truth.sum(0).clamp(min=1)
    return torch.where(truth.sum(0) > 0, per_class, overall[:, None])


def _solve(prediction: Tensor, bias_gradient: Tensor, n: int) -> Tensor:
    """Counts N with n grad_b = (P - I) N and sum N = n; for equal columns this is n (mean_p - grad_b)."""
    target = torch.cat([bias_gradient, bias_gradient.new_ones(1)])
    shares: Tensor = torch.linalg.lstsq(_system(prediction), target[:, None]).solution[:, 0]
    return n * shares


def _system(prediction: Tensor) -> Tensor:
    """(C + 1, C): P - I over a row of ones, which fixes the sum that P - I leaves open."""
    return torch.cat(
        [prediction - torch.eye(len(prediction)).to(prediction), torch.ones_like(prediction[:1])]
    )


def _refine(evidence: Evidence, gradient: Gradient, bias: Tensor, prediction: Tensor) -> Guess:
    """Alternates between counts, the victims' mean features per class, and predictions at those.

    With M_k the summed features of class k over n, grad_W = (P - I) M. P - I has columns that sum to
    zero, so M is known up to a multiple v h^T of its null vector v, where h is the overall mean feature.
    """
    n, classes, width = gradient.num_examples, *gradient.weight.shape
    means = torch.stack([probe.features.mean(0) for probe in evidence.probes])  # (states, d)
    middle = evidence.average(means)
    spread = _spread(evidence)
    target = torch.zeros(classes + 1, width + 2).to(prediction)
    target[:-1, :width], target[:-1, width], target[-1, width:] = gradient.weight, bias, 1
    for _ in range(REFINEMENTS):
        solution = torch.linalg.lstsq(_system(prediction), target).solution
        summed, share, null = solution[:, :width], solution[:, width], solution[:, width + 1]
        mean = _mean_feature(summed, share, null, n, prior=middle)
        present = n * share > ABSENT
        own = torch.where(present[:, None], (summed + null[:, None] * mean) / share[:, None], mean)
        at_states = [
            probe.softmax(own + shift).T for probe, shift in zip(evidence.probes, means - middle, strict=True)
        ]
        # class means carry the spread between classes; the probes lend what is left within them
        within = max(0.0, 1 - float(present.sum()) / n)
        prediction = evidence.average(at_states) + within * spread[:, None]
    return Guess(counts=_solve(prediction, bias, n))


def _mean_feature(summed: Tensor, share: Tensor, null: Tensor, n: int, *, prior: Tensor) -> Tensor:
    """The h for which the classes' mean features differ least from it, weighted by their precision.

    Class k deviates by summed_k + (null_k - share_k) h, with a variance that grows with its count; the
    probes' mean enters as a prior, for in a balanced batch (null = share) the gradient says nothing.
    """
    precision = 1 / (n * share.clamp(min=0) + COUNT_FLOOR)
    lever = null - share
    strength = PROBE_STRENGTH / n**2
    fitted: Tensor = strength * prior - (precision * lever) @ summed
    return fitted / (strength + (precision * lever.square()).sum())


def _spread(evidence: Evidence) -> Tensor:
    """(C,) mean of the softmax less softmax at the mean: what a spread of features adds."""
    gaps = [
        probe.softmax(probe.features).mean(0) - probe.softmax(probe.features.mean(0, keepdim=True))[0]
        for probe in evidence.probes
    ]
    return evidence.average(gaps)

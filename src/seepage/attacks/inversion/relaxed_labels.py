"""The labels of candidates: granted, inferred from the update first, or searched for as soft labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from seepage.attacks.inversion.problem import Problem
from seepage.core.errors import NotApplicable
from seepage.labels import infer_label_counts
from seepage.protocol.losses import OF_NUMBERS
from seepage.protocol.widening import model_placement

LabelRule = Literal["inferred", "optimised"]
LABEL_RULES: tuple[LabelRule, ...] = ("inferred", "optimised")


@dataclass(frozen=True)
class LabelStart:
    """Where the search begins."""

    labels: Tensor
    """(R, n) int64 held fixed, or (R, n, classes) logits to be searched."""
    notes: tuple[str, ...]


def as_targets(labels: Tensor, outputs: int, loss: str = "cross_entropy") -> Tensor:
    """What a loss is given: class indices as they are, logits as probabilities (DLG's soft labels).

    Numbers of a regression are what is searched for themselves; a flag is the logit's probability.

    >>> as_targets(torch.zeros(1, 2), outputs=2)
    tensor([[0.5000, 0.5000]])
    >>> as_targets(torch.tensor([[3.0]]), 1, "mean_squared_error")
    tensor([[3.]])
    """
    if loss == "multi_label":
        return labels.sigmoid()
    if not labels.is_floating_point() or loss in OF_NUMBERS:
        return labels
    soft = labels.softmax(dim=-1)
    return soft[..., 1] if outputs == 1 else soft


def start_labels(
    problem: Problem, rule: LabelRule, *, restarts: int, generator: torch.Generator
) -> LabelStart:
    """Granted labels are never guessed; otherwise `rule` decides."""
    device, dtype = model_placement(problem.model)
    granted = problem.exchange.labels
    if problem.spec.num_targets:
        size = (restarts, problem.num_examples, problem.spec.num_targets)
        start = torch.randn(size, generator=generator).to(device, dtype)
        return LabelStart(start, ("What the model was to say was searched for together with the inputs.",))
    if granted is not None and len(granted) == problem.num_examples:
        return LabelStart(granted.to(device).expand(restarts, -1), ("Labels were granted.",))
    if rule == "inferred":
        try:
            estimate = infer_label_counts(problem.exchange, problem.known)
        except NotApplicable as reason:
            why = f"Labels could not be inferred, so they were searched for as well: {reason}"
        else:
            classes = torch.arange(len(estimate.counts)).repeat_interleave(estimate.counts.cpu())
            rows, note = _ordered(problem, _padded(classes, problem.num_examples), restarts, generator)
            notes = (f"Labels were inferred by {estimate.method}.", *estimate.notes, *note)
            return LabelStart(rows.to(device), notes)
    else:
        why = "Labels were searched for together with the inputs."
    size = (restarts, problem.num_examples, problem.spec.num_classes)
    return LabelStart(torch.randn(size, generator=generator).to(device, dtype), (why,))


def _padded(labels: Tensor, count: int) -> Tensor:
    """Local training may have seen fewer examples than there are: the rest can be anything."""
    if len(labels) >= count:
        return labels[:count]
    return torch.cat([labels, labels.new_zeros(count - len(labels))])


def _ordered(
    problem: Problem, labels: Tensor, restarts: int, generator: torch.Generator
) -> tuple[Tensor, tuple[str, ...]]:
    """Which example has which label matters only where examples are trained on in different steps.

    The update tells the multiset, not the order, so each restart then tries another one.
    """
    single = problem.training.batch_size is None or problem.training.batch_size >= problem.num_examples
    if problem.one_gradient or (single and problem.clients == 1) or len(labels.unique()) == 1:
        return labels.expand(restarts, -1), ()
    orders = [torch.randperm(len(labels), generator=generator) for _ in range(restarts)]
    return torch.stack([labels[order] for order in orders]), (
        "Which mini-batch or client holds which label is not known: each restart tried an order at random.",
    )


def label_counts(labels: Tensor, num_classes: int) -> Tensor:
    """(n,) classes or (n, classes) logits to (classes,) numbers of examples.

    >>> label_counts(torch.tensor([2, 0, 2]), 3).tolist()
    [1, 0, 2]
    """
    classes = labels.argmax(dim=-1) if labels.is_floating_point() else labels
    return torch.bincount(classes.detach().cpu(), minlength=num_classes)

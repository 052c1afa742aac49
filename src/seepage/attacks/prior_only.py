"""The best guess without any update: what every reconstruction has to beat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from seepage.attacks.base import Attack
from seepage.core.errors import SpecError
from seepage.core.types import PADDING, Exchange, InputSpec, Knowledge, Modality, Reconstruction

MOST_COPIES = 1024
"""Copies of the mean guess that are made, one for each example; beyond that one stands for all of them. Cost:
memory, of which an assignment needs the square."""


class PriorOnly(Attack):
    """Guesses from public examples alone: their mean, and `samples` of them as they are.

    Scoring offers all of them to each exchange and assigns the best guess to each private example, which
    flatters this baseline on purpose: an attack that does not beat it has shown nothing.
    """

    any_training = True

    def __init__(self, *, samples: int = 256) -> None:
        self.samples = samples

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        return self._answer(iter(exchanges), known)

    def _answer(self, exchanges: Iterator[Exchange], known: Knowledge) -> Reconstruction:
        return self.guess([e.update.num_examples or 1 for e in exchanges], known)

    def guess(self, counts: Sequence[int], known: Knowledge) -> Reconstruction:
        """From the number of examples behind each update, which is all that counts of one."""
        several = max(counts) <= MOST_COPIES
        copies = max(counts) if several else 1
        return Reconstruction(
            values=prior_guesses(known, copies=copies, samples=self.samples),
            shared=True,
            unlimited=0 if several else 1,
            model_units=known.normalised,
            label_counts=_likely_labels(known, sum(counts)),
            words=_likely_words(known, sum(counts)),
            notes=(
                "Looks at no update: the mean of public examples and the examples themselves."
                if known.auxiliary is not None
                else "Looks at no update and has no public examples: a flat mid-range guess.",
            ),
        )


def prior_guesses(known: Knowledge, *, copies: int, samples: int) -> Tensor:
    """`copies` of the mean guess (one for each example of an exchange), then up to `samples` public ones."""
    spec = known.input
    if known.auxiliary is None or len(known.auxiliary) == 0:
        return flat_guess(spec).expand(copies, *spec.shape).clone()
    public = (
        spec.to_raw(known.auxiliary.inputs) if spec.modality is not Modality.TEXT else known.auxiliary.inputs
    )
    mean = public.mode(dim=0).values if spec.modality is Modality.TEXT else public.mean(dim=0)
    return torch.cat([mean.expand(copies, *spec.shape), public[:samples]])


def _likely_labels(known: Knowledge, count: int) -> Tensor | None:
    """`count` labels in the proportions of the public examples, by largest remainder."""
    classes = 0 if known.input.token_labels else known.input.num_classes
    if known.auxiliary is None or len(known.auxiliary) == 0 or classes < 2:
        return None
    shares = torch.bincount(known.auxiliary.labels.cpu(), minlength=classes).double()
    wanted = count * shares / shares.sum()
    counts = wanted.floor().long()
    missing = count - int(counts.sum())
    counts[(wanted - counts).argsort(descending=True, stable=True)[:missing]] += 1
    return counts


def _likely_words(known: Knowledge, count: int) -> Tensor | None:
    """The most frequent tokens of public texts, as many different ones as `count` of those hold."""
    public, spec = known.auxiliary, known.input
    if spec.modality is not Modality.TEXT or spec.vocabulary is None or public is None or not len(public):
        return None
    ids = public.inputs.cpu()
    frequent = torch.bincount(ids[ids != PADDING], minlength=spec.vocabulary)
    some = ids[:count]
    different = len(some[some != PADDING].unique())
    order = frequent.argsort(descending=True, stable=True)[:different]
    return torch.zeros(spec.vocabulary, dtype=torch.bool).index_fill(0, order, True)


def flat_guess(spec: InputSpec) -> Tensor:
    """The guess of whoever has no example: mid-range, for a table what each column is centred on.

    >>> flat_guess(InputSpec(modality=Modality.IMAGE, shape=(1, 1, 2), num_classes=2))
    tensor([[[0.5000, 0.5000]]])
    """
    if spec.modality is Modality.TEXT:
        return torch.zeros(spec.shape, dtype=torch.long)
    if spec.modality is Modality.TABULAR and spec.mean is not None:
        return torch.tensor(spec.mean)
    low, high = spec.value_range or (0.0, 0.0)
    return torch.full(spec.shape, (low + high) / 2)


def prior_only(*, samples: int = 256) -> PriorOnly:
    """Baseline: the best guess without any update (mean of public examples, nearest public example)."""
    if samples < 0:
        raise SpecError(f"samples must be 0 or more, not {samples}.")
    return PriorOnly(samples=samples)

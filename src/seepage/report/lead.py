"""Whether an attack is ahead of the guess, by the differences on the same examples.

What makes an example easy to guess counts for attack and guess alike, so their difference is known better
than either mean; and its interval is that of every other figure (`Estimate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose, isfinite
from typing import Literal

from seepage.core.metric import MetricFacts
from seepage.names.metrics import METRICS
from seepage.record import Cell, Estimate

Lead = Literal["far", "ahead", "none"]

Pairs = list[list[tuple[float, float]]]
"""By batch: the attack's score and the guess's on one example each."""


def lead(metric: MetricFacts, cells: Sequence[Cell]) -> Lead:
    """How sure it is that the attack beats the guess on average, over all finished cells of one attack."""
    key = metric.name
    return _of_pairs(
        metric,
        [
            [(e.scores[key], e.baseline[key]) for e in cell.examples if key in e.scores and key in e.baseline]
            for cell in cells
        ],
    )


def labels_lead(cells: Sequence[Cell], guesses: Sequence[Cell]) -> Lead:
    """The same for inferred labels, which are scored as a whole: one more label of 20 is a gain of one in 20.

    So batches that all gained one label do not count as a gain that is known exactly.
    """
    metric = METRICS["label_accuracy"]
    guessed = {cell.seed: cell.batch_scores.get(metric.name) for cell in guesses}
    pairs: Pairs = []
    for cell in cells:
        found, guess = cell.batch_scores.get(metric.name), guessed.get(cell.seed)
        if found is None or guess is None or not isfinite(found - guess):
            continue
        size = len(cell.examples)
        more = round(abs(found - guess) * size)
        if isclose(more, abs(found - guess) * size, abs_tol=1e-6) and size > 1:
            one = (1.0, 0.0) if found > guess else (0.0, 1.0)
            pairs.append([one] * more + [(0.0, 0.0)] * (size - more))
        else:
            pairs.append([(found, guess)])
    return _of_pairs(metric, pairs)


def words_lead(cells: Sequence[Cell], guesses: Sequence[Cell]) -> Lead:
    """The same for the set of words that the texts hold, one value a batch."""
    metric = METRICS["words_known"]
    guessed = {cell.seed: cell.batch_scores.get(metric.name) for cell in guesses}
    pairs: Pairs = []
    for cell in cells:
        found, guess = cell.batch_scores.get(metric.name), guessed.get(cell.seed)
        if found is not None and guess is not None and isfinite(found - guess):
            pairs.append([(found, guess)])
    return _of_pairs(metric, pairs)


def _of_pairs(metric: MetricFacts, pairs: Pairs) -> Lead:
    count = sum(len(batch) for batch in pairs)
    if count < 2:  # a single value has no interval, so for it only a wide margin counts
        far = any(metric.beats(value, guess, margins=1) for batch in pairs for value, guess in batch)
        return "far" if far else "none"

    def least(margins: float) -> float:
        return Estimate.of([[metric.gain(*pair, margins=margins) for pair in batch] for batch in pairs]).low

    if not least(0) > 0:  # also where a score is no number
        return "none"
    return "far" if least(1) >= 0 else "ahead"

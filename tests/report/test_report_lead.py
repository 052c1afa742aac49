"""Who is ahead of the guess, on differences whose answer is known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from seepage.names.metrics import METRICS
from seepage.record import AttackRef, Cell, Example
from seepage.report.lead import labels_lead, lead

NAN = float("nan")


def labelled(shares: Sequence[float | None], size: int = 20) -> list[Cell]:
    """One batch a seed, with this share of its labels inferred."""
    example = Example(index=0, client=0, label=0, recovered=True, scores={})
    return [
        Cell(
            attack=AttackRef(name="a"),
            seed=seed,
            status="done",
            examples=(example,) * size,
            batch_scores={} if share is None else {"label_accuracy": share},
        )
        for seed, share in enumerate(shares)
    ]


@pytest.mark.parametrize(
    ("found", "guess", "size", "ahead"),
    [
        # as many batches gain two of 20 labels as lose two
        ([0.6, 0.4] * 5, [0.5] * 10, 20, "none"),
        # eight gain four labels, two lose three: 0.13 on average, give or take 2.26 * 0.15 / sqrt(10) = 0.11
        ([0.7] * 8 + [0.35] * 2, [0.5] * 10, 20, "ahead"),
        # 18 and 25 of 100, with margins of 0.2 for "far" and about 0.03 for chance
        ([0.68] * 10, [0.5] * 10, 100, "ahead"),
        ([0.75] * 10, [0.5] * 10, 100, "far"),
        # two labels a batch, both of them guessed wrong and inferred right
        ([1.0] * 3, [0.0] * 3, 2, "far"),
        # one label of two, once
        ([1.0], [0.5], 2, "none"),
        # the same number of labels, but for rounding
        ([0.1 + 0.2] * 2, [0.3] * 2, 10, "none"),
        # a share that is no count of the batch's labels is compared as it is, in every batch
        ([0.97, 0.98, 0.99], [0.01, 0.02, 0.03], 20, "far"),
    ],
)
def test_labels_are_counted(found: list[float], guess: list[float], size: int, ahead: str) -> None:
    assert labels_lead(labelled(found, size), labelled(guess, size)) == ahead


def test_labels_are_compared_with_the_guess_for_the_same_seed() -> None:
    """The first batch is hard, all others are easy; the attack knows no more than the guess."""
    shares = [0.2] + [0.9] * 9
    assert labels_lead(labelled(shares), labelled(shares)) == "none"


@pytest.mark.parametrize("missing", [None, NAN])
def test_batches_without_labels_or_guess_do_not_count(missing: float | None) -> None:
    found, guess = [0.9] * 6, [0.5] * 6
    assert labels_lead(labelled([missing, *found]), labelled([0.5, *guess])) == "far"
    assert labels_lead(labelled([0.9, *found]), labelled([missing, *guess])) == "far"
    assert labels_lead(labelled(found), labelled([missing] * 6)) == "none"


def test_examples_without_a_score_or_a_guess_do_not_count() -> None:
    def example(scores: dict[str, float], baseline: dict[str, float]) -> Example:
        return Example(index=0, client=0, label=0, recovered=True, scores=scores, baseline=baseline)

    gained = [example({"psnr": 20.0 + i}, {"psnr": 10.0}) for i in range(4)]
    odd = [example({"psnr": -900.0}, {}), example({}, {"psnr": 900.0})]
    cell = Cell(attack=AttackRef(name="a"), seed=0, status="done", examples=(*odd, *gained))
    assert lead(METRICS["psnr"], [cell]) == "far"

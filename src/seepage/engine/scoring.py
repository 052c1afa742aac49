"""Matching a reconstruction with the truth and scoring it. The only place of an audit where the two meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.prior_only import flat_guess
from seepage.core.types import INPUT_SPACE, PADDING, Batch, InputSpec, Modality, Reconstruction
from seepage.engine.columns import column_records
from seepage.engine.pairing import Pairing, pair
from seepage.engine.traits import example_traits
from seepage.engine.views import Views, raw_candidates
from seepage.metrics import (
    Metric,
    extraction_from_hits,
    label_multiset_accuracy,
    score_examples,
    score_requested,
)
from seepage.metrics.text import PADDING_WORDS, find_padding, words_known
from seepage.protocol import Played
from seepage.record import ColumnRecord, Example


@dataclass(frozen=True)
class Scored:
    """What goes into a cell of the log."""

    examples: tuple[Example, ...]
    batch_scores: dict[str, float]
    claims: int
    claims_right: int
    claimed_examples: int
    """Distinct examples that right claims cover."""
    truth: Tensor
    """(n, ...) in the reconstruction's space; raw units for inputs."""
    matched: Tensor
    """(n, ...) the candidate assigned to each example; a flat guess where there was none."""
    true_label_counts: Tensor
    columns: tuple[ColumnRecord, ...] = ()
    """Of a table: which columns came out."""


@dataclass(frozen=True)
class Rated:
    """Candidates matched with the examples, and their scores."""

    pairing: Pairing
    kept: Tensor
    """(n, ...) the candidate of each example; where `chosen` is given, those that it chooses from."""
    scores: dict[str, Tensor]
    chosen: Tensor | None = None
    """(n,) which of the kept ones is each example's: many share one of a few guesses."""

    @property
    def values(self) -> Tensor:
        """(n, ...) the candidate of each example."""
        return self.kept if self.chosen is None else self.kept[self.chosen]


@dataclass
class Beside:
    """What stands beside the scores of every attack on the same exchanges; filled by the first of them."""

    guess: Rated | None = None
    """In the input space; features are guessed for each layer by itself."""
    traits: dict[str, Tensor] | None = None


def score(
    result: Reconstruction,
    played: Played,
    spec: InputSpec,
    *,
    guesses: Reconstruction,
    public: Batch | None,
    honest: nn.Module,
    tolerance: float,
    metrics: Sequence[Metric] = (),
    beside: Beside | None = None,
    own: Rated | None = None,
) -> Scored:
    """Score `result`, and beside it `guesses`: what the baseline says about the same examples.

    Everything is compared within the exchange it was read from, so that no score rises with the number of
    clients; the counts of labels alone are over all exchanges. metrics: computed beside the usual ones.
    beside: what another call with all but `result` the same has left. own: `result` matched and scored
    already.
    """
    views = Views(played, spec, result.space, tolerance)
    beside = Beside() if beside is None else beside
    if result.space == INPUT_SPACE and beside.guess is None:
        beside.guess = rated(guesses, views, metrics)
    if beside.traits is None:
        beside.traits = example_traits(played.truth, public, honest, spec)
    if own is None and result is guesses:
        own = beside.guess
    own = rated(result, views, metrics) if own is None else own
    truth = views.shown(own.pairing.exchange)
    guess = beside.guess if result.space == INPUT_SPACE else None
    guess = _mean_feature(public, views, own.pairing, truth, metrics) if guess is None else guess
    right = own.pairing.right
    claimed = torch.zeros_like(right) if result.claimed is None else result.claimed.cpu().bool()
    counts = torch.bincount(played.truth.labels.cpu(), minlength=spec.num_classes)
    return Scored(
        examples=_examples(views, own, guess.scores, claimed, beside.traits),
        batch_scores=_batch_scores(result, own.pairing, counts, played.truth.inputs),
        claims=int(claimed.sum()),
        claims_right=int((right & claimed).sum()),
        claimed_examples=own.pairing.claimed_examples,
        truth=truth,
        matched=own.values,
        true_label_counts=counts,
        columns=_columns(own, guess, truth, views, public),
    )


def rated(
    result: Reconstruction, views: Views, metrics: Sequence[Metric], rows: Tensor | None = None
) -> Rated:
    """Match the candidates of `result` and score them.

    rows: the examples that are behind its exchanges, where it is about some of them only; values and scores
    are then those of these rows.
    """
    candidates = raw_candidates(result, views.spec, views.played.truth.inputs.dtype)
    pairing = pair(result, candidates, views)
    some = slice(None) if rows is None else rows
    truth = views.shown(pairing.exchange[some], rows)
    flat = _flat_guess(truth, views.space, views.spec)
    values = _matched(candidates, pairing.candidate[some], flat)
    # exact by the pairing: an example without a candidate never is, whatever the flat guess scores
    scores = _scores(values, truth, views, metrics, exact=pairing.exact[some])
    if result.shared and bool(pairing.recovered.all()):
        return Rated(pairing, candidates, scores, chosen=pairing.candidate)
    return Rated(pairing, values, scores)


def _scores(
    values: Tensor, truth: Tensor, views: Views, metrics: Sequence[Metric], *, exact: Tensor
) -> dict[str, Tensor]:
    usual = score_examples(
        values, truth, views.spec, space=views.space, exact=exact, reference=_reference(truth, views)
    )
    return usual | score_requested(metrics, values, truth, views.spec, space=views.space)


def _columns(
    own: Rated, guess: Rated, truth: Tensor, views: Views, public: Batch | None
) -> tuple[ColumnRecord, ...]:
    if views.space != INPUT_SPACE or views.spec.modality is not Modality.TABULAR:
        return ()
    rebuilt = own.values.masked_fill(~own.pairing.recovered.unsqueeze(1), torch.nan)
    return column_records(rebuilt, guess.values, truth, spec=views.spec, rule=views.of(0).rule, public=public)


def _reference(truth: Tensor, views: Views) -> Tensor | None:
    """All true examples, where `truth` is a part of them and the unit of errors is taken from the data."""
    unit = views.spec.spread if views.spec.modality is Modality.TABULAR else views.spec.value_range
    if unit is not None or views.space != INPUT_SPACE or len(truth) == len(views.played.truth):
        return None
    return views.of(0).values


def _matched(candidates: Tensor, chosen: Tensor, flat: Tensor) -> Tensor:
    """(n, ...) the candidate of each example, or the flat guess where the `chosen` (n,) one is -1."""
    if bool((chosen >= 0).all()):
        return candidates[chosen]
    values = flat.to(candidates.dtype).clone()
    values[chosen >= 0] = candidates[chosen[chosen >= 0]]
    return values


def _flat_guess(truth: Tensor, space: str, spec: InputSpec) -> Tensor:
    """Where nothing was recovered: mid-range for inputs (the public mean of a standardised table's columns),
    zero for tokens and features."""
    if space != INPUT_SPACE or spec.modality is Modality.TEXT:
        return torch.zeros_like(truth)
    return flat_guess(spec).expand_as(truth)


def _mean_feature(
    public: Batch | None, views: Views, pairing: Pairing, truth: Tensor, metrics: Sequence[Metric]
) -> Rated:
    """The best guess at a layer's features without any update: the mean of the public examples'."""
    if public is None or len(public) == 0:
        prior = torch.zeros_like(truth)
    else:
        prior = views.mean_of(public, pairing.exchange)
    exact = torch.zeros_like(pairing.exact)
    for exchange in pairing.exchange.unique().tolist():
        mine = pairing.exchange == exchange
        exact[mine] = views.of(exchange).rule.pairs(prior[mine], truth[mine])
    return Rated(pairing, prior, _scores(prior, truth, views, metrics, exact=exact))


def _batch_scores(
    result: Reconstruction, pairing: Pairing, counts: Tensor, inputs: Tensor
) -> dict[str, float]:
    scores: dict[str, float] = {}
    if result.rows is not None:
        found = extraction_from_hits(pairing.right, pairing.held, result.support, result.rows)
        scores = {
            "extraction_precision_all": found.precision_all,
            "extraction_precision_active": found.precision_active,
            "extraction_recall": found.recall,
            "active_neurons": found.active,
        }
    if result.label_counts is not None:
        scores["label_accuracy"] = label_multiset_accuracy(result.label_counts.cpu(), counts)
    if result.words is not None:
        scores["words_known"] = words_known(result.words.cpu(), inputs.cpu())
    return scores


def _examples(
    views: Views, rated: Rated, guess: dict[str, Tensor], claimed: Tensor, traits: dict[str, Tensor]
) -> tuple[Example, ...]:
    played, spec = views.played, views.spec
    as_text = views.space == INPUT_SPACE and spec.modality is Modality.TEXT
    values = rated.values if as_text else None
    own, other, what = (_by_example(columns) for columns in (rated.scores, guess, traits))
    clients, labels = played.truth_clients.tolist(), played.truth.labels.tolist()
    return tuple(
        Example(
            index=i,
            client=clients[i],
            label=labels[i],
            recovered=candidate >= 0,
            scores=own[i],
            baseline=other[i],
            claimed=candidate >= 0 and bool(claimed[candidate]),
            traits=what[i],
            truth_text=read_text(played.truth.inputs[i], spec) if as_text else None,
            reconstruction_text=read_text(values[i], spec) if values is not None and candidate >= 0 else None,
        )
        for i, candidate in enumerate(rated.pairing.candidate.tolist())
    )


def _by_example(columns: dict[str, Tensor]) -> list[dict[str, float]]:
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]


def read_text(ids: Tensor, spec: InputSpec) -> str:
    """Token ids as words, padding left out; the ids themselves where there is no word list.

    >>> from seepage.core.types import InputSpec, Modality
    >>> words = ("<pad>", "a", "b")
    >>> spec = InputSpec(modality=Modality.TEXT, shape=(3,), num_classes=2, vocabulary=3, tokens=words)
    >>> read_text(torch.tensor([1, -1, 2]), spec)  # a negative id: no token was recognised there
    'a ? b'
    """
    known, left_out = range(len(spec.tokens)), (PADDING, find_padding(spec.tokens or PADDING_WORDS))
    words = [
        "?" if i < 0 else spec.tokens[i] if i in known else f"#{i}" for i in ids.tolist() if i not in left_out
    ]
    # the marks of sub-word tokenizers, as people read them
    return " ".join(words).replace(" ##", "")

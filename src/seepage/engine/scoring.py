"""Matching a reconstruction with the truth and scoring it. The only place of an audit where the two meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core.types import INPUT_SPACE, Batch, InputSpec, Reconstruction
from seepage.engine.columns import column_records
from seepage.engine.pairing import Pairing
from seepage.engine.rating import Rated, known_places, rated, read_text, scores_of
from seepage.engine.traits import example_traits
from seepage.engine.views import Views
from seepage.metrics import Metric, extraction_from_hits, label_multiset_accuracy
from seepage.metrics.text import words_known
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
    rows: Tensor
    """(m,) the examples whose values are kept, ascending: all, or some of very many."""
    truth: Tensor
    """(m, ...) in the reconstruction's space; raw units for inputs."""
    matched: Tensor
    """(m, ...) the candidate assigned to each of them; a flat guess where there was none."""
    true_label_counts: Tensor | None
    """None where some of the examples were in no update, and nobody knows which."""
    columns: tuple[ColumnRecord, ...] = ()
    """Of a table: which columns came out."""


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
    loss: str = "auto",
) -> Scored:
    """Score `result`, and beside it `guesses`: what the baseline says about the same examples.

    Everything is compared within the exchange it was read from, so that no score rises with the number of
    clients; the counts of labels alone are over all exchanges. metrics: computed beside the usual ones.
    beside: what another call with all but `result` the same has left. own: `result` matched and scored
    already. loss: the clients', where what a model is to say are numbers.
    """
    views = Views(played, spec, result.space, tolerance)
    beside = Beside() if beside is None else beside
    if result.space == INPUT_SPACE and beside.guess is None:
        beside.guess = rated(guesses, views, metrics)
    if beside.traits is None:
        beside.traits = example_traits(played.truth, public, honest, spec, loss=loss)
    if own is None and result is guesses:
        own = beside.guess
    own = rated(result, views, metrics) if own is None else own
    guess = beside.guess if result.space == INPUT_SPACE else None
    guessed = _mean_feature(public, views, own.pairing, metrics) if guess is None else guess.scores
    right = own.pairing.right
    claimed = torch.zeros_like(right) if result.claimed is None else result.claimed.cpu().bool()
    counts = None
    if not played.partly:
        counts = torch.bincount(played.truth.classes.cpu(), minlength=spec.num_classes)
    return Scored(
        examples=_examples(views, own, guessed, claimed, beside.traits, result.words),
        batch_scores=_batch_scores(result, own.pairing, counts, played.truth.inputs),
        claims=int(claimed.sum()),
        claims_right=int((right & claimed).sum()),
        claimed_examples=own.pairing.claimed_examples,
        rows=own.rows,
        truth=views.shown(own.pairing.exchange[own.rows], own.rows),
        matched=own.values,
        true_label_counts=counts,
        columns=_columns(own, guess, views, public),
    )


def _columns(own: Rated, guess: Rated | None, views: Views, public: Batch | None) -> tuple[ColumnRecord, ...]:
    if guess is None or not own.hits:
        return ()
    truth, rule = views.shown(own.pairing.exchange), views.of(0).rule
    return column_records(own.hits, guess.hits, truth, spec=views.spec, rule=rule, public=public)


def _mean_feature(
    public: Batch | None, views: Views, pairing: Pairing, metrics: Sequence[Metric]
) -> dict[str, Tensor]:
    """Scores of the best guess at a layer's features without any update: the mean of the public examples'."""
    truth = views.shown(pairing.exchange)
    if public is None or len(public) == 0:
        prior = torch.zeros_like(truth)
    else:
        prior = views.mean_of(public, pairing.exchange)
    exact = torch.zeros_like(pairing.exact)
    for exchange in pairing.exchange.unique().tolist():
        mine = pairing.exchange == exchange
        exact[mine] = views.of(exchange).rule.pairs(prior[mine], truth[mine])
    return scores_of(prior, truth, views, metrics, exact=exact)


def _batch_scores(
    result: Reconstruction, pairing: Pairing, counts: Tensor | None, inputs: Tensor
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
    if result.label_counts is not None and counts is not None:
        scores["label_accuracy"] = label_multiset_accuracy(result.label_counts.cpu(), counts)
    if result.words is not None:
        scores["words_known"] = words_known(result.words.cpu(), inputs.cpu())
    return scores


def _examples(
    views: Views,
    rated: Rated,
    guess: dict[str, Tensor],
    claimed: Tensor,
    traits: dict[str, Tensor],
    words: Tensor | None,
) -> tuple[Example, ...]:
    played, spec, texts = views.played, views.spec, rated.texts
    facts = zip(
        rated.pairing.candidate.tolist(),
        played.truth_clients.tolist(),
        played.truth.classes.tolist(),
        *(_by_example(columns) for columns in (rated.scores, guess, traits)),
        strict=True,
    )
    return tuple(
        Example(
            index=i,
            client=client,
            label=label,
            recovered=candidate >= 0,
            scores=own,
            baseline=other,
            claimed=candidate >= 0 and bool(claimed[candidate]),
            traits=what,
            truth_text=read_text(played.truth.inputs[i], spec) if texts else None,
            reconstruction_text=texts[i] if texts else None,
            known_words=known_places(played.truth.inputs[i], spec, words) if texts else (),
        )
        for i, (candidate, client, label, own, other, what) in enumerate(facts)
    )


def _by_example(columns: dict[str, Tensor]) -> Iterator[dict[str, float]]:
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return (dict(zip(columns, row, strict=True)) for row in values)

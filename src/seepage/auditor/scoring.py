"""Matching a reconstruction with the truth and scoring it. The only place of an audit where the two meet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.prior_only import flat_guess
from seepage.auditor.columns import column_records
from seepage.auditor.pairing import Pairing, pair
from seepage.auditor.traits import example_traits
from seepage.auditor.views import Views, raw_candidates
from seepage.federation import Played
from seepage.log import ColumnRecord, Example
from seepage.metrics import exact_rule, extraction_from_hits, label_multiset_accuracy, score_examples
from seepage.types import INPUT_SPACE, Batch, InputSpec, Modality, Reconstruction


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


def score(
    result: Reconstruction,
    played: Played,
    spec: InputSpec,
    *,
    guesses: Reconstruction,
    public: Batch | None,
    honest: nn.Module,
    tolerance: float,
) -> Scored:
    """Score `result`, and beside it `guesses`: what the baseline says about the same examples.

    Everything is compared within the exchange it was read from, so that no score rises with the number of
    clients; the counts of labels alone are over all exchanges.
    """
    views = Views(played, spec, result.space, tolerance)
    candidates = raw_candidates(result, spec, played.truth.inputs.dtype)
    pairing = pair(result, candidates, views)
    truth = views.shown(pairing.exchange)
    matched = _matched(candidates, pairing, _flat_guess(truth, result.space, spec))
    scores = score_examples(matched, truth, spec, space=result.space, tolerance=tolerance)
    # The pairing's own rule: an example without a candidate is never exact, whatever the flat guess scores.
    scores["exact"] = pairing.exact.double()
    prior, guessed = _baseline(guesses, public, views, pairing, truth)
    beside = score_examples(prior, truth, spec, space=result.space, tolerance=tolerance)
    beside["exact"] = guessed.double()
    claimed = torch.zeros_like(pairing.right) if result.claimed is None else result.claimed.cpu().bool()
    counts = torch.bincount(played.truth.labels.cpu(), minlength=spec.num_classes)
    traits = example_traits(played.truth, public, honest, spec)
    return Scored(
        examples=_examples(played, spec, scores, beside, matched, pairing, claimed, result.space, traits),
        batch_scores=_batch_scores(result, pairing, counts),
        claims=int(claimed.sum()),
        claims_right=int((pairing.right & claimed).sum()),
        claimed_examples=pairing.claimed_examples,
        truth=truth,
        matched=matched,
        true_label_counts=counts,
        columns=_columns(matched, prior, truth, pairing, views, public),
    )


def _columns(
    matched: Tensor, prior: Tensor, truth: Tensor, pairing: Pairing, views: Views, public: Batch | None
) -> tuple[ColumnRecord, ...]:
    if views.space != INPUT_SPACE or views.spec.modality is not Modality.TABULAR:
        return ()
    rebuilt = matched.masked_fill(~pairing.recovered.unsqueeze(1), torch.nan)
    return column_records(rebuilt, prior, truth, spec=views.spec, rule=views.of(0).rule, public=public)


def _matched(candidates: Tensor, pairing: Pairing, flat: Tensor) -> Tensor:
    """(n, ...) the candidate of each example, or the flat guess."""
    values = flat.to(candidates.dtype).clone()
    recovered = pairing.recovered
    values[recovered] = candidates[pairing.candidate[recovered]]
    return values


def _flat_guess(truth: Tensor, space: str, spec: InputSpec) -> Tensor:
    """Where nothing was recovered: mid-range for inputs (the public mean of a standardised table's columns),
    zero for tokens and features."""
    if space != INPUT_SPACE or spec.modality is Modality.TEXT:
        return torch.zeros_like(truth)
    return flat_guess(spec).to(truth).expand_as(truth)


def _baseline(
    guesses: Reconstruction, public: Batch | None, views: Views, pairing: Pairing, truth: Tensor
) -> tuple[Tensor, Tensor]:
    """(n, ...) the best guess without any update, in a layer's space the mean public feature; (n,) exact."""
    if views.space == INPUT_SPACE:
        values = raw_candidates(guesses, views.spec, truth.dtype)
        chosen = pair(guesses, values, views)
        return _matched(values, chosen, _flat_guess(truth, views.space, views.spec)), chosen.exact
    if public is None or len(public) == 0:
        prior = torch.zeros_like(truth)
    else:
        prior = views.mean_of(public, pairing.exchange)
    return prior, exact_rule(views.spec, truth, space=views.space, tolerance=views.tolerance).pairs(
        prior, truth
    )


def _batch_scores(result: Reconstruction, pairing: Pairing, counts: Tensor) -> dict[str, float]:
    scores: dict[str, float] = {}
    if result.rows is not None:
        found = extraction_from_hits(pairing.right, pairing.held, result.support, result.rows)
        scores |= {
            "extraction_precision_all": found.precision_all,
            "extraction_precision_active": found.precision_active,
            "extraction_recall": found.recall,
            "active_neurons": found.active,
        }
    if result.label_counts is not None:
        scores["label_accuracy"] = label_multiset_accuracy(result.label_counts.cpu(), counts)
    return scores


def _examples(
    played: Played,
    spec: InputSpec,
    scores: dict[str, Tensor],
    beside: dict[str, Tensor],
    matched: Tensor,
    pairing: Pairing,
    claimed: Tensor,
    space: str,
    traits: dict[str, Tensor],
) -> tuple[Example, ...]:
    as_text = space == INPUT_SPACE and spec.modality is Modality.TEXT
    own, other, what = (_by_example(columns) for columns in (scores, beside, traits))
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
            reconstruction_text=read_text(matched[i], spec) if as_text and candidate >= 0 else None,
        )
        for i, candidate in enumerate(pairing.candidate.tolist())
    )


def _by_example(columns: dict[str, Tensor]) -> list[dict[str, float]]:
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]


def read_text(ids: Tensor, spec: InputSpec) -> str:
    """Token ids as words, padding (id 0) left out; the ids themselves where there is no word list."""
    words = [spec.tokens[i] if i < len(spec.tokens) else f"#{i}" for i in ids.tolist() if i != 0]
    return " ".join(words)

"""Matching a reconstruction with the truth and scoring it. The only place of an audit where the two meet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.parts.layers import watching
from seepage.attacks.prior_only import flat_guess
from seepage.auditor.columns import column_records
from seepage.auditor.traits import example_traits
from seepage.errors import ModelError
from seepage.federation import Played, training_mode
from seepage.federation.widening import wide
from seepage.log import ColumnRecord, Example
from seepage.metrics import (
    ExactRule,
    assign,
    exact_rule,
    extraction_scores,
    label_multiset_accuracy,
    score_examples,
)
from seepage.types import INPUT_SPACE, Batch, InputSpec, Modality, Reconstruction


@dataclass(frozen=True)
class Scored:
    """What goes into a cell of the log."""

    examples: tuple[Example, ...]
    batch_scores: dict[str, float]
    claims: int
    claims_right: int
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
    """Score `result`, and beside it `guesses`: what the baseline says about the same examples."""
    model = played.exchanges[0].broadcast.model
    truth = _in_space(played.truth.inputs, result.space, spec, model)
    candidates = _raw_candidates(result, spec)
    flat = _flat_guess(truth, result.space, spec)
    rule = exact_rule(spec, truth, space=result.space, tolerance=tolerance)
    matched = _match(candidates, truth, flat, rule)
    if result.space == INPUT_SPACE:
        prior = _match(_raw_candidates(guesses, spec), truth, flat, rule).values
    else:
        prior = _mean_feature(public, result.space, model, like=truth)
    scores = score_examples(matched.values, truth, spec, space=result.space, tolerance=tolerance)
    beside = score_examples(prior, truth, spec, space=result.space, tolerance=tolerance)
    # An example for which there is no candidate is never called exact, whatever the flat guess scores.
    scores["exact"] = scores["exact"] * matched.recovered
    claimed = (
        torch.zeros(len(candidates), dtype=torch.bool) if result.claimed is None else result.claimed.cpu()
    )
    right = rule.every(candidates, truth).any(1) & claimed
    counts = torch.bincount(played.truth.labels.cpu(), minlength=spec.num_classes)
    return Scored(
        examples=_examples(
            played,
            spec,
            scores,
            beside,
            matched,
            claimed,
            result.space,
            example_traits(played.truth, public, honest, spec),
        ),
        batch_scores=_batch_scores(result, candidates, truth, counts, rule),
        claims=int(claimed.sum()),
        claims_right=int(right.sum()),
        truth=truth,
        matched=matched.values,
        true_label_counts=counts,
        columns=_columns(matched, prior, truth, result.space, spec, rule, public),
    )


@dataclass(frozen=True)
class _Matched:
    """One candidate for each example, as far as there were any."""

    values: Tensor
    recovered: Tensor
    """(n,) bool."""
    candidate: Tensor
    """(n,) index of the candidate, -1 for none."""


def _columns(
    matched: _Matched,
    prior: Tensor,
    truth: Tensor,
    space: str,
    spec: InputSpec,
    rule: ExactRule,
    public: Batch | None,
) -> tuple[ColumnRecord, ...]:
    if space != INPUT_SPACE or spec.modality is not Modality.TABULAR:
        return ()
    rebuilt = matched.values.masked_fill(~matched.recovered.unsqueeze(1), torch.nan)
    return column_records(rebuilt, prior, truth, spec=spec, rule=rule, public=public)


def _raw_candidates(result: Reconstruction, spec: InputSpec) -> Tensor:
    """On the CPU, in raw units, inside the value range: a diverged candidate must not upset the matching."""
    values = wide(result.values.detach().cpu())
    if result.space != INPUT_SPACE or spec.modality is Modality.TEXT:
        return values
    if result.model_units:
        values = spec.to_raw(values)
    return values if spec.value_range is None else values.clamp(*spec.value_range)


def _in_space(inputs: Tensor, space: str, spec: InputSpec, model: nn.Module) -> Tensor:
    """The examples as the reconstruction would show them: raw inputs, or a layer's input features."""
    if space != INPUT_SPACE:
        return layer_inputs(model, space, inputs)
    values = wide(inputs.detach().cpu())
    return values if spec.modality is Modality.TEXT else spec.to_raw(values)


def layer_inputs(model: nn.Module, layer: str, inputs: Tensor) -> Tensor:
    """(n, d): what reaches the named layer for each input, flattened."""
    with watching(model, layer) as seen, torch.no_grad(), training_mode(model, False):
        model(inputs)
    if not seen:
        raise ModelError(
            f"layer '{layer}' was not reached in a forward pass, so its features cannot be scored."
        )
    return wide(seen[0].flatten(1).cpu())


def _flat_guess(truth: Tensor, space: str, spec: InputSpec) -> Tensor:
    """Where nothing was recovered: mid-range for inputs (the public mean of a standardised table's columns),
    zero for tokens and features."""
    if space != INPUT_SPACE or spec.modality is Modality.TEXT:
        return torch.zeros_like(truth)
    return flat_guess(spec).to(truth).expand_as(truth)


def _match(candidates: Tensor, truth: Tensor, flat: Tensor, rule: ExactRule) -> _Matched:
    """The best one-to-one assignment between candidates and examples, in units of each column's spread."""
    values = flat.clone()
    if len(candidates) == 0:
        return _Matched(values, torch.zeros(len(truth), dtype=torch.bool), torch.full((len(truth),), -1))
    exact = rule.every(candidates, truth)
    if truth.is_floating_point():
        chosen = assign(candidates / rule.unit, truth / rule.unit, exact=exact).candidate.cpu()
    else:
        chosen = assign(candidates, truth, exact=exact).candidate.cpu()
    recovered = chosen >= 0
    values[recovered] = candidates[chosen[recovered]].to(truth.dtype)
    return _Matched(values, recovered, chosen)


def _mean_feature(public: Batch | None, space: str, model: nn.Module, *, like: Tensor) -> Tensor:
    """The feature-space baseline: every example is guessed to be the mean public feature."""
    if public is None or len(public) == 0:
        return torch.zeros_like(like)
    return layer_inputs(model, space, public.inputs).mean(dim=0).expand_as(like)


def _batch_scores(
    result: Reconstruction,
    candidates: Tensor,
    truth: Tensor,
    counts: Tensor,
    rule: ExactRule,
) -> dict[str, float]:
    scores: dict[str, float] = {}
    if result.rows is not None:
        found = extraction_scores(candidates, result.support, result.rows, truth, rule=rule)
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
    matched: _Matched,
    claimed: Tensor,
    space: str,
    traits: dict[str, Tensor],
) -> tuple[Example, ...]:
    as_text = space == INPUT_SPACE and spec.modality is Modality.TEXT
    return tuple(
        Example(
            index=i,
            client=int(played.truth_clients[i]),
            label=int(played.truth.labels[i]),
            recovered=bool(matched.recovered[i]),
            scores={name: float(values[i]) for name, values in scores.items()},
            baseline={name: float(values[i]) for name, values in beside.items()},
            claimed=bool(matched.recovered[i]) and bool(claimed[matched.candidate[i]]),
            traits={name: float(values[i]) for name, values in traits.items()},
            truth_text=read_text(played.truth.inputs[i], spec) if as_text else None,
            reconstruction_text=read_text(matched.values[i], spec)
            if as_text and matched.recovered[i]
            else None,
        )
        for i in range(len(played.truth))
    )


def read_text(ids: Tensor, spec: InputSpec) -> str:
    """Token ids as words, padding (id 0) left out; the ids themselves where there is no word list."""
    words = [spec.tokens[i] if i < len(spec.tokens) else f"#{i}" for i in ids.tolist() if i != 0]
    return " ".join(words)

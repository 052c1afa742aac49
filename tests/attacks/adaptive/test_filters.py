"""Servers that know the filter of a framework: what they undo, with known answers. No framework is needed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.attacks.adaptive import filters
from seepage.attacks.adaptive.answers import ANSWERS, answer_to
from seepage.attacks.adaptive.attack import adaptive
from seepage.attacks.adaptive.dense import dense_layers
from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Modality
from seepage.defenses.clipping import clip_together
from seepage.defenses.pruning import keep_top
from seepage.defenses.sign import scaled_sign
from seepage.names.frameworks import FAMILIES
from seepage.protocol import client

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 6, 6), num_classes=3)
LOCAL = LocalTraining(algorithm="fedavg", lr=0.5)
KNOWN = Knowledge(input=SPEC, local=LOCAL)


def _batch() -> Batch:
    inputs = torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(4))
    return Batch(inputs, torch.tensor([0, 1, 2]))


def _seen(change: Any = None) -> Exchange:
    """One local step, its delta changed as a filter would."""
    torch.manual_seed(0)
    broadcast = Broadcast(nn.Sequential(nn.Flatten(), nn.Linear(36, 80), nn.ReLU(), nn.Linear(80, 3)))
    update = client(LOCAL)(broadcast, _batch())
    tensors = dict(update.tensors) if change is None else change(dict(update.tensors))
    return Exchange(broadcast=broadcast, update=replace(update, tensors=tensors), clients=(0,))


def _off(tensors: dict[str, Tensor]) -> float:
    true = _seen().update.tensors
    return float((tensors["1.weight"] - true["1.weight"]).norm() / true["1.weight"].norm())


def _percentile(share: float, gamma: float) -> Any:
    def cut(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        sizes = torch.cat([t.abs().flatten() for t in tensors.values()])
        low = sizes.quantile(share)
        return {n: torch.where(t.abs() < low, 0 * t, t).clamp(-gamma, gamma) for n, t in tensors.items()}

    return cut


def test_dropped_and_cut_entries_are_filled_in_by_the_rank() -> None:
    change = _percentile(0.1, 0.01)
    sent = _seen(change)
    tensors, notes = filters.undo_percentile(sent, KNOWN, {"gamma": 0.01})
    assert _off(dict(sent.update.tensors)) > 0.1
    assert _off(tensors) < 0.01
    assert "filled in by the rank" in notes[0]


def test_gamma_counts_local_steps() -> None:
    two = replace(KNOWN, local=replace(LOCAL, epochs=2))
    sent = _seen(_percentile(0.0, 0.001))
    untouched, _ = filters.undo_percentile(sent, two, {"gamma": 0.001})  # nothing reaches 0.002: all is exact
    assert torch.allclose(untouched["1.weight"], sent.update.tensors["1.weight"], atol=1e-7)


def test_weights_that_were_cut_themselves_are_left_alone() -> None:
    assert filters.undo_percentile(_seen(), KNOWN, {"sends": "weights"})[0] == {}


DP = {"clipping_norm": 1.0, "sensitivity": 1e-5, "epsilon": 1.0, "delta": 1e-5}


def _local_dp(settings: dict[str, float]) -> Any:
    def noisy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(2)
        clipped = clip_together(tensors, settings["clipping_norm"])
        sigma = filters.local_dp_sigma(settings)
        return {n: t + sigma * torch.randn(t.shape, generator=generator) for n, t in clipped.items()}

    return noisy


def test_local_dp_is_filtered_and_unclipped_only_where_it_was_clipped() -> None:
    loose = _seen(_local_dp(DP))
    tensors, notes = filters.undo_local_dp(loose, KNOWN, DP)
    assert _off(tensors) < 0.5 * _off(dict(loose.update.tensors))
    assert "nothing was clipped" in notes[-1]
    tight = {**DP, "clipping_norm": 0.01, "sensitivity": 1e-8}
    tensors, notes = filters.undo_local_dp(_seen(_local_dp(tight)), KNOWN, tight)
    assert "clipping factor" in notes[-1]
    assert _off(tensors) < 0.02


def test_a_clipping_mod_is_undone_by_the_norm_that_the_server_sent() -> None:
    clipped = _seen(lambda tensors: clip_together(tensors, 0.01))
    tensors, _ = filters.undo_clipping_mod(clipped, KNOWN, {"clipping_norm": 0.01})
    assert _off(tensors) < 1e-3
    assert filters.undo_clipping_mod(_seen(), KNOWN, {"clipping_norm": 10.0})[0] == {}


def test_excluded_layers_are_not_read_and_a_missing_bias_is_estimated() -> None:
    def without(name: str) -> Any:
        return lambda tensors: {**tensors, name: torch.zeros_like(tensors[name])}

    for excluded in (["1.bias"], "^1.bias$"):
        tensors, _ = filters.undo_excluded(_seen(without("1.bias")), KNOWN, {"exclude_vars": excluded})
        assert set(tensors) == {"1.bias"}
    found = adaptive(
        attack="analytic_extraction", knows=[{"name": "nvflare:ExcludeVars", "exclude_vars": ["1.weight"]}]
    ).run([_seen(without("1.weight"))], KNOWN)
    assert any("layer '3' is read" in note for note in found.notes)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (None, "nothing"),
        (lambda ts: {n: scaled_sign(t) for n, t in ts.items()}, "values_of_signs"),
        (lambda ts: {n: keep_top(t, 0.5) for n, t in ts.items()}, "fill_pruned"),
        (lambda ts: {n: t + 1e-4 * torch.randn(t.shape) for n, t in ts.items()}, "remove_noise"),
    ],
)
def test_the_general_answer_is_chosen_alike_around_its_constants(
    change: Any, answer: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "_SOME", factor * filters._SOME)
    monkeypatch.setattr(filters, "_FITS", factor * filters._FITS)
    dense = next(iter(dense_layers(_seen(change), KNOWN)))
    assert filters._general(dense).__name__ == answer


def test_an_unknown_filter_is_said_not_to_be_attacked_adaptively() -> None:
    knowing = adaptive(attack="analytic_extraction", knows=["nvflare:hospital.filters.Own"])
    noisy = _seen(lambda ts: {n: t + 1e-5 * torch.randn(t.shape) for n, t in ts.items()})
    found = knowing.run([noisy], KNOWN)
    assert any("'nvflare:hospital.filters.Own' is not known" in note for note in found.notes)
    plain = ATTACKS.find("analytic_extraction")().run([noisy], KNOWN)
    truth = _batch().inputs.flatten(1)
    distance = [float(torch.cdist(truth, f.values.flatten(1)).amin(1).mean()) for f in (found, plain)]
    assert distance[0] < distance[1] or not math.isfinite(distance[1])


def test_every_stock_filter_has_an_answer_or_needs_none() -> None:
    named = {f"{family}:{name}": e for family, f in FAMILIES.items() for name, e in f.entries.items()}
    assert {name for name in ANSWERS if ":" in name} <= set(named)
    unanswered = {name for name in named if answer_to(name) is None}
    assert {n for n in unanswered if named[n].facts.get("runs_at") != "protocol"} == {
        "nvflare:DXOBlocker",
        "flower:arrays_size_mod",
        "flower:message_size_mod",
    }

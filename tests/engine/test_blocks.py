"""Rounds that are too large to keep are played again and attacked in blocks, with the same figures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from seepage.engine import blocks, source
from seepage.engine.cell import run_cell
from seepage.engine.prepare import prepare
from seepage.engine.shared import Shared
from seepage.engine.spec import parse_spec
from seepage.protocol.played import PlayedAgain
from seepage.record import Cell

SPEC: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [40]},
    "data": "digits",
    "attacks": ["analytic_extraction"],
    "protocol": {"batch_size": 3, "clients": 7},
    "seeds": [5],
}


def dropping() -> nn.Module:
    """Draws at every step of a client."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Dropout(0.3), nn.Linear(30, 10, bias=True)
    )


def cells(spec: dict[str, Any], model: Any = None) -> list[Cell]:
    prepared = prepare(parse_spec(spec), model=model)
    shared = Shared(prepared, 5)
    found = [run_cell(prepared, ref, 5, shared)[0] for ref in prepared.refs]
    assert [cell.status for cell in found] == ["done"] * len(prepared.refs)
    return [cell.model_copy(update={"cost": None}) for cell in found]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"data": "breast_cancer"},
        {"defenses": [{"name": "gaussian_noise", "sigma": 1e-3}], "adaptive": False},
        {"attacks": [{"name": "analytic_extraction", "layer": "head"}]},  # features, not inputs
        {"protocol": {"batch_size": 3, "clients": 7, "rounds": 2}},  # examples in two exchanges each
        {"protocol": {"batch_size": 3, "clients": 7, "rounds": 2, "fresh_batches": True}},
        {"protocol": {"batch_size": 3, "clients": 7, "attacked": 2}},
        {"protocol": {"batch_size": 3, "clients": 7, "aggregation": "secure_sum"}},
    ],
    ids=str,
)
def test_what_is_played_again_gives_the_same_cells(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = cells({**SPEC, **change})
    monkeypatch.setattr(source, "KEPT", 0)
    monkeypatch.setattr(blocks, "BLOCK", 2)
    assert same(cells({**SPEC, **change}), kept)


def test_dropout_draws_the_same_on_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = {**SPEC["protocol"], "batch_norm": "train"}
    spec = {**SPEC, "model": "dropping", "protocol": protocol}
    kept = cells(spec, dropping)
    monkeypatch.setattr(source, "KEPT", 0)
    assert same(cells(spec, dropping), kept)


def same(one: list[Cell], other: list[Cell]) -> bool:
    """All but the last bits of scores: sums over blocks of another size may round differently.

    Features are computed by the model, block by block, in its own precision: their last bits are float32's.
    """
    for a, b in zip(one, other, strict=True):
        last = 1e-12 if b.space == "input" else 1e-6
        for own, kept in zip(a.examples, b.examples, strict=True):
            for name in kept.scores:
                assert own.scores[name] == pytest.approx(kept.scores[name], rel=last, abs=last)
        plain = {"examples": ()}
        assert a.model_copy(update=plain) == b.model_copy(update=plain)
    return len(one) == len(other)


def test_updates_are_neither_kept_nor_the_same_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "KEPT", 0)
    played = Shared(prepare(parse_spec(SPEC)), 5).honest
    assert isinstance(played.exchanges, PlayedAgain)
    first, again = list(played.exchanges), list(played.exchanges)
    for one, other in zip(first, again, strict=True):
        assert one.broadcast.model is other.broadcast.model is played.model(0)
        for name, tensor in one.update.tensors.items():
            assert tensor is not other.update.tensors[name]
            assert torch.equal(tensor, other.update.tensors[name])
    picked = played.exchanges[1:5:2]
    assert [e.clients for e in picked] == [(1,), (3,)] and played.exchanges[-1].clients == (6,)
    with pytest.raises(IndexError):
        _ = played.exchanges[7]

"""Attackers who know the defense, against the same attackers who do not: on digits, with known answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.attacks.adaptive.answers import ANSWERS
from seepage.attacks.adaptive.attack import adaptive
from seepage.attacks.adaptive.counts import whole_class_counts
from seepage.attacks.adaptive.factor import undo_clipping
from seepage.attacks.fishing.head import class_head, find_head
from seepage.core.errors import SpecError
from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Modality
from seepage.defenses import DEFENSES, DefenseEntry
from seepage.defenses.oasis import with_copies
from seepage.engine.cell import run_cell
from seepage.engine.prepare import prepare
from seepage.engine.spec import parse_spec
from seepage.protocol import client
from seepage.record import AttackRef

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 6, 6), num_classes=3)
KNOWN = Knowledge(input=SPEC, local=LocalTraining())


def net(width: int = 80) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, width), nn.ReLU(), nn.Linear(width, 3))


def batch(count: int = 3) -> Batch:
    inputs = torch.rand(count, 1, 6, 6, generator=torch.Generator().manual_seed(4))
    inputs[:, 0, 0, 0] = 1.0  # a pixel at the end of the range, as pictures have
    return Batch(inputs, torch.arange(count) % 3)


def seen(name: str, model: nn.Module | None = None, **settings: Any) -> Exchange:
    received = Broadcast(model or net())
    sent = client(LocalTraining(), [DEFENSES[name].build(**settings)])(received, batch())
    return Exchange(broadcast=received, update=sent, clients=(0,))


def error(values: Tensor) -> float:
    """Mean over the examples of the distance to the nearest candidate."""
    truth = batch().inputs.flatten(1)
    return float(torch.cdist(truth, values.flatten(1)).amin(dim=1).mean()) if len(values) else float("inf")


@pytest.mark.parametrize(
    ("defense", "settings", "factor"),
    [
        ("pruning", {"share": 0.7}, 0.5),
        ("gaussian_noise", {"sigma": 0.003}, 0.5),
        ("quantisation", {"bits": 6}, 0.7),
        ("hide_bias", {}, 1e-3),
        ("hide_bias", {"how": "noise"}, 1e-3),
    ],
)
def test_who_knows_the_defense_reads_better(defense: str, settings: dict[str, Any], factor: float) -> None:
    exchange = seen(defense, **settings)
    plain = ATTACKS["analytic_extraction"]().run([exchange], KNOWN)
    knowing = adaptive(knows=[{"name": defense, **settings}]).run([exchange], KNOWN)
    nothing = error(torch.full((1, 1, 6, 6), 0.5))
    assert error(knowing.values) < factor * min(error(plain.values), nothing)
    assert any("Knowing the defense" in note for note in knowing.notes)


def test_the_clipping_factor_is_found_exactly() -> None:
    received = Broadcast(net())
    true = client(LocalTraining())(received, batch()).tensors
    restored, notes = undo_clipping(seen("clipping", norm=0.05), KNOWN, {"norm": 0.05})
    assert all(torch.allclose(restored[name], true[name], rtol=1e-3, atol=1e-7) for name in true)
    assert "undone" in notes[0]
    untouched, notes = undo_clipping(seen("clipping", norm=1e6), KNOWN, {"norm": 1e6})
    assert untouched == {} and "nothing was clipped" in notes[0]


def test_under_a_fishing_head_the_factor_and_the_counts_are_whole() -> None:
    honest = net()
    crafted = class_head(honest, find_head(honest, SPEC, None), 1, alpha=1000.0)
    true = client(LocalTraining())(Broadcast(crafted), batch()).tensors["3.bias"]
    clipped = seen("clipping", crafted, norm=1e-3)
    restored, notes = undo_clipping(clipped, KNOWN, {"norm": 1e-3})
    assert torch.allclose(restored["3.bias"], true, rtol=1e-4) and "whole numbers" in notes[0]
    noisy = seen("gaussian_noise", crafted, sigma=0.01)
    assert not torch.allclose(noisy.update.tensors["3.bias"], true, atol=1e-3)
    assert torch.allclose(whole_class_counts(noisy, KNOWN)["3.bias"], true, atol=1e-6)
    assert whole_class_counts(seen("gaussian_noise", sigma=0.01), KNOWN) == {}  # an honest head


@pytest.mark.parametrize("defense", ["pruning", "soteria", "share_layers"])
def test_matching_leaves_out_what_was_not_sent(defense: str) -> None:
    """The true examples explain what was sent perfectly; to somebody who counts the zeros they do not."""
    exchange = seen(defense)
    true = list(client(LocalTraining())(exchange.broadcast, batch()).tensors.values())
    sent = list(exchange.update.tensors.values())
    attack = ATTACKS["inverting_gradients"](steps=1)
    knowing = adaptive(attack="inverting_gradients", options={"steps": 1}, knows=[defense])
    assert float(attack.distance(true, sent, None)) > 1e-3
    assert float(knowing.inner.distance(true, sent, None)) < 1e-6


@pytest.mark.parametrize("defense", ["share_layers", "soteria"])
def test_traps_go_to_a_layer_that_is_sent(defense: str) -> None:
    """The first layer tells nothing; the input is passed through it to the second, and read there."""
    wanted = {
        "model": {"name": "mlp", "hidden": [200, 200]},
        "data": "digits",
        "attacks": ["trap_weights"],
        "threat": "malicious_server",
        "seeds": [0],
        "protocol": {"batch_size": 4},
        "defenses": [defense],
    }
    prepared = prepare(parse_spec(wanted))
    plain, knowing = (run_cell(prepared, ref, 0)[0] for ref in prepared.refs[1:])
    exact = [sum(e.scores["exact"] for e in cell.examples) for cell in (plain, knowing)]
    assert exact[0] == 0 and exact[1] >= 2
    assert any("layer 'dense1' is read" in note for note in knowing.notes)


def test_matching_signs_prefers_the_true_examples() -> None:
    exchange = seen("sign")
    sent = list(exchange.update.tensors.values())
    true = list(client(LocalTraining())(exchange.broadcast, batch()).tensors.values())
    other = Batch(1 - batch().inputs, batch().labels)
    wrong = list(client(LocalTraining())(exchange.broadcast, other).tensors.values())
    distance = adaptive(attack="inverting_gradients", knows=["sign"]).inner.distance
    assert float(distance(true, sent, None)) < 0.5 * float(distance(wrong, sent, None))


def test_every_answer_is_to_a_defense_that_exists() -> None:
    wrappers = {name for name, entry in DEFENSES.items() if isinstance(entry, DefenseEntry)}
    own = {name for name in ANSWERS if ":" not in name}
    assert own == wrappers - {"refuse_traps", "gate"}


@pytest.mark.parametrize("transforms", [["rotate90", "rotate180", "rotate270"], ["flip_horizontal"]])
def test_who_knows_of_the_copies_peels_them_all(transforms: list[str]) -> None:
    """The client says 3 examples; the gradient is that of 3 and their copies."""
    exchange = seen("oasis", net(400), transforms=transforms)
    plain = ATTACKS["exact_extraction"]().run([exchange], KNOWN)
    knowing = adaptive(attack="exact_extraction", knows=[{"name": "oasis", "transforms": transforms}]).run(
        [exchange], KNOWN
    )
    everything = with_copies(batch(), transforms).inputs.flatten(1)
    distances = torch.cdist(everything, knowing.values.flatten(1))
    assert distances.amin(dim=1).max() < 1e-4 and len(knowing.values) == len(everything)
    assert plain.claimed is not None and int(plain.claimed.sum()) == len(everything) > 3
    # Which of them are the client's own cannot be known, so nothing is vouched for.
    assert knowing.claimed is None and any("transformed copy" in note for note in knowing.notes)
    assert knowing.label_counts is not None and knowing.label_counts.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"knows": ["prunin"]}, "did you mean 'pruning'"),
        ({"attack": "analitic_extraction"}, "did you mean 'analytic_extraction'"),
        ({"attack": "adaptive"}, "cannot be adapted again"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        adaptive(**settings)


def test_signs_of_digits_give_away_more_to_who_knows() -> None:
    wanted = {
        "model": {"name": "mlp", "hidden": [400]},
        "data": "digits",
        "attacks": ["analytic_extraction"],
        "seeds": [0],
        "protocol": {"batch_size": 4},
        "defenses": ["sign"],
    }
    prepared = prepare(parse_spec(wanted))
    plain, knowing = (run_cell(prepared, ref, 0)[0].examples for ref in prepared.refs[1:])
    gain = [b.scores["psnr"] - a.scores["psnr"] for a, b in zip(plain, knowing, strict=True)]
    assert sum(gain) / 4 > 0.5


def test_an_audit_runs_both_and_the_pruned_digits_come_back() -> None:
    wanted = {
        "model": {"name": "mlp", "hidden": [200]},
        "data": "digits",
        "attacks": ["analytic_extraction"],
        "seeds": [0],
        "protocol": {"batch_size": 4},
        "defenses": [{"name": "pruning", "share": 0.8}],
    }
    prepared = prepare(parse_spec(wanted))
    assert [ref.title for ref in prepared.refs] == [
        "prior_only",
        "analytic_extraction",
        "analytic_extraction, knowing pruning(share=0.8, scope=tensor)",
    ]
    plain, knowing = (run_cell(prepared, ref, 0)[0] for ref in prepared.refs[1:])
    psnr = [sum(e.scores["psnr"] for e in cell.examples) / 4 for cell in (plain, knowing)]
    assert psnr[1] > psnr[0] + 6
    assert "Not that the clients use a defense." in plain.knowledge
    assert knowing.knowledge[-1] == "Which defense the clients use: pruning(share=0.8, scope=tensor)."
    alone = prepare(parse_spec({**wanted, "adaptive": False}))
    assert alone.refs == (AttackRef(name="prior_only"), AttackRef(name="analytic_extraction"))
    undefended = prepare(parse_spec({**wanted, "defenses": []}))
    assert undefended.refs == alone.refs

"""Analytic extraction against what can be worked out by hand or counted in the forward pass."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.attacks.reading.analytic_extraction import read_layer
from seepage.attacks.reading.peeling.labelling import Labeller
from seepage.attacks.reading.peeling.readings import Readings
from seepage.attacks.reading.rows import agreeing_rows, representatives, scan_rows
from seepage.core.errors import DataError, NotApplicable
from seepage.core.types import (
    Batch,
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Reconstruction,
    Update,
    UpdateKind,
)
from seepage.models.choice import choose_layer
from seepage.models.loading import build_model
from seepage.models.signals import BackwardSignals, predicted_bias_gradients
from seepage.models.tokens import nearest_tokens
from seepage.protocol import aggregate, local_update

IMAGES = InputSpec(modality=Modality.IMAGE, shape=(1, 4, 4), num_classes=3)


def network(width: int = 60, *, depth: int = 2, seed: int = 0, classes: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    hidden = [layer for _ in range(depth - 1) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(16, width), nn.ReLU(), *hidden, nn.Linear(width, classes))


def batch(n: int, *, seed: int = 0, classes: int = 3) -> Batch:
    g = torch.Generator().manual_seed(seed)
    return Batch(torch.rand(n, 1, 4, 4, generator=g), torch.randint(classes, (n,), generator=g))


def exchange(
    model: nn.Module, data: Batch, training: LocalTraining | None = None, **changes: Any
) -> Exchange:
    sent = local_update(Broadcast(model), data, training or LocalTraining())
    return Exchange(broadcast=Broadcast(model), update=dataclasses.replace(sent, **changes), clients=(0,))


def attack(seen: Exchange, known: Knowledge | None = None, **options: object) -> Reconstruction:
    return ATTACKS["analytic_extraction"](**options).run([seen], known or Knowledge(input=IMAGES))


def lonely(model: nn.Sequential, data: Batch) -> tuple[Tensor, Tensor]:
    """Brute force: (examples, neurons) pairs where the neuron fires for that example alone."""
    fires = model[1](data.inputs.flatten(1)) > 0
    alone = fires & (fires.sum(dim=0) == 1)
    return alone.any(dim=1), alone.any(dim=0)


def recovered(found: Tensor, data: Batch) -> Tensor:
    """(n,) bool: the example is among the candidates to 1e-4."""
    if len(found) == 0:
        return torch.zeros(len(data), dtype=torch.bool)
    distance = torch.cdist(data.inputs.flatten(1), found.flatten(1), p=torch.inf)
    return distance.min(dim=1).values < 1e-4


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 12), width=st.integers(4, 80))
def test_exactly_the_lonely_examples_come_out_and_no_mixture_is_claimed(
    seed: int, n: int, width: int
) -> None:
    model, data = network(width, seed=seed), batch(n, seed=seed)
    found = attack(exchange(model, data))
    examples, neurons = lonely(model, data)
    # A neuron behind which every path is dead has no gradient: then the example is not in the update at all.
    gradient = exchange(model, data).update.tensors["1.bias"]
    reached = neurons & (gradient != 0)
    expected = ((model[1](data.inputs.flatten(1)) > 0) & reached).any(dim=1)
    assert torch.equal(recovered(found.values, data), expected)
    assert found.claimed is not None and found.support is not None
    claimed = found.values[found.claimed]
    assert recovered(data.inputs, Batch(claimed, torch.zeros(len(claimed)))).all()  # no false claim
    assert (examples | ~expected).all()


def test_one_example_is_exact_at_every_layer_and_labelled() -> None:
    model, data = network(depth=3), batch(1)
    found = attack(exchange(model, data))
    assert torch.allclose(found.values, data.inputs, atol=1e-5)
    assert found.label_counts is not None and found.label_counts.argmax() == data.labels[0]
    deeper = attack(exchange(model, data), layer="3")
    features = model[2](model[1](data.inputs.flatten(1)))
    assert deeper.space == "3"
    assert torch.allclose(deeper.values, features, atol=1e-5)


def test_rows_that_show_the_same_example_are_merged_and_counted() -> None:
    model, data = network(), batch(1)
    found = attack(exchange(model, data))
    fires = int((model[1](data.inputs.flatten(1)) > 0).sum())
    assert len(found) == 1
    assert found.rows is not None and found.rows.active == fires and found.rows.total == 60
    assert found.support is not None and int(found.support[0]) == fires


def test_common_factor_of_clipping_changes_nothing() -> None:
    model, data = network(), batch(5)
    plain = exchange(model, data)
    clipped = {name: 1e-3 * t for name, t in plain.update.tensors.items()}
    found = attack(dataclasses.replace(plain, update=dataclasses.replace(plain.update, tensors=clipped)))
    assert torch.equal(recovered(found.values, data), recovered(attack(plain).values, data))


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_one_local_step_is_a_gradient_with_the_sign_turned(decay: float) -> None:
    model, data = network(), batch(5)
    step = LocalTraining(algorithm="fedavg", lr=0.2, momentum=0.9, weight_decay=decay)
    seen = exchange(model, data, step)
    assert seen.update.kind is UpdateKind.DELTA
    known = Knowledge(input=IMAGES, local=step)
    by_gradient = recovered(attack(exchange(model, data)).values, data)
    assert by_gradient.any()
    assert torch.equal(recovered(attack(seen, known).values, data), by_gradient)


def test_normalised_inputs_and_value_range_per_channel() -> None:
    spec = InputSpec(
        modality=Modality.IMAGE, shape=(2, 3, 3), num_classes=3, mean=(0.5, 0.2), std=(0.25, 0.5)
    )
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(18, 80), nn.ReLU(), nn.Linear(80, 3))
    raw = torch.rand(4, 2, 3, 3)
    sent = exchange(model, Batch(spec.to_model(raw), torch.tensor([0, 1, 2, 0])))
    found = attack(sent, Knowledge(input=spec))
    assert recovered(found.values, Batch(raw, torch.zeros(4))).sum() >= 2
    assert found.values.min() >= -1e-3 and found.values.max() <= 1 + 1e-3  # mixtures outside were dropped


def test_unknown_batch_size_is_inferred_from_the_certificates() -> None:
    model, data = network(200), batch(7)
    found = attack(exchange(model, data, num_examples=None))
    assert any("inferred to be 7" in note for note in found.notes)
    told = attack(exchange(model, data))
    assert found.claimed is not None and told.claimed is not None
    assert int(found.claimed.sum()) == int(told.claimed.sum()) > 0


def test_a_sum_over_clients_is_one_large_batch() -> None:
    model = network(300)
    parts = [batch(2, seed=s) for s in range(3)]
    updates = [local_update(Broadcast(model), part, LocalTraining()) for part in parts]
    whole = Batch.concat(parts)
    total = Exchange(broadcast=Broadcast(model), update=aggregate(updates, "secure_sum"), clients=(0, 1, 2))
    assert torch.equal(
        recovered(attack(total).values, whole), recovered(attack(exchange(model, whole)).values, whole)
    )


def test_predicted_bias_gradient_equals_backpropagation() -> None:
    """The certificate's forward-mode prediction against plain autograd, for every label."""
    model, data = network(classes=4, depth=3), batch(6)
    rows = torch.arange(6) * 7
    predicted = predicted_bias_gradients(model, model[1], data.inputs, rows, loss="cross_entropy")
    for i in range(6):
        for label in range(4):
            model.zero_grad()
            loss = nn.functional.cross_entropy(model(data.inputs[i : i + 1]), torch.tensor([label]))
            loss.backward()
            assert predicted[i, label] == pytest.approx(model[1].bias.grad[rows[i]].item(), abs=1e-6)


def test_certificate_refuses_mixtures_and_finds_the_label() -> None:
    model, data = network(120), batch(2, seed=3)
    seen = exchange(model, data)
    fires = model[1](data.inputs.flatten(1)) > 0
    alone, both = (fires.sum(dim=0) == 1).nonzero()[0], (fires.sum(dim=0) == 2).nonzero()[0]
    weight, bias = seen.update.tensors["1.weight"], seen.update.tensors["1.bias"]
    rows = torch.cat([alone, both])
    candidates = weight[rows] / bias[rows, None]
    none, tiny = torch.zeros(2, dtype=torch.bool), 1e-7 * bias[rows].abs().double()
    readings = Readings(
        row=rows,
        support=torch.full((2,), 2),
        bias=bias[rows].double(),
        noise=tiny,
        error=tiny,
        features=candidates,
        exact=none,
        undecided=~none,
        spoiled=none,
        moved=tiny,
        evidence=0 * tiny,
    )
    signals = BackwardSignals(model, choose_layer(model, IMAGES, None), IMAGES, loss="cross_entropy")
    labelled = Labeller(signals, kappa=2.0).label(readings)
    owner = int(fires[:, alone[0]].nonzero())
    assert labelled is not None and labelled.match.mismatch[0] < 1e-4 < labelled.match.mismatch[1]
    assert labelled.match.labels == [(int(data.labels[owner]),), ()]


def test_single_logit() -> None:
    model, data = network(classes=1), batch(3, classes=2)
    known = Knowledge(input=dataclasses.replace(IMAGES, num_classes=2), loss="binary_cross_entropy")
    found = attack(exchange(model, data), known)
    examples, _ = lonely(model, data)
    assert torch.equal(recovered(found.values, data), examples)
    assert found.claimed is not None and int(found.claimed.sum()) >= int(examples.sum()) > 0


def test_text_is_read_as_the_sequence_of_tokens() -> None:
    spec = InputSpec(modality=Modality.TEXT, shape=(5,), num_classes=2, value_range=None, vocabulary=30)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(30, 8), nn.Flatten(), nn.Linear(40, 100), nn.ReLU(), nn.Linear(100, 2))
    tokens = torch.randint(30, (3, 5))
    found = attack(exchange(model, Batch(tokens, torch.tensor([0, 1, 1]))), Knowledge(input=spec))
    assert found.claimed is not None
    claimed = {tuple(row) for row in found.values[found.claimed].tolist()}
    assert claimed and claimed <= {tuple(row) for row in tokens.tolist()}


def test_a_trace_in_a_stronger_row_does_not_hide_a_text_that_another_row_shows() -> None:
    """Neuron 0 sees text 0 alone; neuron 1 sees both, text 1 with a factor of 1e-5, and has the larger
    gradient. The rows agree to 1e-4, but the tokens of the second cannot be looked up exactly."""
    spec = InputSpec(modality=Modality.TEXT, shape=(60,), num_classes=2, vocabulary=10_000)
    model = build_model("imdb_net", spec, seed=0, dim=4, width=2)
    data = Batch(torch.arange(120).view(2, 60), torch.ones(2, dtype=torch.long))
    with torch.no_grad():
        first, second = model.embedding.weight.uniform_(0, 1, generator=torch.Generator().manual_seed(0))[
            data.inputs
        ].flatten(1)
        apart = (first - second) / (first - second).pow(2).sum()
        model.dense0.weight.copy_(torch.stack([2 * apart, torch.zeros_like(apart)]))
        model.dense0.bias.copy_(torch.stack([1 - 2 * apart @ first, torch.tensor(1.0)]))  # 1 and -1
        model.head.weight.copy_(torch.tensor([[-11.5, 11.6]]))
        model.head.bias.zero_()
    seen = exchange(model, data)
    strength = seen.update.tensors["dense0.bias"].abs()
    assert 0 < strength[0] < strength[1]
    layer = choose_layer(model, spec, None)
    found = read_layer(seen, Knowledge(input=spec), layer, rows_only=True)
    assert (found.values == data.inputs[0]).all(dim=1).sum() == 1


def test_dead_layer_reads_nothing_and_says_so() -> None:
    model = network()
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.fill_(-1.0)
    found = attack(exchange(model, batch(3)))
    assert len(found) == 0
    assert any("zero everywhere" in note for note in found.notes)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten()), "begins with Conv2d"),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 3, bias=False)), "has no bias"),
    ],
)
def test_models_that_cannot_be_read(model: nn.Module, words: str) -> None:
    with pytest.raises(NotApplicable, match=words):
        ATTACKS["analytic_extraction"]().check(model, Knowledge(input=IMAGES))


def test_unknown_layer_names_the_nearest() -> None:
    with pytest.raises(NotApplicable, match="unknown linear layer '11'"):
        ATTACKS["analytic_extraction"](layer="11").check(network(), Knowledge(input=IMAGES))


def test_bad_updates_are_refused_in_one_sentence() -> None:
    seen = exchange(network(), batch(2))

    def with_tensors(**changes: Tensor | None) -> Exchange:
        tensors = {k: v for k, v in {**seen.update.tensors, **changes}.items() if v is not None}
        return dataclasses.replace(
            seen, update=Update(kind=UpdateKind.GRADIENT, tensors=tensors, num_examples=2)
        )

    nan = seen.update.tensors["1.bias"].clone()
    nan[0] = torch.nan
    for bad, words in [
        (with_tensors(**{"1.bias": None}), "lacks 1 of the model's parameters"),
        (with_tensors(**{"1.bias": torch.zeros(3)}), "has shape"),
        (with_tensors(**{"1.bias": nan}), "NaN"),
    ]:
        with pytest.raises(DataError, match=words):
            attack(bad)
    with pytest.raises(DataError, match="no update"):
        ATTACKS["analytic_extraction"]().run([], Knowledge(input=IMAGES))


def test_row_scan_extremes_and_sketch_against_the_whole_quotient() -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(50, 12), torch.randn(50)
    scan = scan_rows(weight, bias, groups=3)
    quotient = (weight / bias[:, None]).reshape(50, 3, 4)
    assert torch.allclose(scan.low, quotient.amin(dim=2), rtol=1e-5)
    assert torch.allclose(scan.high, quotient.amax(dim=2), rtol=1e-5)
    doubled = scan_rows(torch.cat([weight, 2 * weight]), torch.cat([bias, 2 * bias]))
    assert torch.allclose(doubled.sketch[:50], doubled.sketch[50:], rtol=1e-4, atol=1e-5)


def test_agreeing_rows_against_brute_force() -> None:
    torch.manual_seed(0)
    distinct = torch.randn(20, 8)
    owner = torch.randint(20, (200,))
    groups = agreeing_rows(distinct[owner] + 1e-7 * torch.randn(200, 8))
    same = groups[:, None] == groups
    assert torch.equal(same, owner[:, None] == owner)
    strength = torch.rand(200)
    best, support = representatives(groups, strength)
    for group, row in enumerate(best.tolist()):
        members = (groups == group).nonzero().squeeze(1)
        assert len(members) == support[group] and strength[row] == strength[members].max()


def test_nearest_tokens_against_cdist() -> None:
    torch.manual_seed(0)
    table, noisy = torch.randn(50, 6), torch.randn(4, 7, 6)
    ids, distance = nearest_tokens(noisy, table)
    full = torch.cdist(noisy.reshape(-1, 6), table)
    assert torch.equal(ids.flatten(), full.argmin(dim=1))
    assert torch.allclose(
        distance.flatten(), full.min(dim=1).values / table[ids.flatten()].norm(dim=1), rtol=1e-4
    )

"""Starts, label handling, settings, and what is said when an inversion cannot work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from seepage.attacks.base import Attack
from seepage.attacks.inversion import memory
from seepage.attacks.inversion.deep_leakage import deep_leakage, idlg
from seepage.attacks.inversion.diagnosis import Match, notes_after
from seepage.attacks.inversion.initialise import INITIALISERS, PATCH
from seepage.attacks.inversion.inverting_gradients import inverting_gradients
from seepage.attacks.inversion.lamp import lamp
from seepage.attacks.inversion.objective import Candidates
from seepage.attacks.inversion.relaxed_labels import start_labels
from seepage.attacks.inversion.search import Solution
from seepage.attacks.inversion.see_through_gradients import see_through_gradients
from seepage.attacks.inversion.tag import tag
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import Batch, Exchange, InputSpec, Knowledge, LocalTraining, Modality

from .setting import (
    conv_net,
    dense_net,
    exchange_for,
    image_spec,
    knowledge,
    problem_for,
    random_batch,
)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("name", INITIALISERS)
def test_starts_have_the_shape_dtype_and_range_of_the_problem(name: str) -> None:
    spec = image_spec(size=10)
    problem = problem_for(dense_net(spec), spec, random_batch(spec, [0, 1]), LocalTraining())
    start = INITIALISERS[name](problem, 3, generator())
    assert start.shape == (3, 2, 1, 10, 10) and start.dtype == torch.float64
    assert start.min() >= 0 and start.max() <= 1
    if name in {"gaussian", "uniform", "tiled"}:
        assert not torch.equal(start[0], start[1])


def test_tiled_start_repeats_one_patch() -> None:
    spec = image_spec(size=10)
    problem = problem_for(dense_net(spec), spec, random_batch(spec, [0]), LocalTraining())
    start = INITIALISERS["tiled"](problem, 1, generator())
    assert torch.equal(start[..., :PATCH, :PATCH], start[..., PATCH : 2 * PATCH, PATCH : 2 * PATCH])
    assert torch.equal(start[..., 8:, 8:], start[..., :2, :2]) and start.unique().numel() > 8


def test_auxiliary_mean_starts_from_the_public_mean() -> None:
    spec = image_spec()
    problem = problem_for(dense_net(spec), spec, random_batch(spec, [0]), LocalTraining())
    public = random_batch(spec, [0] * 7, seed=5)
    informed = replace(problem, known=replace(problem.known, auxiliary=public))
    start = INITIALISERS["auxiliary_mean"](informed, 2, generator())
    torch.testing.assert_close(start[1, 0], public.inputs.mean(0))


def test_inferred_labels_keep_duplicates_and_restarts_try_orders_where_order_matters() -> None:
    spec, batch = image_spec(), random_batch(image_spec(), [4, 1, 4, 0])
    for local in (LocalTraining(), LocalTraining(algorithm="fedavg", batch_size=2, lr=0.01)):
        problem = problem_for(dense_net(spec), spec, batch, local)
        blind = replace(problem, exchange=replace(problem.exchange, labels=None))
        rows = start_labels(blind, "inferred", restarts=6, generator=generator()).labels
        assert all(sorted(row) == [0, 1, 4, 4] for row in rows.tolist())
        assert (len(rows.unique(dim=0)) > 1) == (local.algorithm == "fedavg")


def test_granted_labels_are_never_guessed() -> None:
    spec, batch = image_spec(), random_batch(image_spec(), [4, 1])
    problem = problem_for(dense_net(spec), spec, batch, LocalTraining())
    start = start_labels(problem, "optimised", restarts=2, generator=generator())
    assert start.labels.tolist() == [[4, 1], [4, 1]]


def notes_of(attack: Attack, exchange: Exchange, known: Knowledge) -> str:
    return " ".join(attack.run([exchange], known).notes)


def test_a_zero_update_cannot_be_inverted() -> None:
    spec, batch = image_spec(), random_batch(image_spec(), [1])
    exchange = exchange_for(dense_net(spec), batch, LocalTraining())
    silent = {name: torch.zeros_like(t) for name, t in exchange.update.tensors.items()}
    exchange = replace(exchange, update=replace(exchange.update, tensors=silent))
    with pytest.raises(NotApplicable, match="every value of the update is zero"):
        inverting_gradients(steps=2).run([exchange], knowledge(spec, LocalTraining()))


def test_dead_relus_are_named() -> None:
    spec, batch = image_spec(), random_batch(image_spec(), [1])
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 5)).double()
    nn.init.constant_(model[1].bias, -1000.0)
    text = notes_of(
        inverting_gradients(steps=3),
        exchange_for(model, batch, LocalTraining()),
        knowledge(spec, LocalTraining()),
    )
    assert "received no gradient (first: '1.weight')" in text
    assert "does not change with the inputs" in text


@pytest.mark.parametrize("end", [1.0, 1.2, float("nan"), 0.9])
def test_a_search_that_gains_nothing_says_so(end: float) -> None:
    spec = image_spec()
    problem = problem_for(dense_net(spec), spec, random_batch(spec, [1]), LocalTraining())
    values = torch.tensor([end])
    candidates = Candidates(torch.zeros(1, 1, 1, 8, 8), torch.zeros(1, 1).long())
    solution = Solution(
        candidates=candidates, values=values, start_values=torch.ones(1), origin=(0,), steps=9, stopped=""
    )
    match = Match(chosen=0, start=1.0, end=end, moves=True, simulated=problem.observed)
    said = any("than the start" in note for note in notes_after(problem, solution, match))
    assert said == (not end < 1.0)


def test_hidden_batch_statistics_are_named() -> None:
    spec, batch = image_spec(), random_batch(image_spec(), [1, 2])
    local = LocalTraining(batch_norm="train")
    exchange = exchange_for(conv_net(spec, norm=True), batch, local)
    attack = inverting_gradients(steps=2)
    assert "did not send them" in notes_of(attack, exchange, knowledge(spec, local))
    assert "in which mode clients train" in notes_of(attack, exchange, knowledge(spec, None))
    sent = exchange_for(conv_net(spec, norm=True), batch, replace(local, send_buffers=True))
    assert "did not send them" not in notes_of(attack, sent, knowledge(spec, local))


def test_another_reduction_of_the_loss_is_noticed() -> None:
    """Clients sum, the server believes in a mean: said before by the bias gradient, after by the length."""
    spec, batch = image_spec(), random_batch(image_spec(), [1] * 8)
    summed = LocalTraining(loss="cross_entropy_sum")
    exchange = exchange_for(dense_net(spec), batch, summed)
    believed = Knowledge(input=spec, local=LocalTraining(), loss="cross_entropy")
    text = notes_of(inverting_gradients(steps=60), exchange, believed)
    assert "allows at most 2" in text and "seems to be summed over the 8 examples" in text
    right = notes_of(inverting_gradients(steps=60), exchange, knowledge(spec, summed))
    assert "allows at most" not in right and "seems to be" not in right


def test_a_confident_model_is_named() -> None:
    spec = image_spec()
    model = dense_net(spec)
    nn.init.constant_(model[3].bias[1:2], 30.0)
    exchange = exchange_for(model, random_batch(spec, [1]), LocalTraining())
    assert "nearly certain" in notes_of(
        inverting_gradients(steps=2), exchange, knowledge(spec, LocalTraining())
    )


def test_unknown_local_training_of_a_delta_is_said() -> None:
    spec, batch = image_spec(), random_batch(image_spec(), [1])
    exchange = exchange_for(dense_net(spec), batch, LocalTraining(algorithm="fedavg", lr=0.05))
    text = notes_of(inverting_gradients(steps=2), exchange, knowledge(spec, None))
    assert "1 step(s) at learning rate 0.1 were assumed" in text
    assumed = inverting_gradients(steps=2, assume={"lr": 0.05})
    assert "learning rate 0.05" in notes_of(assumed, exchange, knowledge(spec, None))


def test_a_model_without_second_derivatives_is_not_applicable() -> None:
    class Prototypes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prototypes = nn.Parameter(torch.rand(5, 64, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -torch.cdist(x.flatten(1), self.prototypes, p=3.0)

    spec, batch = image_spec(), random_batch(image_spec(), [1])
    exchange = exchange_for(Prototypes(), batch, LocalTraining())
    with pytest.raises(NotApplicable, match="cannot be differentiated twice"):
        idlg(steps=2).run([exchange], knowledge(spec, LocalTraining()))


def test_memory_is_estimated_from_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against what autograd keeps for the whole batch, measured directly."""
    spec, batch = image_spec(size=16), random_batch(image_spec(size=16), [0, 1, 2, 3] * 8)
    problem = problem_for(conv_net(spec), spec, batch, LocalTraining())
    start = Candidates(batch.inputs[None], batch.labels[None])
    direct = memory._measured(problem, start, len(batch))
    assert memory.kept_bytes(problem, start) == pytest.approx(direct, rel=0.1)
    monkeypatch.setattr(memory, "total_bytes", lambda device: 1000)
    with pytest.raises(NotApplicable, match="use a smaller batch or a smaller model"):
        inverting_gradients(steps=1).run([problem.exchange], problem.known)


def test_text_without_an_embedding_is_refused_before_anything_runs() -> None:
    spec = InputSpec(modality=Modality.TEXT, shape=(3,), num_classes=2, vocabulary=9, value_range=None)

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(9, 2)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.head(nn.functional.one_hot(tokens, 9).float().sum(1))
            return logits

    with pytest.raises(NotApplicable, match=r"no nn.Embedding of the model reads its tokens"):
        tag().check(Counted(), Knowledge(input=spec))


def test_a_batch_of_a_hundred_with_duplicate_labels() -> None:
    spec, labels = image_spec(), [k % 5 for k in range(100)]
    batch = random_batch(spec, labels)
    exchange = exchange_for(dense_net(spec), batch, LocalTraining(), grant_labels=False)
    found = inverting_gradients(steps=3).run([exchange], knowledge(spec, LocalTraining()))
    assert found.values.shape == (100, 1, 8, 8)
    assert found.label_counts is not None and int(found.label_counts.sum()) == 100


def test_an_unknown_count_without_a_way_to_infer_it_asks_for_counts() -> None:
    spec = image_spec()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5, bias=False)).double()
    batch = Batch(random_batch(spec, [1, 2]).inputs, torch.tensor([1, 2]))
    exchange = exchange_for(model, batch, LocalTraining(), grant_labels=False, grant_count=False)
    with pytest.raises(NotApplicable, match=r"give counts = \[1, 2, 4\]"):
        idlg(steps=2).run([exchange], knowledge(spec, LocalTraining()))


@pytest.mark.parametrize("build", [deep_leakage, idlg, inverting_gradients, see_through_gradients, tag, lamp])
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"restarts": 0}, "restarts must be at least 1"),
        ({"step_size": -1.0}, "step_size must be positive"),
        ({"budget": 0.0}, "budget must be a positive number of seconds"),
        ({"counts": []}, "counts must name numbers"),
        ({"counts": [0, 2]}, "counts must name numbers"),
    ],
)
def test_bad_settings_get_a_clear_word(
    build: Callable[..., Attack], settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        build(**settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tv": -1.0}, "tv must be 0 or more"),
        ({"tv": float("nan")}, "tv must be 0 or more"),
        ({"schedule": "cosine"}, "did you mean 'cosine_decay'"),
        ({"start": "gausian"}, "did you mean 'gaussian'"),
        ({"distance": "l7"}, "unknown distance 'l7'"),
        ({"tv_kind": "round"}, "unknown tv_kind"),
    ],
)
def test_bad_names_and_weights_get_a_clear_word(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        inverting_gradients(**settings)


def test_an_unknown_assumption_is_named_as_unknown_settings_are() -> None:
    with pytest.raises(SpecError, match="unknown setting of assume 'learning_rate'"):
        inverting_gradients(assume={"learning_rate": 1.0})

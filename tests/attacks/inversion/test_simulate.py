"""The simulated update is the client's own, bit for bit, and its memory does not grow with the steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.plateaus import scaled
from torch import nn

from seepage.attacks.inversion.distances import cosine
from seepage.attacks.inversion.inverting_gradients import inverting_gradients
from seepage.attacks.inversion.problem import pose_problem
from seepage.attacks.inversion.simulate import simulated_update
from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, LocalTraining, Modality
from seepage.protocol import aggregate, local_update, training_mode

from .setting import (
    conv_net,
    dense_net,
    image_spec,
    knowledge,
    problem_for,
    random_batch,
)

TRAININGS = {
    "gradient": LocalTraining(),
    "summed": LocalTraining(loss="cross_entropy_sum"),
    "one step": LocalTraining(algorithm="fedavg", lr=0.2, weight_decay=0.1),
    "epochs": LocalTraining(algorithm="fedavg", batch_size=3, epochs=2, lr=0.2, shuffle_seed=4),
    "momentum": LocalTraining(
        algorithm="fedavg", batch_size=2, epochs=2, lr=0.1, momentum=0.9, weight_decay=0.05, steps=5
    ),
    "batch norm": LocalTraining(batch_norm="train"),
    "batch norm, steps": LocalTraining(algorithm="fedavg", batch_size=4, epochs=3, batch_norm="train"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", TRAININGS)
def test_simulation_equals_local_training_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    spec, local = image_spec(), TRAININGS[name]
    model = conv_net(spec, norm=True, dtype=dtype)
    batch = random_batch(spec, [0, 3, 3, 1, 4, 0, 2])
    batch = Batch(batch.inputs.to(dtype), batch.labels)
    problem = problem_for(model, spec, batch, local)
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    with training_mode(model, local.batch_norm == "train"):
        simulated = simulated_update(problem, batch.inputs, batch.labels)
    for tensor, sent in zip(simulated, problem.observed, strict=True):
        assert torch.equal(tensor, sent)
    assert all(torch.equal(b, buffers[name]) for name, b in model.named_buffers())
    assert all(p.grad is None for p in model.parameters())


def test_functional_gradients_equal_the_client_too() -> None:
    spec = image_spec()
    batch = random_batch(spec, [0, 3, 3])
    problem = problem_for(conv_net(spec), spec, batch, LocalTraining())
    simulated = simulated_update(problem, batch.inputs, batch.labels, functional=True)
    for tensor, sent in zip(simulated, problem.observed, strict=True):
        assert torch.equal(tensor, sent)


@pytest.mark.parametrize("name", ["gradient", "summed", "momentum"])
def test_an_aggregate_is_simulated_client_by_client(name: str) -> None:
    spec, local = image_spec(), TRAININGS[name]
    model = conv_net(spec)
    batches = [random_batch(spec, [0, 3, 1], seed=1), random_batch(spec, [2, 2, 4], seed=2)]
    update = aggregate([local_update(Broadcast(model), b, local) for b in batches], "mean")
    exchange = Exchange(broadcast=Broadcast(model), update=update, clients=(0, 1))
    problem = pose_problem(exchange, knowledge(spec, local), num_examples=6)
    pooled = Batch.concat(batches)
    simulated = simulated_update(problem, pooled.inputs, pooled.labels)
    for tensor, sent in zip(simulated, problem.observed, strict=True):
        torch.testing.assert_close(tensor, sent, rtol=1e-10, atol=1e-12)


def test_one_hot_logits_give_the_gradient_of_the_class() -> None:
    spec = image_spec()
    batch = random_batch(spec, [0, 3, 3])
    problem = problem_for(dense_net(spec), spec, batch, LocalTraining())
    logits = 100.0 * nn.functional.one_hot(batch.labels, spec.num_classes).double()
    simulated = simulated_update(problem, batch.inputs, logits)
    for tensor, sent in zip(simulated, problem.observed, strict=True):
        torch.testing.assert_close(tensor, sent)


def test_soft_labels_of_a_single_logit_are_the_probability_of_class_one() -> None:
    spec = InputSpec(modality=Modality.TABULAR, shape=(4,), num_classes=2)
    model, batch = nn.Linear(4, 1).double(), random_batch(spec, [1, 0])
    local = LocalTraining(loss="binary_cross_entropy")
    problem = problem_for(model, spec, batch, local)
    logits = 100.0 * nn.functional.one_hot(batch.labels, 2).double()
    for tensor, sent in zip(simulated_update(problem, batch.inputs, logits), problem.observed, strict=True):
        torch.testing.assert_close(tensor, sent)


@pytest.mark.parametrize("name", ["epochs", "momentum", "batch norm, steps"])
@pytest.mark.parametrize("soft", [False, True])
def test_replayed_gradients_equal_those_of_plain_unrolling(name: str, soft: bool) -> None:
    """torch.func keeps every step's graph and never plays one again."""
    spec, local = image_spec(), TRAININGS[name]
    model, batch = conv_net(spec, norm=True), random_batch(spec, [0, 3, 3, 1, 4, 0, 2])
    problem = problem_for(model, spec, batch, local)
    labels = torch.randn(7, spec.num_classes, dtype=torch.float64) if soft else batch.labels
    found = []
    for functional in (False, True):
        free = [batch.inputs.clone().requires_grad_()]
        free += [labels.clone().requires_grad_()] if soft else []
        with training_mode(model, local.batch_norm == "train"):
            update = simulated_update(problem, free[0], free[-1] if soft else labels, functional=functional)
            value = sum((tensor.sin() * (k + 1)).sum() for k, tensor in enumerate(update))
            assert isinstance(value, torch.Tensor)
            found.append(torch.autograd.grad(value, free))
    for replayed, unrolled in zip(*found, strict=True):
        torch.testing.assert_close(replayed, unrolled, rtol=1e-9, atol=1e-12)
        assert replayed.abs().max() > 0


def test_peak_memory_of_twenty_local_steps_is_that_of_one() -> None:
    """Peak of everything torch allocates while the update is simulated and differentiated."""
    spec = image_spec(size=16)
    model, batch = conv_net(spec), random_batch(spec, [0, 1, 2, 3] * 2)

    def peak(steps: int) -> int:
        local = LocalTraining(algorithm="fedavg", epochs=steps, lr=0.1)
        problem = problem_for(model, spec, batch, local)
        inputs = batch.inputs.clone().requires_grad_()
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
            update = simulated_update(problem, inputs, batch.labels)
            torch.autograd.grad(sum(tensor.square().sum() for tensor in update), inputs)
        live = highest = 0
        for event in profile.profiler.kineto_results.events():  # in order of time; a free is negative
            if event.name() == "[memory]":
                live += event.nbytes()
                highest = max(highest, live)
        return highest

    peak(1)  # whatever torch allocates once and for all
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    assert peak(1) > 10 * weights, "activations must dominate, or the comparison shows nothing"
    assert peak(20) < 1.2 * peak(1)


def test_known_training_wins_over_assumed_and_the_kind_over_both() -> None:
    spec, local = image_spec(), TRAININGS["epochs"]
    model, batch = dense_net(spec), random_batch(spec, [0, 1, 2])
    update = local_update(Broadcast(model), batch, local)
    exchange = Exchange(broadcast=Broadcast(model), update=update, clients=(0,))
    assumed = LocalTraining(lr=0.7)
    known = knowledge(spec, local)
    assert pose_problem(exchange, known, num_examples=3, assumed=assumed).training.lr == local.lr
    blind = pose_problem(exchange, replace(known, local=None), num_examples=3, assumed=assumed)
    assert (blind.training.lr, blind.training.algorithm) == (0.7, "fedavg")


def test_softness_lies_on_a_plateau() -> None:
    """One step of Adam has no slope of its own. With one the search finds most of a picture, with any."""
    spec = image_spec()
    batch = random_batch(spec, [3])
    adam = LocalTraining(algorithm="fedavg", optimizer="adam", lr=1e-3)
    problem = problem_for(conv_net(spec), spec, batch, adam)

    def slope() -> float:
        inputs = (batch.inputs + 0.1 * torch.rand_like(batch.inputs)).requires_grad_()
        update = simulated_update(problem, inputs, batch.labels)
        return float(torch.autograd.grad(cosine(update, problem.observed), inputs)[0].norm())

    for factor in (1 / 3, 1.0, 3.0):
        with scaled("seepage.attacks.inversion.simulate:SOFTNESS", factor):
            assert slope() > 1e-3
    with scaled("seepage.attacks.inversion.simulate:SOFTNESS", 0.0):
        assert slope() < 1e-4


def test_a_search_plays_several_steps_of_adam_and_says_so() -> None:
    spec = image_spec()
    batch = random_batch(spec, [3])
    adam = LocalTraining(algorithm="fedavg", optimizer="adam", lr=1e-3, epochs=3)
    problem = problem_for(dense_net(spec), spec, batch, adam)
    known = replace(problem.known, local=adam)
    found = inverting_gradients(steps=5).run([replace(problem.exchange, labels=None)], known)
    assert len(found) == 1 and any("their own kind of steps" in note for note in found.notes)
    assert found.label_counts is not None and int(found.label_counts.argmax()) == 3


def test_labels_of_several_examples_behind_adam_are_read_from_signs_and_that_is_said() -> None:
    spec = image_spec()
    adam = LocalTraining(algorithm="fedavg", optimizer="adam", lr=1e-3, epochs=3)
    problem = problem_for(dense_net(spec), spec, random_batch(spec, [3, 1]), adam)
    exchange = replace(problem.exchange, labels=None)
    found = inverting_gradients(steps=5).run([exchange], replace(problem.known, local=adam))
    assert "Labels were inferred by signs." in found.notes
    assert any("read from the signs" in note for note in found.notes)

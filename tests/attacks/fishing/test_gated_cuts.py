"""Cuts by the layer before the last one, of batches of every class: against each example's gradient."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.attacks.fishing.play import all_nearest, dense_net, fish, images, known_to, nearest
from tests.attacks.fishing.test_dying_cuts import steps

from seepage.attacks.fishing.binary_fishing import binary_fishing, one_shot_binary_fishing
from seepage.attacks.fishing.feature_fishing import feature_fishing
from seepage.attacks.fishing.gated_cuts import Gate, gated_cut, gated_everyone, read_gated
from seepage.attacks.fishing.head import find_head
from seepage.attacks.fishing.shared import Hook
from seepage.core.types import Batch, Broadcast, Exchange, LocalTraining
from seepage.models.hooks import layer_input
from seepage.protocol import local_update

EVERY_CLASS = [*range(10), 1, 1, 3, 5, 8, 9]


@pytest.mark.parametrize(
    "local", [steps(0.001, epochs=2), steps(0.1, epochs=10)], ids=["2 steps", "10 steps"]
)
def test_every_example_of_a_batch_of_all_classes_is_alone(local: LocalTraining) -> None:
    batch = images(16, labels=EVERY_CLASS)
    catch, played = fish(binary_fishing(target_class=1), dense_net(), [batch], known_to(local=local))
    assert catch.class_counts is not None
    assert catch.class_counts.round().tolist() == batch.labels.bincount(minlength=10).tolist()
    near = all_nearest(catch.fished, batch)
    assert sorted(place for place, _ in near) == list(range(16))
    assert min(found for _, found in near) >= 0.9999 and all(f.isolated for f in catch.fished)
    assert played.rounds <= 2 * binary_fishing().query_bound(16)


@pytest.mark.parametrize("seed", range(3))
def test_one_example_is_alone_after_few_queries(seed: int) -> None:
    batch = images(64, labels=(EVERY_CLASS * 4)[:64], seed=seed)
    known = known_to(local=steps(epochs=4), seed=seed)
    for attack in (one_shot_binary_fishing(), feature_fishing(target_class=2, queries=20)):
        catch, played = fish(attack, dense_net(seed=seed), [batch], known)
        (fished,) = catch.fished
        assert fished.isolated and nearest(fished, batch)[1] >= 0.9999
        assert played.rounds <= 20


def test_a_batch_of_the_row_s_class_alone_is_searched_by_another_row() -> None:
    batch = images(6, labels=3)
    catch, _ = fish(binary_fishing(target_class=3), dense_net(), [batch], known_to(local=steps(epochs=2)))
    assert sorted(place for place, _ in all_nearest(catch.fished, batch)) == list(range(6))


def test_an_answer_tells_who_was_caught_and_every_class() -> None:
    """Against sums over the examples that are above the cut and not of the row's class."""
    local, model, batch = steps(0.05, epochs=5), dense_net(), images(16, labels=EVERY_CLASS, seed=2)
    known = known_to(local=local)
    head = find_head(model, known.input)
    _, gate = gated_everyone(model, head, 1, known)
    a = layer_input(model, "3", batch.inputs).double()
    cut = float((a @ gate.w).sort().values[6:8].mean())
    for above, row in ((cut, 1), (cut, 4), (-torch.inf, 9)):
        sent = gated_cut(model, head, row, gate, above)
        update = local_update(Broadcast(sent), batch, local)
        hook = Hook(target=row, theta=above, direction=gate.w, dying=gate)
        reading = read_gated(
            Exchange(broadcast=Broadcast(sent), update=update, clients=(0,), secret=hook), known, head
        )
        rest = batch.labels != row
        caught = rest & (a @ gate.w > above)
        assert reading.caught == pytest.approx(int(caught.sum()), abs=1e-3)
        assert torch.allclose(reading.total, a[caught].sum(dim=0), rtol=1e-4, atol=1e-4)
        assert torch.allclose(reading.mark, a[rest].sum(dim=0), rtol=1e-4, atol=1e-4)
        assert reading.counts is not None
        assert reading.counts.round().tolist() == batch.labels.bincount(minlength=10).tolist()


def test_another_batch_in_each_query_is_noticed() -> None:
    known, attack = known_to(local=steps(epochs=3)), binary_fishing()
    _, played = fish(attack, dense_net(), [images(16, labels=EVERY_CLASS)], known)
    other = images(16, labels=EVERY_CLASS, seed=1)
    assert known.local is not None
    answers = [
        e if number % 2 else dataclasses.replace(e, update=local_update(e.broadcast, other, known.local))
        for number, e in enumerate(played.exchanges)
    ]
    catch = attack.fish(answers, known)
    assert not catch.fished and "not the same in each query" in catch.notes[-1]


def test_a_changed_update_is_noticed() -> None:
    batch = images(16, labels=EVERY_CLASS)
    known = known_to(local=steps(epochs=3))
    for attack in (one_shot_binary_fishing(), feature_fishing(queries=20)):
        _, played = fish(attack, dense_net(), [batch], known)
        assert isinstance(played.exchanges[0].secret.dying, Gate)
        for change in (lambda t: 0.5 * t, lambda t: 1.01 * t, lambda t: t + 1e-3 * torch.randn_like(t)):
            changed = [
                dataclasses.replace(
                    e,
                    update=dataclasses.replace(
                        e.update, tensors={name: change(t) for name, t in e.update.tensors.items()}
                    ),
                )
                for e in played.exchanges
            ]
            assert not any(f.isolated for f in attack.fish(changed, known).fished)


def test_twins_are_never_called_alone() -> None:
    batch = images(16, labels=EVERY_CLASS)
    twins = Batch(torch.cat([batch.inputs, batch.inputs]), torch.cat([batch.labels, batch.labels.roll(1)]))
    catch, _ = fish(binary_fishing(), dense_net(), [twins], known_to(local=steps(epochs=2)))
    # a pair is parted where one of the two is of a row's class: each is alone under that row
    for fished in catch.fished:
        assert nearest(fished, twins)[1] >= 0.9999

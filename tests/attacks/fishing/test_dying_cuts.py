"""Cuts in several local steps, against each example's gradient and each class's number counted apart."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.attacks.fishing.play import (
    all_nearest,
    conv_net,
    cosine,
    dense_net,
    fish,
    images,
    known_to,
    nearest,
    true_gradients,
)
from torch import nn

from seepage.attacks.fishing import dying_cuts
from seepage.attacks.fishing.binary_fishing import binary_fishing, one_shot_binary_fishing
from seepage.attacks.fishing.class_fishing import moderate_fishing
from seepage.attacks.fishing.cross_device_fishing import cross_device_fishing
from seepage.attacks.fishing.feature_fishing import feature_fishing
from seepage.attacks.fishing.head import find_head
from seepage.core.errors import NotApplicable
from seepage.core.types import LocalTraining

MIXED = [1, 1, 2, 3, 3, 3, 4, 5, 6, 7, 8, 9]
"""No example of class 0."""


def steps(lr: float = 0.05, **settings: object) -> LocalTraining:
    return LocalTraining(algorithm="fedavg", lr=lr, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "local", [steps(0.001, epochs=2), steps(0.1, epochs=10)], ids=["2 steps", "10 steps"]
)
@pytest.mark.parametrize("build", [dense_net, conv_net])
def test_every_example_of_a_mixed_batch_is_alone(local: LocalTraining, build: type[nn.Module]) -> None:
    batch = images(len(MIXED), labels=MIXED)
    catch, played = fish(binary_fishing(target_class=3), build(), [batch], known_to(local=local))
    assert catch.class_counts is not None
    assert catch.class_counts.round().tolist() == [0, 2, 1, 3, 1, 1, 1, 1, 1, 1]
    near = all_nearest(catch.fished, batch)
    assert sorted(place for place, _ in near) == list(range(len(MIXED)))
    assert min(found for _, found in near) >= 0.9999 and all(f.isolated for f in catch.fished)
    assert played.rounds <= binary_fishing().query_bound(len(MIXED))


def test_one_example_of_many_is_alone_after_few_queries() -> None:
    batch = images(64, labels=(MIXED * 6)[:64], seed=3)
    catch, played = fish(one_shot_binary_fishing(), dense_net(), [batch], known_to(local=steps(epochs=4)))
    (fished,) = catch.fished
    assert fished.isolated and nearest(fished, batch)[1] >= 0.9999
    assert played.rounds <= one_shot_binary_fishing().query_bound(64)


def test_a_batch_of_every_class_is_said_to_have_no_free_row() -> None:
    """Where the layer before the last is a convolution; a dense one cuts by itself (`gated_cuts`)."""
    batch = images(20, labels=[*range(10)] * 2)
    catch, played = fish(binary_fishing(), conv_net(), [batch], known_to(local=steps(epochs=3)))
    assert not catch.fished and played.rounds == 1 and "every class is in the batch" in catch.notes[-1]


def test_answers_read_one_by_one_need_no_row_but_a_free_one() -> None:
    local = steps(epochs=3)
    batch = images(16, labels=[2, 2, 0, 1, 4, 5, 6, 7] * 2)  # the row is that of class 3
    attack = feature_fishing(target_class=2, queries=20)
    catch, _ = fish(attack, conv_net(), [batch], known_to(local=local))
    (fished,) = catch.fished
    assert fished.isolated and nearest(fished, batch)[1] >= 0.9999


def test_an_example_of_the_cutting_row_s_class_is_noticed() -> None:
    """Two caught and one of the row's class below weigh one together: nothing is claimed."""
    for labels in ([2] * 15 + [3], [3] * 3 + [2] * 13, [3, 3, *range(10), 1, 5, 7, 9]):
        for seed in range(4):
            batch = images(16, labels=labels, seed=seed)
            attack = feature_fishing(target_class=2, queries=20)
            catch, _ = fish(attack, conv_net(), [batch], known_to(local=steps(epochs=2)))
            assert not any(f.isolated for f in catch.fished)
            assert catch.queries == 1  # seen in the first answer, before anything diverges


def test_a_changed_update_is_noticed() -> None:
    batch = images(len(MIXED), labels=MIXED)
    known, attack = known_to(local=steps(epochs=3)), one_shot_binary_fishing()
    _, played = fish(attack, conv_net(), [batch], known)
    for factor in (0.5, 1.01):
        changed = [
            dataclasses.replace(
                e,
                update=dataclasses.replace(
                    e.update, tensors={name: factor * t for name, t in e.update.tensors.items()}
                ),
            )
            for e in played.exchanges
        ]
        assert not any(f.isolated for f in attack.fish(changed, known).fished)


def test_classes_are_counted_by_how_the_biases_went_on() -> None:
    for lr, epochs in ((0.01, 2), (0.5, 10)):
        batch = images(30, labels=[1] * 17 + [4] * 12 + [9], seed=1)
        known = known_to(local=steps(lr, epochs=epochs))
        _, played = fish(one_shot_binary_fishing(), conv_net(), [batch], known)
        head = find_head(conv_net(), known.input)
        counts = dying_cuts.read_dying_cut(played.exchanges[0], known, head).counts
        assert counts is not None
        assert torch.allclose(counts, batch.labels.bincount(minlength=10).double(), atol=1e-3)


def test_what_a_cut_in_several_steps_cannot_do_is_refused() -> None:
    known = known_to(local=steps(epochs=2))
    with pytest.raises(NotApplicable, match="leave theta and feature out"):
        feature_fishing(theta=1.0).check(dense_net(), known)
    with pytest.raises(NotApplicable, match="leave theta and feature out"):
        binary_fishing(feature=3).check(dense_net(), known)
    with pytest.raises(NotApplicable, match="momentum or weight decay"):
        binary_fishing().check(dense_net(), known_to(local=steps(epochs=2, momentum=0.9)))
    batch, small = images(len(MIXED), labels=MIXED), known_to(local=steps(0.001, epochs=2, batch_size=4))
    for attack in (binary_fishing(), feature_fishing(queries=20)):
        with pytest.raises(NotApplicable, match="needs batches taken whole"):
            fish(attack, dense_net(), [batch], small)
    with pytest.raises(NotApplicable, match="local steps"):
        cross_device_fishing().check(dense_net(), known)
    batches = [images(4, labels=[1, 2, 3, 4]), images(4, labels=[1, 2, 3, 4], seed=1)]
    with pytest.raises(NotApplicable, match="one that catches nobody does not die"):
        fish(binary_fishing(), dense_net(), batches, known, aggregation="secure_sum")


def test_moderate_fishing_reads_the_mean_of_small_steps_and_claims_nothing() -> None:
    labels = [1, 3, 2, 0, 4, 5, 6, 7, 8, 9, 1, 2, 4, 5, 6, 7]
    batch = images(16, labels=labels)
    for lr, epochs in ((0.001, 10), (0.01, 3)):
        known = known_to(local=steps(lr, epochs=epochs))
        catch, _ = fish(moderate_fishing(target_class=3), conv_net(), [batch], known)
        (fished,) = catch.fished
        behind = list(fished.tensors)[:-2]
        truth = true_gradients(fished, batch)[1]
        assert not fished.isolated
        assert cosine(fished.tensors, {name: truth[name] for name in behind}) >= 0.95
    known = known_to(local=steps(0.1, epochs=10))
    catch, _ = fish(moderate_fishing(target_class=3), conv_net(), [batch], known)
    assert not catch.fished and "local steps moved the head too far" in catch.notes[0]


def test_how_sharp_a_dying_cut_is_lies_on_a_plateau(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = images(len(MIXED), labels=MIXED)
    for value in ((1000.0,), (3000.0, 100.0), (300.0, 10.0)):
        with monkeypatch.context() as other:
            other.setattr(dying_cuts, "_SHARP", value)
            catch, _ = fish(one_shot_binary_fishing(), conv_net(), [batch], known_to(local=steps(epochs=3)))
        assert catch.fished[0].isolated and nearest(catch.fished[0], batch)[1] >= 0.9999

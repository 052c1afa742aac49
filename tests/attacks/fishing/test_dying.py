"""Fishing in several local steps, against the gradient of the one example computed apart."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.attacks.fishing.play import conv_net, dense_net, fish, images, known_to, lowest_cosine
from torch import nn

from seepage.attacks.fishing import dying
from seepage.attacks.fishing.class_fishing import class_fishing
from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, LocalTraining

OTHERS = [0, 1, 2, 4, 5, 6, 7, 8, 9]


def pooled_net() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12 * 16, 10),
    )


def among(place: int, *, of: int = 48, also: int | None = None) -> Batch:
    """Labels other than 3, but for the example at `place` (and another one)."""
    labels = (OTHERS * 8)[:of]
    for one in (place, *([] if also is None else [also])):
        labels[one] = 3
    return images(of, labels=labels, seed=place)


def steps(lr: float = 0.05, **settings: object) -> LocalTraining:
    return LocalTraining(algorithm="fedavg", lr=lr, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "local",
    [
        steps(epochs=2),
        steps(0.1, epochs=10),
        steps(batch_size=8),
        steps(0.001, batch_size=8, epochs=2, shuffle_seed=1),
    ],
    ids=["2 steps", "10 steps", "6 mini-batches", "12 mini-batches"],
)
@pytest.mark.parametrize("build", [dense_net, conv_net, pooled_net])
def test_one_example_stays_alone(local: LocalTraining, build: type[nn.Module]) -> None:
    for place in (0, 19, 47):
        batch = among(place)
        catch, _ = fish(class_fishing(target_class=3), build(), [batch], known_to(local=local))
        (fished,) = catch.fished
        assert fished.isolated and fished.count == 1
        assert lowest_cosine(fished, batch.select(slice(place, place + 1))) >= 0.999


def test_every_class_is_asked_for_and_inputs_come_out_exactly() -> None:
    batch = images(12, labels=[0, 0, 1, 2, 2, 2, 5, 7, 7, 9, 9, 9])
    attack, known = class_fishing(), known_to(local=steps(epochs=3))
    catch, played = fish(attack, dense_net(), [batch], known)
    assert sorted(f.label for f in catch.fished) == [1, 5] and played.rounds == 10
    found = attack.run(played.exchanges, known)
    assert found.claimed is not None and found.claimed.all()
    for value, index in zip(found.values, [2, 6], strict=True):
        assert torch.allclose(value, batch.inputs[index], atol=1e-4)


def test_two_in_one_step_are_counted_and_two_in_different_steps_are_taken_apart() -> None:
    known = known_to(local=steps(batch_size=8))
    together, apart = among(9, also=12), among(9, also=30)
    catch, _ = fish(class_fishing(target_class=3), dense_net(), [together], known)
    assert not catch.fished and "2 examples share it" in catch.notes[0]
    catch, _ = fish(class_fishing(target_class=3), dense_net(), [apart], known)
    (fished,) = catch.fished
    assert fished.isolated and lowest_cosine(fished, apart.select(slice(9, 10))) >= 0.999


def test_nobody_is_caught_where_the_class_is_absent() -> None:
    batch = images(16, labels=(OTHERS * 2)[:16])
    catch, _ = fish(class_fishing(target_class=3), dense_net(), [batch], known_to(local=steps(batch_size=4)))
    assert not catch.fished and "no example of it was caught" in catch.notes[0]


def test_a_smaller_last_mini_batch_is_told_apart_or_nothing_is_claimed() -> None:
    known = known_to(local=steps(batch_size=8))
    catch, _ = fish(class_fishing(target_class=3), dense_net(), [among(10, of=11)], known)  # 1 of 3
    assert catch.fished[0].isolated
    catch, _ = fish(class_fishing(target_class=3), dense_net(), [among(10, of=12)], known)  # 1 of 4 or 2 of 8
    assert not catch.fished and "did not die" in catch.notes[0]


def test_a_changed_update_is_noticed() -> None:
    attack, known = class_fishing(target_class=3), known_to(local=steps(epochs=4))
    _, played = fish(attack, dense_net(), [among(0)], known)
    exchange = played.exchanges[0]
    bias = exchange.secret.dying.bias
    halved = {name: 0.5 * t for name, t in exchange.update.tensors.items()}
    one_unit = dict(exchange.update.tensors)
    one_unit[bias] = one_unit[bias].clone()
    one_unit[bias][4] *= 1.01
    for tensors in (halved, one_unit):
        changed = dataclasses.replace(exchange, update=dataclasses.replace(exchange.update, tensors=tensors))
        catch = attack.fish([changed], known)
        assert not catch.fished and "did not die" in catch.notes[0]


def test_a_sum_of_clients_that_take_their_batches_whole_is_fished() -> None:
    batches = [images(6, labels=[0, 1, 2, 4, 5, 6]), images(6, labels=[3, 1, 2, 4, 5, 6], seed=1)]
    known = known_to(local=steps(epochs=5), aggregation="secure_sum")
    catch, _ = fish(class_fishing(target_class=3), dense_net(), batches, known, aggregation="secure_sum")
    (fished,) = catch.fished
    assert fished.isolated and lowest_cosine(fished, batches[1].select(slice(1))) >= 0.999
    known = known_to(local=steps(batch_size=2), aggregation="secure_sum")
    with pytest.raises(NotApplicable, match="each with a number of its own"):
        fish(class_fishing(target_class=3), dense_net(), batches, known, aggregation="secure_sum")


def test_what_cannot_die_is_refused() -> None:
    def ending(*last: nn.Module) -> nn.Sequential:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), *last, nn.Linear(20, 10))

    for model, words in (
        (ending(nn.GELU()), "cannot be made to die"),
        (ending(nn.LeakyReLU()), "cannot be made to die"),
        (ending(nn.LayerNorm(20), nn.ReLU()), "cannot be made to die"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "nothing can be made to die"),
        (dense_net(bias=False), "has no bias"),
    ):
        with pytest.raises(NotApplicable, match=words):
            class_fishing(target_class=3).check(model, known_to(local=steps(epochs=2)))
    with pytest.raises(NotApplicable, match="momentum or weight decay"):
        class_fishing(target_class=3).check(dense_net(), known_to(local=steps(epochs=2, momentum=0.9)))


def test_constants_of_the_dying_layer_lie_on_a_plateau(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, known = among(19), known_to(local=steps(batch_size=8))
    for name, values in (
        ("_RAISED", (2.0, 8.0)),
        ("_LOWERED", (2.0, 16.0)),
        ("_MOVED", ((1.0, 0.1), (1.0, 3e-3))),
        ("_TAUGHT", (1e-3, 3e-2)),
        ("_STEPS", (5, 40)),
    ):
        for value in values:
            with monkeypatch.context() as other:
                other.setattr(dying, name, value)
                catch, _ = fish(class_fishing(target_class=3), conv_net(), [batch], known)
            assert catch.fished[0].isolated, (name, value)
            assert lowest_cosine(catch.fished[0], batch.select(slice(19, 20))) >= 0.999, (name, value)

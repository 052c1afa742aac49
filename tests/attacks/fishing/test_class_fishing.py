"""Class fishing against single examples' own gradients, computed apart."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.attacks.fishing.play import (
    conv_net,
    cosine,
    dense_net,
    fish,
    images,
    known_to,
    lowest_cosine,
    nearest,
)
from torch import nn

from seepage.attacks.fishing import loudness
from seepage.attacks.fishing.class_fishing import class_fishing
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import Batch, Broadcast, Grant, LocalTraining
from seepage.protocol import local_update


def with_targets(count: int, *, of: int = 64, target: int = 3) -> Batch:
    labels = [target] * count + [c for c in range(10) if c != target] * 8
    return images(of, labels=labels[:of], seed=count)


@pytest.mark.parametrize("targets", [1, 4])
@pytest.mark.parametrize("build", [dense_net, conv_net])
def test_the_class_gradient_comes_out_of_a_batch_of_64(targets: int, build: type[nn.Module]) -> None:
    model, batch, known = build(), with_targets(targets), known_to()
    catch, _ = fish(class_fishing(target_class=3, most=4), model, [batch], known)
    (fished,) = catch.fished
    assert (fished.count, fished.isolated, catch.queries) == (targets, targets == 1, 1)
    truth = local_update(Broadcast(fished.model), batch.select(slice(targets)), LocalTraining()).tensors
    assert cosine(fished.tensors, truth) >= 0.9999
    for name, expected in truth.items():
        assert torch.allclose(fished.tensors[name], expected, rtol=1e-3, atol=1e-5)
    # the unmodified head gives no such thing: the batch gradient points elsewhere
    honest = local_update(Broadcast(model), batch, LocalTraining()).tensors
    own = local_update(Broadcast(model), batch.select(slice(targets)), LocalTraining()).tensors
    assert cosine(honest, own) < 0.9


def test_the_first_query_tells_all_class_counts_and_lone_examples_follow() -> None:
    batch = images(12, labels=[0, 0, 1, 2, 2, 2, 5, 7, 7, 9, 9, 9])
    attack, known = class_fishing(), known_to()
    catch, played = fish(attack, dense_net(), [batch], known)
    assert catch.class_counts is not None
    assert catch.class_counts.round().tolist() == torch.bincount(batch.labels, minlength=10).tolist()
    assert sorted(f.label for f in catch.fished) == [1, 5]
    assert {nearest(f, batch)[0] for f in catch.fished} == {2, 6}
    assert played.rounds <= attack.query_bound(12, classes=10)
    found = attack.run(played.exchanges, known)
    assert found.claimed is not None and found.claimed.all()
    for value, index in zip(found.values, [2, 6], strict=True):
        assert torch.allclose(value, batch.inputs[index], atol=1e-4)


def test_an_absent_class_and_a_shared_one_return_nothing_and_say_so() -> None:
    known = known_to()
    for labels, words in (([0, 1, 2, 4], "no example of it"), ([3, 3, 1, 2], "cannot tell them apart")):
        attack = class_fishing(target_class=3)
        catch, played = fish(attack, dense_net(), [images(4, labels=labels)], known)
        assert not catch.fished and words in " ".join(catch.notes)
        found = attack.run(played.exchanges, known)
        assert len(found) == 0 and found.values.shape == (0, 1, 8, 8)


def test_without_a_bias_the_class_is_fished_but_not_counted_or_claimed() -> None:
    """A lone example's gradient is that of (alpha u - W_c).f, known in closed form from the crafted head."""
    batch, known = images(8, labels=[3, 0, 1, 2, 4, 5, 6, 7]), known_to()
    attack = class_fishing(target_class=3, alpha=500.0)
    catch, played = fish(attack, dense_net(bias=False), [batch], known)
    (fished,) = catch.fished
    assert not fished.isolated and "has no bias" in catch.notes[0]
    assert nearest(fished, batch)[0] == 0 and nearest(fished, batch)[1] > 0.9999
    found = attack.run(played.exchanges, known)
    assert found.claimed is not None and not found.claimed.any()
    assert torch.allclose(found.values[0], batch.inputs[0], atol=1e-3)


def test_train_mode_batch_norm_is_refused() -> None:
    attack = class_fishing(target_class=3)
    local = LocalTraining(batch_norm="train")
    with pytest.raises(NotApplicable, match="BatchNorm in train mode"):
        attack.check(conv_net(), known_to(local=local))
    attack.check(dense_net(), known_to(local=local))  # no BatchNorm: nothing to refuse


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_one_step_of_fedavg_is_fished_through_the_delta(decay: float) -> None:
    local = LocalTraining(algorithm="fedavg", lr=0.05, weight_decay=decay, momentum=0.9)
    batch = with_targets(1, of=16)
    catch, _ = fish(class_fishing(target_class=3), dense_net(), [batch], known_to(local=local))
    (fished,) = catch.fished
    index, similarity = nearest(fished, batch)
    assert (index, fished.isolated) == (0, True) and similarity >= 0.9999


@pytest.mark.parametrize("lr", [0.001, 0.1])
@pytest.mark.parametrize("build", [dense_net, conv_net])
def test_a_delta_of_256_examples_keeps_every_layer(lr: float, build: type[nn.Module]) -> None:
    """A rate of .001 leaves an ordinary gradient's step below the last digit of the weights."""
    local = LocalTraining(algorithm="fedavg", lr=lr)
    batch = images(256, labels=[3, *([0, 1, 2, 4, 5, 6, 7, 8, 9] * 29)[:255]])
    catch, _ = fish(class_fishing(target_class=3), build(), [batch], known_to(local=local))
    (fished,) = catch.fished
    assert fished.isolated and lowest_cosine(fished, batch.select(slice(1))) >= 0.9999
    assert catch.class_counts is not None
    assert catch.class_counts.round().tolist() == torch.bincount(batch.labels, minlength=10).tolist()


def test_the_loudness_lies_on_a_plateau(monkeypatch: pytest.MonkeyPatch) -> None:
    local, batch = LocalTraining(algorithm="fedavg", lr=0.001), with_targets(1)
    for step in (0.1, 1.0, 100.0):
        monkeypatch.setattr(loudness, "_STEP", step)
        catch, _ = fish(class_fishing(target_class=3), conv_net(), [batch], known_to(local=local))
        assert lowest_cosine(catch.fished[0], batch.select(slice(1))) >= 0.9999


def test_an_alpha_below_the_logits_is_named_as_a_reason() -> None:
    model = dense_net()
    with torch.no_grad():
        model[-1].weight[3] = 50.0  # the class's own logits are in the hundreds
    catch, _ = fish(class_fishing(target_class=3, alpha=60.0), model, [with_targets(1)], known_to())
    assert not catch.fished and "reaches alpha = 60 (raise it then)" in catch.notes[0]


def test_a_clipped_update_is_noticed() -> None:
    known = known_to()
    attack = class_fishing(target_class=3)
    _, played = fish(attack, dense_net(), [with_targets(1, of=16)], known)
    exchange = played.exchanges[0]
    for factor in (0.5, 1e-6):
        smaller = {name: factor * t for name, t in exchange.update.tensors.items()}
        clipped = dataclasses.replace(exchange, update=dataclasses.replace(exchange.update, tensors=smaller))
        catch = attack.fish([clipped], known)
        assert not catch.fished and "no whole number" in catch.notes[0]


def test_only_the_classification_layer_is_changed() -> None:
    model = conv_net()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    crafted = class_fishing(target_class=3).craft(model, [], known_to())
    assert crafted is not None
    changed = [n for n, t in crafted.model.state_dict().items() if not torch.equal(t, before[n])]
    assert changed == ["7.weight", "7.bias"]
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_settings_are_checked() -> None:
    assert Grant.TARGET_CLIENT in class_fishing(client=2).requires
    assert Grant.SEVERAL_ROUNDS not in class_fishing(target_class=1).requires
    for bad in ({"alpha": 0.0}, {"most": 0}, {"client": -1}, {"inner": "class_fish"}):
        with pytest.raises(SpecError):
            class_fishing(**bad)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="setting of the inner attack"):
        class_fishing(inner_options={"layr": "x"})
    with pytest.raises(SpecError, match="does not exist"):
        class_fishing(target_class=10).craft(dense_net(), [], known_to())
    with pytest.raises(NotApplicable, match="something follows it"):
        class_fishing().check(nn.Sequential(dense_net(), nn.Softmax(dim=1)), known_to())

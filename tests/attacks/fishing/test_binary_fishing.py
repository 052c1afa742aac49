"""The binary attacks against a client that counts: bounds, termination, exactness, honesty about ties."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from tests.attacks.fishing.play import (
    SPEC,
    all_nearest,
    conv_net,
    dense_net,
    fish,
    images,
    known_to,
    nearest,
)
from torch import nn

from seepage.attacks.fishing.binary_fishing import BinaryFishing, binary_fishing, one_shot_binary_fishing
from seepage.attacks.fishing.catch import Catch, outlyingness
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import Batch, Grant, LocalTraining


def recovered(catch: Catch, batch: Batch, threshold: float) -> set[int]:
    found = all_nearest(catch.fished, batch)
    assert all(similarity >= threshold for _, similarity in found)  # no false claim
    return {index for index, _ in found}


@pytest.mark.parametrize(("n", "trials"), [(8, 8), (64, 6), (256, 3)])
def test_one_shot_isolates_one_example_in_logarithmically_many_queries(n: int, trials: int) -> None:
    queries = []
    for seed in range(trials):
        batch, attack = images(n, seed=seed), one_shot_binary_fishing()
        catch, played = fish(attack, dense_net(seed=seed), [batch], known_to(seed=seed))
        assert len(recovered(catch, batch, 0.999)) == 1
        assert played.rounds == catch.queries <= attack.query_bound(n)
        queries.append(catch.queries)
    assert sum(queries) / trials <= math.log2(n) + 1.5


@pytest.mark.parametrize("n", [8, 16, 32])
@pytest.mark.parametrize("labels", [0, None])
def test_the_full_attack_ends_with_every_example(n: int, labels: int | None) -> None:
    for build in (dense_net, conv_net):
        batch, attack = images(n, seed=n, labels=labels), binary_fishing()
        catch, played = fish(attack, build(), [batch], known_to())
        assert recovered(catch, batch, 0.99) == set(range(n))
        assert played.rounds <= attack.query_bound(n) <= 1.25 * n + 2
        assert catch.class_counts is not None
        assert catch.class_counts.round().tolist() == torch.bincount(batch.labels, minlength=10).tolist()


def test_the_inner_attack_reads_the_pictures_themselves() -> None:
    batch, attack, known = images(12, labels=None), binary_fishing(), known_to()
    _, played = fish(attack, dense_net(), [batch], known)
    found = attack.run(played.exchanges, known)
    gaps = (found.values.flatten(1).unsqueeze(1) - batch.inputs.flatten(1)).abs().amax(dim=2)
    assert len(found) == 12 and gaps.amin(dim=0).max() < 1e-3  # every image, pixel by pixel
    # random values lie on no grid: vouched for where few rows leave enough products
    assert found.claimed is not None and int(found.claimed.sum()) >= 6


@pytest.mark.parametrize("n", [32, 256])
def test_a_fished_gradient_goes_back_through_the_layers_in_closed_form(n: int) -> None:
    """R-GAP takes one example; behind fishing it gets one out of any batch, in single precision too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(12 * 64, 10))
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    batch, attack = images(n, labels=None), one_shot_binary_fishing(inner="recursive_inversion")
    _, played = fish(attack, model, [batch], known_to())
    found = attack.run(played.exchanges, known_to())
    assert found.claimed is not None and found.claimed.tolist() == [True]
    error = (found.values - batch.inputs).abs().flatten(1).amax(dim=1)
    assert float(error.min()) < 1e-2 < float(error.topk(2, largest=False).values[1])


def test_an_isolated_gradient_is_minus_the_gradient_of_the_score() -> None:
    """Equal in length too, not only in direction: -grad(w.f), with w read off the returned model."""
    batch, model = images(6), dense_net()
    catch, _ = fish(binary_fishing(), model, [batch], known_to())
    fished = catch.fished[0]
    index, _ = nearest(fished, batch)
    w = fished.model.get_parameter("5.weight")[fished.label].detach()
    features = model[:5](batch.inputs[index : index + 1])
    (expected,) = torch.autograd.grad(-(features @ w).sum(), model[1].weight)
    assert torch.allclose(fished.tensors["1.weight"], expected, atol=1e-5)
    assert torch.allclose(fished.feature.float(), features[0], atol=1e-4)
    assert fished.score == pytest.approx(float((features @ w).detach()), abs=1e-4)


@pytest.mark.parametrize("attack", [binary_fishing(), one_shot_binary_fishing()])
def test_identical_images_are_reported_as_tied_and_the_search_ends(attack: BinaryFishing) -> None:
    one = images(1)
    pair = Batch(one.inputs.repeat(2, 1, 1, 1), one.labels.repeat(2))
    catch, played = fish(attack, dense_net(), [pair], known_to())
    assert not catch.fished and played.rounds <= attack.query_bound(2)
    assert any(note.startswith("Tied: 2") for note in catch.notes)


def test_the_others_are_fished_around_a_tie() -> None:
    batch = images(7)
    twice = Batch(torch.cat([batch.inputs, batch.inputs[:1]]), torch.cat([batch.labels, batch.labels[:1]]))
    catch, played = fish(binary_fishing(), dense_net(), [twice], known_to())
    assert recovered(catch, twice, 0.999) == set(range(1, 7))
    assert catch.mixed == (2,) and played.rounds <= binary_fishing().query_bound(8)


@pytest.mark.parametrize("label", [0, 4])
def test_one_image_only_whether_of_the_target_class_or_not(label: int) -> None:
    batch = images(1, labels=label)
    for attack in (binary_fishing(), one_shot_binary_fishing()):
        catch, played = fish(attack, dense_net(), [batch], known_to())
        assert recovered(catch, batch, 0.9999) == {0}
        assert played.rounds == (1 if label == 0 else 2)


def test_an_absent_target_class_does_not_matter() -> None:
    batch = images(8, labels=[1, 2, 3, 1, 2, 3, 1, 2])
    catch, _ = fish(binary_fishing(target_class=7), dense_net(), [batch], known_to())
    assert recovered(catch, batch, 0.999) == set(range(8))


def test_a_thousand_examples_end_within_the_bound() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Linear(6, 10))
    with torch.no_grad():
        model[1].weight.mul_(20.0)
    batch, attack = images(1000, labels=None), one_shot_binary_fishing()
    catch, played = fish(attack, model, [batch], known_to())
    assert len(catch.fished) == 1 and played.rounds <= attack.query_bound(1000) <= 26
    full = binary_fishing()
    catch, played = fish(full, model, [batch], known_to())
    assert played.rounds <= full.query_bound(1000) <= 1252
    assert len(catch.fished) + sum(catch.mixed) == 1000
    some = all_nearest(catch.fished[::50], batch)
    assert all(similarity > 0.99 for _, similarity in some)


def test_a_batch_that_changes_between_queries_is_noticed() -> None:
    for labels in (0, None):
        rounds = [[images(16, seed=seed, labels=labels)] for seed in range(20)]
        for attack in (binary_fishing(), one_shot_binary_fishing()):
            catch, _ = fish(attack, dense_net(), rounds, known_to())
            assert not catch.fished and "not the same in each query" in " ".join(catch.notes)


def test_a_securely_summed_round_of_eight_clients_is_one_large_batch() -> None:
    batches = [images(4, seed=seed, labels=None) for seed in range(8)]
    known = known_to(aggregation="secure_sum")
    catch, _ = fish(binary_fishing(), dense_net(), batches, known, aggregation="secure_sum")
    assert recovered(catch, Batch.concat(batches), 0.99) == set(range(32))
    assert "8 clients and fished it like one large batch of 32" in catch.notes[0]
    assert "aggregation, secure or not, did not protect single examples" in catch.notes[0]


def test_one_client_of_several_is_followed_or_chosen() -> None:
    batches = [images(4, seed=seed, labels=None) for seed in range(3)]
    catch, _ = fish(binary_fishing(), dense_net(), batches, known_to())
    assert recovered(catch, batches[0], 0.999) == set(range(4))
    chosen = binary_fishing(client=2)
    assert Grant.TARGET_CLIENT in chosen.requires
    catch, played = fish(chosen, dense_net(), batches, known_to())
    assert recovered(catch, batches[2], 0.999) == set(range(4))
    assert {e.clients for e in played.exchanges} == {(2,)}


def test_fedavg_with_one_step_is_fished_and_a_defense_is_noticed() -> None:
    local = LocalTraining(algorithm="fedavg", lr=0.05)
    batch, known = images(16, labels=None), known_to(local=local)
    catch, played = fish(binary_fishing(), dense_net(), [batch], known)
    assert recovered(catch, batch, 0.99) == set(range(16))

    def scaled(exchange: object, factor: float) -> object:
        assert dataclasses.is_dataclass(exchange)
        update = exchange.update  # type: ignore[attr-defined]
        tensors = {name: factor * t for name, t in update.tensors.items()}
        return dataclasses.replace(exchange, update=dataclasses.replace(update, tensors=tensors))  # type: ignore[type-var]

    for factor in (0.7, 1e-6):
        clipped = [scaled(e, factor) for e in played.exchanges]
        catch = binary_fishing().fish(clipped, known)  # type: ignore[arg-type]
        assert not catch.fished and "a defense" in catch.notes[-1]


def test_rounds_that_end_early_leave_the_rest_open() -> None:
    batch = images(16)
    catch, played = fish(binary_fishing(), dense_net(), [batch], known_to(), max_rounds=6)
    assert played.rounds == 6 and len(catch.fished) + sum(catch.mixed) == 16
    assert "were not isolated before the rounds" in catch.notes[-1]
    recovered(catch, batch, 0.999)


def test_outliers_are_fished_with_fewer_queries() -> None:
    """Section 6: one so far out that the mean of all lies between it and the rest is alone after one cut."""
    batch = images(32)
    batch.inputs[5] *= 100.0
    catch, _ = fish(binary_fishing(feature=_active_feature()), dense_net(), [batch], known_to())
    distance, queries = outlyingness(catch)
    scores = torch.tensor([f.score for f in catch.fished])
    assert torch.allclose(distance.float(), (scores - scores.mean()).abs() / scores.std(correction=0))
    assert nearest(catch.fished[int(distance.argmax())], batch)[0] == 5
    assert queries[distance.argmax()] == 2
    assert queries.float().mean() >= math.log2(32)  # the mean depth of a binary tree with 32 leaves


def _active_feature() -> int:
    with torch.no_grad():
        return int(dense_net()[:5](images(32).inputs).mean(dim=0).argmax())


def test_what_cannot_be_attacked_is_said() -> None:
    with pytest.raises(NotApplicable, match="no trained bias"):
        binary_fishing().check(dense_net(bias=False), known_to())
    dropping = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(), nn.Linear(8, 10))
    with pytest.raises(NotApplicable, match="dropout"):
        binary_fishing().check(dropping, known_to(local=LocalTraining(batch_norm="train")))
    with pytest.raises(NotApplicable, match="softmax"):
        binary_fishing().check(dense_net(), dataclasses.replace(known_to(), loss="binary_cross_entropy"))
    with pytest.raises(NotApplicable, match="unknown linear layer"):
        binary_fishing(layer="head").check(dense_net(), known_to())
    with pytest.raises(SpecError, match="beta"):
        binary_fishing(beta=-1.0)
    with pytest.raises(SpecError, match="does not exist"):
        binary_fishing(feature=32).craft(dense_net(), [], known_to())
    single = nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
    with pytest.raises(NotApplicable, match="single logit"):
        binary_fishing().check(
            single, dataclasses.replace(known_to(), input=dataclasses.replace(SPEC, num_classes=2))
        )

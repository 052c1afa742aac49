"""Feature fishing and cross-device fishing: each answer read by itself."""

from __future__ import annotations

import math

import pytest
import torch
from tests.attacks.fishing.play import SPEC, dense_net, fish, images, known_to, nearest
from torch import Tensor, nn

from seepage.attacks.fishing.cross_device_fishing import cross_device_fishing
from seepage.attacks.fishing.feature_fishing import feature_fishing
from seepage.attacks.fishing.head import find_head
from seepage.attacks.fishing.shared import chosen_direction
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import Batch, Grant


def scores(batch: Batch, *, feature: int | None = None, model: nn.Sequential | None = None) -> Tensor:
    """w.f of every image, straight from a forward pass."""
    model = dense_net() if model is None else model
    w = chosen_direction(find_head(model, SPEC), feature, seed=0)
    with torch.no_grad():
        return model[:5](batch.inputs).double() @ w


def test_a_cut_catches_exactly_the_examples_below_it() -> None:
    batch = images(16)
    ordered = scores(batch).sort()
    for below, claimed in ((0, 0), (1, 1), (3, 0)):
        low = ordered.values[below - 1] if below else ordered.values[0] - 1.0
        theta = float(low + ordered.values[below]) / 2
        catch, _ = fish(feature_fishing(theta=theta), dense_net(), [batch], known_to())
        assert len(catch.fished) == claimed
        assert catch.mixed == ((below,) if below > 1 else ())
        for fished in catch.fished:
            index, similarity = nearest(fished, batch)
            assert fished.isolated and similarity > 0.9999 and index == int(ordered.indices[0])


def test_the_cut_is_placed_by_auxiliary_examples() -> None:
    public, theta = images(400, seed=9), None
    attack = feature_fishing(images=4)
    assert Grant.AUXILIARY in attack.requires
    crafted = attack.craft(dense_net(), [], known_to(auxiliary=public))
    assert crafted is not None
    theta = crafted.secret.theta
    assert float((scores(public) < theta).double().mean()) == pytest.approx(0.25, abs=0.005)
    with pytest.raises(NotApplicable, match="give theta"):
        attack.check(dense_net(), known_to())


def test_other_classes_above_the_cut_are_noticed_and_nothing_false_is_claimed() -> None:
    """Remark 3.3: whatever the cut, with other classes in the batch nothing is claimed."""
    batch = images(24, labels=[0] * 12 + [1, 2, 3] * 4)
    place = scores(batch).sort().values
    silent = 0
    for theta in ((place[1:] + place[:-1]) / 2).tolist():
        catch, _ = fish(feature_fishing(theta=theta), dense_net(), [batch], known_to())
        assert not any(f.isolated for f in catch.fished)
        assert "Remark 3.3" in " ".join(catch.notes)
        silent += not catch.fished
    assert silent > 15


def test_the_search_goes_down_to_one_example_even_if_batches_change() -> None:
    for rounds in ([[images(32)]], [[images(32, seed=seed)] for seed in range(40)]):
        attack = feature_fishing(queries=40)
        catch, played = fish(attack, dense_net(), rounds, known_to())
        assert played.rounds <= attack.query_bound(32)
        (fished,) = catch.fished
        asked = rounds[(played.rounds - 1) % len(rounds)][0]
        index, similarity = nearest(fished, asked)
        assert fished.isolated and similarity > 0.9999
        assert index == int(scores(asked).argmin())


def test_the_search_ends_on_ties_absent_classes_and_single_images() -> None:
    one = images(1)
    pair = Batch(one.inputs.repeat(2, 1, 1, 1), one.labels.repeat(2))
    catch, played = fish(feature_fishing(queries=30), dense_net(), [pair], known_to())
    assert not catch.fished and played.rounds < 30
    catch, played = fish(feature_fishing(queries=30), dense_net(), [images(4, labels=3)], known_to())
    assert not catch.fished and played.rounds == 1 and "No example of the target class" in catch.notes[-1]
    catch, played = fish(feature_fishing(queries=30), dense_net(), [one], known_to())
    assert len(catch.fished) == 1 and played.rounds == 1


def devices(count: int, each: int, *, seed: int) -> list[Batch]:
    """Clients whose images differ by normal noise, so that linear features are normal."""
    noise = torch.randn(count * each, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    whole = Batch(0.5 + 0.1 * noise, torch.zeros(count * each, dtype=torch.long))
    return [whole.select(slice(i * each, (i + 1) * each)) for i in range(count)]


def linear_net() -> nn.Sequential:
    model = dense_net()
    model[2], model[4] = nn.Identity(), nn.Identity()
    return model


def test_new_clients_give_away_one_example_in_about_a_third_of_cases() -> None:
    """Every claim is checked against a count from a forward pass; the rate against M 1/M (1 - 1/M)^(M-1)."""
    seen, fresh, model = devices(60, 4, seed=1), devices(80, 10, seed=2), linear_net()
    attack = cross_device_fishing(images=10, estimate_clients=60, attacked_clients=80)
    assert {Grant.TARGET_CLIENT, Grant.SEVERAL_ROUNDS} <= attack.requires
    catch, played = fish(attack, model, [*seen, *fresh], known_to())
    assert played.rounds == attack.query_bound(10) == 2
    asked = [e.clients for e in played.exchanges]
    assert sorted(asked) == [(i,) for i in range(140)]  # everybody once, nobody twice
    hook = played.exchanges[-1].secret
    feature = int(hook.direction.argmax())
    caught = torch.stack([(scores(b, feature=feature, model=model) < hook.theta).sum() for b in fresh])
    claimed = sum(f.isolated for f in catch.fished)
    assert claimed == int((caught == 1).sum())
    assert claimed / 80 == pytest.approx(0.9**9, abs=0.16)  # 3 standard errors
    for fished in catch.fished[:5]:
        client = played.exchanges[fished.source].clients[0]
        assert nearest(fished, fresh[client - 60])[1] > 0.999


def test_the_estimate_takes_unequal_counts_and_mixed_batches() -> None:
    """Against mean and spread of all target features, from a forward pass."""
    batches = []
    for i in range(60):
        own = 1 + i % 8
        batches.append(images(10, seed=i, labels=[0] * own + [1 + j % 9 for j in range(10 - own)]))
    attack, known = cross_device_fishing(), known_to()
    catch, played = fish(attack, dense_net(), batches, known)
    found = attack.estimate(played.exchanges, known)
    with torch.no_grad():
        mine = torch.cat([dense_net()[:5](b.inputs[b.labels == 0]) for b in batches]).double()
    assert torch.allclose(found.mean, mine.mean(dim=0), atol=1e-3)
    alive = mine.std(dim=0) > 0.1
    ratio = found.std[alive] / mine.std(dim=0)[alive]
    assert ratio.mean().item() == pytest.approx(1.0, abs=0.1)
    assert found.images == pytest.approx(sum(int((b.labels == 0).sum()) for b in batches) / 60)
    assert not any(f.isolated for f in catch.fished)  # other classes in every batch


def test_a_dead_feature_catches_nobody() -> None:
    seen, fresh = devices(30, 4, seed=1), devices(20, 10, seed=2)
    attack = cross_device_fishing(images=10, choice="lowest_mean", estimate_clients=30, attacked_clients=20)
    catch, _ = fish(attack, dense_net(), [*seen, *fresh], known_to())
    assert not any(f.isolated for f in catch.fished)


def test_settings_and_missing_rounds() -> None:
    for bad in ({"choice": "kss"}, {"estimate_clients": 4}, {"images": 0}, {"beta": math.inf}):
        with pytest.raises(SpecError):
            cross_device_fishing(**bad)  # type: ignore[arg-type]
    with pytest.raises(SpecError):
        feature_fishing(queries=0)
    with pytest.raises(NotApplicable, match="allow at least 2 rounds"):
        fish(cross_device_fishing(), dense_net(), devices(3, 4, seed=0), known_to(), max_rounds=1)
    with pytest.raises(NotApplicable, match="fewer than two"):
        fish(cross_device_fishing(target_class=5), dense_net(), devices(3, 4, seed=0), known_to())

"""Wen et al.'s tables in small, against counting, real updates of whole networks, and closed forms."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from seepage.attacks.parts.fishing.head import cut_head, find_head
from seepage.errors import DataError
from seepage.federation import local_update
from seepage.metrics import psnr, registered_psnr, registered_psnr_available
from seepage.papers import (
    PAPERS,
    fishing,
    reproduce,
    wen2022_figure4,
    wen2022_figure5,
    wen2022_table1,
    wen2022_table2,
    wen2022_table3,
)
from seepage.papers.fishing import FeatureWorld, feature_world
from seepage.types import Broadcast, LocalTraining
from seepage.workloads.data import load_data

needs_kornia = pytest.mark.skipif(
    not registered_psnr_available()[0], reason="registered PSNR needs kornia, which is not installed"
)
TABLES = (wen2022_table1, wen2022_figure4, wen2022_figure5, wen2022_table2, wen2022_table3)


@pytest.fixture(autouse=True)
def short_registration(monkeypatch):
    """Two steps a level instead of a hundred: how well pictures are registered is tested elsewhere."""
    for module in (fishing, wen2022_table2):
        monkeypatch.setattr(module, "registered_psnr", partial(registered_psnr, iterations=2))


@pytest.fixture(scope="module")
def world() -> FeatureWorld:
    """Digits under a random dense network whose features are as far apart as a trained one's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10))
    with torch.no_grad():
        model[1].weight.mul_(4.0)
    return feature_world(load_data("digits"), model)


def test_the_layer_alone_sends_what_the_whole_network_sends(world):
    index = torch.arange(12)
    direction = nn.functional.one_hot(torch.tensor(5), 24).double()
    head = find_head(world.model, world.dataset.spec)
    alone = find_head(world.layer, world.spec)
    cut = {"direction": direction, "beta": 1e6, "theta": float(world.features[index, 5].median()) + 1e-3}
    whole = cut_head(world.model, head, 3, **cut)
    layer = cut_head(world.layer, alone, 3, **cut)
    real = local_update(Broadcast(whole), world.dataset.batch(index), LocalTraining()).tensors
    ours = local_update(Broadcast(layer), world.users([index])[0], LocalTraining()).tensors
    assert real[head.weight].abs().max() > 0.01  # otherwise this would compare nothing
    assert torch.allclose(real[head.weight], ours[alone.weight], atol=1e-6)
    assert torch.allclose(real[head.bias], ours[alone.bias], atol=1e-6)


SMALL = {"estimate_users": 40, "attacked_users": 30, "counts": (4,)}


def test_counting_below_the_cut_agrees_with_the_papers_rule_on_real_gradients(world):
    """Section 4.2's rule, on updates of all parameters."""
    counted = wen2022_table1.measure(world, 2, choice="ks", whole_network=False, **SMALL)
    by_rule = wen2022_table1.measure(world, 2, choice="ks", whole_network=True, **SMALL)
    assert 0 < counted["1"] < 1
    assert by_rule == counted


def test_shares_add_up_and_no_claim_is_false(world):
    for choice in wen2022_table1.CHOICES:
        found = wen2022_table1.measure(world, 1, choice=choice, whole_network=False, **SMALL)
        assert sum(found[name] for name in wen2022_table1.CAUGHT) == pytest.approx(1.0)
        assert found["false"] == 0.0
        assert found["claimed"] >= found["1"]  # equal, but for features that are exactly 0


def test_users_of_the_estimate_and_of_the_attack_share_no_picture_of_the_class(world):
    users = wen2022_table1.draw_users(world, 4, estimate_users=30, attacked_users=30, counts=(1, 4), seed=0)
    labels = world.dataset.labels
    estimate = torch.cat(users.estimate)
    assert [int((labels[u] == 4).sum()) for u in users.estimate[:4]] == [1, 4, 1, 4]
    assert all((labels[u] == 4).all() and len(u.unique()) == 10 for u in users.attacked)
    assert not set(estimate.tolist()) & set(torch.cat(users.attacked).tolist())


def test_the_error_of_the_estimate_is_the_largest_gap_of_two_distributions(world):
    from scipy.stats import kstest

    attack = wen2022_table1.cross_device_fishing(
        target_class=0, images=10, estimate_clients=20, attacked_clients=10
    )
    users = wen2022_table1.draw_users(world, 0, estimate_users=20, attacked_users=10, counts=(4,), seed=0)
    known = fishing.known_to_server(world.spec, seed=0)
    played = fishing.play_fishing(attack, world.layer, world.users([*users.estimate, *users.attacked]), known)
    found = wen2022_table1.estimate_errors(attack, played, world, users, seed=0)
    feature = int(wen2022_table1.last_cut(played)[1].argmax())
    means = torch.stack([world.features[u[:4], feature].mean() for u in users.estimate]).double()
    values = world.features[torch.cat(users.attacked).unique(), feature].double()
    normal = ("norm", (means.mean(), 2 * means.std()))  # means of 4: half the spread of single pictures
    assert found["off"] == pytest.approx(kstest(values.numpy(), *normal).statistic, abs=1e-3)


@pytest.mark.parametrize("whole_network", [False, True])
def test_the_one_shot_search_is_counted_and_checked(world, whole_network):
    for seed in range(3):
        found = wen2022_figure5.measure(world, seed, size=16, whole_network=whole_network)
        assert found["isolated"] == 1.0 and found["false"] == 0.0 and found["cosine"] > 0.999
        assert 2 <= found["queries"] <= min(math.log2(16) + 2, found["bound"]) and found["log2 n"] == 4.0


def test_every_example_of_a_mixed_batch_is_counted_once(world):
    found = wen2022_figure5.measure_photos(world, 0, size=12, everyone=True)
    assert found["isolated"] == 1.0 and found["false"] == 0.0 and found["cosine"] > 0.999
    assert 12 <= found["queries"] <= found["bound"] == 2 + 11 + 4


def test_without_photographs_the_table_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    rows, missing = wen2022_figure5.photo_rows((8,), seeds=1, out=tmp_path, quiet=True)
    assert rows == () and missing[0].startswith("Photos, EfficientNet-lite0: none of the table's datasets")


def test_more_examples_of_a_class_than_there_are_is_said(world):
    with pytest.raises(DataError, match="different examples of one class"):
        wen2022_figure5.measure(world, 0, size=1000, whole_network=False)


def test_the_tables_on_features_print_and_resume(world, tmp_path):
    shown = wen2022_table1.run(
        seeds=1, out=tmp_path / "t1", quiet=True, estimate_users=20, attacked_users=10, world=world
    )
    assert len(shown.rows) == 9 and shown.rows[0].figures["1"].paper == 0.39
    fourth = wen2022_figure4.run(
        seeds=1, out=tmp_path / "f4", quiet=True, users=(10, 225), attacked_users=5, world=world
    )
    assert [row.figures["1"].paper for row in fourth.rows] == [None, 0.39]
    kept = {"batch_sizes": (4, 8), "whole_network_sizes": (4,), "photo_sizes": (), "world": world}
    fifth = wen2022_figure5.run(seeds=2, out=tmp_path / "f5", quiet=True, **kept)
    assert [row.figures["queries"].n for row in fifth.rows] == [2, 2, 2]
    assert wen2022_figure5.run(seeds=2, out=tmp_path / "f5", quiet=True, **kept) == fifth


def colour_photos():
    """32x32, like CIFAR-10."""
    return load_data("photos")


@needs_kornia
def test_april_alone_fails_from_two_and_fishing_holds(tmp_path):
    photos = colour_photos()
    settings = {"precision": "float64", "dim": 192}
    gallery = wen2022_table3.Gallery(photos, tmp_path / "shown.png")
    alone = wen2022_table3.measure(photos, "APRIL", 0, size=1, **settings)
    mixed = wen2022_table3.measure(photos, "APRIL", 0, size=2, **settings)
    fished = wen2022_table3.measure(photos, "APRIL + class fishing", 0, size=6, gallery=gallery, **settings)
    assert alone["max"] > 60 and fished["max"] > 60 and mixed["max"] < 30
    assert (alone["claimed"], mixed["claimed"], fished["claimed"]) == (1.0, 0.0, 1.0)
    assert (tmp_path / "shown.png").read_bytes()[:4] == b"\x89PNG"


def test_the_target_is_the_only_one_of_its_class():
    photos = colour_photos()
    labels = photos.labels[wen2022_table3.one_of_its_class(photos, 20, seed=1)]
    assert labels[0] == 1 and not (labels[1:] == 1).any() and len(labels) == 20


@needs_kornia
def test_pairs_are_scored_beside_flat_pictures():
    truth = colour_photos().inputs[:12].double()
    values = truth.clone()
    values[1:] = truth[1:].mean(dim=(2, 3), keepdim=True)
    scores = wen2022_table2.paired_scores(values, truth)
    flat = psnr(truth.mean(dim=(2, 3), keepdim=True).expand_as(truth), truth, data_range=1.0)
    assert scores["max"] == 100.0  # the one exact copy, at PSNR's cap
    assert scores["mean"] == pytest.approx(
        (100.0 + float(flat[1 : wen2022_table2.REGISTERED].sum())) / wen2022_table2.REGISTERED, abs=1e-3
    )
    assert scores["flat max"] == pytest.approx(float(flat.max()))
    assert scores["flat mean"] == pytest.approx(float(flat.mean()))
    assert scores["above flat"] == pytest.approx(
        (100.0 - float(flat[0])) / wen2022_table2.REGISTERED, abs=1e-3
    )


@needs_kornia
def test_one_picture_against_a_batch_finds_its_own():
    truth = colour_photos().inputs[:12].double()
    plain, best, nearest = fishing.one_against_batch(truth[7:8], truth)
    assert (nearest, best) == (7, 100.0) and int(plain.argmax()) == 7


@needs_kornia
def test_both_methods_of_table_2_run(tmp_path):
    network = wen2022_table2.Network(
        model="lenet_zhu",
        source=fishing.Source("photos", "photos", ({},)),
        inner="recursive_inversion",
        fished=(4,),
        whole="idlg",
        whole_steps={4: 30},
        most_seeds=1,
    )
    table = wen2022_table2.run(seeds=2, out=tmp_path, quiet=True, networks={"LeNet": network})
    without, fished = (row.figures for row in table.rows)
    assert fished["isolated"].mean == 1.0 and fished["max"].mean == fished["mean"].mean
    assert fished["max"].mean > 50 > without["max"].mean  # single precision, in closed form
    assert fished["max"].n == 1 and fished["CPU s"].mean > 0
    assert table.rows[0].label == "without fishing, batch 4"


def test_all_are_registered_and_say_what_is_missing(monkeypatch, tmp_path):
    assert all(PAPERS[module.NAME].run is module.run for module in TABLES)
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for module in TABLES:
        with pytest.raises(DataError, match="none of the table's datasets was found"):
            reproduce(module.NAME, seeds=1, out=tmp_path, quiet=True)

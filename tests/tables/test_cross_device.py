"""Clients that are seen once, in small, against counting, real updates of whole networks, and scipy."""

from types import SimpleNamespace

import pytest
import torch
from scipy.stats import kstest
from tests.tables.small import net

from seepage.attacks.fishing.cross_device_fishing import cross_device_fishing
from seepage.data import load_data
from seepage.tables.cross_device import _Run, cross_device, draw_users
from seepage.tables.features import features_under

SMALL = {"estimate_users": 40, "attacked_users": 30}
CAUGHT = ("0", "1", "2", ">=3")


def seen(seed):
    exchange = SimpleNamespace(broadcast=SimpleNamespace(model=net()))
    return SimpleNamespace(data=load_data("digits"), played=SimpleNamespace(exchanges=(exchange,)), seed=seed)


def test_counting_below_the_cut_agrees_with_the_papers_rule_on_real_gradients():
    """Section 4.2's rule, on updates of all parameters."""
    counted = cross_device(seen(2), **SMALL)
    assert 0 < counted["1"] < 1
    assert cross_device(seen(2), whole_network=True, **SMALL) == counted


@pytest.mark.parametrize("choice", ["ks", "lowest_mean", "highest_std", "random"])
def test_shares_add_up_and_no_claim_is_false(choice):
    found = cross_device(seen(1), choice=choice, **SMALL)
    assert sum(found[name] for name in CAUGHT) == pytest.approx(1.0)
    assert found["false"] == 0.0
    assert found["claimed"] >= found["1"]  # equal, but for features that are exactly 0


def test_users_of_the_estimate_and_of_the_attack_share_no_picture_of_the_class():
    labels = load_data("digits").labels
    users = draw_users(labels, 4, (30, 30), (1, 4), seed=0)
    assert [int((labels[u] == 4).sum()) for u in users.estimate[:4]] == [1, 4, 1, 4]
    assert all((labels[u] == 4).all() and len(u.unique()) == 10 for u in users.attacked)
    assert not set(torch.cat(users.estimate).tolist()) & set(torch.cat(users.attacked).tolist())


def test_the_error_of_the_estimate_is_the_largest_gap_of_two_distributions():
    digits = load_data("digits")
    users = draw_users(digits.labels, 0, (20, 10), (4,), seed=0)
    attack = cross_device_fishing(target_class=0, images=10, estimate_clients=20, attacked_clients=10)
    run = _Run(attack, features_under(net(), digits), users, seed=0)
    feature = int(run.direction.argmax())
    means = torch.stack([run.features[u[:4], feature].mean() for u in users.estimate]).double()
    values = run.features[torch.cat(users.attacked).unique(), feature].double()
    normal = ("norm", (means.mean(), 2 * means.std()))  # means of 4: half the spread of single pictures
    expected = kstest(values.numpy(), *normal).statistic
    assert run.estimate_errors()["off"] == pytest.approx(expected, abs=1e-3)

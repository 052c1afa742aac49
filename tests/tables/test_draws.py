"""Who holds what in the tables."""

import pytest
import torch

from seepage.core.errors import DataError
from seepage.protocol import draw_clients
from seepage.tables import draws

LABELS = torch.arange(200) % 10


def test_a_user_holds_what_the_run_of_its_number_draws():
    held = draws.users(LABELS, clients=3, examples_each=7, seed=5)
    for user, mine in enumerate(held):
        (alone,) = draw_clients(LABELS, clients=1, examples_each=7, seed=user)
        assert torch.equal(mine, alone)


def test_members_are_what_the_network_is_trained_on(monkeypatch):
    monkeypatch.setattr(draws, "MEMBERS", 50)
    trained_on = set(draws.training_set(LABELS, 3).tolist())
    held = torch.cat(draws.members(LABELS, clients=4, examples_each=6, seed=3)).tolist()
    assert len(trained_on) == 50 and set(held) <= trained_on and len(set(held)) == 24


@pytest.mark.parametrize("seed", [1, 14])
def test_the_target_is_the_only_one_of_its_class(seed):
    (mine,) = draws.one_of_its_class(LABELS, clients=1, examples_each=20, seed=seed)
    labels = LABELS[mine]
    assert labels[0] == seed % 10 and not (labels[1:] == seed % 10).any() and len(set(mine.tolist())) == 20


def test_a_client_of_one_class_has_that_class_and_no_example_twice():
    (mine,) = draws.one_class(LABELS, clients=1, examples_each=20, seed=13)
    assert set(LABELS[mine].tolist()) == {3} and len(set(mine.tolist())) == 20
    with pytest.raises(DataError, match="different examples of one class"):
        draws.one_class(LABELS, clients=1, examples_each=21, seed=13)

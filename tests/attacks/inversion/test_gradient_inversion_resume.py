"""An interrupted inversion goes on where it was and ends, bit for bit, as if nothing had happened."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.core.test_checkpoint import Memory
from torch import nn

from seepage.attacks.inversion.deep_leakage import deep_leakage, idlg
from seepage.attacks.inversion.gradient_inversion import GradientInversion
from seepage.attacks.inversion.inverting_gradients import inverting_gradients
from seepage.attacks.inversion.lamp import lamp
from seepage.attacks.inversion.see_through_gradients import see_through_gradients
from seepage.attacks.inversion.tag import tag
from seepage.core.checkpoint import keeping, pack, unpack
from seepage.core.progress import Progress, listening
from seepage.core.types import Batch, Exchange, Knowledge, LocalTraining, Reconstruction

from .setting import conv_net, exchange_for, image_spec, knowledge, random_batch
from .test_lamp import order_blind

SPEC = image_spec(size=6)


class InterruptedHere(Exception):  # noqa: N818 - it is no error
    pass


@pytest.fixture(autouse=True)
def _every_state_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long writing takes."""
    monkeypatch.setattr("seepage.core.checkpoint._LARGEST_SHARE", math.inf)


def interrupted(
    attack: GradientInversion, exchanges: list[Exchange], known: Knowledge, store: Memory, after: int
) -> None:
    """Run until `after` steps were reported, keeping every state."""
    heard: list[int] = []

    def listener(progress: Progress) -> None:
        heard.append(progress.step)
        if len(heard) > after:
            raise InterruptedHere

    with pytest.raises(InterruptedHere), keeping(store, every=0), listening(listener):
        torch.manual_seed(5)
        attack.run(exchanges, known)


def resumed(
    attack: GradientInversion, exchanges: list[Exchange], known: Knowledge, store: Memory
) -> tuple[Reconstruction, int]:
    """The result, and how many steps were still made."""
    heard: list[Progress] = []
    with keeping(store, every=1e9), listening(heard.append):
        torch.manual_seed(5)
        return attack.run(exchanges, known), len(heard)


def without_resume(notes: tuple[str, ...]) -> list[str]:
    return [note for note in notes if not note.startswith("Resumed")]


def check(
    attack: GradientInversion, exchanges: list[Exchange], known: Knowledge, after: int, saved: int
) -> Reconstruction:
    """Interrupted after some steps, then resumed: equal to a run in one go, with `saved` steps fewer."""
    whole, steps = resumed(attack, exchanges, known, Memory())
    store = Memory()
    interrupted(attack, exchanges, known, store, after)
    found, remaining = resumed(attack, exchanges, known, store)
    assert any(note.startswith("Resumed") for note in found.notes)
    assert steps - remaining == saved
    assert torch.equal(found.values, whole.values)
    assert found.label_counts is not None and whole.label_counts is not None
    assert torch.equal(found.label_counts, whole.label_counts)
    assert without_resume(found.notes) == list(whole.notes)
    return found


def exchange(labels: list[int], model: nn.Module | None = None, *, seed: int = 0) -> Exchange:
    made = exchange_for(model or conv_net(SPEC), random_batch(SPEC, labels, seed=seed), LocalTraining())
    return replace(made, labels=None)


@pytest.mark.parametrize("after", [7, 24])
@pytest.mark.parametrize(
    "attack",
    [
        inverting_gradients(steps=25),
        inverting_gradients(steps=25, restarts=8),  # halved at steps 3, 8 and 15
        see_through_gradients(steps=25, restarts=3),  # noise at every step
        tag(steps=25, restarts=2),
    ],
)
def test_adam_goes_on_where_it_was(attack: GradientInversion, after: int) -> None:
    check(attack, [exchange([1, 3])], knowledge(SPEC, LocalTraining()), after, saved=after)


@pytest.mark.parametrize(("after", "saved"), [(1, 1), (5, 5)])
@pytest.mark.parametrize("attack", [deep_leakage(steps=30, restarts=2), idlg(steps=30, restarts=2)])
def test_lbfgs_goes_on_where_it_was(attack: GradientInversion, after: int, saved: int) -> None:
    """Three chunks for each of two restarts: inside the first, inside the second."""
    check(attack, [exchange([1, 3])], knowledge(SPEC, LocalTraining()), after, saved)


def test_of_several_updates_the_finished_ones_are_not_searched_again() -> None:
    exchanges = [exchange([1], seed=1), exchange([3], seed=2)]
    check(inverting_gradients(steps=20), exchanges, knowledge(SPEC, LocalTraining()), 25, saved=25)


def test_of_several_counts_the_finished_ones_are_not_searched_again() -> None:
    made = exchange([1, 3])
    hidden = replace(made, update=replace(made.update, num_examples=None))
    check(tag(steps=20, counts=[1, 2]), [hidden], knowledge(SPEC, LocalTraining()), 30, saved=30)


def test_rounds_of_steps_and_moves_go_on_where_they_were() -> None:
    model, spec = order_blind()
    made = exchange_for(model, Batch(torch.tensor([[4, 9, 2, 17, 23]]), torch.tensor([2])), LocalTraining())
    attack = lamp(steps=20, moves=5, rounds=3, distance="l1_l2")
    check(attack, [made], knowledge(spec, LocalTraining()), 30, saved=30)


def test_a_random_model_goes_on_with_the_same_randomness() -> None:
    local = LocalTraining(batch_norm="train")  # training mode: dropout draws at every step
    model = nn.Sequential(*conv_net(SPEC)[:-1], nn.Dropout(0.2), conv_net(SPEC)[-1])
    made = replace(exchange_for(model, random_batch(SPEC, [1]), local), labels=None)
    check(inverting_gradients(steps=20), [made], knowledge(SPEC, local), 9, saved=9)


def test_another_update_begins_anew() -> None:
    attack, known, store = inverting_gradients(steps=20), knowledge(SPEC, LocalTraining()), Memory()
    interrupted(attack, [exchange([1], seed=1)], known, store, 10)
    other = [exchange([1], seed=2)]
    found, steps = resumed(attack, other, known, store)
    assert steps == 20 and any("another update" in note for note in found.notes)
    assert torch.equal(found.values, attack.run(other, known).values)


@pytest.mark.parametrize("attack", [inverting_gradients(steps=20, tv=0.2), tag(steps=20)])
def test_another_attack_begins_anew(attack: GradientInversion) -> None:
    known, store, made = knowledge(SPEC, LocalTraining()), Memory(), [exchange([1])]
    interrupted(inverting_gradients(steps=20), made, known, store, 10)
    found, steps = resumed(attack, made, known, store)
    assert steps == 20 and any("was not used" in note for note in found.notes)


def test_a_cut_off_state_begins_anew() -> None:
    attack, known, store = inverting_gradients(steps=20), knowledge(SPEC, LocalTraining()), Memory()
    interrupted(attack, [exchange([1])], known, store, 10)
    store["0"] = store["0"][:-40]
    found, steps = resumed(attack, [exchange([1])], known, store)
    assert steps == 20 and sum("was not used" in note for note in found.notes) == 1


def test_seconds_of_the_interrupted_run_count_against_the_budget() -> None:
    attack, known, store = (
        inverting_gradients(steps=10**6, tv=0.1, budget=30),
        knowledge(SPEC, None),
        Memory(),
    )
    interrupted(attack, [exchange([1])], known, store, 3)
    kept = unpack(store["0"])
    store["0"] = pack({**kept, "seconds": 1000.0})
    found, steps = resumed(attack, [exchange([1])], known, store)
    assert steps == 1 and any("stopped by budget" in note for note in found.notes)

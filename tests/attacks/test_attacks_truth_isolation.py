"""No attack may see the truth: neither be handed it, nor change its answer when the truth is wiped, nor need
it: every attack gives the same answer in a process that never held it, crafting included.

Three independent checks for every registered attack, each with a cheating attack that it must catch; what
else cheats try is in tests/engine/isolation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seepage.attacks import ATTACKS, Attack
from seepage.attacks.closed_form.april import April
from seepage.attacks.closed_form.patch_embedding import PatchEmbedding
from seepage.attacks.closed_form.recursive_inversion import RecursiveInversion
from seepage.attacks.features.feature_inversion import FeatureInversion
from seepage.attacks.inversion.lamp import Lamp
from seepage.attacks.representatives.class_representatives import ClassRepresentatives
from seepage.attacks.sums.loki import Loki
from seepage.attacks.sums.scale_mia import ScaleMIA
from seepage.attacks.tables.exact_table import ExactTable
from seepage.attacks.tables.tableak import TabLeak
from seepage.attacks.text.decepticons import Decepticons
from seepage.attacks.text.embedding_rows import EmbeddingRows
from seepage.attacks.text.exact_text import ExactText
from seepage.core.types import (
    Batch,
    Crafted,
    Exchange,
    Grant,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Reconstruction,
)
from seepage.engine.isolation.attack import IsolatedAttack
from seepage.engine.isolation.process import AttackProcess
from seepage.models.loading import build_model
from seepage.protocol import THREATS, Played, client, knowledge, play

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 6, 6), num_classes=3)
QUICK: dict[str, dict[str, Any]] = {
    name: {"steps": 3}
    for name in (
        "deep_leakage",
        "idlg",
        "inverting_gradients",
        "feature_inversion",
        "see_through_gradients",
        "tag",
        "tableak",
        "class_representatives",
    )
}
"""Settings that make slow attacks quick; the default settings of the others are used."""
QUICK["amplification"] = {"factor": 100.0}
"""Nothing is saturated then. At 1e5 the last bits of a probe decide what a note says of label counts."""
QUICK["lamp"] = {"steps": 3, "moves": 3, "rounds": 2}
QUICK["adaptive"] = {"attack": "analytic_extraction", "knows": ["gaussian_noise", "pruning", "clipping"]}


def reachable_tensors(thing: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Every tensor that can be reached through attributes, containers, closures and modules."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, type | str | int | float | bool | None):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield thing
        return
    inside: list[Any] = []
    if isinstance(thing, Mapping):
        inside += thing.values()
    elif isinstance(thing, Sequence | set | frozenset):
        inside += thing
    if isinstance(thing, nn.Module):
        inside += [*thing.parameters(), *thing.buffers()]
    inside += [cell.cell_contents for cell in getattr(thing, "__closure__", None) or ()]
    inside += vars(thing).values() if hasattr(thing, "__dict__") and not callable(thing) else []
    if callable(thing) and hasattr(thing, "__self__"):
        inside.append(thing.__self__)
    if dataclasses.is_dataclass(thing):
        inside += [getattr(thing, f.name) for f in dataclasses.fields(thing)]
    for part in inside:
        yield from reachable_tensors(part, seen)


def holds_an_example(tensor: Tensor, truth: Batch) -> bool:
    """The tensor shares memory with the private inputs, or one of its rows is a private input."""
    if tensor.untyped_storage().data_ptr() == truth.inputs.untyped_storage().data_ptr():
        return True
    examples = truth.inputs.flatten(1)
    if tensor.numel() == 0 or tensor.numel() % examples.shape[1] or not tensor.is_floating_point():
        return False
    rows = tensor.detach().reshape(-1, examples.shape[1])
    return bool((rows.unsqueeze(1) == examples).all(dim=2).any())


def _fitting(attack: Attack) -> tuple[nn.Module, int]:
    """A model and a number of examples that this attack can work on."""
    if isinstance(attack, April):
        first_block = {"norm_first_block": False, "residual_first_block": False}
        return build_model("vit", SPEC, patch_size=3, dim=16, heads=2, **first_block), 1
    if isinstance(attack, PatchEmbedding):
        return build_model("vit", SPEC, patch_size=3, dim=16, heads=2), 1
    if isinstance(attack, RecursiveInversion):
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 40), nn.Tanh(), nn.Linear(40, 3)), 1
    if isinstance(attack, Loki):
        front = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten())
        return nn.Sequential(front, nn.Linear(216, 60), nn.ReLU(), nn.Linear(60, 3)), 2
    if isinstance(attack, FeatureInversion | ScaleMIA):
        front = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        return nn.Sequential(front, nn.Linear(18, 60), nn.ReLU(), nn.Linear(60, 3)), 2
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 40), nn.ReLU(), nn.Linear(40, 3)), 2


def _texts(attack: Attack) -> tuple[nn.Module, InputSpec, list[Batch], Batch] | None:
    """A small GPT-2 that tells three classes of texts apart, for the attacks that read texts."""
    if not isinstance(attack, Decepticons | EmbeddingRows | ExactText | Lamp):
        return None
    from tests.models.families import built, spec, texts

    described = spec(num_classes=3)
    model = build_model(built("gpt2", "SequenceClassification"), described)
    batches = [Batch(texts(2, seed=c), (torch.arange(2) + c) % 3) for c in range(3)]
    return model, described, batches, Batch(texts(16, seed=9), torch.arange(16) % 3)


def _learnt(attack: Attack) -> tuple[nn.Module, InputSpec, list[Batch], Batch] | None:
    """Pictures whose brightness is their class, and a model that knows it, for likenesses of classes."""
    if not isinstance(attack, ClassRepresentatives):
        return None
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    middle = 0.225 + 0.3 * torch.arange(3.0)
    with torch.no_grad():  # logits -40 (b - middle)^2 of the brightness b, up to what all classes share
        model[1].weight.copy_((80 * middle / 36).unsqueeze(1).expand(3, 36))
        model[1].bias.copy_(-40 * middle.square())

    def pictures(count: int) -> Batch:
        labels = torch.arange(count) % 3
        shade = 0.2 + 0.3 * labels.reshape(-1, 1, 1, 1)
        return Batch(shade + 0.05 * torch.rand(count, 1, 6, 6), labels)

    return model, SPEC, [pictures(3) for _ in range(3)], pictures(30)


def _rows(attack: Attack) -> tuple[nn.Module, InputSpec, list[Batch], Batch] | None:
    """A small table with two categories, for the attacks on those."""
    if not isinstance(attack, ExactTable | TabLeak):
        return None
    spec = InputSpec(
        modality=Modality.TABULAR,
        shape=(10,),
        num_classes=3,
        value_range=None,
        categories=((0, 1, 2, 3), (4, 5, 6, 7)),
    )

    def rows(count: int) -> Batch:
        one_hot = [torch.eye(4)[torch.randint(4, (count,))] for _ in range(2)]
        return Batch(torch.cat([*one_hot, torch.randn(count, 2)], dim=1), torch.arange(count) % 3)

    model = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 3))
    return model, spec, [rows(2) for _ in range(3)], rows(16)


def setting(attack: Attack, *, like: Attack | None = None) -> tuple[Played, Knowledge]:
    """Three clients' rounds against this attack, under a threat model that grants it what it requires.

    like: says which model fits, where the attack itself lives in another process."""
    torch.manual_seed(0)
    spec, public = SPEC, Batch(torch.rand(16, 1, 6, 6), torch.arange(16) % 3)
    model, each = _fitting(like or attack)
    batches = [Batch(torch.rand(each, 1, 6, 6), (torch.arange(each) + c) % 3) for c in range(3)]
    if (of_texts := _texts(like or attack)) is not None:
        model, spec, batches, public = of_texts
    if (of_classes := _learnt(like or attack)) is not None:
        model, spec, batches, public = of_classes
    if (of_rows := _rows(like or attack)) is not None:
        model, spec, batches, public = of_rows
    threat = dataclasses.replace(
        THREATS["malicious_server" if attack.active else "honest_but_curious"],
        grants=THREATS["malicious_server"].grants | attack.requires,
    )
    local = LocalTraining()
    known = knowledge(
        threat,
        "per_client",
        spec=spec,
        loss="cross_entropy",
        local=local,
        auxiliary=public,
        seed=0,
    )

    attack.check(model, known)

    def craft(model: nn.Module, history: Sequence[Exchange]) -> Crafted | None:
        return attack.craft(model, history, known)

    played = play(
        craft if attack.active else None,
        model,
        lambda _round: batches,
        step=client(local),
        threat=threat,
        max_rounds=8 if attack.active else 1,
    )
    return played, known


@pytest.fixture(scope="module")
def process() -> Iterator[AttackProcess]:
    started = AttackProcess()
    yield started
    started.stop()


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_the_answer_is_the_same_in_a_process_that_never_held_the_truth(
    name: str, process: AttackProcess
) -> None:
    settings = QUICK.get(name, {})
    rounds_here, here = answered(ATTACKS[name](**settings))
    apart = IsolatedAttack(name, settings, process=process)
    rounds_there, there = answered(apart, like=ATTACKS[name](**settings))
    assert rounds_here == rounds_there
    assert torch.equal(here.values, there.values)
    for field in ("claimed", "confidence", "support", "source", "label_counts", "words"):
        one, two = getattr(here, field), getattr(there, field)
        assert (one is None and two is None) or torch.equal(one, two)
    assert (here.space, here.notes, here.complete, here.rows) == (
        there.space,
        there.notes,
        there.complete,
        there.rows,
    )


def answered(attack: Attack, *, like: Attack | None = None) -> tuple[int, Reconstruction]:
    """Rounds played and the answer, crafting included."""
    played, known = setting(attack, like=like)
    torch.manual_seed(known.seed)
    return played.rounds, attack.run(played.exchanges, known)


class Peeking(Attack):
    """A cheat: it is handed the truth through an attribute."""

    truth: Batch | None = None

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        assert self.truth is not None
        return Reconstruction(values=self.truth.inputs.clone(), shared=True)


def given_to(attack: Attack, played: Played, known: Knowledge) -> list[Any]:
    return [attack, played.exchanges, known]


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_nothing_an_attack_is_given_holds_a_private_example(name: str) -> None:
    attack = ATTACKS[name](**QUICK.get(name, {}))
    played, known = setting(attack)
    tensors = list(reachable_tensors(given_to(attack, played, known)))
    assert len(tensors) > 8  # the walk does reach the updates and the model
    assert not any(holds_an_example(t, played.truth) for t in tensors)


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_wiping_the_truth_changes_no_answer(name: str) -> None:
    attack = ATTACKS[name](**QUICK.get(name, {}))
    played, known = setting(attack)
    torch.manual_seed(1)
    before = attack.run(played.exchanges, known)
    played.truth.inputs.zero_()
    played.truth.labels.zero_()
    torch.manual_seed(1)
    after = attack.run(played.exchanges, known)
    assert torch.equal(before.values, after.values)
    for field in ("claimed", "confidence", "support", "label_counts", "words"):
        one, two = getattr(before, field), getattr(after, field)
        assert (one is None and two is None) or torch.equal(one, two)


def test_both_checks_catch_a_cheat() -> None:
    attack = Peeking()
    played, known = setting(attack)
    attack.truth = played.truth
    assert any(holds_an_example(t, played.truth) for t in reachable_tensors(given_to(attack, played, known)))
    before = attack.run(played.exchanges, known)
    played.truth.inputs.zero_()
    assert not torch.equal(before.values, attack.run(played.exchanges, known).values)


def test_a_private_example_in_the_auxiliary_data_is_caught() -> None:
    played, known = setting(ATTACKS["prior_only"]())
    leaky = dataclasses.replace(known, auxiliary=Batch(played.truth.inputs[:1].clone(), torch.tensor([0])))
    assert any(holds_an_example(t, played.truth) for t in reachable_tensors([leaky]))


def test_public_examples_of_an_audit_are_nobodys() -> None:
    """The auditor draws them apart from every client's, for each seed."""
    from seepage.engine.prepare import prepare
    from seepage.engine.spec import parse_spec

    protocol = {"batch_size": 5, "clients": 3, "rounds": 2, "fresh_batches": True}
    prepared = prepare(parse_spec({"model": "mlp", "data": "photos", "protocol": protocol}))
    for seed in range(5):
        batches, public = prepared.draw(seed)
        assert public is not None and len(public) > 50
        for number in range(2):
            for batch in batches(number):
                assert not any(holds_an_example(batch.inputs[i : i + 1], public) for i in range(len(batch)))


def test_every_grant_is_hidden_unless_given() -> None:
    """With no grant at all nothing but the update and the model's public shape is left."""
    bare = dataclasses.replace(THREATS["outsider"], grants=frozenset())
    known = knowledge(
        bare,
        "per_client",
        spec=dataclasses.replace(SPEC, mean=(0.5,), std=(0.2,)),
        loss="cross_entropy",
        local=LocalTraining(),
        auxiliary=Batch(torch.rand(2, 1, 6, 6), torch.tensor([0, 1])),
        seed=0,
    )
    assert (known.local, known.auxiliary, known.input.value_range, known.input.mean) == (None,) * 4
    assert known.normalised
    assert Grant.LABELS not in bare.grants

"""What `check_attack` lets through, and the sentence for each thing that it does not."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from seepage.attacks import Attack
from seepage.attacks.reading.analytic_extraction import AnalyticExtraction
from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Exchange, Knowledge, Reconstruction
from seepage.testing import CheckFailed, check_attack


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("exact_extraction", {}),
        ("inverting_gradients", {"steps": 60, "tv": 0.1}),
        ("trap_weights", {}),
        ("class_fishing", {}),
    ],
)
def test_attacks_of_seepage_pass(name: str, settings: dict[str, Any]) -> None:
    found = check_attack(name, **settings)
    assert found.status == "done" and "psnr" in found.scores


class Reads(AnalyticExtraction):
    """An attack that works, for others to go wrong in one point each."""

    def __init__(self) -> None:
        super().__init__()

    def answer(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        return super().reconstruct(exchanges, known)


class Halves(Reads):
    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        for exchange in exchanges:
            for tensor in exchange.update.tensors.values():
                tensor.mul_(0.5)
        return self.answer(exchanges, known)


class Trains(Reads):
    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        with torch.no_grad():
            next(exchanges[0].broadcast.model.parameters()).add_(1.0)
        return self.answer(exchanges, known)


class Flat(Reads):
    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        found = self.answer(exchanges, known)
        return replace(found, values=found.values.flatten(1))


class NotANumber(Reads):
    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        found = self.answer(exchanges, known)
        return replace(found, values=found.values * torch.nan)


class NoSource(Reads):
    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        return replace(self.answer(exchanges, known), source=None)


class Nothing(Reads):
    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Any:
        return None


class Unseeded(Reads):
    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        found = self.answer(exchanges, known)
        noise = torch.rand(
            found.values.shape, generator=torch.Generator().manual_seed(hash(object()) % 2**31)
        )
        return replace(found, values=found.values + noise)


class Remembers(Reads):
    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        self.runs += 1
        found = self.answer(exchanges, known)
        return replace(found, values=found.values + self.runs)


class Divides(Reads):
    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        total = sum(float(t.abs().sum()) for t in exchanges[0].update.tensors.values())
        assert 1 / total > 0
        return self.answer(exchanges, known)


class Counts(Reads):
    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        range(exchanges[0].update.num_examples)  # type: ignore[arg-type]
        return self.answer(exchanges, known)


class Guesses(Reads):
    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        values = torch.zeros(len(exchanges), *known.input.shape)
        return Reconstruction(values=values, source=torch.arange(len(exchanges)))


class ForOthers(Reads):
    def check(self, model: nn.Module, known: Knowledge) -> None:
        raise NotApplicable("it has no transformer.")


class Overrides(Reads):
    def run(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:  # type: ignore[misc]
        return self.reconstruct(exchanges, known)


class Untyped(Reads):
    def __init__(self, *, steps=3) -> None:  # type: ignore[no-untyped-def]
        super().__init__()


class WrongGrant(Reads):
    requires = frozenset({"the_data"})  # type: ignore[assignment]


BAD: list[tuple[Callable[[], Attack], str]] = [
    (Halves, "changes a model or an update that it was given: work on copies"),
    (Trains, "changes a model or an update that it was given: work on copies"),
    (Flat, r"candidates have shape \(36,\), but an example has \(1, 6, 6\): reshape them"),
    (NotANumber, "NaN or infinite"),
    (NoSource, "give `source`"),
    (Nothing, "raised (TypeError|AttributeError)"),
    (Unseeded, "another answer to the same updates the second time: draw all that is random"),
    (Remembers, "another answer to the same updates the second time: .* keep nothing from one run"),
    (Divides, "on an update that is zero everywhere, raised ZeroDivisionError"),
    (Counts, "on an update of an unknown number of examples, raised TypeError"),
    (Guesses, "psnr is .* where the best guess without any update has .*: it reads nothing"),
    (ForOthers, "does not work on what it is checked on .it has no transformer"),
    (Overrides, "overrides run or next_model"),
    (Untyped, "the setting 'steps' of the attack has no type: annotate it"),
    (WrongGrant, "requires names .'the_data'., which no threat model grants"),
]


@pytest.mark.parametrize(("build", "said"), BAD, ids=lambda one: getattr(one, "__name__", ""))
def test_what_is_wrong_is_one_sentence(build: Callable[[], Attack], said: str) -> None:
    with pytest.raises(CheckFailed, match=f"(?i){said}") as failure:
        check_attack(build())
    assert "\n" not in str(failure.value)


class Peeks(Attack):
    """Looks for the clients' batches in the memory of its process."""

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        found = [
            one.inputs
            for one in gc.get_objects()
            if isinstance(one, Batch) and len(one.inputs) < 4 and one.inputs.shape[1:] == known.input.shape
        ]
        values = torch.cat([*found, torch.zeros(len(exchanges), *known.input.shape)])[: len(exchanges)]
        return Reconstruction(values=values.clone(), source=torch.arange(len(exchanges)))


class ReadsAFile(Attack):
    """Reads a file that no server has."""

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        Path(FILE).read_text()
        return AnalyticExtraction().reconstruct(exchanges, known)


FILE = Path(__file__).parents[2] / "README.md"


def test_cheats_are_caught() -> None:
    with pytest.raises(CheckFailed, match="another answer in a process that never held the clients' data"):
        check_attack(Peeks())
    with pytest.raises(CheckFailed, match=r"cannot do without something that a server does not have"):
        check_attack(ReadsAFile())


def test_what_is_no_attack_at_all() -> None:
    class Plain:
        pass

    with pytest.raises(CheckFailed, match="this is a Plain: derive it from seepage's Attack"):
        check_attack(Plain)
    with pytest.raises(CheckFailed, match="no signature found for builtin type"):
        check_attack(dict)
    with pytest.raises(CheckFailed, match="give a class, or a function that builds it"):
        check_attack(3)

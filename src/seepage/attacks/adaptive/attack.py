"""Any attack, by a server that knows which defense its clients use (and its settings: they are public).

Before the attack runs, the defense is undone as far as it can be; attacks that match updates compare only
what the defense left. The plain attack's answer stays beside it, for nobody is bound to use what he knows.
A heuristic defense is worth what it stops of this, not what it does to attacks that do not expect it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from seepage.attacks import ATTACKS, Attack
from seepage.attacks.adaptive.answers import ANSWERS, Answer, answer_to
from seepage.attacks.adaptive.both import with_plain
from seepage.attacks.adaptive.copies import with_copies_counted, without_claims_on_copies
from seepage.attacks.adaptive.matching import unchanged
from seepage.attacks.adaptive.spoiled import next_best
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.registry import unknown
from seepage.core.settings import construct
from seepage.core.types import Crafted, Exchange, Knowledge, Reconstruction
from seepage.models.layers import trace_linear_layers

Known = tuple[Answer, Mapping[str, Any]]
"""An answer with the defense's settings."""
Build = Callable[[str | None], Attack]

READ_ONE_LAYER = frozenset({"analytic_extraction", "exact_extraction", "trap_weights", "quantile_traps"})
"""Attacks whose setting `layer` names the dense layer that is read."""


class Adaptive(Attack):
    """Runs an attack on updates from which the known defenses were removed, the outermost first.

    build: makes the attack, told which layer to read, or None for its own choice.
    """

    def __init__(self, build: Build, answers: Sequence[Known]) -> None:
        self.answers = tuple(answers)
        self.build = build
        self.inner = self._built(None)
        self.requires = self.inner.requires
        self.copies = math.prod(answer.copies(settings) for answer, settings in self.answers)
        self._restored: list[tuple[Exchange, Exchange, tuple[str, ...]]] = []

    def check(self, model: nn.Module, known: Knowledge) -> None:
        self._attack(model, known)[0].check(model, known)

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Crafted | None:
        if not history:
            self._restored.clear()
        attack, _ = self._attack(model, known)
        return attack.craft(model, [self._restore(e, known)[0] for e in history], known)

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        restored = [self._restore(e, known) for e in exchanges]
        self._restored.clear()
        attack, moved = self._attack(exchanges[0].broadcast.model, known)
        notes = dict.fromkeys((*moved, *(note for _, told in restored for note in told)))
        found = attack.reconstruct([e for e, _ in restored], known)
        found = without_claims_on_copies(found, self.copies).with_notes(*notes)
        return self._and_plain(found, exchanges, [e for e, _ in restored], known)

    def _and_plain(
        self, found: Reconstruction, sent: Sequence[Exchange], restored: Sequence[Exchange], known: Knowledge
    ) -> Reconstruction:
        """With the plain attack's answer beside it, where that is another one.

        A server that crafts has played its rounds by what it knows.
        """
        same = all(_untouched(a, b) for a, b in zip(sent, restored, strict=True))
        if self.active or self.copies > 1 or (same and self._compares_alike()):
            return found
        try:
            return with_plain(found, self.build(None).reconstruct(sent, known))
        except NotApplicable:
            return found

    def _compares_alike(self) -> bool:
        return all(answer.distance is unchanged for answer, _ in self.answers)

    def _attack(self, model: nn.Module, known: Knowledge) -> tuple[Attack, tuple[str, ...]]:
        """The attack, sent to another layer where the usual one says nothing."""
        layers = trace_linear_layers(model, known.input)
        spoiled = {name for answer, settings in self.answers for name in answer.spoiled(layers, settings)}
        layer = next_best(layers, spoiled)
        if layer is None:
            return self.inner, ()
        return self._built(layer), (
            f"Knowing the defense: layer '{layer}' is read where one can be chosen, for what comes before is "
            "not sent.",
        )

    def _built(self, layer: str | None) -> Attack:
        """The attack, its searches given the distances that the answers ask for."""
        attack = self.build(layer)
        for answer, _ in self.answers:
            attack = attack.matching_by(answer.distance)
        return attack

    def _restore(self, exchange: Exchange, known: Knowledge) -> tuple[Exchange, tuple[str, ...]]:
        """Once for each exchange: a search over rounds sees its history again and again."""
        for seen, done, notes in self._restored:
            if seen is exchange:
                return done, notes
        restored, told = with_copies_counted(exchange, self.copies), tuple[str, ...]()
        for answer, settings in self.answers:
            tensors, notes = answer.restore(restored, known, settings)
            update = replace(restored.update, tensors={**restored.update.tensors, **tensors})
            restored, told = replace(restored, update=update), (*told, *notes)
        self._restored.append((exchange, restored, told))
        return restored, told


def _untouched(sent: Exchange, restored: Exchange) -> bool:
    pairs = ((t, restored.update.tensors[name]) for name, t in sent.update.tensors.items())
    return all(before is after or torch.equal(before, after) for before, after in pairs)


def adaptive(
    *,
    attack: str = "analytic_extraction",
    options: Mapping[str, Any] | None = None,
    knows: Sequence[str | Mapping[str, Any]] = (),
) -> Adaptive:
    """Any other attack, by a server that knows the clients' defense and undoes what can be undone of it.

    attack, options: the attack that is adapted, and its settings.
    knows: the defenses, the outermost first, by name or as {name = "clipping", norm = 0.1}. An audit with
    defenses adds adapted attacks by itself.

    >>> adaptive(attack="exact_extraction", knows=["pruning"]).active
    False
    """
    if attack == "adaptive":
        raise SpecError("an adaptive attack cannot be adapted again: name the attack inside it.")
    factory = ATTACKS.find(attack)
    fishes = "inner" in inspect.signature(factory).parameters

    def build(layer: str | None) -> Attack:
        chosen = dict(options or {})
        if layer is not None and attack in READ_ONE_LAYER:
            chosen.setdefault("layer", layer)
        if layer is not None and fishes and chosen.get("inner", "analytic_extraction") in READ_ONE_LAYER:
            chosen["inner_options"] = {"layer": layer, **(chosen.get("inner_options") or {})}
        built: Attack = construct(factory, chosen, f"attack '{attack}'")
        return built

    return Adaptive(build, [_answer(defense) for defense in knows])


def _answer(defense: str | Mapping[str, Any]) -> Known:
    settings = {"name": defense} if isinstance(defense, str) else dict(defense)
    name = str(settings.pop("name", ""))
    answer = answer_to(name)
    if answer is None:
        raise SpecError(unknown("defense that an attack can adapt to", name, ANSWERS))
    return answer, settings

"""Measurements of one's own: functions that see what was played, what came out and how it was scored."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from seepage.attacks import Attack
from seepage.core.errors import SpecError
from seepage.core.registry import import_thing, unknown
from seepage.core.settings import construct
from seepage.core.types import Knowledge, Reconstruction
from seepage.data import Dataset
from seepage.engine.scoring import Scored
from seepage.engine.spec import ProbeSpec
from seepage.protocol import Played


@dataclass(frozen=True)
class Seen:
    """One finished attack on one seed, with the truth: a probe measures, it does not attack."""

    data: Dataset
    played: Played
    attack: Attack
    known: Knowledge
    """What the attack was told."""
    result: Reconstruction
    scored: Scored
    seed: int


def check_probes(probes: Sequence[ProbeSpec]) -> None:
    """A function that is not there, or a setting that it does not know: said before anything runs."""
    for probe in probes:
        valid = list(inspect.signature(import_thing(probe.name, function=True)).parameters)[1:]
        for name in probe.options:
            if name not in valid:
                raise SpecError(unknown(f"setting of probe '{probe.name}'", name, valid))


def run_probes(probes: Sequence[ProbeSpec], seen: Seen) -> dict[str, float]:
    """What all of them measured, by name."""
    found: dict[str, float] = {}
    for probe in probes:
        measured = construct(
            partial(import_thing(probe.name, function=True), seen), probe.options, f"probe '{probe.name}'"
        )
        found |= {name: float(value) for name, value in measured.items()}
    return found

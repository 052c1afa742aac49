"""What the defenses of an audit promise: epsilon, with everything that it depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seepage.auditor.spec import AuditSpec, DefenseSpec
from seepage.defenses import epsilon, uses_per_round
from seepage.guardian import ALL_DEFENSES
from seepage.log import AttackRef, DefenseRecord
from seepage.types import LocalTraining

ACCOUNTANT = "exact composition of the Gaussian mechanism (Balle & Wang 2018)"
EXAMPLE, CLIENT = "one example", "one client"


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """A Gaussian mechanism as it is used in one round, at sampling rate 1."""

    protects: str
    """The neighbours that epsilon is about: an example, or a whole client."""
    sigma: float
    uses_per_round: int


def mechanism(
    name: str, settings: Mapping[str, Any], *, local: LocalTraining, batch_size: int
) -> Mechanism | None:
    """None for a heuristic, and for a mechanism whose noise is left out: it bounds nothing.

    >>> mechanism("dp_sgd", {"sigma": 2.0}, local=LocalTraining(), batch_size=8)
    Mechanism(protects='one example', sigma=2.0, uses_per_round=1)
    """
    sigma = float(settings.get("sigma", 0.0))
    if sigma <= 0:
        return None
    if name == "dp_sgd":
        return Mechanism(protects=EXAMPLE, sigma=sigma, uses_per_round=uses_per_round(local, batch_size))
    if name == "central_dp" and settings["server_honest"]:
        return Mechanism(protects=CLIENT, sigma=sigma, uses_per_round=1)
    return None


def mechanism_of(wanted: DefenseSpec, local: LocalTraining, batch_size: int) -> Mechanism | None:
    """The same for a defense of a spec, with its defaults."""
    settings = {**ALL_DEFENSES[wanted.name].settings, **wanted.options}
    return mechanism(wanted.name, settings, local=local, batch_size=batch_size)


def defense_records(
    spec: AuditSpec, local: LocalTraining, *, rounds: int | None = None
) -> tuple[DefenseRecord, ...]:
    """The defenses of an audit, in its order, after so many rounds; by default the protocol's."""
    played = spec.protocol.rounds if rounds is None else rounds
    return tuple(_record(wanted, spec, local, played) for wanted in spec.defenses)


def _record(wanted: DefenseSpec, spec: AuditSpec, local: LocalTraining, rounds: int) -> DefenseRecord:
    entry = ALL_DEFENSES[wanted.name]
    found = mechanism_of(wanted, local, spec.protocol.batch_size)
    plain = DefenseRecord(
        defense=AttackRef(name=wanted.name, params=wanted.options),
        description=entry.description,
        guarantee="heuristic" if found is None else entry.guarantee,
        runs_at=entry.runs_at,
        trusts=entry.trusts,
    )
    if found is None:
        return plain
    # A client's batches take turns; a client itself is in every round.
    turns = spec.protocol.rounds if spec.protocol.fresh_batches and found.protects == EXAMPLE else 1
    steps = -(-rounds // turns) * found.uses_per_round
    return plain.model_copy(
        update={
            "protects": found.protects,
            "sigma": found.sigma,
            "steps": steps,
            "uses_per_round": found.uses_per_round,
            "sampling_rate": 1.0,
            "accountant": ACCOUNTANT,
            "epsilon": epsilon(sigma=found.sigma, delta=spec.delta, steps=steps),
            "delta": spec.delta,
        }
    )


def known_settings(defenses: Sequence[DefenseSpec], names: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those defenses that an attacker has an answer to (`names`), with the settings that are public."""
    found = []
    for wanted in defenses:
        if wanted.name in names:
            settings = {**ALL_DEFENSES[wanted.name].settings, **wanted.options}
            public = {k: v for k, v in settings.items() if v is not None and k != "seed"}
            found.append({"name": wanted.name, **public})
    return found

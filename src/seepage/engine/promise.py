"""What the defenses of an audit promise: epsilon, with everything that it depends on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from seepage.core.errors import SpecError
from seepage.core.types import LocalTraining
from seepage.defenses import DEFENSES, epsilon, uses_per_round
from seepage.defenses.calibration import settled_sigma
from seepage.defenses.entry import Schedule
from seepage.engine.spec import AuditSpec, DefenseSpec
from seepage.record import DefenseRecord, DefenseRef
from seepage.record.header import epsilon_text

if TYPE_CHECKING:
    from seepage.engine.grid import TrainingSpec

ACCOUNTANT = "exact composition of the Gaussian mechanism (Balle & Wang 2018)"
SAMPLED = (
    "privacy loss distributions of the Poisson-sampled Gaussian mechanism (dp-accounting), an upper bound"
)
EXAMPLE, USER, CLIENT = "one example", "one user", "one client"
LOCAL_DP, SVT = "flower:LocalDpMod", "nvflare:SVTPrivacy"


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """A Gaussian mechanism as it is used in one round."""

    protects: str
    """The neighbours that epsilon is about: an example, or a whole client."""
    sigma: float
    uses_per_round: int


def schedule_of(spec: AuditSpec, training: TrainingSpec | None = None) -> Schedule:
    """How often the deployment uses an example: over the training, where there is one, else over its rounds.

    >>> from seepage.engine.spec import parse_spec
    >>> protocol = {"batch_size": 8, "holds": 80, "rounds": 5}
    >>> spec = parse_spec({"model": "mlp", "data": "digits", "protocol": protocol})
    >>> schedule_of(spec).sampling_rate
    0.1
    """
    protocol = spec.protocol
    if training is None:
        batch, rounds, rate = protocol.batch_size, protocol.rounds, 1.0
        turns = rounds if protocol.fresh_batches else 1
        if protocol.holds is not None:
            turns, rate = 1, batch / protocol.holds
    else:
        batch, rounds = training.batch_size or protocol.batch_size, training.rounds
        assert isinstance(training.examples, int)  # `Points.training` has settled it
        turns, rate = training.examples // batch, 1.0
        if training.poisson:
            turns, rate = 1, training.rate or batch / training.examples
            batch = max(1, round(rate * training.examples))
    return Schedule(rounds=rounds, turns=turns, batch_size=batch, sampling_rate=rate, delta=spec.delta)


def mechanism(
    name: str, settings: Mapping[str, Any], *, local: LocalTraining, planned: Schedule
) -> Mechanism | None:
    """None for a heuristic, and for a mechanism whose noise is left out: it bounds nothing.

    planned: what a target epsilon among the settings is for.

    >>> mechanism("dp_sgd", {"sigma": 2.0}, local=LocalTraining(), planned=Schedule(batch_size=8))
    Mechanism(protects='one example', sigma=2.0, uses_per_round=1)
    """
    if name == LOCAL_DP:
        noise = local_dp_noise(settings)
        return None if noise <= 0 else Mechanism(protects=CLIENT, sigma=noise, uses_per_round=1)
    noised = name in {"dp_sgd", "user_dp"} or (name == "central_dp" and settings["server_honest"])
    if not noised:
        return None
    client = name != "dp_sgd"
    uses = 1 if client else uses_per_round(local, planned.batch_size)
    target = settings.get("epsilon")
    try:
        sigma = settled_sigma(name, settings["sigma"], target, planned, uses=uses, client=client)
    except ValueError as error:
        raise SpecError(f"defense '{name}': {error}.") from None
    if sigma <= 0:
        return None
    whose = CLIENT if client else USER if settings.get("user_examples", 1) > 1 else EXAMPLE
    return Mechanism(protects=whose, sigma=sigma, uses_per_round=uses)


def local_dp_noise(settings: Mapping[str, Any]) -> float:
    """Of Flower's LocalDpMod: its noise over what one update can really move, the norm it is clipped to.

    >>> local_dp_noise({"clipping_norm": 2.0, "sensitivity": 2.0, "epsilon": 1.0, "delta": 1e-5}) > 4.8
    True
    """
    if not {"clipping_norm", "sensitivity", "epsilon", "delta"} <= set(settings):
        return 0.0  # the defense itself says which is missing
    if settings["epsilon"] <= 0 or not 0 < settings["delta"] < 1:
        return 0.0
    # the deviation for a sensitivity of 1 by Flower's formula (Dwork & Roth 2014, Theorem A.1)
    each = math.sqrt(2 * math.log(1.25 / settings["delta"])) / settings["epsilon"]
    return float(settings["sensitivity"] * each / settings["clipping_norm"])


def broken_promise(name: str, settings: Mapping[str, Any]) -> str:
    """What the settings promise and do not keep; empty where there is nothing of the kind.

    >>> kept = {"clipping_norm": 1.0, "sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5}
    >>> broken_promise("flower:LocalDpMod", kept)
    ''
    >>> broken_promise("flower:LocalDpMod", {**kept, "sensitivity": 1e-4, "epsilon": 10.0})
    'epsilon = 10 was asked for, and the noise fits a sensitivity of 0.0001, but a clipped update can move \
by 1: what holds is ε = 213106545 at δ = 1e-05 a round'
    """
    if name == SVT:
        return _svt_promise(settings)
    noise = local_dp_noise(settings) if name == LOCAL_DP else 0.0
    if noise <= 0:
        return ""
    holds = epsilon(sigma=noise, delta=settings["delta"])
    if holds <= settings["epsilon"]:
        return ""
    why = (
        f"the noise fits a sensitivity of {settings['sensitivity']:g}, but a clipped update can move by "
        f"{settings['clipping_norm']:g}"
        if settings["sensitivity"] < settings["clipping_norm"]
        else "the formula of the noise is proven up to epsilon = 1 only"
    )
    return (
        f"epsilon = {settings['epsilon']:g} was asked for, and {why}: what holds is ε = "
        f"{epsilon_text(holds)} at δ = {settings['delta']:g} a round"
    )


def _svt_promise(settings: Mapping[str, Any]) -> str:
    """SVTPrivacy's `epsilon` pays for the choice of entries; what releasing them costs is another budget,
    by default `noise_var` for each (its own accountant adds both)."""
    if settings.get("epsilon_release") is not None:
        return ""
    thousand = 1000 * settings["fraction"] * settings["noise_var"]
    return (
        f"epsilon = {settings['epsilon']:g} pays for choosing the entries alone; releasing them costs "
        f"{thousand:g} more for every 1,000 weights of the model, a round"
    )


def defense_records(
    spec: AuditSpec,
    local: LocalTraining,
    *,
    rounds: int | None = None,
    planned: Schedule | None = None,
    lived: Schedule | None = None,
) -> tuple[DefenseRecord, ...]:
    """The defenses of an audit, in its order.

    lived: what the promise is stated for, by default the protocol, with so many `rounds` if they are given.
    planned: what a target epsilon was translated for, by default the protocol too.
    """
    lived = schedule_of(spec) if lived is None else lived
    lived = lived if rounds is None else replace(lived, rounds=rounds)
    planned = schedule_of(spec) if planned is None else planned
    return tuple(_record(wanted, local, planned, lived) for wanted in spec.defenses)


def _record(wanted: DefenseSpec, local: LocalTraining, planned: Schedule, lived: Schedule) -> DefenseRecord:
    entry = DEFENSES.find(wanted.name)
    settings = {**entry.settings, **wanted.options}
    found = mechanism(wanted.name, settings, local=local, planned=planned)
    plain = DefenseRecord(
        broken=broken_promise(wanted.name, settings),
        defense=DefenseRef(name=wanted.name, params=wanted.options),
        description=entry.description,
        guarantee="heuristic" if found is None else entry.guarantee,
        runs_at=entry.runs_at,
        trusts=entry.trusts,
    )
    if found is None:
        return plain
    # A client's batches take turns, or are drawn anew; a client itself is in every round.
    rounds, rate = (lived.rounds, 1.0) if found.protects == CLIENT else (lived.releases, lived.sampling_rate)
    steps = rounds * found.uses_per_round
    return plain.model_copy(
        update={
            "protects": found.protects,
            "sigma": found.sigma,
            "steps": steps,
            "uses_per_round": found.uses_per_round,
            "sampling_rate": rate,
            "accountant": ACCOUNTANT if rate == 1 else SAMPLED,
            "epsilon": epsilon(sigma=found.sigma, delta=lived.delta, steps=steps, sampling_rate=rate),
            "delta": lived.delta,
        }
    )

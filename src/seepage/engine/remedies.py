"""What could be changed about a deployment that leaks: a short study of it, inside the audit's own budget.

Every candidate is a defense or a change of the protocol that the engine can play. Each is attacked by what
has leaked most, and trained for a few rounds for its price; the report lists what was measured and no other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from seepage.core.errors import SeepageError
from seepage.defenses import noise_multiplier, uses_per_round
from seepage.engine.executors.work import one_thread
from seepage.engine.grid import Grid, Point, TrainingSpec
from seepage.engine.points import Points
from seepage.engine.spec import AttackSpec, AuditSpec, DefenseSpec
from seepage.engine.study import NONE
from seepage.engine.training import train_cell
from seepage.engine.tuning import COST
from seepage.record import AttackRef, DefenseRef

SHARE = 0.25
"""Of an audit's budget: what is kept back for its advice. A choice; more of it leaves less for attacks."""
TARGET_EPSILON = 8.0
"""Over the whole short training: about the largest that deployments publish for training with differential
privacy (Ponomareva et al. 2023, "How to DP-fy ML", tier 2 ends at 10)."""
_MOST_ATTACKS, _MOST_SEEDS, _TRAININGS = 2, 3, 2
_FEWEST_ROUNDS, _MOST_ROUNDS = 8, 60
"""Of the short training: with fewer the price says nothing, and it is left out."""
_LEAST_TESTED, _MOST_TESTED = 32, 256
_FOR_TRAINING = 0.4
"""Of the time: attacks get the rest, and what comes last may not be measured."""
_AROUND = 0.3
"""Seconds of a cell besides its attack: playing, matching and scoring of a small model."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much larger than the deployment's own a candidate may be, given so many examples of data."""

    factor: int
    clients: int
    tested: int

    @classmethod
    def of(cls, batch_size: int, clients: int, examples: int) -> Scale | None:
        """The largest that fits; None where even the smallest does not.

        >>> Scale.of(20, 1, 1797), Scale.of(20, 1, 200), Scale.of(100, 1, 200)
        (Scale(factor=4, clients=8, tested=256), Scale(factor=2, clients=2, tested=80), None)
        """
        for factor, wanted in ((4, 8), (4, 4), (2, 4), (2, 2)):
            at_least = max(wanted, clients)
            # half as many again choose the learning rate
            left = 2 * (examples - at_least * factor * batch_size) // 3
            if left >= _LEAST_TESTED:
                return cls(factor=factor, clients=at_least, tested=min(_MOST_TESTED, left))
        return None


def remedies(spec: AuditSpec, scale: Scale, *, crafted: bool, rounds: int) -> Iterator[DefenseRef]:
    """What to add to the deployment's own defenses, in the order in which it is tried: what runs out of time
    is what costs most to measure and stops least.

    One update is attacked, then one of `factor` times the examples, then `clients` updates; behind local
    steps it is searched for (two thirds of the attacks' time on the demonstration). rounds: of the training.
    """
    if crafted:
        yield _remedy("refuse_traps")
    yield _remedy("share_layers")
    uses = -(-rounds // scale.factor)  # a client's batches take turns
    yield _remedy("dp_sgd", clip=1.0, sigma=noise_for(TARGET_EPSILON, spec, rounds=uses))
    yield _remedy("gate")
    yield _remedy("larger_batches", factor=scale.factor)
    if spec.protocol.aggregation == "per_client":
        yield _remedy("secure_sum", clients=scale.clients)
    if spec.protocol.algorithm == "fedsgd":
        yield _remedy("local_averaging", batches=scale.factor)


def noise_for(target: float, spec: AuditSpec, *, rounds: int) -> float:
    """DP-SGD's noise multiplier for this epsilon over so many rounds that use the same example.

    >>> from seepage.engine.spec import parse_spec
    >>> noise_for(8.0, parse_spec({"model": "mlp", "data": "digits"}), rounds=1)
    0.7
    """
    steps = rounds * uses_per_round(spec.protocol.local_training, spec.protocol.batch_size)
    root = noise_multiplier(epsilon=target, delta=spec.delta, steps=steps)
    return math.ceil(10 * root) / 10  # rounded up to a figure that can be typed: epsilon falls with it


def _remedy(name: str, **settings: Any) -> DefenseRef:
    return DefenseRef(name=name, params=settings)


def advice_grid(
    audit: Grid, *, attacks: Sequence[tuple[AttackRef, float]], crafted: bool, seconds: float
) -> Grid:
    """The short study of an audited deployment: as it is, and with each remedy that fits it.

    attacks: those that leaked, the strongest first, with their seconds in one cell. seconds: for everything.
    """
    spec = audit.points[0].spec
    chosen = [AttackSpec(name=ref.name, options=ref.params) for ref, _ in attacks[:_MOST_ATTACKS]]
    shared = spec.model_copy(update={"attacks": tuple(chosen), "budget": None, "fail_on": {}})
    plain = Points(replace(audit, points=(_point(shared, None, None),)))
    examples = len(plain[0].dataset)
    scale = Scale.of(spec.protocol.batch_size, spec.protocol.clients, examples)
    if scale is None:
        scale, training = Scale(factor=2, clients=max(2, spec.protocol.clients), tested=0), None
    else:
        training = _training(audit, shared, scale, seconds)
    rounds = _MOST_ROUNDS if training is None else training.rounds
    wanted = [*remedies(spec, scale, crafted=crafted, rounds=rounds)]
    each = sum(taken for _, taken in attacks[:_MOST_ATTACKS]) + _AROUND
    count = int(0.5 * seconds / (2 * each * scale.factor * (1 + len(wanted))))
    shared = shared.model_copy(update={"seeds": spec.seeds[: max(1, min(count, _MOST_SEEDS))]})
    points = [_point(shared, None, training)]
    points += [_point(shared, one, training) for one in wanted]
    return _fitting(
        replace(
            audit,
            kind="study",
            title=f"{audit.title}: what to change",
            points=tuple(points),
            budget=seconds,
            advice=True,
            asked={
                **shared.model_dump(mode="json"),
                "training": (training or TrainingSpec(rounds=1)).model_dump(mode="json"),
                "prior_success": 0.01,
            },
        )
    )


def _point(spec: AuditSpec, remedy: DefenseRef | None, training: TrainingSpec | None) -> Point:
    ref = remedy or DefenseRef(name=NONE)
    added = () if remedy is None else (DefenseSpec(name=ref.name, options=ref.params),)
    own = spec.model_copy(update={"defenses": (*added, *spec.defenses), "title": ref.title})
    return Point(spec=own, key=ref.key, title=ref.title, training=training, defense=ref)


def _training(audit: Grid, spec: AuditSpec, scale: Scale, seconds: float) -> TrainingSpec | None:
    """As many rounds as two fifths of the time allow; None where they are too few to say anything."""
    if spec.recorded is not None:
        return None
    wanted = TrainingSpec(
        rounds=1,
        clients=scale.clients,
        examples=scale.factor * spec.protocol.batch_size,
        test_examples=scale.tested,
        seeds=spec.seeds[:_TRAININGS],
        tuned=True,
    )
    points = Points(replace(audit, points=(_point(spec, None, wanted),)))
    try:
        taken = []
        for rounds in (1, 3):  # the first call also loads what is needed
            begun = time.process_time()  # other people's work does not shorten the training
            with one_thread():
                train_cell(points.trained(0), spec.seeds[0], rounds)
            taken.append(time.process_time() - begun)
    except SeepageError:
        return None
    trainings = _TRAININGS * (1 + len([*remedies(spec, scale, crafted=True, rounds=1)]))
    rounds = int(_FOR_TRAINING * seconds / (trainings * COST * max(taken[1] / 3, 1e-6)))
    if rounds < _FEWEST_ROUNDS:
        return None
    return wanted.model_copy(update={"rounds": min(rounds, _MOST_ROUNDS)})


def _fitting(grid: Grid) -> Grid:
    """Without the points that this deployment cannot be changed into."""
    points = Points(grid)
    kept = []
    for number, point in enumerate(grid.points):
        try:
            points.check_point(number)
        except SeepageError:
            if number == 0:
                raise
            continue
        kept.append(point)
    return replace(grid, points=tuple(kept))

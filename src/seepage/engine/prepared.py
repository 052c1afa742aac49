"""A checked audit, ready to run: its parts, and what they draw and build for one seed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks import Attack
from seepage.core.errors import SpecError
from seepage.core.registry import unknown
from seepage.core.settings import construct
from seepage.core.types import Batch, Defense, InputSpec, LocalTraining
from seepage.data import Dataset, standardised
from seepage.defenses import DefenseEntry, Deployment
from seepage.defenses.canaries import Canaries
from seepage.defenses.entry import Schedule
from seepage.engine.checks import check_order
from seepage.engine.identity import CodeReader, state
from seepage.engine.identity.code import Code
from seepage.engine.isolation.attack import planned_attack
from seepage.engine.measures import wrappers
from seepage.engine.probes import check_probes
from seepage.engine.promise import schedule_of
from seepage.engine.recorded import Recorded
from seepage.engine.seeds import private_seed
from seepage.engine.spec import AuditSpec, DefenseSpec, ModelSpec
from seepage.metrics import Metric
from seepage.models.loading import build_model
from seepage.protocol import ThreatModel, draw_clients
from seepage.protocol.copies import frozen_of, own_copy
from seepage.protocol.threat import sees_each_update
from seepage.record import AttackRef, NotTried


@dataclass(frozen=True)
class Prepared:
    """A checked audit, ready to run: nothing in it can fail for a reason that the user could have known."""

    spec: AuditSpec
    dataset: Dataset
    threat: ThreatModel
    refs: tuple[AttackRef, ...]
    """The baseline first; nothing else as long as `auto` has not chosen."""
    attacks: Mapping[str, Attack]
    """By `AttackRef.key`."""
    local: LocalTraining
    loss: str
    device: torch.device
    dtype: torch.dtype
    """What floating inputs are cast to: the model's own type."""
    model_name: str
    model_source: Any
    """What `build_model` takes: a name, a function or a module."""
    model_parameters: int
    outputs: tuple[int, ...]
    """Of the model, for one example: of each class, or at every token."""
    identity: str
    """Changes with the data and what the model (of the first seed) is and does."""
    run_key: str
    """Changes with the identity and the spec."""
    code: CodeReader
    model_code: Code
    """Of its classes and of the function that builds it."""
    recorded: Recorded | None = None
    """Exchanges that were recorded, in the place of a simulation; their numbers are the seeds."""
    metrics: tuple[Metric, ...] = ()
    """Those of the spec's `metrics`."""
    doubts: tuple[str, ...] = ()
    """What about the model makes figures doubtful, one sentence each."""
    states: dict[int, str] = field(default_factory=dict)
    """By seed, as they are asked for."""
    bases: dict[Any, nn.Module] = field(default_factory=dict)
    """The last model that was built with frozen weights, which nobody writes to."""
    origins: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    """By run and attack, as they are asked for: see `origin`."""
    not_tried: tuple[NotTried, ...] = ()
    expected_seconds: Mapping[str, float] = field(default_factory=dict)
    """By `AttackRef.key`, for one seed; where it was estimated."""
    training_schedule: Schedule | None = None
    """Of a point with a training: what its defenses promise, and are made for, is about that."""

    @property
    def planned(self) -> Schedule:
        """What a target epsilon is for."""
        return self.training_schedule or schedule_of(self.spec)

    def with_attacks(
        self,
        refs: Sequence[AttackRef],
        *,
        not_tried: Sequence[NotTried] = (),
        expected_seconds: Mapping[str, float] | None = None,
    ) -> Prepared:
        """The same audit with these attacks, the baseline and adaptive ones among them."""
        return replace(
            self,
            refs=tuple(refs),
            attacks={
                ref.key: self.attacks.get(ref.key) or planned_attack(ref.name, ref.params) for ref in refs
            },
            not_tried=tuple(not_tried),
            expected_seconds=dict(expected_seconds or {}),
        )

    def check(self) -> None:
        """Too few examples for this protocol, a setting that a defense does not know: said now, not later."""
        self.draw(self.spec.seeds[0])
        self.defenses(self.spec.seeds[0])
        check_probes(self.spec.probes)

    def state(self, seed: int) -> str:
        """A digest of the model that this seed starts from; of a recorded exchange as a whole."""
        if self.recorded is not None:
            return self.recorded.exchanges[seed].digest
        if seed not in self.states:
            self.states[seed] = state(self.model(seed))
        return self.states[seed]

    def model(self, seed: int) -> nn.Module:
        """The model that the server starts from under this seed."""
        key = (self.server_seed(seed), self.data(seed).spec)
        if key not in self.bases:
            built = built_model(self.spec.model, self.model_source, key[1], key[0]).to(self.device)
            if not frozen_of(built):
                return built
            self.bases.clear()
            self.bases[key] = built
        return own_copy(self.bases[key])  # what is frozen in it is held once, however large it is

    def server_seed(self, seed: int) -> int:
        """For what the server draws: the model, and the randomness of an attack."""
        return seed if self.spec.server_seed is None else self.spec.server_seed

    def defenses(self, seed: int, canaries: Canaries | None = None) -> list[Defense]:
        """Built anew for every cell, so that a resumed run draws the same noise as an uninterrupted one."""
        protocol = self.spec.protocol
        deployment = Deployment(
            training=self.local,
            schedule=self.planned,
            clients=protocol.clients,
            aggregation=protocol.aggregation,
            sees_each_update=sees_each_update(self.threat, protocol.aggregation),
            input=self.data(seed).spec,
            canaries=canaries,
        )
        wanted = wrappers(self.spec.defenses)
        check_order(wanted)
        return [
            _defense(named, entry, self.private_seed(f"defense {number}", seed), deployment)
            for number, (named, entry) in enumerate(wanted)
        ]

    def private_seed(self, purpose: str, seed: int) -> int:
        """For what clients draw: an attack, which knows `seed`, cannot draw it again unless it is public."""
        if self.spec.seeding == "published":
            return seed
        return private_seed(self.dataset.digest, purpose, seed)

    def data(self, seed: int) -> Dataset:
        """The dataset as it is fed under this seed: a table is standardised by the public examples."""
        if not self.dataset.standardise:
            return self.dataset
        return standardised(self.dataset, self._split(seed)[1])

    def draw(self, seed: int) -> tuple[Callable[[int], Sequence[Batch]], Batch | None]:
        """Each round's client batches, and the public examples, which no client holds.

        A batch is what is in some local step: the rest of what a client holds leaves no trace in its update.
        """
        held, public = self._split(seed)
        data = standardised(self.dataset, public)
        # one tensor, which every client has a part of: ten thousand small ones would be its copy
        drawn = self.as_fed(data.batch(torch.cat(held)))
        sizes, size = [len(index) for index in held], self.spec.protocol.batch_size
        starts, reached = [0, *itertools.accumulate(sizes)], self.local.num_reached(size)
        mine = (
            [drawn.select(slice(first, min(first + reached, end))) for first in range(start, end, size)]
            for start, end in itertools.pairwise(starts)
        )
        rounds = list(zip(*mine, strict=True))
        return (
            lambda number: rounds[number % len(rounds)],
            self.as_fed(data.batch(public)) if len(public) else None,
        )

    def draw_sampled(self, seed: int, rate: float) -> tuple[Callable[[int], Sequence[Batch]], Batch | None]:
        """`draw` for clients that draw each of their examples with chance `rate`, anew every round."""
        held, public = self._split(seed)
        data = standardised(self.dataset, public)
        private = self.private_seed("sampling", seed)

        def sample(number: int) -> list[Batch]:
            generator = torch.Generator().manual_seed((private + number) % 2**63)
            drawn = [index[torch.rand(len(index), generator=generator) < rate] for index in held]
            return [self.as_fed(data.batch(index)) for index in drawn]

        return sample, self.as_fed(data.batch(public)) if len(public) else None

    def public_count(self, seed: int) -> int:
        """How many examples are public under this seed."""
        return len(self._split(seed)[1])

    def _split(self, seed: int) -> tuple[list[Tensor], Tensor]:
        """Which examples each client holds, and which are public."""
        if self.recorded is not None:
            held = [torch.arange(0) if self.recorded.rows is None else self.recorded.rows[seed]]
            return held, self._public(self.recorded.free, self.server_seed(seed))
        protocol = self.spec.protocol
        per_round = protocol.batch_size * (protocol.rounds if protocol.fresh_batches else 1)
        held = draw_clients(
            self.dataset.labels,
            clients=protocol.played,
            examples_each=per_round,
            scheme=protocol.partition,
            alpha=protocol.dirichlet_alpha,
            seed=self.private_seed("clients", seed),
        )
        private = torch.zeros(len(self.dataset), dtype=torch.bool)
        for index in held:
            private[index] = True
        return held, self._public((~private).nonzero().squeeze(1), seed)

    def _public(self, free: Tensor, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.private_seed("public examples", seed))
        order = torch.randperm(len(free), generator=generator)
        return free[order][: self.spec.public_examples]

    def as_fed(self, batch: Batch) -> Batch:
        """Where the model is, and in its type of numbers; token ids stay whole."""
        there = batch.to(self.device)
        return (
            replace(there, inputs=there.inputs.to(self.dtype)) if there.inputs.is_floating_point() else there
        )


def _defense(wanted: DefenseSpec, entry: DefenseEntry, seed: int, deployment: Deployment) -> Defense:
    what = f"defense '{wanted.name}'"
    for name in wanted.options:
        if name not in entry.parameters:
            raise SpecError(unknown(f"setting of {what}", name, entry.parameters))
    build = partial(entry.build, **entry.bound(seed=seed, deployment=deployment))
    defense: Defense = construct(build, wanted.options, what)
    return defense


def built_model(wanted: ModelSpec, source: Any, spec: InputSpec, seed: int) -> nn.Module:
    """The model that a specification names, or `source` in its place."""
    model = build_model(
        source, spec, weights=wanted.weights, initialiser=wanted.initialiser, seed=seed, **wanted.options
    )
    return model if wanted.dtype is None else model.to(getattr(torch, wanted.dtype))

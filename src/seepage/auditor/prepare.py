"""From a specification to everything that a run needs: data, model, threat model, attacks, defenses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks import Attack
from seepage.attacks.parts.adaptive.answers import ANSWERS
from seepage.auditor.checks import check_fakes, check_order, check_view
from seepage.auditor.gate import check_modality
from seepage.auditor.measures import hidden_by_measures, with_measures, wrappers
from seepage.auditor.origin import again_key, run_key
from seepage.auditor.promise import known_settings
from seepage.auditor.seeds import private_seed
from seepage.auditor.spec import AttackSpec, AuditSpec, DefenseSpec, ProtocolSpec
from seepage.defenses import DefenseEntry, Deployment
from seepage.errors import SpecError
from seepage.federation import ThreatModel, custom_threat, draw_clients, loss_name, missing_grants
from seepage.federation.threat import sees_each_update
from seepage.federation.widening import model_placement
from seepage.identity import CodeReader, state
from seepage.identity.code import Code
from seepage.isolation.attack import planned_attack
from seepage.log import ADAPTIVE, BASELINE, AttackRef, NotTried
from seepage.registry import construct, unknown
from seepage.types import Batch, Defense, LocalTraining
from seepage.workloads.data import Dataset, load_data, standardised
from seepage.workloads.models.loading import build_model, builder_of, check_forward
from seepage.workloads.user_code import current_folder_importable


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
    run_key: str
    """Changes with the spec, the data and what the model (of the first seed) is and does."""
    code: CodeReader
    model_code: Code
    """Of its classes and of the function that builds it."""
    states: dict[int, str] = field(default_factory=dict)
    """By seed, as they are asked for."""
    origins: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    """By run and attack, as they are asked for: see `origin`."""
    not_tried: tuple[NotTried, ...] = ()
    expected_seconds: Mapping[str, float] = field(default_factory=dict)
    """By `AttackRef.key`, for one seed; where it was estimated."""

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

    def state(self, seed: int) -> str:
        """A digest of the model that this seed starts from."""
        if seed not in self.states:
            self.states[seed] = state(self.model(seed))
        return self.states[seed]

    def model(self, seed: int) -> nn.Module:
        """The model that the server starts from under this seed."""
        wanted = self.spec.model
        return build_model(
            self.model_source,
            self.data(seed).spec,
            weights=wanted.weights,
            initialiser=wanted.initialiser,
            seed=seed,
            **wanted.options,
        ).to(self.device)

    def defenses(self, seed: int) -> list[Defense]:
        """Built anew for every cell, so that a resumed run draws the same noise as an uninterrupted one."""
        protocol = self.spec.protocol
        deployment = Deployment(
            training=self.local,
            clients=protocol.clients,
            aggregation=protocol.aggregation,
            sees_each_update=sees_each_update(self.threat, protocol.aggregation),
            input=self.data(seed).spec,
        )
        wanted = wrappers(self.spec.defenses)
        check_order(wanted)
        return [
            _defense(named, entry, self.private_seed(f"defense {number}", seed), deployment)
            for number, (named, entry) in enumerate(wanted)
        ]

    def private_seed(self, purpose: str, seed: int) -> int:
        """For what clients draw: an attack, which knows `seed`, cannot draw it again."""
        return private_seed(self.dataset.digest, purpose, seed)

    def data(self, seed: int) -> Dataset:
        """The dataset as it is fed under this seed: a table is standardised by the public examples."""
        if not self.dataset.standardise:
            return self.dataset
        return standardised(self.dataset, self._split(seed)[1])

    def draw(self, seed: int) -> tuple[Callable[[int], Sequence[Batch]], Batch | None]:
        """Each round's client batches, and the public examples, which no client holds."""
        held, public = self._split(seed)
        data = standardised(self.dataset, public)
        rounds = [
            [self._as_fed(data.batch(part)) for part in parts]
            for parts in zip(*(index.split(self.spec.protocol.batch_size) for index in held), strict=True)
        ]
        return (
            lambda number: rounds[number % len(rounds)],
            self._as_fed(data.batch(public)) if len(public) else None,
        )

    def public_count(self, seed: int) -> int:
        """How many examples are public under this seed."""
        return len(self._split(seed)[1])

    def _split(self, seed: int) -> tuple[list[Tensor], Tensor]:
        """Which examples each client holds, and which are public."""
        protocol = self.spec.protocol
        per_round = protocol.batch_size * (protocol.rounds if protocol.fresh_batches else 1)
        held = draw_clients(
            self.dataset.labels,
            clients=protocol.clients,
            examples_each=per_round,
            scheme=protocol.partition,
            alpha=protocol.dirichlet_alpha,
            seed=self.private_seed("clients", seed),
        )
        private = torch.zeros(len(self.dataset), dtype=torch.bool)
        for index in held:
            private[index] = True
        free = (~private).nonzero().squeeze(1)
        generator = torch.Generator().manual_seed(self.private_seed("public examples", seed))
        order = torch.randperm(len(free), generator=generator)
        return held, free[order][: self.spec.public_examples]

    def _as_fed(self, batch: Batch) -> Batch:
        """Where the model is, and in its type of numbers; token ids stay whole."""
        inputs = batch.inputs.to(self.device)
        return Batch(
            inputs.to(self.dtype) if inputs.is_floating_point() else inputs, batch.labels.to(self.device)
        )


def prepare(spec: AuditSpec, *, model: Any = None, data: Any = None) -> Prepared:
    """Check everything before anything runs. `model` and `data` replace what the spec names, if given."""
    dataset = load_data(spec.data.name if data is None else data, **spec.data.options)
    played = _play(spec)
    for ref in played.refs:
        attack = played.attacks[ref.key]
        if why := missing_grants(attack.requires, played.threat, played.spec.protocol.aggregation):
            raise SpecError(f"attack '{ref.name}' {why}")
    check_modality(spec.fail_on, dataset.spec.modality)
    device = pick_device(spec.device)
    source = spec.model.name if model is None else model
    built = build_model(
        source,
        dataset.spec,
        weights=spec.model.weights,
        initialiser=spec.model.initialiser,
        seed=spec.seeds[0],
        **spec.model.options,
    ).to(device)
    outputs = check_forward(built, dataset.spec)[-1]
    code = CodeReader()
    prepared = Prepared(
        **vars(played),
        dataset=dataset,
        loss=loss_name(spec.protocol.loss, outputs),
        device=device,
        dtype=model_placement(built)[1],
        model_name=spec.model.name,
        model_source=source,
        model_parameters=sum(p.numel() for p in built.parameters()),
        run_key=run_key(spec, dataset, built),
        code=code,
        model_code=_model_code(code, source, built),
    )
    prepared.check()
    return prepared


def _model_code(reader: CodeReader, source: Any, built: nn.Module) -> Code:
    with current_folder_importable():
        return reader.read(builder_of(source), built)


def prepare_again(prepared: Prepared, spec: AuditSpec) -> Prepared:
    """The same model and data under other defenses or another protocol.

    An attack that these leave nothing to work with stays in the plan, and its cells say why it cannot run.
    """
    return replace(prepared, **vars(_play(spec)), run_key=again_key(prepared.run_key, spec))


@dataclass(frozen=True, kw_only=True)
class _Play:
    """Everything that follows from the specification alone."""

    spec: AuditSpec
    threat: ThreatModel
    refs: tuple[AttackRef, ...]
    attacks: Mapping[str, Attack]
    local: LocalTraining


def _play(written: AuditSpec) -> _Play:
    spec = with_measures(written)
    threat = custom_threat(
        spec.threat.base, grant=spec.threat.grant, deny=spec.threat.deny, rounds=spec.threat.rounds
    )
    threat = replace(threat, grants=threat.grants - hidden_by_measures(spec.defenses))
    check_view(threat, spec.protocol)
    check_fakes(threat, spec.protocol)
    refs = planned_refs(() if isinstance(spec.attacks, str) else spec.attacks, spec)  # a string: auto
    return _Play(
        spec=spec,
        threat=threat,
        refs=tuple(refs),
        attacks={ref.key: planned_attack(ref.name, ref.params) for ref in refs},
        local=_local_training(spec.protocol),
    )


def planned_refs(wanted: Sequence[AttackSpec], spec: AuditSpec) -> list[AttackRef]:
    """The baseline, and each attack followed by its adaptive twin where the defenses have an answer."""
    refs = [ref for a in wanted for ref in _with_twin(AttackRef(name=a.name, params=a.options), spec)]
    if all(ref.name != BASELINE for ref in refs):
        refs.append(AttackRef(name=BASELINE))
    for number, ref in enumerate(refs):
        if ref in refs[:number]:
            raise SpecError(f"attack '{ref.title}' is listed twice: remove one, or change its settings.")
    return sorted(refs, key=lambda ref: ref.name != BASELINE)


def _with_twin(ref: AttackRef, spec: AuditSpec) -> list[AttackRef]:
    """A heuristic is worth what it stops of an attacker who knows of it."""
    knows = known_settings(spec.defenses, ANSWERS)
    if not spec.adaptive or not knows or ref.name in (BASELINE, ADAPTIVE):
        return [ref]
    options = {"options": ref.params} if ref.params else {}
    return [ref, AttackRef(name=ADAPTIVE, params={"attack": ref.name, **options, "knows": knows})]


def _defense(wanted: DefenseSpec, entry: DefenseEntry, seed: int, deployment: Deployment) -> Defense:
    what = f"defense '{wanted.name}'"
    for name in wanted.options:
        if name not in entry.settings:
            raise SpecError(unknown(f"setting of {what}", name, entry.settings))
    build = partial(entry.build, **entry.bound(seed=seed, deployment=deployment))
    defense: Defense = construct(build, wanted.options, what)
    return defense


def _local_training(protocol: ProtocolSpec) -> LocalTraining:
    return LocalTraining(
        algorithm=protocol.algorithm,
        batch_size=protocol.local_batch_size,
        epochs=protocol.local_epochs,
        steps=protocol.local_steps,
        lr=protocol.lr,
        momentum=protocol.momentum,
        weight_decay=protocol.weight_decay,
        shuffle_seed=0 if protocol.shuffle else None,
        loss=protocol.loss,
        batch_norm=protocol.batch_norm,
        send_buffers=protocol.send_buffers,
    )


def pick_device(name: str) -> torch.device:
    """auto: a CUDA GPU if there is one, else the CPU (Apple's mps has no float64, which attacks use)."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a device without values, such as meta, cannot say it
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise SpecError(f"device '{name}' cannot be used ({reason}): use cpu, cuda or auto.") from None
    return device

"""From a specification to everything that a run needs: data, model, threat model, attacks, defenses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks import Attack
from seepage.attacks.adaptive.answers import answer_to
from seepage.core.errors import SpecError
from seepage.core.registry import unknown
from seepage.core.settings import construct
from seepage.core.types import Batch, Defense, InputSpec, LocalTraining, Masking
from seepage.core.user_code import current_folder_importable
from seepage.data import Dataset, as_numbers, load_data, standardised
from seepage.defenses import DefenseEntry, Deployment
from seepage.defenses.canaries import Canaries
from seepage.defenses.entry import Schedule
from seepage.engine.checks import check_fakes, check_order, check_view
from seepage.engine.gate import check_modality
from seepage.engine.given import refuse_examples
from seepage.engine.identity import CodeReader, state
from seepage.engine.identity.code import Code
from seepage.engine.isolation.attack import planned_attack
from seepage.engine.measures import hidden_by_measures, with_measures, wrappers
from seepage.engine.origin import identity_of, run_key
from seepage.engine.probes import check_probes
from seepage.engine.promise import known_settings, schedule_of
from seepage.engine.recorded import Recorded
from seepage.engine.recorded_data import recorded_data
from seepage.engine.seeds import private_seed
from seepage.engine.spec import NO_TRUTH, AttackSpec, AuditSpec, DefenseSpec, ModelSpec, ProtocolSpec
from seepage.metrics import Metric, check_requested, requested
from seepage.models.hugging_face import masking_of
from seepage.models.loading import build_model, builder_of, check_forward
from seepage.models.outputs import doubts_about_outputs
from seepage.protocol import ThreatModel, custom_threat, draw_clients, loss_name, missing_grants
from seepage.protocol.copies import frozen_of, own_copy
from seepage.protocol.losses import MASKED_TOKEN, NEXT_TOKEN, OF_NUMBERS, TOKEN_CLASS, loss_of_numbers
from seepage.protocol.threat import sees_each_update
from seepage.protocol.widening import model_placement
from seepage.record import ADAPTIVE, BASELINE, AttackRef, NotTried


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
            built = _built(self.spec.model, self.model_source, key[1], key[0]).to(self.device)
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
        """Each round's client batches, and the public examples, which no client holds."""
        held, public = self._split(seed)
        data = standardised(self.dataset, public)
        # one tensor, which every client has a part of: ten thousand small ones would be its copy
        drawn = self.as_fed(data.batch(torch.cat(held)))
        sizes, size = [len(index) for index in held], self.spec.protocol.batch_size
        starts = [0, *itertools.accumulate(sizes)]
        mine = (
            [drawn.select(slice(first, min(first + size, end))) for first in range(start, end, size)]
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


def read_data(spec: AuditSpec, data: Any = None, *, model: Any = None) -> Dataset:
    """What the spec names, or `data` in its place; as its options say.

    Of recorded exchanges whose truth nobody has: no example, but what one is. `model` replaces the spec's.
    """
    if spec.recorded is not None:
        source = spec.model.name if model is None else model
        with current_folder_importable():
            builder_of(source)  # a name that is wrong is no question of what one example is
        return recorded_data(spec, data, lambda described: _built(spec.model, source, described, 0))
    dataset = load_data(spec.data.name if data is None else data, **spec.data.options)
    return as_numbers(dataset) if spec.protocol.loss in OF_NUMBERS else dataset


def prepare(
    spec: AuditSpec,
    *,
    model: Any = None,
    data: Any = None,
    dataset: Dataset | None = None,
    code: CodeReader | None = None,
    strict: bool = True,
) -> Prepared:
    """Check everything before anything runs. `model` and `data` replace what the spec names, if given.

    dataset: what `read_data` gave for such a spec already. strict: refuse attacks that the threat model does
    not allow for; otherwise they stay in the plan, and their cells say why they cannot run.
    """
    dataset = read_data(spec, data, model=model) if dataset is None else dataset
    refuse_examples(dataset)
    played = _play(spec)
    for ref in played.refs if strict else ():
        attack = played.attacks[ref.key]
        if why := missing_grants(attack.requires, played.threat, played.spec.protocol.aggregation):
            raise SpecError(f"attack '{ref.name}' {why}")
    metrics = tuple(requested(spec.metrics))
    check_requested(metrics, dataset.inputs[:2], dataset.spec)
    check_modality(spec.fail_on, dataset.spec.modality)
    device = pick_device(spec.device)
    source = spec.model.name if model is None else model
    first = spec.seeds[0] if spec.server_seed is None else spec.server_seed
    built = _built(spec.model, source, dataset.spec, first).to(device)
    outputs = check_forward(built, dataset.spec)[1:]
    played = _hiding(played, masking_of(built, dataset.spec))
    code = CodeReader() if code is None else code
    model_code = _model_code(code, source, built)
    dtype, parameters = model_placement(built)[1], sum(p.numel() for p in built.parameters())
    identity = identity_of(dataset, built)
    loss = _loss(spec, dataset, outputs, played.local.masking)
    prepared = Prepared(
        **vars(_with_loss(played, dataset, loss)),
        dataset=dataset,
        loss=loss,
        device=device,
        dtype=dtype,
        model_name=spec.model.name,
        model_source=source,
        model_parameters=parameters,
        outputs=outputs,
        identity=identity,
        run_key=run_key(identity, spec),
        code=code,
        model_code=model_code,
        recorded=Recorded.of(spec, dataset),
        metrics=metrics,
        doubts=doubts_about_outputs(built, dataset.spec),
    )
    if frozen_of(built) and prepared.recorded is None:  # a large base is built once
        prepared.bases[first, prepared.data(spec.seeds[0]).spec] = built
    prepared.check()
    return prepared


def _built(wanted: ModelSpec, source: Any, spec: InputSpec, seed: int) -> nn.Module:
    model = build_model(
        source, spec, weights=wanted.weights, initialiser=wanted.initialiser, seed=seed, **wanted.options
    )
    return model if wanted.dtype is None else model.to(getattr(torch, wanted.dtype))


def _loss(spec: AuditSpec, dataset: Dataset, outputs: tuple[int, ...], masking: Masking | None) -> str:
    described = dataset.spec
    if described.num_targets:
        return loss_of_numbers(spec.protocol.loss, dataset.labels)
    per_token = MASKED_TOKEN if masking is not None else TOKEN_CLASS if described.token_labels else NEXT_TOKEN
    return loss_name(spec.protocol.loss, outputs[-1], per_token=per_token if len(outputs) > 1 else None)


def _model_code(reader: CodeReader, source: Any, built: nn.Module) -> Code:
    with current_folder_importable():
        return reader.read(builder_of(source), built)


def prepare_again(prepared: Prepared, spec: AuditSpec) -> Prepared:
    """The same model and data under other defenses, another protocol or against other attacks.

    An attack that these leave nothing to work with stays in the plan, and its cells say why it cannot run.
    """
    masking, dataset = prepared.local.masking, prepared.dataset
    loss = _loss(spec, dataset, prepared.outputs, masking)
    return replace(
        prepared,
        **vars(_with_loss(_hiding(_play(spec), masking), dataset, loss)),
        loss=loss,
        run_key=run_key(prepared.identity, spec),
    )


def _hiding(played: _Play, masking: Masking | None) -> _Play:
    """With clients that hide words, where the model is trained on those."""
    return replace(played, local=replace(played.local, masking=masking))


def _with_loss(played: _Play, dataset: Dataset, loss: str) -> _Play:
    """Numbers in a batch do not say which loss they are for."""
    return replace(played, local=replace(played.local, loss=loss)) if dataset.spec.num_targets else played


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
        local=local_training(spec.protocol),
    )


def planned_refs(wanted: Sequence[AttackSpec], spec: AuditSpec) -> list[AttackRef]:
    """The baseline, where something is scored; each attack, and its adaptive twin if it has one."""
    refs = [ref for a in wanted for ref in _with_twin(AttackRef(name=a.name, params=a.options), spec)]
    unscored = spec.recorded is not None and spec.data.name == NO_TRUTH
    if all(ref.name != BASELINE for ref in refs) and not unscored:  # a guess is worth its score
        refs.append(AttackRef(name=BASELINE))
    for number, ref in enumerate(refs):
        if ref in refs[:number]:
            raise SpecError(f"attack '{ref.title}' is listed twice: remove one, or change its settings.")
    return sorted(refs, key=lambda ref: ref.name != BASELINE)


def _with_twin(ref: AttackRef, spec: AuditSpec) -> list[AttackRef]:
    """A heuristic is worth what it stops of an attacker who knows of it."""
    knows = known_settings(spec.defenses, answer_to)
    if not spec.adaptive or not knows or ref.name in (BASELINE, ADAPTIVE):
        return [ref]
    options = {"options": ref.params} if ref.params else {}
    return [ref, AttackRef(name=ADAPTIVE, params={"attack": ref.name, **options, "knows": knows})]


def _defense(wanted: DefenseSpec, entry: DefenseEntry, seed: int, deployment: Deployment) -> Defense:
    what = f"defense '{wanted.name}'"
    for name in wanted.options:
        if name not in entry.parameters:
            raise SpecError(unknown(f"setting of {what}", name, entry.parameters))
    build = partial(entry.build, **entry.bound(seed=seed, deployment=deployment))
    defense: Defense = construct(build, wanted.options, what)
    return defense


def local_training(protocol: ProtocolSpec) -> LocalTraining:
    """What a client of this protocol does."""
    return LocalTraining(
        algorithm=protocol.algorithm,
        batch_size=protocol.local_batch_size,
        # so many steps, however often they go through the data
        epochs=max(protocol.local_epochs, protocol.local_steps or 1),
        steps=protocol.local_steps,
        lr=protocol.lr,
        momentum=protocol.momentum,
        weight_decay=protocol.weight_decay,
        optimizer=protocol.optimizer,
        schedule=protocol.schedule,
        accumulation=protocol.accumulation,
        clip_norm=protocol.clip_norm,
        mixed_precision=protocol.mixed_precision,
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

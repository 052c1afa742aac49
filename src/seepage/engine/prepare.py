"""From a specification to everything that a run needs: data, model, threat model, attacks, defenses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from seepage.attacks import Attack
from seepage.core.errors import SpecError
from seepage.core.types import LocalTraining, Masking
from seepage.core.user_code import current_folder_importable
from seepage.data import Dataset, as_numbers, load_data
from seepage.engine.checks import check_fakes, check_view
from seepage.engine.gate import check_modality
from seepage.engine.given import refuse_examples
from seepage.engine.identity import CodeReader
from seepage.engine.identity.code import Code
from seepage.engine.isolation.attack import planned_attack
from seepage.engine.measures import hidden_by_measures, with_measures
from seepage.engine.origin import identity_of, run_key
from seepage.engine.planned import planned_refs
from seepage.engine.prepared import Prepared, built_model
from seepage.engine.recorded import Recorded, check_base
from seepage.engine.recorded_data import recorded_data
from seepage.engine.spec import AuditSpec
from seepage.metrics import check_requested, requested
from seepage.models.hugging_face import masking_of
from seepage.models.loading import builder_of, check_forward
from seepage.models.outputs import doubts_about_outputs
from seepage.protocol import ThreatModel, custom_threat, loss_name, missing_grants
from seepage.protocol.copies import frozen_of
from seepage.protocol.losses import MASKED_TOKEN, NEXT_TOKEN, OF_NUMBERS, TOKEN_CLASS, loss_of_numbers
from seepage.protocol.widening import model_placement
from seepage.record import AttackRef


def read_data(spec: AuditSpec, data: Any = None, *, model: Any = None) -> Dataset:
    """What the spec names, or `data` in its place; as its options say.

    Of recorded exchanges whose truth nobody has: no example, but what one is. `model` replaces the spec's.
    """
    if spec.recorded is not None:
        source = spec.model.name if model is None else model
        with current_folder_importable():
            builder_of(source)  # a name that is wrong is no question of what one example is
        return recorded_data(spec, data, lambda described: built_model(spec.model, source, described, 0))
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
    built = built_model(spec.model, source, dataset.spec, first).to(device)
    outputs = check_forward(built, dataset.spec)[1:]
    played = _hiding(played, masking_of(built, dataset.spec))
    code = CodeReader() if code is None else code
    model_code = _model_code(code, source, built)
    dtype, parameters = model_placement(built)[1], sum(p.numel() for p in built.parameters())
    identity = identity_of(dataset, built)
    recorded = Recorded.of(spec, dataset)
    if recorded is not None:
        check_base(recorded, built, lambda: built_model(spec.model, source, dataset.spec, first + 1))
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
        recorded=recorded,
        metrics=metrics,
        doubts=doubts_about_outputs(built, dataset.spec),
    )
    if frozen_of(built) and prepared.recorded is None:  # a large base is built once
        prepared.bases[first, prepared.data(spec.seeds[0]).spec] = built
    prepared.check()
    return prepared


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
        local=spec.protocol.local_training,
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

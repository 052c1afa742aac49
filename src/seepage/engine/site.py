"""An audit with other defenses than its file has: those of a FLARE site, or a change that is tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seepage.defenses.frameworks.privacy_json import read_privacy_json
from seepage.engine.spec import AuditSpec, DefenseSpec


def with_site_filters(spec: AuditSpec, path: Path | str, *, scope: str | None = None) -> AuditSpec:
    """The same audit with a site's filters inside of its own defenses: a job cannot get behind them.

    FLARE sends no gradients, so an audit of FedSGD becomes one of FedAvg with a single local step, which is
    the same computation.
    """
    filters = tuple(DefenseSpec.model_validate(one) for one in read_privacy_json(path, scope=scope))
    changes: dict[str, object] = {"defenses": (*spec.defenses, *filters)}
    if spec.protocol.algorithm == "fedsgd":
        one_step = {"algorithm": "fedavg", "local_steps": 1}
        changes["protocol"] = spec.protocol.model_copy(update=one_step)
    return spec.model_copy(update=changes)


def with_changes(spec: AuditSpec, added: Sequence[Mapping[str, Any]]) -> AuditSpec:
    """The same audit with these defenses round its own."""
    if not added:
        return spec
    found = tuple(DefenseSpec.model_validate(dict(one)) for one in added)
    return spec.model_copy(update={"defenses": (*found, *spec.defenses)})

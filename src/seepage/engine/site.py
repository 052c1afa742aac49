"""An audit under the filters of a FLARE site: its privacy.json joins the defenses."""

from __future__ import annotations

from pathlib import Path

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

"""What is known of a run before it starts: the first thing that is written."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata

from seepage.auditor.prepare import Prepared
from seepage.auditor.promise import defense_records
from seepage.auditor.spec import AuditSpec
from seepage.federation import server_sees
from seepage.log import Header, InputRecord, ThreatRecord

PACKAGES = (
    "seepage",
    "torch",
    "numpy",
    "scipy",
    "torchmetrics",
    "scikit-image",
    "scikit-learn",
    "safetensors",
)


def make_header(prepared: Prepared) -> Header:
    """Everything about the run that is known before it starts."""
    spec, data = prepared.spec, prepared.dataset
    protocol = spec.protocol
    return Header(
        title=audit_title(spec),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        spec=spec.model_dump(mode="json"),
        spec_hash=prepared.fingerprint,
        seeds=spec.seeds,
        attacks=prepared.refs,
        threat=ThreatRecord(
            name=prepared.threat.name,
            description=prepared.threat.description,
            grants=tuple(sorted(prepared.threat.grants)),
            rounds=prepared.threat.rounds,
            server_sees=server_sees(
                prepared.threat,
                protocol.aggregation,
                protocol.clients,
                fakes=protocol.fakes,
                minimum_honest=protocol.minimum_honest,
            ),
        ),
        defenses=defense_records(spec, prepared.local),
        input=InputRecord(
            modality=data.spec.modality.value,
            shape=data.spec.shape,
            num_classes=data.spec.num_classes,
            value_range=data.spec.value_range,
            class_names=data.spec.class_names,
            column_names=data.spec.column_names,
        ),
        model_name=prepared.model_name,
        model_parameters=prepared.model_parameters,
        data_name=data.name,
        data_source=data.source,
        data_examples=len(data),
        exact_tolerance=spec.exact_tolerance,
        device=str(prepared.device),
        packages=_versions(),
        python=platform.python_version(),
        git_revision=_git_revision(),
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git_revision() -> str | None:
    """The revision of the folder the audit is started from: the user's own code, if it is under git."""
    try:
        result = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def audit_title(spec: AuditSpec) -> str:
    return spec.title or f"{spec.model.name} on {spec.data.name}"

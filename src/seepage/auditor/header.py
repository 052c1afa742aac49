"""What is known of a run before it starts: the first thing that is written."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime

from seepage.auditor.origin import cell_keys
from seepage.auditor.prepare import Prepared
from seepage.auditor.promise import defense_records
from seepage.auditor.spec import AuditSpec
from seepage.federation import server_sees
from seepage.identity import PACKAGES, version
from seepage.log import Header, InputRecord, ThreatRecord
from seepage.types import Modality


def make_header(prepared: Prepared) -> Header:
    """Everything about the run that is known before it starts."""
    spec, data = prepared.spec, prepared.dataset
    protocol = spec.protocol
    return Header(
        title=audit_title(spec),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        spec=spec.model_dump(mode="json"),
        run_key=prepared.run_key,
        cell_keys=cell_keys(prepared),
        seeds=spec.seeds,
        attacks=prepared.refs,
        not_tried=prepared.not_tried,
        expected_seconds=dict(prepared.expected_seconds),
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
        input=_input_record(prepared),
        model_name=prepared.model_name,
        model_parameters=prepared.model_parameters,
        data_name=data.name,
        data_source=data.source,
        data_examples=len(data),
        exact_tolerance=spec.exact_tolerance,
        device=str(prepared.device),
        packages={name: version(name) for name in PACKAGES},
        python=platform.python_version(),
        git_revision=_git_revision(),
    )


def _input_record(prepared: Prepared) -> InputRecord:
    spec = prepared.dataset.spec
    record = InputRecord(
        modality=spec.modality.value,
        shape=spec.shape,
        num_classes=spec.num_classes,
        value_range=spec.value_range,
        class_names=spec.class_names,
        column_names=spec.column_names,
    )
    if spec.modality is not Modality.TABULAR:
        return record
    return record.model_copy(
        update={
            "column_kinds": tuple(kind.value for kind in spec.kinds),
            "column_spreads": spec.spread or (),
            "fed": how_columns_are_fed(prepared),
        }
    )


def how_columns_are_fed(prepared: Prepared) -> str:
    """One sentence for the report: the scale of what enters the model decides how well it can be read."""
    dataset = prepared.dataset
    if dataset.standardise:
        one_hot = "; columns in one-hot code stay 0 and 1" if dataset.spec.categories else ""
        count = prepared.public_count(prepared.spec.seeds[0])
        return (
            "Each column has its public mean subtracted and is divided by its public spread: that of "
            f"{count} rows which no client holds, drawn anew for each seed{one_hot}."
        )
    if dataset.spec.mean is not None:
        return "Each column has the given mean subtracted and is divided by the given std."
    spreads = [spread for spread in dataset.spec.spread or () if spread > 0]
    apart = max(spreads) / min(spreads) if spreads else 1.0
    return (
        f"Columns are fed as they are, and the widest spread is {apart:.2g} times the narrowest; where "
        "clients scale their columns, say standardise = true or give mean and std."
    )


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

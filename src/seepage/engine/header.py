"""What is known of a run before it starts: the first thing that is written."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime

from seepage.core.types import Modality
from seepage.engine.identity import PACKAGES, digest, version
from seepage.engine.origin import NOT_NUMBERS
from seepage.engine.points import Points
from seepage.engine.prepared import Prepared
from seepage.engine.promise import defense_records
from seepage.protocol import server_sees
from seepage.record import DefenseRecord, Header, InputRecord, RunHeader, ThreatRecord, origin_key


def make_header(points: Points) -> RunHeader:
    """Everything about the run that is known before it starts."""
    grid = points.grid
    created, revision = datetime.now(UTC).isoformat(timespec="seconds"), _git_revision()
    found = [_point_header(points, number, created, revision) for number in range(len(grid.points))]
    return RunHeader(
        written_by=version("seepage"),
        kind=grid.kind,
        title=grid.title,
        spec=dict(grid.asked),
        run_key=grid_key(points),
        points=tuple(found),
    )


def grid_key(points: Points) -> str:
    """Whose run this is: that of an audit is its point's."""
    grid = points.grid
    keys = [points[number].run_key for number in range(len(grid.points))]
    if grid.kind == "audit":
        return keys[0]
    asked = {
        name: value for name, value in grid.asked.items() if name not in {*NOT_NUMBERS, "budget", "layout"}
    }
    return digest(grid.kind, asked, keys)


def _point_header(points: Points, number: int, created: str, revision: str | None) -> Header:
    point, prepared = points.grid.points[number], points[number]
    spec, data = prepared.spec, prepared.dataset
    protocol = spec.protocol
    header = Header(
        key=point.key,
        title=point.title or points.grid.title,
        created=created,
        spec=spec.model_dump(mode="json"),
        run_key=prepared.run_key,
        training_seeds=point.training_seeds,
        point=_promised(points, number),
        seeds=spec.seeds,
        attacks=prepared.refs,
        not_tried=prepared.not_tried,
        expected_seconds=dict(prepared.expected_seconds),
        metrics=tuple(metric.facts() for metric in prepared.metrics),
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
        defenses=defense_records(spec, prepared.local, planned=prepared.planned),
        input=_input_record(prepared),
        model_name=prepared.model_name,
        model_parameters=prepared.model_parameters,
        doubts=(*prepared.doubts, *_unreached(prepared)),
        data_name=data.name,
        data_source=data.source,
        data_examples=len(data),
        exact_tolerance=spec.exact_tolerance,
        device=str(prepared.device),
        packages={name: version(name) for name in PACKAGES},
        python=platform.python_version(),
        git_revision=revision,
    )
    keys = {id_: origin_key(points.made_by(number, what, seed)) for what, seed, id_ in header.planned()}
    return header.model_copy(update={"cell_keys": keys})


def _unreached(prepared: Prepared) -> tuple[str, ...]:
    """One sentence where clients stop before they have been through what they drew."""
    drawn, steps = (
        prepared.spec.protocol.batch_size,
        prepared.local.num_steps(prepared.spec.protocol.batch_size),
    )
    reached = prepared.local.num_reached(drawn)
    if reached == drawn:
        return ()
    return (
        f"Clients stop after {steps} local step{'s' * (steps > 1)}: {reached} of the {drawn} examples of a "
        "round are in their update, and only those are attacked and scored.",
    )


def _promised(points: Points, number: int) -> DefenseRecord | None:
    """Of a study's point: its defense with its promise over the whole training."""
    point = points.grid.points[number]
    if point.defense is None:
        return None
    trained = points.trained(number) if point.training is not None else points[number]
    found = defense_records(trained.spec, trained.local, planned=trained.planned, lived=trained.planned)
    if not found:
        return DefenseRecord(
            defense=point.defense, description="Updates are sent as they are.", guarantee="none"
        )
    # What is outside of a mechanism only processes what it released: the promise stays.
    strongest = next((one for one in found if one.formal), found[0])
    return strongest.model_copy(update={"defense": point.defense})


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
            "column_days": prepared.dataset.days,
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

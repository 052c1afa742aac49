"""What is known of a run before its first cell: plain data that needs neither torch nor the audited model.

One folder a run, whether it is an audit, a study or a paper's table:

    log.json                            `RunHeader`: its kind, what was asked for, and every point
    cells/<point>/<id>.json             `Cell`: its presence means that the cell is finished
    cells/<point>/<id>.safetensors      truth and matched reconstructions of that cell
    pictures/<point>/<id>.png           the same as a picture, originals above reconstructions
    report.html

An audit has one point, which has no name: its cells are in cells/ itself.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from seepage.core.metric import MetricFacts
from seepage.names.metrics import facts_of
from seepage.record.refs import TRAINING, AttackRef, DefenseRef, Record, cell_id

SCHEMA_VERSION = 3
"""1 and 2 were logs of audits alone, with studies in a format of their own."""
Kind = Literal["audit", "study", "table"]


class InputRecord(Record):
    """What one example is, for drawing it."""

    modality: Literal["image", "text", "tabular"]
    shape: tuple[int, ...]
    num_classes: int
    value_range: tuple[float, float] | None = None
    class_names: tuple[str, ...] = ()
    column_names: tuple[str, ...] = ()
    column_kinds: tuple[Literal["real", "integer", "categorical"], ...] = ()
    """Of a table; empty in logs that judge every column alike."""
    column_spreads: tuple[float, ...] = ()
    """Of a table: each column's standard deviation over all data at hand, the unit of its errors."""
    column_days: tuple[int, ...] = ()
    """Of a table: columns of days since 1970-01-01, which were dates in its file."""
    fed: str = ""
    """Of a table, one sentence: how a model is fed its columns."""


class ThreatRecord(Record):
    """Who the server is and what it may know and do, in the words of the report."""

    name: str
    description: str
    grants: tuple[str, ...]
    rounds: int = 1
    server_sees: str
    """One sentence: each update, only the secure sum, ..."""


class DefenseRecord(Record):
    """One defense at one strength, and what it promises."""

    defense: DefenseRef
    """Name and settings; `none` for no defense."""
    description: str
    guarantee: str
    """none, heuristic, or formal (DP)."""
    runs_at: str = ""
    trusts: str = ""
    protects: str = ""
    """The neighbours that epsilon is about: an example, or a whole client."""
    sigma: float | None = None
    steps: int | None = None
    """Releases that use the same example (client)."""
    uses_per_round: int | None = None
    sampling_rate: float | None = None
    accountant: str = ""
    epsilon: float | None = None
    delta: float | None = None
    broken: str = ""
    """What its settings promise and do not keep, in a sentence."""

    @property
    def formal(self) -> bool:
        return self.epsilon is not None

    @property
    def key(self) -> str:
        return self.defense.key

    @property
    def title(self) -> str:
        return self.defense.title

    @property
    def promise(self) -> str:
        """Epsilon with everything it depends on; empty where there is none.

        >>> DefenseRecord(defense=DefenseRef(name="dp_sgd"), description="", guarantee="formal (DP)",
        ...     protects="one example", steps=2, sampling_rate=1.0, epsilon=4.377, delta=1e-5).promise
        'ε = 4.4 at δ = 1e-05 for one example, 2 releases at sampling rate 1'
        """
        warning = f"broken promise: {self.broken}" if self.broken else ""
        if self.epsilon is None or self.steps is None or self.sampling_rate is None:
            return warning
        by = f", by {self.accountant}" if self.accountant else ""
        return (
            f"ε = {epsilon_text(self.epsilon)} at δ = {self.delta:g} for {self.protects}, {self.steps} "
            f"release{'s' if self.steps != 1 else ''} at sampling rate {self.sampling_rate:g}{by}"
            + (f"; {warning}" if warning else "")
        )


def epsilon_text(value: float) -> str:
    """
    >>> epsilon_text(4.377), epsilon_text(41205.3), epsilon_text(0.1234)
    ('4.4', '41205', '0.12')
    """
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


WhyNot = Literal["not_granted", "does_not_fit", "over_budget", "not_listed"]


class NotTried(Record):
    """An attack of the catalogue that an audit leaves out: what a verdict of "not shown" does not cover."""

    name: str
    why: WhyNot
    """not_granted: the threat model rules it out. does_not_fit: the model, data or protocol does.
    over_budget: no time was left. not_listed: the audit names its attacks, and not this one."""
    reason: str
    """One sentence, with the remedy where there is one."""


class Header(Record):
    """One point of a run: what is audited there, how, and by whom. Written before its first cell runs."""

    key: str = ""
    """Of its cells' folder; the only point of an audit has none."""
    title: str
    created: str
    """UTC, ISO 8601."""
    spec: dict[str, Any]
    run_key: str
    """Of the spec, the data and the model as it behaves: whose cells these are."""
    cell_keys: dict[str, str] = Field(default_factory=dict)
    """By cell: the key that its result must have. See `Cell.key`."""
    seeds: tuple[int, ...]
    attacks: tuple[AttackRef, ...]
    """In the order of the report; the baseline first."""
    not_tried: tuple[NotTried, ...] = ()
    """The other attacks of the catalogue, in its order."""
    expected_seconds: dict[str, float] = Field(default_factory=dict)
    """By attack key, for one seed: what was estimated before the run, where it was."""
    metrics: tuple[MetricFacts, ...] = ()
    """What the metrics mean that were computed beside those of every audit."""
    threat: ThreatRecord
    defenses: tuple[DefenseRecord, ...] = ()
    """Of the clients, the outermost first."""
    input: InputRecord
    model_name: str
    model_parameters: int
    doubts: tuple[str, ...] = ()
    """What about the model makes figures doubtful, one sentence each."""
    data_name: str
    data_source: str
    data_examples: int
    training_seeds: tuple[int, ...] = ()
    """Of a study: the seeds of the trainings that show what the point's defenses cost."""
    point: DefenseRecord | None = None
    """Of a study: the defense that this point stands for, with its promise over a whole training."""
    exact_tolerance: float
    """Largest absolute error of an 'exact' reconstruction, as a fraction of the value range (of a table: of
    each column's spread; whole numbers and categories are equal)."""
    device: str
    packages: dict[str, str]
    python: str
    git_revision: str | None = None

    def metric(self, name: str) -> MetricFacts:
        """What a score in this record means."""
        return next((facts for facts in self.metrics if facts.name == name), None) or facts_of(name)

    def planned(self) -> list[tuple[AttackRef, int, str]]:
        """Every cell of the point: attack (or training), seed, cell id."""
        training = AttackRef(name=TRAINING)
        trainings = [(training, seed) for seed in self.training_seeds]
        attacks = [(attack, seed) for seed in self.seeds for attack in self.attacks]
        return [(what, seed, cell_id(what, seed)) for what, seed in [*trainings, *attacks]]


class RunHeader(Record):
    """The whole of log.json."""

    schema_version: int = SCHEMA_VERSION
    written_by: str
    """The version of seepage."""
    kind: Kind
    title: str
    spec: dict[str, Any]
    """What was asked for, as it was asked: of an audit its point's own."""
    run_key: str
    """Of all points together: whose run this is."""
    points: tuple[Header, ...] = Field(min_length=1)

    @property
    def plan(self) -> tuple[object, ...]:
        """What a resumed run must have in common with this one to go on with its cells as they are."""
        return tuple((point.key, point.cell_keys) for point in self.points)

    @property
    def cells(self) -> int:
        """How many cells the run has in all."""
        return sum(len(point.planned()) for point in self.points)

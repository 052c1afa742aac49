"""The versioned record of a run. Plain data: reading a log needs neither torch nor the audited model.

One folder a run:

    log.json                    `Header`: spec, seeds, versions, threat model, the planned cells
    cells/<id>.json             `Cell`: one attack on one seed; its presence means the cell is finished
    cells/<id>.safetensors      truth and matched reconstructions of that cell
    pictures/<id>.png           the same as a picture, originals above reconstructions
    report.html
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

SCHEMA_VERSION = 2
BASELINE = "prior_only"
"""The attack that sees no update. Every score stands beside its score on the same examples."""
ADAPTIVE = "adaptive"
"""The attack that stands for another one, by a server that knows the clients' defenses."""


class Record(BaseModel):
    """Frozen, and strict about unknown fields: a log from another version says so instead of misleading.

    JSON has no NaN or infinity: they are written as the strings "NaN", "Infinity" and "-Infinity" and read
    back as the numbers, so that a score that could not be computed stays visible.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class AttackRef(Record):
    """One attack of the audit with its hyperparameters."""

    name: str
    params: dict[str, Any] = Field(default_factory=dict)

    @property
    def key(self) -> str:
        """A short name, unique for these parameters; the plain name when there are none.

        >>> AttackRef(name="prior_only").key
        'prior_only'
        """
        name = self.name.replace(":", ".")  # "package.module:thing" becomes part of a file's name
        if not self.params:
            return name
        written = json.loads(self.model_dump_json(include={"params"}))  # the same before and after a file
        digest = hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()
        return f"{name}-{digest[:6]}"

    @property
    def title(self) -> str:
        """
        >>> AttackRef(name="adaptive", params={"attack": "tag", "knows": [{"name": "sign"}]}).title
        'tag, knowing sign'
        """
        if self.name == ADAPTIVE and "attack" in self.params:
            return f"{self.plain.title}, knowing {_named(self.params.get('knows') or ())}"
        settings = ", ".join(f"{k}={v}" for k, v in self.params.items() if k != "inside")
        own = f"{self.name}({settings})" if settings else self.name
        # A defense with others inside of it: one point of a study.
        return f"{own} over {_named(self.params['inside'])}" if "inside" in self.params else own

    @property
    def plain(self) -> AttackRef:
        """The attack that an adaptive one adapts; any other one is its own."""
        if self.name != ADAPTIVE or "attack" not in self.params:
            return self
        return AttackRef(name=str(self.params["attack"]), params=self.params.get("options") or {})


def _named(defenses: Any) -> str:
    """Defenses as `knows` lists them: names, or tables with a name and settings."""
    titles = []
    for one in defenses:
        table = one if isinstance(one, dict) else {"name": one}
        settings = {k: v for k, v in table.items() if k != "name"}
        titles.append(AttackRef(name=str(table.get("name")), params=settings).title)
    return " and ".join(titles)


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

    defense: AttackRef
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

        >>> DefenseRecord(defense=AttackRef(name="dp_sgd"), description="", guarantee="formal (DP)",
        ...     protects="one example", steps=2, sampling_rate=1.0, epsilon=4.377, delta=1e-5).promise
        'ε = 4.4 at δ = 1e-05 for one example, 2 releases at sampling rate 1'
        """
        if self.epsilon is None or self.steps is None or self.sampling_rate is None:
            return ""
        by = f", by {self.accountant}" if self.accountant else ""
        return (
            f"ε = {epsilon_text(self.epsilon)} at δ = {self.delta:g} for {self.protects}, {self.steps} "
            f"release{'s' if self.steps != 1 else ''} at sampling rate {self.sampling_rate:g}{by}"
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
    """Written before the first cell runs."""

    schema_version: int = SCHEMA_VERSION
    title: str
    created: str
    """UTC, ISO 8601."""
    spec: dict[str, Any]
    run_key: str
    """Of the spec, the data and the model as it behaves: whose run this is."""
    cell_keys: dict[str, str] = Field(default_factory=dict)
    """By cell: the key that its result must have. See `Cell.key`."""
    seeds: tuple[int, ...]
    attacks: tuple[AttackRef, ...]
    """In the order of the report; the baseline first."""
    not_tried: tuple[NotTried, ...] = ()
    """The other attacks of the catalogue, in its order."""
    expected_seconds: dict[str, float] = Field(default_factory=dict)
    """By attack key, for one seed: what was estimated before the run, where it was."""
    threat: ThreatRecord
    defenses: tuple[DefenseRecord, ...] = ()
    """Of the clients, the outermost first."""
    input: InputRecord
    model_name: str
    model_parameters: int
    data_name: str
    data_source: str
    data_examples: int
    exact_tolerance: float
    """Largest absolute error of an 'exact' reconstruction, as a fraction of the value range (of a table: of
    each column's spread; whole numbers and categories are equal)."""
    device: str
    packages: dict[str, str]
    python: str
    git_revision: str | None = None

    def planned(self) -> list[tuple[AttackRef, int, str]]:
        """Every cell of the run: attack, seed, cell id."""
        return [(a, s, cell_id(a, s)) for s in self.seeds for a in self.attacks]


def cell_id(attack: AttackRef, seed: int) -> str:
    return f"{attack.key}-seed{seed}"


class Example(Record):
    """What became of one private example."""

    index: int
    """Row in the cell's tensors."""
    client: int
    label: int
    recovered: bool
    """A candidate was assigned to it. If not, its scores are those of a mid-grey guess."""
    scores: dict[str, float]
    """exact is 0 or 1; the rest by metric name."""
    baseline: dict[str, float] = Field(default_factory=dict)
    """The same metrics for the best guess that used no update (in a layer's space: the mean feature)."""
    claimed: bool = False
    traits: dict[str, float] = Field(default_factory=dict)
    """What sets it apart: its loss under the honest model, its distance from the mean of its class."""
    truth_text: str | None = None
    reconstruction_text: str | None = None


class ColumnRecord(Record):
    """How much of one column of a table came out. The one-hot columns of a category are one."""

    name: str
    kind: Literal["real", "integer", "categorical"]
    right: int
    """Values that are right: equal after rounding, or (real) within the tolerance of the column's spread."""
    guessed: int
    """Values that the best guess without any update has right."""
    examples: int

    @property
    def excess(self) -> float:
        """Share of the values that came out beyond the guess."""
        return (self.right - self.guessed) / max(1, self.examples)


class Cost(Record):
    """What the attack took. The client's own training is not counted."""

    seconds: float
    rounds: int
    """Rounds of the protocol, i.e. queries to each client addressed."""
    peak_memory_mb: float
    """Highest additional resident memory seen while the attack ran."""


class Cell(Record):
    """One attack on one seed."""

    attack: AttackRef
    seed: int
    status: Literal["done", "not_applicable", "failed"]
    reason: str = ""
    space: str = "input"
    """`input`, or the layer whose input features were rebuilt."""
    examples: tuple[Example, ...] = ()
    columns: tuple[ColumnRecord, ...] = ()
    """Of a table, in the input space: which columns came out."""
    batch_scores: dict[str, float] = Field(default_factory=dict)
    """Scores of the batch as a whole: extraction_recall, label_accuracy, ..."""
    candidates: int = 0
    claims: int = 0
    """Candidates the attack itself vouches for ..."""
    claims_right: int = 0
    """... and how many of those are an example behind the exchange that they were read from ..."""
    claimed_examples: int = 0
    """... and how many different examples these are: never more than those rebuilt exactly."""
    complete: bool | None = None
    """The attack certifies that the update holds nothing else; None where it cannot tell."""
    label_counts: tuple[int, ...] | None = None
    true_label_counts: tuple[int, ...] | None = None
    knowledge: tuple[str, ...] = ()
    """What the server was allowed to know, one plain sentence each."""
    notes: tuple[str, ...] = ()
    crafted: bool | None = None
    """Whether the server chose the weights it sent; None where the log does not say."""
    cost: Cost | None = None
    run_key: str = ""
    """The header's."""
    made_by: dict[str, str] = Field(default_factory=dict)
    """Digests of the code and weights, and versions of the packages, that this result comes from."""
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of the tensors and of the picture."""

    @property
    def id(self) -> str:
        return cell_id(self.attack, self.seed)

    @property
    def key(self) -> str:
        return origin_key(self.made_by)

    @model_validator(mode="after")
    def _claims_agree_with_what_came_out(self) -> Self:
        """A claim is right only about an example that came out exactly, so it cannot be missing there."""
        exact = sum(e.scores.get("exact", 0.0) == 1.0 for e in self.examples)
        if not (self.claimed_examples <= self.claims_right <= self.claims and self.claimed_examples <= exact):
            raise ValueError(
                f"of {self.claims} claims {self.claims_right} are right, about {self.claimed_examples} "
                f"examples, yet {exact} examples came out exactly: these counts contradict each other."
            )
        return self


def origin_key(made_by: Mapping[str, str]) -> str:
    """`Cell.made_by` in short; nothing for nothing.

    >>> origin_key({}), origin_key({"torch": "2.6"}) == origin_key({"torch": "2.7"})
    ('', False)
    """
    if not made_by:
        return ""
    return hashlib.sha256(json.dumps(dict(made_by), sort_keys=True).encode()).hexdigest()

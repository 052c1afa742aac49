"""What an audit, a study and a paper's table have in common: points, each attacked on several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from seepage.core import amounts
from seepage.engine.recorded import settled
from seepage.engine.spec import AuditSpec
from seepage.engine.written import Count, CountFromZero, Number, Seed
from seepage.record import TRAINING, AttackRef, DefenseRef, Kind

MOST_EXAMPLES = 1024
"""Of a client, where nobody says how many it holds: what a round costs does not depend on it, and with more a
short training never sees an example twice."""


class TrainingSpec(BaseModel):
    """The federated training in which each defense shows what it costs. Same budget for all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rounds: Count = 100
    """At most, where it is `tuned`: it ends when the accuracy no longer rises."""
    clients: Count = 4
    examples: Count | Literal["all"] | None = None
    """Each client's; a round uses `batch_size` of them, taken in turn. all: whatever is not held out. None:
    the same, up to `MOST_EXAMPLES`."""
    batch_size: Count | None = None
    """Of a table, where attacks look at fewer examples than anybody would train on; None: the protocol's."""
    sampling: Literal["turns", "poisson"] = "turns"
    """poisson: a round draws each of a client's examples with chance batch_size / examples, as the accounting
    of sampled DP-SGD needs it."""
    rate: Number | None = Field(default=None, gt=0, lt=1)
    """That chance itself, in the place of batch_size."""
    lr: Number | None = Field(default=None, gt=0)
    """The learning rate; None: the protocol's."""
    tuned: bool | None = None
    """Choose a learning rate for each defense, by examples that are neither a client's nor tested on, and
    train to a plateau. None: in a study, and unless `lr` is given."""
    canaries: CountFromZero = 0
    """Contributions in random directions that show what a private training's releases give away of one
    example: an empirical epsilon beside the accountant's."""
    test_examples: Count = 256
    """Held out: no client has them."""
    seeds: tuple[Seed, ...] | None = None
    """How many, or which; None: those of the audit."""

    @property
    def validated(self) -> int:
        """Examples that choose the learning rate and the last round: half as many as are tested on."""
        return -(-self.test_examples // 2) if self.tuned else 0

    @property
    def poisson(self) -> bool:
        return self.sampling == "poisson" or self.rate is not None

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.rate is not None and self.batch_size is not None:
            raise ValueError("rate and batch_size say the same twice: give one of them")
        if self.tuned and self.lr is not None:
            raise ValueError("tuned chooses the learning rate: leave lr out, or say tuned = false")
        return self

    @field_validator("seeds", mode="before")
    @classmethod
    def _counted(cls, value: Any) -> Any:
        return None if value is None else amounts.seeds(value)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One audit of a grid. Points may differ in anything that an audit file can say."""

    spec: AuditSpec
    key: str = ""
    """A plain file name, the only one of its kind in the grid."""
    title: str = ""
    baseline: bool = True
    """Also attack by guessing without any update. Where not, a cell's examples still have that guess beside
    them."""
    training: TrainingSpec | None = None
    """Also train under this point's defenses, for what they cost in accuracy."""
    defense: DefenseRef | None = None
    """Of a study: the defense (with what is inside of it) that the point stands for; `none` for none."""

    @property
    def training_seeds(self) -> tuple[int, ...]:
        if self.training is None:
            return ()
        return self.spec.seeds if self.training.seeds is None else self.training.seeds


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All that one command runs: points x attacks x seeds. Small and picklable, for workers rebuild it.

    >>> from seepage.engine.spec import parse_spec
    >>> spec = parse_spec({"model": "mlp", "data": "digits", "seeds": [0]})
    >>> table = Grid(kind="table", title="two widths", points=tuple(
    ...     Point(key=f"width{n}", spec=spec.model_copy(update={"model": {"name": "mlp", "hidden": [n]}}))
    ...     for n in (10, 20)))
    >>> [point.spec.seeds for point in table.with_settings(seeds=(1, 2)).points]
    [(1, 2), (1, 2)]
    """

    kind: Kind
    title: str
    points: tuple[Point, ...]
    asked: Mapping[str, Any] = field(default_factory=dict)
    """What the user wrote, as plain JSON, for the record: of a table its name."""
    model: Any = None
    data: Any = None
    """Objects that were given in Python, in the place of what every point's spec names."""
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Other such objects, by the names that every point's spec has for them: see `given`."""
    budget: float | None = None
    """Seconds after which no cell is begun any more. That of an audit is its spec's, which plans with it."""
    advice: bool = False
    """What could be changed about an audited deployment: trainings come after all attacks, so that where time
    runs out prices are missing and no leak is, and the time begins with the first cell."""

    def __post_init__(self) -> None:
        keys = [point.key for point in self.points]
        if not keys or len(set(keys)) < len(keys):
            raise ValueError(f"a grid needs points with distinct keys, not {keys}")

    @classmethod
    def of_audit(cls, spec: AuditSpec, **objects: Any) -> Grid:
        """The grid of one point that an audit is. objects: model, data and given."""
        spec = settled(spec)
        title = spec.title or f"{spec.model.name} on {spec.data.name}"
        if spec.recorded is not None and not spec.title:
            title = f"{spec.model.name}, recorded in {Path(spec.recorded.folder).name}"
        asked = spec.model_dump(mode="json")
        return cls(kind="audit", title=title, points=(Point(spec=spec),), asked=asked, **objects)

    def with_settings(self, *, budget: float | None = None, **settings: Any) -> Grid:
        """The same grid with this budget, and these settings (`seeds`, ...) in the spec of every point."""
        points = [replace(point, spec=point.spec.model_copy(update=settings)) for point in self.points]
        asked, budget = {**self.asked, **settings}, self.budget if budget is None else budget
        return replace(self, points=tuple(points), asked=asked, budget=budget)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One cell to run: an attack, or the training, at one point under one seed. Small, for it travels."""

    point: int
    attack: AttackRef
    seed: int
    run_key: str
    """The point's: a worker with another model or other data refuses the job."""

    def title(self, points: Sequence[Point]) -> str:
        what = TRAINING if self.attack.name == TRAINING else self.attack.title
        where = points[self.point].title
        return f"{where}: {what}, seed {self.seed}" if where else f"{what}, seed {self.seed}"

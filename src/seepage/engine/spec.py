"""The audit specification: what a user writes in TOML or passes in Python. Typos are refused, not ignored."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from seepage.core import amounts
from seepage.core.errors import SpecError
from seepage.core.registry import unknown
from seepage.engine.gate import check_thresholds
from seepage.engine.nearby import misplaced
from seepage.record.exchanges import InputInfo, LocalTrainingInfo

AUTO: Final = "auto"
"""As `attacks`: every attack that fits the model, the data and the threat model, inside the budget."""
DEFAULT_BUDGET = 180.0
"""Seconds for the whole audit where `attacks` is auto and no budget is given: what a user waits for."""
NO_TRUTH: Final = "unknown"
"""As `data` of an audit of recorded exchanges: nobody has the examples behind them."""
_LARGEST_COUNT = 10**9
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**32)]
"""What every generator takes, numpy's among them."""
Count = Annotated[int, Field(strict=True, ge=1, le=_LARGEST_COUNT)]
CountFromZero = Annotated[int, Field(strict=True, ge=0, le=_LARGEST_COUNT)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Switch = Annotated[bool, Field(strict=True)]
Table = TypeVar("Table", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class _Named(_Strict):
    """A name with options: written as a string, or as a table whose other keys are the options."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_shorthand(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping) and "options" not in value:
            own = {k: v for k, v in value.items() if k in cls.model_fields}
            return {**own, "options": {k: v for k, v in value.items() if k not in cls.model_fields}}
        return value


class ModelSpec(_Named):
    """A registry name or "package.module:function", with weights from a file if wanted."""

    weights: str | None = None
    initialiser: str | dict[str, str] | None = None
    """For the whole model, or one for each layer that is named; "" is the whole model."""
    dtype: Literal["float16", "bfloat16", "float32", "float64"] | None = None
    """What the weights are cast to, and with them what clients compute in; None: as the model is built."""


class DataSpec(_Named):
    """A registry name, a file, a folder or "package.module:function"; the options go to the loader."""


class AttackSpec(_Named):
    """A registry name; the options are the attack's hyperparameters."""


class DefenseSpec(_Named):
    """A registry name; the options are the defense's hyperparameters."""


class ProbeSpec(_Named):
    """A function of one's own, "package.module:function"; the options are its keyword arguments."""


class ThreatSpec(_Strict):
    """A named threat model, with grants added or taken away."""

    base: str = "honest_but_curious"
    grant: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    rounds: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"base": value} if isinstance(value, str) else value


class ProtocolSpec(_Strict):
    """The protocol as the deployment runs it."""

    batch_size: Count = 8
    """Examples each client uses in a round."""
    holds: Count | None = None
    """Examples that each client holds, of which a round draws every one with chance batch_size / holds
    (Poisson sampling), so that batch_size is the expected number: what is attacked is a sample of just that
    size, and epsilon counts the chance. None: a client holds what its rounds use."""
    clients: Count = 1
    rounds: Count = 1
    """Honest rounds played, with training in between; a dishonest server plays as many as it needs."""
    fresh_batches: Switch = False
    """Clients draw new examples every round."""
    aggregation: Literal["per_client", "mean", "sum", "secure_sum", "median"] = "per_client"
    fakes: CountFromZero = 0
    """secure_sum: all-zero contributions that a dishonest server adds to a victim's (Section 10.4)."""
    minimum_honest: Count = 1
    """secure_sum: contributors that must prove to each other that they are honest, or nobody sends."""
    audited: Count | None = None
    """So many of the clients, drawn at random, are played and attacked, for a server that sees each update;
    what they show about the others is reported with an interval. None: all of them."""
    attacked: Count | None = None
    """The server attacks so many of the updates only, the longest first: they say most. None: all of them."""
    partition: Annotated[str, Field(pattern=r"^(iid|dirichlet|distinct|[\w.]+:\w+)$")] = "iid"
    """Who holds what: "distinct" gives a client no two examples of a class; "package.module:function" is
    called as function(labels, clients=, examples_each=, seed=) and returns each client's indices."""
    dirichlet_alpha: Number = Field(default=0.5, gt=0)
    algorithm: Literal["fedsgd", "fedavg"] = "fedsgd"
    local_batch_size: Count | None = None
    local_epochs: Count = 1
    local_steps: Count | None = None
    """Local steps in all, however often they go through the data. None: what the epochs lead to."""
    lr: Number = Field(default=0.1, gt=0)
    momentum: Number = Field(default=0.0, ge=0, lt=1)
    weight_decay: Number = Field(default=0.0, ge=0)
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Of fedavg, as in torch.optim. Attacks read sums of gradients, and say so where Adam leaves none."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How a client's learning rate falls over its local steps."""
    accumulation: Count = 1
    """Mini-batches whose mean gradient makes one step of the optimiser."""
    clip_norm: Number | None = Field(default=None, gt=0)
    """Clients scale each step's gradient down to this norm at most."""
    mixed_precision: Switch = False
    """Clients compute under torch.autocast in bfloat16, as many do on a GPU."""
    shuffle: Switch = False
    """Clients go through their examples in an order that the server does not know."""
    loss: str = "auto"
    batch_norm: Literal["eval", "train"] = "eval"
    send_buffers: Switch = False

    @property
    def played(self) -> int:
        """Clients that are played."""
        return self.clients if self.audited is None else self.audited

    @model_validator(mode="after")
    def _drawn_from_all(self) -> Self:
        if self.audited is None:
            return self
        if self.audited > self.clients:
            raise ValueError(f"audited is {self.audited}, but there are only {self.clients} clients")
        if self.rounds > 1 or self.attacked is not None:
            raise ValueError(
                "audited clients are a random sample of one round: later models come from all clients, and "
                "attacked takes the longest updates; leave rounds and attacked out"
            )
        return self

    @model_validator(mode="after")
    def _drawn_by_chance(self) -> Self:
        if self.holds is None:
            return self
        if self.holds < self.batch_size:
            raise ValueError(
                f"holds is {self.holds}, but a round draws batch_size = {self.batch_size} of them on average"
            )
        if self.algorithm != "fedsgd":
            raise ValueError(
                "holds (Poisson sampling) belongs to algorithm = 'fedsgd', where a round is a step"
            )
        return self

    @model_validator(mode="after")
    def _only_in_secure_sums(self) -> Self:
        if self.aggregation != "secure_sum" and (self.fakes or self.minimum_honest > 1):
            raise ValueError("fakes and minimum_honest belong to aggregation = 'secure_sum'")
        return self

    @model_validator(mode="after")
    def _only_in_local_training(self) -> Self:
        usual = self.optimizer == "sgd" and self.schedule == "constant" and self.accumulation == 1
        if self.algorithm == "fedsgd" and not (usual and self.clip_norm is None):
            raise ValueError(
                "optimizer, schedule, accumulation and clip_norm belong to algorithm = 'fedavg'; under "
                "'fedsgd' clients take no step"
            )
        if self.optimizer != "sgd" and self.momentum:
            raise ValueError("momentum belongs to optimizer = 'sgd'; Adam has its own")
        return self


class RecordedSpec(_Strict):
    """Exchanges that were recorded, in the place of a simulation."""

    folder: str
    rounds: tuple[CountFromZero, ...] | None = None
    """Only those of these rounds."""
    clients: tuple[Annotated[int, Field(strict=True, ge=0)], ...] | None = None
    """Only those with these clients."""
    input: InputInfo | None = None
    """What one example is, where neither the truth nor the recording says it."""
    shape: tuple[Count, ...] | None = None
    """The same in short, where the model tells the rest: (channels, height, width) or (columns,)."""
    examples: Count | None = None
    """How many each client trained on, in place of what the recording says."""
    local: LocalTrainingInfo = LocalTrainingInfo()
    """How clients trained: what is known of it, in place of what the recording says."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"folder": value} if isinstance(value, str) else value


class AuditSpec(_Strict):
    """One audit: a model, data, a protocol, a server and the attacks it tries."""

    title: str = ""
    model: ModelSpec
    data: DataSpec
    recorded: RecordedSpec | None = None
    """A folder of recorded exchanges that is audited in the place of a simulation. `data` is then the truth
    behind them, and may be left out; `defenses` are what the clients are known to have used."""
    attacks: Literal["auto"] | tuple[AttackSpec, ...] = AUTO
    budget: float | None = None
    """Seconds for the whole audit, all attacks and seeds together; None: `DEFAULT_BUDGET` for auto, else no
    limit. auto leaves out what does not fit into it. Attacks that are named all run, and those that search
    share what the others leave, unless they have a `budget` of their own."""
    defenses: tuple[DefenseSpec, ...] = ()
    adaptive: Switch = True
    """Run every attack also as a server would that knows these defenses, where there is an answer to one."""
    delta: Number = Field(default=1e-5, gt=0, lt=1)
    """For the epsilon of defenses with differential privacy."""
    threat: ThreatSpec = ThreatSpec()
    protocol: ProtocolSpec = ProtocolSpec()
    seeds: tuple[Seed, ...] = (0, 1, 2)
    """How many, or which: each gives a new initialisation (of a named model), a new batch and new attack
    randomness."""
    server_seed: Seed | None = None
    """The model and the attack's randomness come from this seed in every run: seeds then vary the clients
    alone. None: they come from the run's own seed."""
    seeding: Literal["private", "published"] = "private"
    """private: what clients draw is seeded by the private data too, so that no attack, which knows the seed,
    can draw it again. published: by the seed alone, for figures that others are to draw again."""
    probes: tuple[ProbeSpec, ...] = ()
    """Measurements of one's own: each is called with a `seepage.engine.probes.Seen` after every attack, and
    the numbers it returns by name stand beside the batch's scores."""
    metrics: tuple[str, ...] = ()
    """Computed and recorded beside those of every audit, with the baseline's: names of metrics on request, of
    an installed package's, or "package.module:thing" for a `seepage.Metric`."""
    public_examples: CountFromZero = 256
    """Examples set aside, never a client's: for the baseline, and for attacks that are granted them."""
    exact_tolerance: Number = Field(default=1e-3, gt=0, lt=1)
    device: str = "auto"
    fail_on: dict[str, Number] = Field(default_factory=dict)
    """Exit with code 1 when an attack's mean of a metric is as bad as this, e.g. exact = 0.1; with code 3
    when that was not measured."""

    @model_validator(mode="before")
    @classmethod
    def _truth_is_optional(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and value.get("recorded") is not None and value.get("data") is None:
            return {**value, "data": NO_TRUTH}
        return value

    @field_validator("attacks", "defenses", "probes", "metrics", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str | Mapping) and value != AUTO else value

    @field_validator("attacks", mode="before")
    @classmethod
    def _auto_stands_alone(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and AUTO in value:
            if len(value) > 1:
                raise ValueError(
                    '"auto" chooses the attacks by itself: write attacks = "auto", or name them all'
                )
            return AUTO
        return value

    @field_validator("budget", mode="before")
    @classmethod
    def _in_seconds(cls, value: Any) -> Any:
        return value if value is None else amounts.seconds(value)

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        check_thresholds(self.fail_on, self.metrics)
        return self

    @field_validator("seeds", mode="before")
    @classmethod
    def _counted(cls, value: Any) -> Any:
        return amounts.seeds(value)

    @field_validator("metrics", mode="after")
    @classmethod
    def _once(cls, metrics: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(metrics)) < len(metrics):
            raise ValueError("a metric is named twice")
        return metrics


def parse_spec(values: Mapping[str, Any], *, source: str = "the specification") -> AuditSpec:
    """Validate a specification given as a dict.

    >>> parse_spec({"model": "mlp", "data": "digits"}).attacks
    'auto'
    """
    return validated(AuditSpec, values, source)


def validated(kind: type[Table], values: Mapping[str, Any], source: str) -> Table:
    """A table of settings as one of these, or a SpecError with the first problem in one sentence."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise SpecError(f"{source}: {explain(error, kind)}") from None


def read_spec(path: Path | str, **replaced: Any) -> AuditSpec:
    """Read a TOML file; what is `replaced` counts instead of what it says."""
    return parse_spec({**read_toml(path), **replaced}, source=f"'{Path(path).name}'")


def read_toml(path: Path | str) -> dict[str, Any]:
    """The tables of a TOML file, not yet checked."""
    file = Path(path)
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(
            f"'{file}' does not exist: write one with 'seepage init {file.name}', or check the path."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"'{file}' cannot be read ({error}): give a TOML text file.") from None
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"'{file}' is not valid TOML: {error}.") from None


def explain(error: ValidationError, kind: type[BaseModel]) -> str:
    """The first problem, in words; how many others there are."""
    problems = error.errors()
    first = problems[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        text = misplaced(first["loc"], kind) or unknown("key", where, _keys_beside(first["loc"], kind))
    elif first["type"] == "missing":
        needed = "every audit needs a model and data; 'seepage init' writes an example"
        text = f"'{where}' is missing: {needed if issubclass(kind, AuditSpec) else 'add it'}."
    else:
        got = f", not {first['input']!r}" if not isinstance(first["input"], Mapping) else ""
        text = f"'{where}' is wrong: {first['msg'][:1].lower()}{first['msg'][1:]}{got}."
    more = len(problems) - 1
    return text + (f" ({more} more problem{'s' if more > 1 else ''} after this one.)" if more else "")


def _keys_beside(location: tuple[int | str, ...], kind: type[BaseModel]) -> list[str]:
    """Valid keys of the table in which an unknown key stood."""
    table = kind
    for part in location[:-1]:
        field = table.model_fields.get(str(part))
        named = () if field is None else (field.annotation, *get_args(field.annotation))
        tables = [one for one in named if isinstance(one, type) and issubclass(one, BaseModel)]
        if not tables:
            return list(kind.model_fields)
        table = tables[0]
    return [".".join((*map(str, location[:-1]), key)) for key in table.model_fields]

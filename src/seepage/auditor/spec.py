"""The audit specification: what a user writes in TOML or passes in Python. Typos are refused, not ignored."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from seepage.auditor.gate import check_thresholds
from seepage.errors import SpecError
from seepage.registry import unknown

AUTO: Final = "auto"
"""As `attacks`: every attack that fits the model, the data and the threat model, inside the budget."""
DEFAULT_BUDGET = 180.0
"""Seconds for the whole audit where `attacks` is auto and no budget is given: what a user waits for."""
_LONGEST = 1e9
"""Seconds; thirty years."""
_LARGEST_COUNT = 10**9
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**32)]
"""What every generator takes, numpy's among them."""
Count = Annotated[int, Field(strict=True, ge=1, le=_LARGEST_COUNT)]
CountFromZero = Annotated[int, Field(strict=True, ge=0, le=_LARGEST_COUNT)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Switch = Annotated[bool, Field(strict=True)]


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
    initialiser: str | None = None


class DataSpec(_Named):
    """A registry name, a file, a folder or "package.module:function"; the options go to the loader."""


class AttackSpec(_Named):
    """A registry name; the options are the attack's hyperparameters."""


class DefenseSpec(_Named):
    """A registry name; the options are the defense's hyperparameters."""


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
    partition: Literal["iid", "dirichlet"] = "iid"
    dirichlet_alpha: Number = Field(default=0.5, gt=0)
    algorithm: Literal["fedsgd", "fedavg"] = "fedsgd"
    local_batch_size: Count | None = None
    local_epochs: Count = 1
    local_steps: Count | None = None
    lr: Number = Field(default=0.1, gt=0)
    momentum: Number = Field(default=0.0, ge=0, lt=1)
    weight_decay: Number = Field(default=0.0, ge=0)
    shuffle: Switch = False
    loss: str = "auto"
    batch_norm: Literal["eval", "train"] = "eval"
    send_buffers: Switch = False

    @model_validator(mode="after")
    def _only_in_secure_sums(self) -> Self:
        if self.aggregation != "secure_sum" and (self.fakes or self.minimum_honest > 1):
            raise ValueError("fakes and minimum_honest belong to aggregation = 'secure_sum'")
        return self


class AuditSpec(_Strict):
    """One audit: a model, data, a protocol, a server and the attacks it tries."""

    title: str = ""
    model: ModelSpec
    data: DataSpec
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
    """Each seed gives a new initialisation (of a named model), a new batch and new attack randomness."""
    public_examples: CountFromZero = 256
    """Examples set aside, never a client's: for the baseline, and for attacks that are granted them."""
    exact_tolerance: Number = Field(default=1e-3, gt=0, lt=1)
    device: str = "auto"
    fail_on: dict[str, Number] = Field(default_factory=dict)
    """Exit with code 1 when an attack's mean of a metric is as bad as this, e.g. exact = 0.1; with code 3
    when that was not measured."""

    @field_validator("attacks", "defenses", mode="before")
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
        return value if value is None else seconds(value)

    @field_validator("fail_on", mode="after")
    @classmethod
    def _reachable(cls, thresholds: dict[str, float]) -> dict[str, float]:
        check_thresholds(thresholds)
        return thresholds

    @field_validator("seeds", mode="after")
    @classmethod
    def _distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if not seeds:
            raise ValueError("give at least one seed")
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed is given twice, which would count the same run twice")
        return seeds


def seconds(time: str | float) -> float:
    """A time as a user writes it: 60s, 5m, 1.5h or a plain number of seconds.

    >>> seconds("5m"), seconds(12)
    (300.0, 12.0)
    """
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    text = str(time)
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        found = -1.0 if isinstance(time, bool) else float(number) * units[unit]
    except ValueError:
        found = -1.0
    if not 0 < found <= _LONGEST:
        raise ValueError(f"'{text}' is no time: write a positive number with s, m or h, as in 60s")
    return found


def parse_spec(values: Mapping[str, Any], *, source: str = "the specification") -> AuditSpec:
    """Validate a specification given as a dict.

    >>> parse_spec({"model": "mlp", "data": "digits"}).attacks
    'auto'
    """
    try:
        return AuditSpec.model_validate(dict(values))
    except ValidationError as error:
        raise SpecError(f"{source}: {explain(error, AuditSpec)}") from None


def read_spec(path: Path | str) -> AuditSpec:
    """Read a TOML file."""
    return parse_spec(read_toml(path), source=f"'{Path(path).name}'")


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
        text = unknown("key", where, _keys_beside(first["loc"], kind))
    elif first["type"] == "missing":
        text = f"'{where}' is missing: every audit needs a model and data; 'seepage init' writes an example."
    else:
        got = f", not {first['input']!r}" if not isinstance(first["input"], Mapping) else ""
        text = f"'{where}' is wrong: {first['msg'][:1].lower()}{first['msg'][1:]}{got}."
    more = len(problems) - 1
    return text + (f" ({more} more problem{'s' if more > 1 else ''} after this one.)" if more else "")


def _keys_beside(location: tuple[int | str, ...], kind: type[BaseModel]) -> list[str]:
    """Valid keys of the table in which an unknown key stood."""
    table = kind.model_fields.get(str(location[0])) if len(location) > 1 else None
    inner = table.annotation if table is not None else None
    if isinstance(inner, type) and issubclass(inner, BaseModel):
        return [f"{location[0]}.{key}" for key in inner.model_fields]
    return list(kind.model_fields)

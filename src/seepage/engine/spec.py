"""The audit specification: what a user writes in TOML or passes in Python. Typos are refused, not ignored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from seepage.core import amounts
from seepage.engine.gate import check_thresholds
from seepage.engine.protocol_spec import ProtocolSpec
from seepage.engine.written import Count, CountFromZero, Number, Seed, Strict, Switch, read_toml, validated
from seepage.record.exchanges import InputInfo, LocalTrainingInfo

AUTO: Final = "auto"
"""As `attacks`: every attack that fits the model, the data and the threat model, inside the budget."""
DEFAULT_BUDGET = 180.0
"""Seconds for the whole audit where `attacks` is auto and no budget is given: what a user waits for."""
NO_TRUTH: Final = "unknown"
"""As `data` of an audit of recorded exchanges: nobody has the examples behind them."""


class _Named(Strict):
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


class ThreatSpec(Strict):
    """A named threat model, with grants added or taken away."""

    base: str = "honest_but_curious"
    grant: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    rounds: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"base": value} if isinstance(value, str) else value


class RecordedSpec(Strict):
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


class AuditSpec(Strict):
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


def read_spec(path: Path | str, **replaced: Any) -> AuditSpec:
    """Read a TOML file; what is `replaced` counts instead of what it says."""
    return parse_spec({**read_toml(path), **replaced}, source=f"'{Path(path).name}'")

"""What to compare: the model, data, protocol and attacks of an audit; defenses at several strengths."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from seepage.auditor.spec import (
    AUTO,
    AttackSpec,
    AuditSpec,
    Count,
    DefenseSpec,
    Number,
    Seed,
    explain,
    read_toml,
)
from seepage.errors import SpecError
from seepage.guardian import ALL_DEFENSES
from seepage.log import AttackRef
from seepage.registry import lookup

NONE = "none"
"""The point without a defense: always there, for every price is relative to it."""
INSIDE = "inside"
"""The setting that combines defenses: `{name = "gaussian_noise", sigma = 0.01, inside = ["clipping"]}`."""


class TrainingSpec(BaseModel):
    """The short federated training in which each defense shows what it costs. Same budget for all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rounds: Count = 100
    clients: Count = 4
    examples: Count = 64
    """Each client's; a round uses the protocol's `batch_size` of them, taken in turn."""
    test_examples: Count = 256
    """Held out: no client has them."""
    seeds: tuple[Seed, ...] | None = None
    """None: those of the audit."""


class TradeoffSpec(AuditSpec):
    """An audit with several defenses to choose from; a list as a setting means one point for each value."""

    attacks: tuple[AttackSpec, ...] = (AttackSpec(name="analytic_extraction"),)
    """Named, for every point must face the same ones."""
    training: TrainingSpec = TrainingSpec()
    prior_success: Number = Field(default=0.01, gt=0, lt=1)
    """kappa: the chance that a server rebuilds an example without any update, for the theoretical bound."""

    @field_validator("attacks", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if value == AUTO:
            raise ValueError(
                'a study compares defenses under the same attacks, so "auto" does not go here: name them'
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        each, batch = self.training.examples, self.protocol.batch_size
        if each % batch:
            raise ValueError(
                f"training.examples ({each}) must be a multiple of protocol.batch_size ({batch}), "
                "for a round uses one batch of them"
            )
        if self.fail_on:
            raise ValueError("fail_on belongs to an audit: remove it")
        if self.budget is not None:
            raise ValueError("budget belongs to an audit: remove it, or give it to an attack that searches")
        seeds = self.training_seeds
        if not seeds or len(set(seeds)) < len(seeds):
            raise ValueError("training.seeds needs at least one seed, and none twice")
        return self

    @property
    def training_seeds(self) -> tuple[int, ...]:
        return self.seeds if self.training.seeds is None else self.training.seeds

    def points(self) -> tuple[AttackRef, ...]:
        """Every defense at every strength, `none` first.

        >>> spec = parse_tradeoff({"model": "mlp", "data": "digits",
        ...                        "defenses": [{"name": "clipping", "norm": [1.0, 0.1]}]})
        >>> [point.title for point in spec.points()]
        ['none', 'clipping(norm=1.0)', 'clipping(norm=0.1)']
        """
        wanted = [AttackRef(name=NONE)]
        for defense in self.defenses:
            if defense.name == NONE:
                continue
            for point in _strengths(defense):
                if point in wanted:
                    raise SpecError(f"defense '{point.title}' is listed twice: remove one.")
                wanted.append(point)
        return tuple(wanted)

    def audit(self, point: AttackRef) -> AuditSpec:
        """The audit of one point."""
        shared = {name: getattr(self, name) for name in AuditSpec.model_fields}
        chosen = () if point.name == NONE else _together(point)
        title = f"{self.title or f'{self.model.name} on {self.data.name}'}, defense: {point.title}"
        return AuditSpec(**{**shared, "defenses": chosen, "title": title})


def _together(point: AttackRef) -> tuple[DefenseSpec, ...]:
    """The point's defense, and whatever is inside of it."""
    settings = dict(point.params)
    inside = settings.pop(INSIDE, [])
    return (
        DefenseSpec(name=point.name, options=settings),
        *(DefenseSpec.model_validate(one) for one in inside),
    )


def _strengths(defense: DefenseSpec) -> list[AttackRef]:
    """The product of all settings that are given as lists; `inside` lists other defenses."""
    parameters = lookup(ALL_DEFENSES, defense.name, "defense").parameters
    choices: dict[str, list[Any]] = {}
    for name, value in defense.options.items():
        # A setting that is itself a list (the layers to share) needs a list of lists to mean strengths.
        if name == INSIDE:
            choices[name] = [value if isinstance(value, list) else [value]]
            continue
        listed = name in parameters and "Sequence" in str(parameters[name].annotation)
        several = isinstance(value, list) and (not listed or any(isinstance(v, list) for v in value))
        if several and not value:
            raise SpecError(f"defense '{defense.name}': the list '{name}' is empty; give at least one value.")
        choices[name] = value if several else [value]
    return [
        AttackRef(name=defense.name, params=dict(zip(choices, values, strict=True)))
        for values in itertools.product(*choices.values())
    ]


def parse_tradeoff(values: Mapping[str, Any], *, source: str = "the specification") -> TradeoffSpec:
    """Validate a specification given as a dict; what is wrong with it is one sentence."""
    try:
        return TradeoffSpec.model_validate(dict(values))
    except ValidationError as error:
        raise SpecError(f"{source}: {explain(error, TradeoffSpec)}") from None


def read_tradeoff(path: Path | str) -> TradeoffSpec:
    """Read a TOML file."""
    return parse_tradeoff(read_toml(path), source=f"'{Path(path).name}'")

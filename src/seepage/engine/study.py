"""A study: what each defense stops and what it costs, as a grid with a point for each of its strengths."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from seepage.core.errors import SpecError
from seepage.defenses import DEFENSES
from seepage.engine.grid import Grid, Point, TrainingSpec
from seepage.engine.spec import AUTO, AttackSpec, AuditSpec, DefenseSpec
from seepage.engine.written import Number, read_toml, validated
from seepage.record import INSIDE, DefenseRef

NONE = "none"
"""The point without a defense: always there, for every price is relative to it."""


class StudySpec(AuditSpec):
    """An audit with several defenses to choose from; a list as a setting means one point for each value.

    Its `budget` is the time after which no cell is begun any more.
    """

    attacks: Literal["auto"] | tuple[AttackSpec, ...] = AUTO
    """auto: all that fit the deployment without a defense, inside half of the budget; every point faces the
    same ones."""
    training: TrainingSpec = TrainingSpec()
    prior_success: Number = Field(default=0.01, gt=0, lt=1)
    """kappa: the chance that a server rebuilds an example without any update, for the theoretical bound."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        each, batch = self.training.examples, self.protocol.batch_size
        if isinstance(each, int) and each % batch and not self.training.poisson:
            raise ValueError(
                f"training.examples ({each}) must be a multiple of protocol.batch_size ({batch}), "
                "for a round uses one batch of them"
            )
        if self.training.batch_size is not None:
            raise ValueError(
                "training.batch_size belongs to a table; a study trains with the batches that it attacks, "
                "which some defenses change: set protocol.batch_size"
            )
        if self.recorded is not None:
            raise ValueError("recorded exchanges can be audited; a study plays and trains by itself")
        if self.fail_on:
            raise ValueError("fail_on belongs to an audit: remove it")
        return self

    def points(self) -> tuple[DefenseRef, ...]:
        """Every defense at every strength, `none` first.

        >>> spec = parse_study({"model": "mlp", "data": "digits",
        ...                        "defenses": [{"name": "clipping", "norm": [1.0, 0.1]}]})
        >>> [point.title for point in spec.points()]
        ['none', 'clipping(norm=1.0)', 'clipping(norm=0.1)']
        """
        wanted = [DefenseRef(name=NONE)]
        for defense in self.defenses:
            if defense.name == NONE:
                continue
            for point in _strengths(defense):
                if point in wanted:
                    raise SpecError(f"defense '{point.title}' is listed twice: remove one.")
                wanted.append(point)
        return tuple(wanted)

    def grid(self, **objects: Any) -> Grid:
        """One point for each defense at each strength. objects: model, data and given, as in `Grid`."""
        title = self.title or f"{self.model.name} on {self.data.name}"
        shared = {name: getattr(self, name) for name in AuditSpec.model_fields if name != "budget"}
        training, points = self.training, []
        if training.tuned is None and training.lr is None:
            training = training.model_copy(update={"tuned": True})
        for ref in self.points():
            chosen = () if ref.name == NONE else _together(ref)
            spec = AuditSpec(**{**shared, "defenses": chosen, "title": f"{title}, defense: {ref.title}"})
            points.append(Point(spec=spec, key=ref.key, title=ref.title, training=training, defense=ref))
        asked = self.model_dump(mode="json")
        return Grid(
            kind="study",
            title=title,
            points=tuple(points),
            asked=asked,
            **objects,
            budget=self.budget,
        )


def _together(point: DefenseRef) -> tuple[DefenseSpec, ...]:
    """The point's defense, and whatever is inside of it."""
    settings = dict(point.params)
    inside = settings.pop(INSIDE, [])
    return (
        DefenseSpec(name=point.name, options=settings),
        *(DefenseSpec.model_validate(one) for one in inside),
    )


def _strengths(defense: DefenseSpec) -> list[DefenseRef]:
    """The product of all settings that are given as lists; `inside` lists other defenses."""
    parameters = DEFENSES.find(defense.name).parameters
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
        DefenseRef(name=defense.name, params=dict(zip(choices, values, strict=True)))
        for values in itertools.product(*choices.values())
    ]


def parse_study(values: Mapping[str, Any], *, source: str = "the specification") -> StudySpec:
    """Validate a specification given as a dict; what is wrong with it is one sentence."""
    return validated(StudySpec, values, source)


def read_study(path: Path | str, **replaced: Any) -> StudySpec:
    """Read a TOML file; what is `replaced` counts instead of what it says."""
    return parse_study({**read_toml(path), **replaced}, source=f"'{Path(path).name}'")

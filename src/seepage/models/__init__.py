"""The models an audit can name. `MODELS` is the catalogue; `loading.build_model` builds from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from seepage.core.registry import Entry, Registry, summary
from seepage.core.types import Modality
from seepage.names import models as names


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """One model: `build(spec, *, keyword hyperparameters)`, a line about it, and the data it takes."""

    build: Callable[..., nn.Module]
    description: str
    modalities: frozenset[Modality]


def _model(name: str, entry: Entry, build: Callable[..., nn.Module]) -> ModelEntry:
    """A model of a package's own may take any data."""
    kinds = entry.facts.get("data", tuple(Modality))
    return ModelEntry(
        build=build,
        description=entry.description or summary(build),
        modalities=frozenset(Modality(kind) for kind in kinds),
    )


MODELS: Registry[ModelEntry] = Registry(
    "model", group=names.GROUP, entries=names.MODELS, make=_model, function=True
)

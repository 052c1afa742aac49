"""METRICS: every metric by name, and those that an audit asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from seepage.core.errors import SpecError
from seepage.core.metric import Metric, MetricFacts
from seepage.core.registry import Entry, Registry
from seepage.core.types import INPUT_SPACE, InputSpec
from seepage.metrics.scoring import score_examples
from seepage.names import metrics as names


def _made(name: str, entry: Entry, thing: Any) -> MetricFacts:
    if name not in names.METRICS:
        if not isinstance(thing, Metric):
            raise SpecError(
                f"metric '{name}' is a {type(thing).__name__}: name a seepage.Metric, which says "
                "what it means."
            )
        return replace(thing, name=name, level="example", on_request=True)
    facts = names.METRICS[name]
    if facts.level == "batch":
        return facts
    return Metric(**vars(facts), compute=thing if facts.on_request else partial(_recorded, facts))


def _recorded(facts: MetricFacts, recon: Tensor, truth: Tensor, spec: InputSpec) -> Tensor:
    space = "" if facts.space == "features" else INPUT_SPACE
    return score_examples(recon, truth, spec, space=space)[facts.name]


METRICS: Registry[MetricFacts] = Registry("metric", group=names.GROUP, entries=names.ENTRIES, make=_made)
"""Those of single examples are `Metric`s; of those of a whole batch only the facts are here."""


def requested(wanted: Sequence[str]) -> list[Metric]:
    """The metrics that an audit computes beside those that every audit records.

    >>> requested(["psnr"])
    Traceback (most recent call last):
    ...
    seepage.core.errors.SpecError: metrics: psnr is recorded in any case: leave it out.
    """
    found = []
    for name in wanted:
        metric = METRICS.find(name)
        if not metric.on_request or not isinstance(metric, Metric):
            raise SpecError(f"metrics: {name} is recorded in any case: leave it out.")
        found.append(metric)
    return found

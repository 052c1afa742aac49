"""Computing a table row by row: a progress bar, and every finished row kept, so that a run resumes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from seepage.errors import SpecError
from seepage.identity import CodeReader, state, versions
from seepage.log import remove_written, seal, unseal, write_atomically
from seepage.papers.table import Figure, Row
from seepage.workloads.data import Dataset

Values = dict[str, list[float]]
"""By figure, one value for each seed."""


@dataclass(frozen=True, kw_only=True)
class RowPlan:
    """A row to compute: `measure(seed)` gives its figures for one seed."""

    group: str
    label: str
    measure: Callable[[int], Mapping[str, float]]
    published: Mapping[str, float]
    """The paper's values, by figure."""
    fingerprint: str
    """Of the data and the settings: a kept row is used again only if it is the same."""


def fingerprint(dataset: Dataset, **settings: Any) -> str:
    """The same data and settings give the same text; any other pixel, label or setting another.

    >>> from seepage.workloads.data import load_data
    >>> digits = load_data("digits")
    >>> fingerprint(digits, width=10) == fingerprint(digits, width=10) != fingerprint(digits, width=11)
    True
    """
    digest = hashlib.sha256(json.dumps({"data": dataset.name, **settings}, sort_keys=True).encode())
    for tensor in (dataset.inputs, dataset.labels):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def compute_rows(plans: Sequence[RowPlan], *, seeds: int, out: Path, quiet: bool = False) -> tuple[Row, ...]:
    """Measure each row over seeds 0 .. seeds-1, except those that `out` already holds."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    rows: list[Row] = []
    code = CodeReader(through_registries=True)  # rows look up their attacks by name
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task("Preparing", total=len(plans) * seeds)
        for plan in plans:
            bar.update(task, description=f"{plan.group}, {plan.label}")
            key = _key(plan, seeds, code)
            file = out / f"{_slug(plan)}-{_digest(key)}.json"
            values = _kept(file, key)
            if values is None:
                values = _measure(plan, seeds, lambda: bar.advance(task))
                _keep(file, key, values)
            else:
                bar.advance(task, seeds)
            rows.append(_row(plan, values))
    return tuple(rows)


def _measure(plan: RowPlan, seeds: int, on_seed: Callable[[], None]) -> Values:
    values: Values = {}
    for seed in range(seeds):
        for name, value in plan.measure(seed).items():
            values.setdefault(name, []).append(float(value))
        on_seed()
    return values


def _row(plan: RowPlan, values: Values) -> Row:
    figures = {name: Figure.over(each, plan.published.get(name)) for name, each in values.items()}
    return Row(plan.group, plan.label, figures)


def _key(plan: RowPlan, seeds: int, reader: CodeReader) -> dict[str, Any]:
    """All that a kept row depends on: a row of other code, models or packages is another row."""
    code = reader.read(plan.measure)
    return {
        "row": [plan.group, plan.label],
        "seeds": seeds,
        "fingerprint": plan.fingerprint,
        "code": code.digest,
        "models": [state(model) for model in _models(plan.measure)],
        "versions": versions(code.packages),
    }


def _models(value: Any) -> Iterator[nn.Module]:
    """The models that a measurement was given."""
    if isinstance(value, nn.Module):
        yield value
    elif isinstance(value, functools.partial):
        yield from _models([*value.args, *value.keywords.values()])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _models(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _models([getattr(value, field.name) for field in dataclasses.fields(value)])


def _digest(key: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]


def _slug(plan: RowPlan) -> str:
    text = f"{plan.group}-{plan.label}".lower()
    return "-".join("".join(c if c.isascii() and c.isalnum() else " " for c in text).split())


def _kept(file: Path, key: dict[str, Any]) -> Values | None:
    """The row's values, or None where they must be computed (again)."""
    try:
        stored = json.loads(unseal(file.read_bytes()))
        if stored["key"] != key:
            return None
        return {name: [float(value) for value in each] for name, each in stored["values"].items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # damaged by somebody else: the row can always be had again


def _keep(file: Path, key: dict[str, Any], values: Values) -> None:
    try:
        write_atomically(file, seal(json.dumps({"key": key, "values": values}, indent=1).encode()))
    except OSError as error:
        raise SpecError(
            f"finished rows cannot be kept in '{file.parent}' ({error.strerror}): choose a folder with --out."
        ) from None


def remove_rows(out: Path) -> None:
    """Remove kept rows, and nothing else: the next run computes all of them."""
    for file in list(out.glob("*.json")) if out.is_dir() else ():
        try:
            stored = json.loads(file.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(stored, dict) and {"key", "values"} <= set(stored):
            remove_written(out, re.escape(file.name))

"""Boenisch et al. 2021, Section 8.5: optimisation against extraction, on the same batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from seepage.attacks import ATTACKS
from seepage.papers.extraction import Source, load_present
from seepage.papers.inversion import UNREADABLE_IS_GREY, draw_victims, grey, invert
from seepage.papers.rows import RowPlan, compute_rows, fingerprint
from seepage.papers.table import Column, Table
from seepage.papers.trapping import SHORT, fresh_model, named_sources
from seepage.workloads.data import Dataset

NAME = "boenisch2021/section8.5"

SOURCES = (Source("MNIST", "mnist", ({"split": "test"},)), Source("CIFAR10", "cifar10"))

COLUMNS = (
    Column(
        "error", "mean squared error of a pixel in millionths, over all examples of the batch", unit="error"
    ),
    Column("exact", "share of the examples that are recovered exactly", unit="share"),
    Column("seconds", "CPU seconds of the attack on the whole batch", unit="seconds"),
    Column(
        "grey", "error of a flat mid-range picture, in millionths: what an attack has to beat", unit="error"
    ),
)

MILLION = 1e6

# (dataset, batch size, attack) -> error; Section 8.5 has no table, only orders of magnitude in its text
PUBLISHED = {
    ("MNIST", 1, "inverting_gradients"): 100.0,
    ("MNIST", 1, "analytic_extraction"): 0.0,
    ("CIFAR10", 1, "analytic_extraction"): 0.0,
}

TRAP_SCALE = {"MNIST": 0.7, "CIFAR10": 0.95}
"""The best scales of Table 5."""

NOTES = (
    "The paper names orders of magnitude in its text: errors as low as 1e-4 (100 millionths) within 10^4 "
    "steps on MNIST, zero for extraction; and 1 h 03 min of a GPU for one CIFAR10 picture with 32 restarts "
    "against milliseconds. The pattern can be compared, not the seconds: the budgets here are far smaller.",
    "Behind the first layer stands one of 200 neurons, not Table 7's 3000, 3000, 2000 and 1000: extraction "
    "reads the first layer's gradient only, and optimisation on the whole network would take hours.",
    "Trap weights are set for batches only: one example alone is read exactly from any row.",
    "Candidates are assigned to examples one to one at the least total error. An example that got none, "
    "as where no row holds it alone, counts as the grey picture.",
    UNREADABLE_IS_GREY,
)


def run(
    *,
    seeds: int,
    out: Path,
    quiet: bool = False,
    batch_sizes: Sequence[int] = (1, 20),
    steps: int = 300,
    lbfgs_steps: int = 60,
    width: int = 1000,
    hidden: Sequence[int] = SHORT,
) -> Table:
    """Four attacks on the gradients of the same batches."""
    datasets, missing = load_present(SOURCES)
    attacks: dict[str, dict[str, Any]] = {
        "inverting_gradients": {"steps": steps},
        "idlg": {"steps": lbfgs_steps},
        "analytic_extraction": {},
        "trap_weights": {},
    }
    plans = [
        RowPlan(
            group=f"{title}, B = {size}",
            label=name,
            measure=partial(
                measure,
                dataset,
                size,
                name,
                settings,
                width=width,
                hidden=tuple(hidden),
            ),
            published=_published(title, size, name),
            fingerprint=fingerprint(dataset, size=size, width=width, hidden=list(hidden), **settings),
        )
        for title, dataset in datasets.items()
        for size in batch_sizes
        for name, general in attacks.items()
        for settings in (_settings(title, name, general),)
        if size > 1 or name != "trap_weights"
    ]
    return Table(
        name=NAME,
        title=f"Boenisch et al. 2021, Section 8.5: optimisation against extraction, N = {width}",
        columns=COLUMNS,
        rows=compute_rows(plans, seeds=seeds, out=out, quiet=quiet),
        notes=(
            *named_sources(datasets),
            f"Budgets: {steps} steps of signed Adam, {lbfgs_steps} of L-BFGS, one restart.",
            *NOTES,
        ),
        missing=missing,
    )


def _settings(title: str, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    return {"scale": TRAP_SCALE.get(title, 0.9), "read": "rows"} if name == "trap_weights" else settings


def _published(title: str, size: int, name: str) -> dict[str, float]:
    error = PUBLISHED.get((title, size, name))
    return {} if error is None else {"error": error}


def measure(
    dataset: Dataset,
    size: int,
    name: str,
    settings: dict[str, Any],
    seed: int,
    *,
    width: int,
    hidden: Sequence[int],
) -> dict[str, float]:
    """One batch on one fresh network, attacked by one of them; the same for all attacks of a seed."""
    batch, spec = draw_victims(dataset, size, seed), dataset.spec
    model = fresh_model(spec, seed=seed, width=width, hidden=hidden)
    found = invert(ATTACKS[name](**settings), model, batch, spec, seed=seed)
    return {
        "error": MILLION * float(found.mse.mean()),
        "exact": float(found.exact.double().mean()),
        "seconds": found.seconds,
        "grey": MILLION * float(grey(batch, spec).mse.mean()),
    }

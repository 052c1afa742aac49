"""Geiping et al. 2020: pictures from the gradient of a batch of 8 and of 100, ranked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from seepage.attacks import ATTACKS
from seepage.papers.boenisch2021_figures import Recovered, draw
from seepage.papers.extraction import Source, load_present
from seepage.papers.geiping2020_architecture import Shape, plain_convnet
from seepage.papers.inversion import (
    ABOVE_GREY,
    CLEARLY,
    GREY,
    NO_PUBLISHED_FIGURES,
    SEEDS_ARE_DRAWS,
    UNREADABLE_IS_GREY,
    Inverted,
    above_grey,
    draw_victims,
    grey,
    invert,
    pattern,
)
from seepage.papers.rows import RowPlan, compute_rows, fingerprint
from seepage.papers.table import Column, Row, Table
from seepage.workloads.data import Dataset
from seepage.workloads.models.loading import build_model

NAME = "geiping2020/batch"
SOURCES = (Source("CIFAR-100", "cifar100", ({"split": "test", "normalise": True},)),)

NETWORKS = (Shape(width=32, depth=3, strided=2), Shape(width=64, depth=2, strided=2))
"""A harder and an easier one."""

TV = 10.0
"""Weight of total variation."""

BUDGETS = {8: 400, 100: 300}
"""Batch size to steps of signed Adam."""

COLUMNS = (
    Column("best", "PSNR of the best recovered picture of the batch", unit="dB"),
    Column("upper tenth", "PSNR that the best tenth of the batch reaches", unit="dB"),
    Column("median", "PSNR that half of the batch reaches", unit="dB"),
    Column("worst", "PSNR of the worst one", unit="dB"),
    GREY,
    ABOVE_GREY,
    Column("recovered", "number of pictures at least 1 dB above grey", unit="count"),
    Column("seconds", "CPU seconds of the attack on the batch", unit="seconds"),
)

NOTES = (
    f"{NO_PUBLISHED_FIGURES} Recovered: at least {CLEARLY:g} dB above grey. Not uniform: the best tenth lies "
    f"{CLEARLY:g} dB above the median or more.",
    "All pictures of a batch are of different classes, as in the paper's batch of 100; the number of "
    "pictures is known, labels are read from the gradient.",
    "Networks: convolutions, the first two of stride 2, ReLU, and a linear layer on all outputs, untrained; "
    "the paper's are ResNets. How much of a batch is recovered depends on the network above all.",
    "Pictures show the first run, best recovered first: originals with what was recovered right below.",
    f"Total variation weighs {TV:g}, chosen, as the steps were, on batches and weights of seeds 101 and 102.",
    SEEDS_ARE_DRAWS,
    UNREADABLE_IS_GREY,
)


def run(
    *,
    seeds: int,
    out: Path,
    quiet: bool = False,
    budgets: Mapping[int, int] = BUDGETS,
    networks: Sequence[Shape] = NETWORKS,
) -> Table:
    """One batch a seed, of each size in `budgets` on each network."""
    datasets, missing = load_present(SOURCES)
    plans = [
        RowPlan(
            group=f"{title}, {_named(network)}",
            label=f"{size} pictures",
            measure=partial(measure, dataset, network, size, steps, out),
            published={},
            fingerprint=fingerprint(dataset, size=size, steps=steps, tv=TV, network=asdict(network)),
        )
        for title, dataset in datasets.items()
        for network in networks
        for size, steps in budgets.items()
    ]
    rows = compute_rows(plans, seeds=seeds, out=out, quiet=quiet)
    drawn = (picture_path(out, network, size) for network in networks for size in budgets)
    spent = ", ".join(f"{steps} on {size} pictures" for size, steps in budgets.items())
    return Table(
        name=NAME,
        title="Geiping et al. 2020: PSNR of CIFAR-100 pictures from the gradient of a whole batch",
        columns=COLUMNS,
        rows=rows,
        notes=(
            *pattern(claims(rows)),
            *(f"Picture: {path}" for path in drawn if path.exists()),
            *(f"{title}: {data.source}." for title, data in datasets.items()),
            f"Budget: steps of signed Adam, {spent}, one restart; the paper takes up to 24000.",
            *NOTES,
        ),
        missing=missing,
    )


def claims(rows: Sequence[Row]) -> dict[str, bool]:
    """The paper's findings, and whether the means have them."""
    found = {}
    for row in rows:
        figures, where = row.figures, f"{row.label} ({row.group})"
        found[f"some of {where} are recovered"] = figures["recovered"].mean >= 1
        uneven = figures["upper tenth"].mean >= figures["median"].mean + CLEARLY
        found[f"distortion is not uniform over {where}"] = uneven
    return found


def _named(network: Shape) -> str:
    return f"{network.depth} convolutions of {network.width} channels"


def picture_path(out: Path, network: Shape, size: int) -> Path:
    """Where the gallery of the first run goes."""
    return out / f"batch-of-{size}-depth-{network.depth}-width-{network.width}.png"


def measure(
    dataset: Dataset, network: Shape, size: int, steps: int, out: Path, seed: int
) -> dict[str, float]:
    """One batch from its gradient; the first one is drawn as well."""
    batch, spec = draw_victims(dataset, size, seed, one_each=True), dataset.spec
    model = build_model(partial(plain_convnet, shape=network), spec, seed=seed)
    found = invert(ATTACKS["inverting_gradients"](steps=steps, tv=TV), model, batch, spec, seed=seed)
    blank = grey(batch, spec)
    if seed == 0:
        draw(ranked(found), size, dataset, picture_path(out, network, size))
    share = above_grey(found, blank)
    quantiles = torch.tensor([1.0, 0.9, 0.5, 0.0], dtype=found.psnr.dtype)
    best, tenth, median, worst = found.psnr.quantile(quantiles).tolist()
    return {
        "best": best,
        "upper tenth": tenth,
        "median": median,
        "worst": worst,
        "grey": float(blank.psnr.mean()),
        "above grey": share,
        "recovered": share * len(batch),
        "seconds": found.seconds,
    }


def ranked(found: Inverted) -> Recovered:
    """The pairs, best first; a bad reconstruction is shown too, for its badness is the finding."""
    order = found.psnr.argsort(descending=True)
    shown = torch.ones(len(order), dtype=torch.bool)
    return Recovered(found.truth[order], found.pictures[order], shown)

"""Boenisch et al. 2021, Figures 9 to 11: what trap weights recover, as picture grids (Appendix D)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from seepage.errors import DataError, SpecError
from seepage.federation import draw_clients
from seepage.log import write_atomically
from seepage.log.pictures import picture_grid
from seepage.metrics import EXACT_TOLERANCE, nearest_candidate
from seepage.papers.boenisch2021_table5 import SOURCES, scale_here
from seepage.papers.extraction import load_present
from seepage.papers.table import Column, Figure, Row, Table
from seepage.papers.trapping import (
    SHORT,
    SHORTER_NETWORK,
    answer,
    fresh_model,
    named_sources,
    read_traps,
    set_traps,
)
from seepage.workloads.data import Dataset

NAME = "boenisch2021/figures9-11"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One figure: its data, the scale, and how many of the batch are shown."""

    name: str
    data: str
    scale: float
    shown: int
    one_class: str | None = None
    paper: float | None = None
    """R of the best scale in Table 5, a mean; the figures show the best runs."""


PICTURES = (
    Picture(name="figure 9", data="MNIST", scale=0.7, shown=30, paper=0.540),
    Picture(name="figure 10a", data="CIFAR10", scale=0.95, shown=30, paper=0.540),
    Picture(name="figure 10b, dogs", data="CIFAR10", scale=0.95, shown=30, one_class="dog"),
    Picture(name="figure 11", data="ImageNet", scale=0.99, shown=100, paper=0.457),
)

COLUMNS = (
    Column("R", "extraction-recall, examples of the batch that some row holds", 0.05, unit="share"),
    Column("best R", "that of the run which the picture shows", unit="share"),
)

NOTES: tuple[str, ...] = (
    SHORTER_NETWORK,
    "Originals with what was recovered right below; crossed-out grey where the row-wise reading has nothing. "
    "Figures 9 and 10 show the first 30 of 100, figure 11 the whole batch. As in the paper, the best of "
    "the runs is shown.",
)


@dataclass(frozen=True)
class Recovered:
    """One run: the batch, what stands for each example, and which of them were really recovered."""

    truth: Tensor
    values: Tensor
    """(n, C, H, W) the nearest candidate of each; meaningless where not recovered."""
    exact: Tensor

    @property
    def recall(self) -> float:
        return float(self.exact.double().mean())


def run(
    *,
    seeds: int,
    out: Path,
    quiet: bool = False,
    pictures: Sequence[Picture] = PICTURES,
    batch_size: int = 100,
    width: int = 1000,
    hidden: Sequence[int] = SHORT,
) -> Table:
    """Draw every figure whose data are there; the best of `seeds` runs is shown."""
    datasets, missing = load_present([s for s in SOURCES if any(p.data == s.title for p in pictures)])
    rows, paths = [], []
    for picture in pictures:
        if picture.data not in datasets:
            continue
        dataset = datasets[picture.data]
        best, recalls = None, []
        for seed in range(seeds):
            found = recover(dataset, picture, seed, batch_size=batch_size, width=width, hidden=hidden)
            recalls.append(found.recall)
            best = found if best is None or found.recall > best.recall else best
        assert best is not None
        path = out / f"{picture.name.replace(',', '').replace(' ', '-')}.png"
        draw(best, picture.shown, dataset, path)
        paths.append(f"{picture.name}: {path}")
        figures = {"R": Figure.over(recalls, picture.paper), "best R": Figure.over([best.recall])}
        rows.append(Row(picture.data, f"{picture.name}, s = {picture.scale:g}", figures))
    return Table(
        name=NAME,
        title=f"Boenisch et al. 2021, Figures 9 to 11: what traps recover, B = {batch_size}, N = {width}",
        columns=COLUMNS,
        rows=tuple(rows),
        notes=(*paths, *named_sources(datasets), *NOTES),
        missing=missing,
    )


def recover(
    dataset: Dataset, picture: Picture, seed: int, *, batch_size: int, width: int, hidden: Sequence[int]
) -> Recovered:
    """One run of the attack; each example with the candidate nearest to it."""
    members = _members(dataset, picture.one_class)
    (mine,) = draw_clients(dataset.labels[members], clients=1, examples_each=batch_size, seed=seed)
    batch = dataset.batch(members[mine])
    model = fresh_model(dataset.spec, seed=seed, width=width, hidden=hidden)
    traps = set_traps(model, dataset.spec, scale=scale_here(picture.data, picture.scale), seed=seed)
    found = read_traps(answer(traps, batch), dataset.spec).values
    truth = dataset.spec.to_raw(batch.inputs)
    if not len(found):
        return Recovered(truth, torch.zeros_like(truth), torch.zeros(len(truth), dtype=torch.bool))
    index, errors = nearest_candidate(found, truth)
    low, high = dataset.spec.value_range or (0.0, 1.0)
    return Recovered(truth, found[index], errors <= EXACT_TOLERANCE * (high - low))


def _members(dataset: Dataset, name: str | None) -> Tensor:
    if name is None:
        return torch.arange(len(dataset))
    if name not in dataset.spec.class_names:
        raise DataError(f"the data '{dataset.name}' have no class named '{name}': give their class names.")
    return (dataset.labels == dataset.spec.class_names.index(name)).nonzero().squeeze(1)


def draw(found: Recovered, shown: int, dataset: Dataset, path: Path) -> None:
    """Write the grid of the first `shown` examples."""
    png = picture_grid(
        found.truth.numpy(), found.values.numpy(), found.exact.numpy(), dataset.spec.value_range, limit=shown
    )
    try:
        write_atomically(path, png)
    except OSError as error:
        raise SpecError(
            f"pictures cannot be written to '{path.parent}' ({error.strerror}): choose a folder with --out."
        ) from None

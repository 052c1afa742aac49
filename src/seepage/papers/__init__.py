"""Published tables that `seepage reproduce NAME` regenerates, with ours beside the paper's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from seepage.errors import SpecError
from seepage.papers import boenisch2021_table2, boenisch2021_table4
from seepage.papers.table import Column, Figure, Row, Table
from seepage.registry import lookup

__all__ = ["PAPERS", "Column", "Figure", "Paper", "Row", "Table", "reproduce"]


@dataclass(frozen=True)
class Paper:
    """One published table or figure: `run(seeds=, out=, quiet=)` computes it."""

    description: str
    needs: str
    run: Callable[..., Table]
    default_seeds: int


PAPERS: dict[str, Paper] = {
    boenisch2021_table2.NAME: Paper(
        "Boenisch et al. 2021: passive extraction at random initialisation, seven initialisers",
        "mnist, cifar10 or imagenet_photos",
        boenisch2021_table2.run,
        default_seeds=10,
    ),
    boenisch2021_table4.NAME: Paper(
        "Boenisch et al. 2021: passive extraction as training goes on",
        "mnist or cifar10",
        boenisch2021_table4.run,
        default_seeds=1,
    ),
}


def reproduce(name: str, *, seeds: int | None = None, out: Path | None = None, quiet: bool = False) -> Table:
    """Regenerate the table called `name`; rows that `out` already holds are not computed again.

    >>> reproduce("boenisch2021/table3")
    Traceback (most recent call last):
    ...
    seepage.errors.SpecError: unknown paper 'boenisch2021/table3': did you mean 'boenisch2021/table4'? \
Valid: boenisch2021/table2, boenisch2021/table4.
    """
    paper = lookup(PAPERS, name, "paper")
    if seeds is not None and seeds < 1:
        raise SpecError(f"seeds is {seeds}: give at least one run to average over.")
    folder = Path("seepage-runs") / "papers" / name if out is None else Path(out)
    return paper.run(seeds=paper.default_seeds if seeds is None else seeds, out=folder, quiet=quiet)

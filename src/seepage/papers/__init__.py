"""Published tables that `seepage reproduce NAME` regenerates, with ours beside the paper's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from seepage.errors import SpecError
from seepage.papers import (
    boenisch2021_beyond,
    boenisch2021_figure4,
    boenisch2021_figures,
    boenisch2021_section84,
    boenisch2021_section85,
    boenisch2021_table2,
    boenisch2021_table3,
    boenisch2021_table4,
    boenisch2021_table5,
    boenisch2021_table6,
    boenisch2021_table9,
    geiping2020_architecture,
    geiping2020_batch,
    geiping2020_multi_step,
    geiping2020_single_image,
    wen2022_figure4,
    wen2022_figure5,
    wen2022_table1,
    wen2022_table2,
    wen2022_table3,
)
from seepage.papers.rows import remove_rows
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
    boenisch2021_table3.NAME: Paper(
        "Boenisch et al. 2021: film reviews, passive and with trap weights (about 10 s and 2 GB a run)",
        "imdb",
        boenisch2021_table3.run,
        default_seeds=10,
    ),
    boenisch2021_table4.NAME: Paper(
        "Boenisch et al. 2021: passive extraction as training goes on",
        "mnist or cifar10",
        boenisch2021_table4.run,
        default_seeds=1,
    ),
    boenisch2021_table5.NAME: Paper(
        "Boenisch et al. 2021: trap weights under different scales s",
        "mnist, cifar10 or imagenet_photos",
        boenisch2021_table5.run,
        default_seeds=10,
    ),
    boenisch2021_table6.NAME: Paper(
        "Boenisch et al. 2021: trap weights by mini-batch size and number of neurons",
        "mnist, cifar10 or imagenet_photos",
        boenisch2021_table6.run,
        default_seeds=10,
    ),
    boenisch2021_table9.NAME: Paper(
        "Boenisch et al. 2021: trap weights when mini-batches are averaged, read in two ways",
        "mnist",
        boenisch2021_table9.run,
        default_seeds=10,
    ),
    boenisch2021_section84.NAME: Paper(
        "Boenisch et al. 2021: users of a FedAvg server that extracts before it aggregates (seeds: users)",
        "mnist or cifar100",
        boenisch2021_section84.run,
        default_seeds=50,
    ),
    boenisch2021_section85.NAME: Paper(
        "Boenisch et al. 2021: error and seconds of optimisation against extraction, on the same batches",
        "mnist or cifar10",
        boenisch2021_section85.run,
        default_seeds=3,
    ),
    geiping2020_single_image.NAME: Paper(
        "Geiping et al. 2020: one picture from its gradient, by L-BFGS and by cosine (seeds: pictures)",
        "cifar10",
        geiping2020_single_image.run,
        default_seeds=10,
    ),
    geiping2020_multi_step.NAME: Paper(
        "Geiping et al. 2020: pictures from several local steps of FedAvg (3 minutes a seed: a client)",
        "cifar10",
        geiping2020_multi_step.run,
        default_seeds=5,
    ),
    geiping2020_batch.NAME: Paper(
        "Geiping et al. 2020: batches of 8 and of 100 from their gradient, pictures too (seeds: batches)",
        "cifar100",
        geiping2020_batch.run,
        default_seeds=5,
    ),
    geiping2020_architecture.NAME: Paper(
        "Geiping et al. 2020: width, depth, stride and activation of the network (seeds: pictures)",
        "cifar10",
        geiping2020_architecture.run,
        default_seeds=10,
    ),
    boenisch2021_figure4.NAME: Paper(
        "Boenisch et al. 2021: one example under clipping and under noise, pictures too",
        "mnist",
        boenisch2021_figure4.run,
        default_seeds=10,
    ),
    boenisch2021_figures.NAME: Paper(
        "Boenisch et al. 2021: what trap weights recover, as pictures (PNG files in the output folder)",
        "mnist, cifar10 or imagenet_photos",
        boenisch2021_figures.run,
        default_seeds=10,
    ),
    boenisch2021_beyond.NAME: Paper(
        "beyond Boenisch et al. 2021: the same gradients read by exact_extraction",
        "mnist, cifar10 or imdb",
        boenisch2021_beyond.run,
        default_seeds=10,
    ),
    wen2022_table1.NAME: Paper(
        "Wen et al. 2022: which feature to cut when every user is seen once (about 90 s)",
        "cifar10 and the trained ResNet-20",
        wen2022_table1.run,
        default_seeds=10,
    ),
    wen2022_figure4.NAME: Paper(
        "Wen et al. 2022: how many users the estimate of a feature takes (about 90 s)",
        "cifar10 and the trained ResNet-20",
        wen2022_figure4.run,
        default_seeds=10,
    ),
    wen2022_figure5.NAME: Paper(
        "Wen et al. 2022: queries of the binary attacks by batch size (about 10 minutes; seeds: users)",
        "cifar10 and the trained ResNet-20; imagenet_photos and seepage[photos] for its last rows",
        wen2022_figure5.run,
        default_seeds=50,
    ),
    wen2022_table2.NAME: Paper(
        "Wen et al. 2022: inverted pictures with and without fishing (about 35 minutes)",
        "cifar10, the trained ResNet-20 and kornia",
        wen2022_table2.run,
        default_seeds=10,
    ),
    wen2022_table3.NAME: Paper(
        "Wen et al. 2022: APRIL alone and with class fishing, pictures too (about 50 s a seed)",
        "cifar10 and kornia",
        wen2022_table3.run,
        default_seeds=3,
    ),
}


def reproduce(
    name: str,
    *,
    seeds: int | None = None,
    out: Path | None = None,
    quiet: bool = False,
    fresh: bool = False,
) -> Table:
    """Regenerate the table called `name`; rows that the same code kept in `out` are not computed again.

    fresh: compute all of them.

    >>> reproduce("boenisch2021/table7")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    seepage.errors.SpecError: unknown paper 'boenisch2021/table7': did you mean ...
    """
    paper = lookup(PAPERS, name, "paper")
    if seeds is not None and seeds < 1:
        raise SpecError(f"seeds is {seeds}: give at least one run to average over.")
    folder = Path("seepage-runs") / "papers" / name if out is None else Path(out)
    if fresh:
        remove_rows(folder)
    return paper.run(seeds=paper.default_seeds if seeds is None else seeds, out=folder, quiet=quiet)

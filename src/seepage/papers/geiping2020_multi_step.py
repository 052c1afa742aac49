"""Geiping et al. 2020: pictures from what a FedAvg client sends after several local steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from seepage.attacks import ATTACKS
from seepage.papers.extraction import load_present
from seepage.papers.geiping2020_architecture import TV, TV_CHOSEN, Shape, plain_convnet
from seepage.papers.inversion import (
    ABOVE_GREY,
    CIFAR10,
    CLEARLY,
    GREY,
    NO_PUBLISHED_FIGURES,
    SEEDS_ARE_DRAWS,
    UNREADABLE_IS_GREY,
    above_grey,
    draw_victims,
    grey,
    invert,
    means,
    pattern,
)
from seepage.papers.rows import RowPlan, compute_rows, fingerprint
from seepage.papers.table import Column, Row, Table
from seepage.types import LocalTraining
from seepage.workloads.data import Dataset
from seepage.workloads.models.loading import build_model

NAME = "geiping2020/multi-step"
SOURCES = (CIFAR10,)

NETWORK = Shape(width=32, depth=2, strided=2)

LOCAL_STEPS: Mapping[float, Sequence[int]] = {1e-2: (1, 5, 10), 1e-4: (1, 5)}
"""Learning rate to numbers of local steps."""

ONE_STEP = "1 local step"

COLUMNS = (
    Column("PSNR", "of all pictures of the client, by inverting_gradients", unit="dB"),
    Column("best", "PSNR of the client's best recovered picture", unit="dB"),
    GREY,
    ABOVE_GREY,
    Column("seconds", "CPU seconds of the attack on the client's update", unit="seconds"),
)

NOTES = (
    f'{NO_PUBLISHED_FIGURES} Averaging over local steps does not protect: "does not" where the mean PSNR '
    f"is at least {CLEARLY:g} dB above grey.",
    "A local step takes all of the client's pictures at once; the attack knows the number of steps, the "
    "learning rate and the number of pictures, as in the paper, and replays the client's steps. Labels are "
    "read from the update. All pictures of a client are of different classes.",
    "At such learning rates the weights hardly move within a round, and the update is close to a multiple of "
    "one gradient: what longer training at a large rate would hide is not measured here.",
    f"Network: {NETWORK.depth} convolutions of {NETWORK.width} channels, the first {NETWORK.strided} of "
    "stride 2, ReLU and a linear layer, untrained; the paper's is the larger ConvNet64.",
    TV_CHOSEN,
    SEEDS_ARE_DRAWS,
    UNREADABLE_IS_GREY,
)


def run(
    *,
    seeds: int,
    out: Path,
    quiet: bool = False,
    local_steps: Mapping[float, Sequence[int]] = LOCAL_STEPS,
    images: Sequence[int] = (1, 4, 8),
    steps: int = 200,
) -> Table:
    """One client a seed; every learning rate with every number of local steps and of pictures."""
    datasets, missing = load_present(SOURCES)
    plans = [
        RowPlan(
            group=f"learning rate {lr:g}, {count} picture{'s' if count > 1 else ''}",
            label=ONE_STEP if taken == 1 else f"{taken} local steps",
            measure=partial(measure, dataset, count, _training(taken, lr), steps),
            published={},
            fingerprint=fingerprint(
                dataset, images=count, local=taken, lr=lr, steps=steps, tv=TV, network=asdict(NETWORK)
            ),
        )
        for dataset in datasets.values()
        for lr, each in local_steps.items()
        for count in images
        for taken in each
    ]
    rows = compute_rows(plans, seeds=seeds, out=out, quiet=quiet)
    return Table(
        name=NAME,
        title="Geiping et al. 2020: CIFAR-10 pictures from FedAvg updates, local steps by pictures",
        columns=COLUMNS,
        rows=rows,
        notes=(
            *pattern(claims(rows)),
            *(f"{title}: {data.source}." for title, data in datasets.items()),
            f"Budget: {steps} steps of signed Adam, one restart; the paper takes thousands.",
            *NOTES,
        ),
        missing=missing,
    )


def claims(rows: Sequence[Row]) -> dict[str, bool]:
    """The paper's findings, and whether the means have them."""
    psnr, blank = means(rows, "PSNR"), means(rows, "grey")
    several = [key for key in psnr if key[1] != ONE_STEP]
    protected = [", ".join(key) for key in several if psnr[key] < blank[key] + CLEARLY]
    found = {"several local steps do not protect": len(protected) < len(several)}
    if protected:
        found[f"nor with {'; '.join(protected)}"] = False
    return found


def _training(local_steps: int, lr: float) -> LocalTraining:
    return LocalTraining(algorithm="fedavg", epochs=local_steps, lr=lr)


def measure(dataset: Dataset, images: int, local: LocalTraining, steps: int, seed: int) -> dict[str, float]:
    """One client's update, inverted."""
    batch, spec = draw_victims(dataset, images, seed, one_each=True), dataset.spec
    model = build_model(partial(plain_convnet, shape=NETWORK), spec, seed=seed)
    attack = ATTACKS["inverting_gradients"](steps=steps, tv=TV)
    found, blank = invert(attack, model, batch, spec, seed=seed, local=local), grey(batch, spec)
    return {
        "PSNR": float(found.psnr.mean()),
        "best": float(found.psnr.max()),
        "grey": float(blank.psnr.mean()),
        "above grey": above_grey(found, blank),
        "seconds": found.seconds,
    }

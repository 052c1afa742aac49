"""Geiping et al. 2020: one picture from its gradient, by two objectives, on two networks, twice each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import nn

from seepage.attacks import ATTACKS
from seepage.errors import ModelError
from seepage.papers.extraction import load_present
from seepage.papers.inversion import (
    CIFAR10,
    GREY,
    NO_PUBLISHED_FIGURES,
    SEEDS_ARE_DRAWS,
    UNREADABLE_IS_GREY,
    draw_victims,
    grey,
    invert,
    trained_briefly,
)
from seepage.papers.rows import RowPlan, compute_rows, fingerprint
from seepage.papers.table import Column, Table
from seepage.workloads.data import Dataset
from seepage.workloads.models.loading import build_model
from seepage.workloads.models.weights import pretrained_path

NAME = "geiping2020/single-image"
SOURCES = (CIFAR10,)

COLUMNS = (
    Column("L-BFGS", "PSNR of Euclidean distance with L-BFGS, label read first (idlg)"),
    Column("cosine", "PSNR of 1 - cosine with total variation and signed Adam (inverting_gradients)"),
    GREY,
    Column("L-BFGS s", "CPU seconds a picture"),
    Column("cosine s", "CPU seconds a picture"),
)

Network = Callable[[int], nn.Module]
"""From a seed."""


def run(
    *,
    seeds: int,
    out: Path,
    quiet: bool = False,
    lenet_steps: tuple[int, int] = (300, 600),
    resnet_steps: tuple[int, int] = (40, 150),
    training_steps: int = 400,
) -> Table:
    """One picture a seed. Steps: of L-BFGS and of signed Adam."""
    datasets, missing = load_present(SOURCES)
    plans: list[RowPlan] = []
    notes: list[str] = []
    for title, dataset in datasets.items():
        lenet = trained_briefly("lenet_zhu", dataset, steps=training_steps)
        networks: dict[tuple[str, str], tuple[Network, tuple[int, int]]] = {
            ("LeNet (Zhu)", "untrained"): (_fresh("lenet_zhu", dataset), lenet_steps),
            ("LeNet (Zhu)", "trained"): (_same(lenet.model), lenet_steps),
            ("ResNet-20", "untrained"): (_fresh("resnet20", dataset), resnet_steps),
        }
        try:
            pretrained_path("resnet20")
            trained = build_model("resnet20", dataset.spec, weights="pretrained")
            networks["ResNet-20", "trained"] = (_same(trained), resnet_steps)
        except ModelError as reason:
            missing += (f"ResNet-20, trained: {reason}",)
        print_ = fingerprint(dataset, lenet=lenet_steps, resnet=resnet_steps, training=training_steps)
        plans += [
            RowPlan(
                group=network,
                label=state,
                measure=partial(measure, dataset, build, steps),
                published={},
                fingerprint=print_,
            )
            for (network, state), (build, steps) in networks.items()
        ]
        notes.append(f"{title}: {dataset.source}; the victims are among its last pictures.")
        notes.append(
            f"LeNet, trained: {training_steps} steps of Adam on 64 other pictures each, after which it is "
            f"right on {lenet.accuracy:.0%} of unseen pictures: trained, but far from converged."
        )
    return Table(
        name=NAME,
        title="Geiping et al. 2020: PSNR of one CIFAR-10 picture from its gradient",
        columns=COLUMNS,
        rows=compute_rows(plans, seeds=seeds, out=out, quiet=quiet),
        notes=(*notes, *_notes(lenet_steps, resnet_steps)),
        missing=missing,
    )


def _fresh(name: str, dataset: Dataset) -> Network:
    return lambda seed: build_model(name, dataset.spec, seed=seed)


def _same(model: nn.Module) -> Network:
    return lambda _seed: model


def _notes(lenet: tuple[int, int], resnet: tuple[int, int]) -> tuple[str, ...]:
    return (
        f"{NO_PUBLISHED_FIGURES} L-BFGS wins on the smooth untrained LeNet and collapses on ResNets, cosine "
        "works on all, trained is harder than untrained.",
        f"Budgets are cut down to fit one CPU core: {lenet[0]} steps of L-BFGS and {lenet[1]} of signed Adam "
        f"on LeNet, {resnet[0]} and {resnet[1]} on ResNet-20, one restart; the paper takes up to 24000 steps "
        "and several restarts.",
        SEEDS_ARE_DRAWS,
        UNREADABLE_IS_GREY,
        "ResNet-20, trained: on most pictures it is so confident that the gradient holds little but "
        "rounding; a PSNR near that of grey means not recovered.",
    )


def measure(dataset: Dataset, network: Network, steps: tuple[int, int], seed: int) -> dict[str, float]:
    """One picture and one network, attacked both ways."""
    batch, model, spec = draw_victims(dataset, 1, seed), network(seed), dataset.spec
    smooth = invert(ATTACKS["idlg"](steps=steps[0]), model, batch, spec, seed=seed)
    direction = invert(ATTACKS["inverting_gradients"](steps=steps[1]), model, batch, spec, seed=seed)
    return {
        "L-BFGS": float(smooth.psnr),
        "cosine": float(direction.psnr),
        "grey": float(grey(batch, spec).psnr),
        "L-BFGS s": smooth.seconds,
        "cosine s": direction.seconds,
    }

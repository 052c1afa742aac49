"""Geiping et al. 2020: one picture from its gradient, by two objectives, on two networks, twice each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from seepage.attacks import ATTACKS
from seepage.errors import ModelError
from seepage.federation import local_update
from seepage.papers.extraction import load_present
from seepage.papers.inversion import (
    CIFAR10,
    CLEARLY,
    GREY,
    NO_PUBLISHED_FIGURES,
    SEEDS_ARE_DRAWS,
    UNREADABLE_IS_GREY,
    draw_victims,
    grey,
    invert,
    means,
    pattern,
    trained_briefly,
)
from seepage.papers.rows import RowPlan, compute_rows, fingerprint
from seepage.papers.table import Column, Row, Table
from seepage.types import Batch, Broadcast, LocalTraining
from seepage.workloads.data import Dataset
from seepage.workloads.models.loading import build_model
from seepage.workloads.models.weights import pretrained_path

NAME = "geiping2020/single-image"
SOURCES = (CIFAR10,)

COLUMNS = (
    Column("L-BFGS", "PSNR of Euclidean distance with L-BFGS, label read first (idlg)", unit="dB"),
    Column(
        "cosine", "PSNR of 1 - cosine with total variation and signed Adam (inverting_gradients)", unit="dB"
    ),
    GREY,
    Column("L-BFGS s", "CPU seconds a picture", unit="seconds"),
    Column("cosine s", "CPU seconds a picture", unit="seconds"),
)

FRESH_LENET = ("LeNet (Zhu)", "untrained")

Network = Callable[[int], nn.Module]
"""From a seed."""

LENET: Mapping[str, Mapping[str, Any]] = {
    "idlg": {"steps": 3000},
    "inverting_gradients": {"steps": 1500, "step_size": 0.01, "tv": 10.0},
}
RESNET: Mapping[str, Mapping[str, Any]] = {
    "idlg": {"steps": 300},
    "inverting_gradients": {"steps": 400},
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One row: a network, the attacks' settings, and among how many clients the victim is picked."""

    network: Network
    attacks: Mapping[str, Mapping[str, Any]]
    clients: int = 1
    """Of so many, each with one picture, the one that sent the longest gradient is attacked."""


def run(
    *,
    seeds: int,
    out: Path,
    quiet: bool = False,
    lenet: Mapping[str, Mapping[str, Any]] = LENET,
    resnet: Mapping[str, Mapping[str, Any]] = RESNET,
    training_steps: int = 3000,
    clients: int = 30,
) -> Table:
    """One picture a seed. lenet, resnet: settings of both attacks."""
    datasets, missing = load_present(SOURCES)
    plans: list[RowPlan] = []
    notes: list[str] = []
    for title, dataset in datasets.items():
        trained = trained_briefly("lenet_zhu", dataset, steps=training_steps)
        settings = {
            FRESH_LENET: Setting(network=_fresh("lenet_zhu", dataset), attacks=lenet),
            ("LeNet (Zhu)", "trained"): Setting(network=_same(trained.model), attacks=lenet),
            ("ResNet-20", "untrained"): Setting(network=_fresh("resnet20", dataset), attacks=resnet),
        }
        try:
            pretrained_path("resnet20")
            network = _same(build_model("resnet20", dataset.spec, weights="pretrained"))
            longest = f"trained, the longest of {clients}"
            settings["ResNet-20", "trained"] = Setting(network=network, attacks=resnet)
            settings["ResNet-20", longest] = Setting(network=network, attacks=resnet, clients=clients)
        except ModelError as reason:
            missing += (f"ResNet-20, trained: {reason}",)
        plans += [
            _plan(dataset, group, label, setting, training_steps)
            for (group, label), setting in settings.items()
        ]
        notes.append(f"{title}: {dataset.source}; the victims are among its last pictures.")
        notes.append(
            f"LeNet, trained: {training_steps} steps of Adam on 64 other pictures each, after which it is "
            f"right on {trained.accuracy:.0%} of unseen pictures."
        )
    rows = compute_rows(plans, seeds=seeds, out=out, quiet=quiet)
    return Table(
        name=NAME,
        title="Geiping et al. 2020: PSNR of one CIFAR-10 picture from its gradient",
        columns=COLUMNS,
        rows=rows,
        notes=(*pattern(claims(rows)), *notes, *_notes(lenet, resnet)),
        missing=missing,
    )


def claims(rows: Sequence[Row]) -> dict[str, bool]:
    """The paper's findings, and whether the means have them."""
    smooth, direction, blank = (means(rows, column) for column in ("L-BFGS", "cosine", "grey"))
    found = {"L-BFGS wins on the untrained LeNet": smooth[FRESH_LENET] > direction[FRESH_LENET]}
    for row in rows:
        key = row.group, row.label
        if row.group == "ResNet-20":
            found[f"L-BFGS collapses on {row.group}, {row.label}"] = smooth[key] < blank[key]
        found[f"cosine works on {row.group}, {row.label}"] = direction[key] >= blank[key] + CLEARLY
    for group in {row.group: None for row in rows}:
        before, after = (group, "untrained"), (group, "trained")
        if after in direction:
            found[f"trained is harder than untrained for L-BFGS on {group}"] = smooth[after] < smooth[before]
            found[f"and for cosine on {group}"] = direction[after] < direction[before]
    return found


def _plan(dataset: Dataset, group: str, label: str, setting: Setting, training_steps: int) -> RowPlan:
    attacks = {name: dict(settings) for name, settings in setting.attacks.items()}
    return RowPlan(
        group=group,
        label=label,
        measure=partial(measure, dataset, setting),
        published={},
        fingerprint=fingerprint(dataset, attacks=attacks, training=training_steps, clients=setting.clients),
    )


def _fresh(name: str, dataset: Dataset) -> Network:
    return lambda seed: build_model(name, dataset.spec, seed=seed)


def _same(model: nn.Module) -> Network:
    return lambda _seed: model


def _notes(
    lenet: Mapping[str, Mapping[str, Any]], resnet: Mapping[str, Mapping[str, Any]]
) -> tuple[str, ...]:
    return (
        f'{NO_PUBLISHED_FIGURES} "Works": at least {CLEARLY:g} dB above grey; "collapses": below grey.',
        f"Settings are cut down to fit one CPU core: LeNet {_said(lenet)}; ResNet-20 {_said(resnet)}; one "
        "restart. The paper takes up to 24000 steps and several restarts, and a ResNet-20 of four times the "
        "width. Settings were chosen on pictures and weights of seeds 100 to 103.",
        "LeNet: L-BFGS needs thousands of steps, for the gradient is nearly blind to most directions. Signed "
        "steps of the attack's default length, which suits ReLU networks, only jump about in them: shorter "
        "steps and a heavier total variation are needed.",
        SEEDS_ARE_DRAWS,
        UNREADABLE_IS_GREY,
        "ResNet-20, trained: of most pictures it is so certain that the gradient holds little but rounding; "
        "a PSNR near that of grey means not recovered. The server sees how long a gradient is: in the last "
        "row it attacks the longest of many, whose picture the network is wrong about or unsure of.",
    )


def _said(attacks: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(
        f"{name} " + " ".join(f"{key}={value:g}" for key, value in settings.items())
        for name, settings in attacks.items()
    )


def measure(dataset: Dataset, setting: Setting, seed: int) -> dict[str, float]:
    """One picture and one network, attacked both ways."""
    model, spec = setting.network(seed), dataset.spec
    batch = longest_gradient(model, draw_victims(dataset, setting.clients, seed))
    smooth, direction = (
        invert(ATTACKS[name](**setting.attacks[name]), model, batch, spec, seed=seed)
        for name in ("idlg", "inverting_gradients")
    )
    return {
        "L-BFGS": float(smooth.psnr),
        "cosine": float(direction.psnr),
        "grey": float(grey(batch, spec).psnr),
        "L-BFGS s": smooth.seconds,
        "cosine s": direction.seconds,
    }


def longest_gradient(model: nn.Module, batch: Batch) -> Batch:
    """Of clients with one picture each, the one whose gradient is the longest: what a server can see."""
    singles = [batch.select(torch.tensor([index])) for index in range(len(batch))]
    if len(singles) == 1:
        return singles[0]

    def length(single: Batch) -> float:
        update = local_update(Broadcast(model), single, LocalTraining())
        return sum(float(tensor.square().sum()) for tensor in update.tensors.values())

    return max(singles, key=length)

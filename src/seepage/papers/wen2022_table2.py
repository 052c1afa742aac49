"""Wen et al. 2022, Table 2 and Figure 5(b): pictures with and without fishing (Section 4.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.binary_fishing import one_shot_binary_fishing
from seepage.attacks.parts.fishing.catch import inner_attack, invert_catch
from seepage.attacks.parts.fishing.head import find_head, head_features
from seepage.federation import draw_clients, local_update
from seepage.metrics import assign, psnr, registered_psnr
from seepage.papers.extraction import Source
from seepage.papers.fishing import (
    NORMALISED,
    RAW,
    REGISTERED,
    flat_psnr,
    known_to_server,
    load_one,
    play_fishing,
)
from seepage.papers.rows import RowPlan, compute_rows, fingerprint
from seepage.papers.table import Column, Table
from seepage.types import Batch, Broadcast, Exchange, LocalTraining
from seepage.workloads.data import Dataset
from seepage.workloads.models.loading import build_model

NAME = "wen2022/table2"

PUBLISHED = {"without": {32: 14.029, 50: 14.568}, "fished": {32: 17.415, 50: 17.610}}
SAMPLED = 8
"""Pictures of a batch, drawn beforehand, over which the mean registered PSNR is taken."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network, and the attack that inverts its gradients: the same with and without fishing."""

    model: str
    source: Source
    inner: str
    steps: int
    fished: Sequence[int]
    without: Sequence[int]
    """Batch sizes of the two methods."""
    options: Mapping[str, Any] = field(default_factory=dict)
    without_in: torch.dtype = torch.float64
    """Precision without fishing."""


NETWORKS = {
    "LeNet of Zhu et al., untrained": Network(
        model="lenet_zhu",
        source=RAW,
        inner="idlg",
        steps=300,
        fished=(32, 50, 64, 256),
        without=(32, 50, 64, 256),
    ),
    "ResNet-20, trained": Network(
        model="resnet20",
        options={"weights": "pretrained"},
        source=NORMALISED,
        inner="inverting_gradients",
        steps=100,
        fished=(32, 50),
        without=(),
    ),
    "ConvNet, width 16, untrained": Network(
        model="convnet",
        options={"width": 16},
        source=RAW,
        inner="inverting_gradients",
        steps=120,
        fished=(32, 50, 64, 256),
        without=(32,),
        without_in=torch.float32,
    ),
}

COLUMNS = (
    Column("max", "best registered PSNR (dB) of the batch's pictures; fished: of the one picture"),
    Column("mean", f"mean registered PSNR (dB) over {SAMPLED} pictures of the batch; fished: the same one"),
    Column("flat max", "PSNR (dB) of the best flat picture in its own mean colour: knowing no detail"),
    Column("flat mean", "the same, the mean over the batch; fished: of the fished picture"),
    Column("isolated", "share of runs in which the server isolated a picture; others count as flat mid-grey"),
)

NOTES = (
    "The paper: ImageNet at 224x224, pre-trained ResNet-18, 24,000 steps of Adam with pattern tiling. Here: "
    "CIFAR-10 test pictures at 32x32, small networks, hundreds of steps, ordinary total variation. Levels "
    "are not comparable (no margin is set); what is compared is fished against not fished and against the "
    "flat picture.",
    "A maximum over a batch grows with the batch by itself, and flat pictures of dull originals score high: "
    "read 'max' beside 'flat max' and 'mean' beside 'flat mean'. A fished row has a single picture.",
    "LeNet: L-BFGS on the Euclidean distance (idlg, 300 steps), on which inversion of a single picture "
    "works; the others: inverting_gradients with few steps (120; trained ResNet-20: 100). The labels are "
    "granted without fishing as well. The same number of steps is spent on one fished picture as on a "
    "whole batch.",
    "LeNet's attack was chosen among three by its result on the first seed: only further seeds test it.",
    "Features of untrained networks differ little between pictures, so that they are fished in double "
    "precision with beta = 1e12; the ConvNet without fishing runs in single precision to save time.",
    "Batches of one seed are nested: the smaller is part of the larger, so that the same outlier may be "
    "fished from both, with the same picture.",
    f"Registration takes about a second a picture: 'max' is over the {REGISTERED} pictures with the best "
    f"plain PSNR, 'mean' over the first {SAMPLED} of the batch, which lie in random order.",
)
TOO_LONG = (
    "Without fishing, ConvNet at 50 and more and the trained ResNet-20: one step on such a batch takes one "
    "to two seconds on a core.",
)


def run(
    *, seeds: int, out: Path, quiet: bool = False, networks: Mapping[str, Network] | None = None
) -> Table:
    """About a quarter of an hour a seed on one core; finished rows are kept, so that it can be stopped."""
    networks = NETWORKS if networks is None else networks
    plans = [plan for title, network in networks.items() for plan in plan_rows(title, network)]
    return Table(
        name=NAME,
        title="Wen et al. 2022, Table 2: registered PSNR with and without the one-shot binary attack",
        columns=COLUMNS,
        rows=compute_rows(plans, seeds=seeds, out=out, quiet=quiet),
        notes=NOTES,
        missing=TOO_LONG,
    )


def plan_rows(title: str, network: Network) -> list[RowPlan]:
    """Both methods on the same batches."""
    dataset = load_one(network.source)
    sizes = [("without", size) for size in network.without] + [("fished", size) for size in network.fished]
    return [
        RowPlan(
            group=title,
            label=f"{'without fishing' if method == 'without' else 'fished'}, batch {size}",
            measure=partial(measure, dataset, network, method=method, size=size),
            published={"max": PUBLISHED[method][size]} if size in PUBLISHED[method] else {},
            fingerprint=fingerprint(
                dataset, inner=network.inner, steps=network.steps, options=dict(network.options)
            ),
        )
        for method, size in sorted(sizes, key=lambda pair: pair[1])
    ]


def measure(dataset: Dataset, network: Network, seed: int, *, method: str, size: int) -> dict[str, float]:
    """One user with pictures of any class."""
    model = build_model(network.model, dataset.spec, seed=seed, **network.options)
    (mine,) = draw_clients(dataset.labels, clients=1, examples_each=size, seed=seed)
    batch = dataset.batch(mine)
    if method == "fished":
        return fished_scores(dataset, network, model, batch, seed=seed)
    return batch_scores(dataset, network, model, batch, seed=seed)


def fished_scores(
    dataset: Dataset, network: Network, model: nn.Module, batch: Batch, *, seed: int
) -> dict[str, float]:
    """One picture, compared with the one that was fished, which its feature tells."""
    model, batch = model.double(), Batch(batch.inputs.double(), batch.labels)
    known = known_to_server(dataset.spec, seed=seed)
    attack = one_shot_binary_fishing(beta=1e12, inner=network.inner, inner_options={"steps": network.steps})
    exchanges = play_fishing(attack, model, [batch], known).exchanges
    catch = attack.fish(exchanges, known)
    truth = dataset.spec.to_raw(batch.inputs)
    if catch.fished:
        features = head_features(model, find_head(model, dataset.spec), batch.inputs)
        own = int((features - catch.fished[0].feature).norm(dim=1).argmin())
        values = invert_catch(catch, attack.inner, exchanges, known).values
    else:
        own, values = 0, torch.full_like(truth[:1], 0.5)
    truth = truth[own : own + 1]
    best = float(registered_psnr(values.clamp(0, 1), truth, data_range=1.0))
    flat = float(flat_psnr(truth))
    return {
        "max": best,
        "mean": best,
        "flat max": flat,
        "flat mean": flat,
        "isolated": float(bool(catch.fished)),
    }


def batch_scores(
    dataset: Dataset, network: Network, model: nn.Module, batch: Batch, *, seed: int
) -> dict[str, float]:
    """All pictures at once, each compared with the one that the best assignment gives it."""
    model, batch = model.to(network.without_in), Batch(batch.inputs.to(network.without_in), batch.labels)
    broadcast = Broadcast(model)
    sent = local_update(broadcast, batch, LocalTraining())
    seen = Exchange(broadcast=broadcast, update=sent, clients=(0,), labels=batch.labels)
    inner = inner_attack(network.inner, {"steps": network.steps})
    values = inner.run([seen], known_to_server(dataset.spec, seed=seed)).values.clamp(0, 1)
    truth = dataset.spec.to_raw(batch.inputs)
    return paired_scores(values[assign(values, truth).candidate], truth)


def paired_scores(values: Tensor, truth: Tensor) -> dict[str, float]:
    """Maximum and mean over a batch, with those of flat pictures."""
    best = psnr(values, truth, data_range=1.0).topk(min(REGISTERED, len(truth))).indices
    some = slice(SAMPLED)
    flat = flat_psnr(truth)
    mean = registered_psnr(values[some], truth[some], data_range=1.0)
    top = registered_psnr(values[best], truth[best], data_range=1.0)
    return {
        "max": float(torch.maximum(top.max(), mean.max())),
        "mean": float(mean.mean()),
        "flat max": float(flat.max()),
        "flat mean": float(flat.mean()),
    }

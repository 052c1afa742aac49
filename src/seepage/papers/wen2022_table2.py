"""Wen et al. 2022, Table 2 and Figure 5(b): pictures with and without fishing (Section 4.3)."""

from __future__ import annotations

import time
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
    flat_psnr,
    known_to_server,
    load_one,
    play_fishing,
)
from seepage.papers.rows import RowPlan, compute_rows, fingerprint
from seepage.papers.table import Column, Row, Table
from seepage.types import Batch, Broadcast, Exchange, LocalTraining
from seepage.workloads.data import Dataset
from seepage.workloads.models.loading import build_model

NAME = "wen2022/table2"

PUBLISHED = {"without": {32: 14.029, 50: 14.568}, "fished": {32: 17.415, 50: 17.610}}
REGISTERED = 4
"""Pictures of a batch that are registered: those with the best plain PSNR, and as many drawn beforehand."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network, and the attacks on it; batches are 32-bit numbers as clients send them."""

    model: str
    source: Source
    inner: str
    """What inverts a fished gradient."""
    inner_options: Mapping[str, Any] = field(default_factory=dict)
    fished: Sequence[int]
    """Batch sizes."""
    whole: str
    """What inverts a whole batch without fishing."""
    whole_steps: Mapping[int, int]
    """Its steps, by batch size."""
    most_seeds: int
    beta: float = 1e6
    """Sharpness of the cuts."""
    options: Mapping[str, Any] = field(default_factory=dict)


NETWORKS = {
    "LeNet of Zhu et al., untrained": Network(
        model="lenet_zhu",
        source=RAW,
        inner="recursive_inversion",
        fished=(32, 50, 64, 256),
        whole="idlg",
        whole_steps={32: 100, 50: 80, 64: 60, 256: 30},
        most_seeds=10,
    ),
    "ViT, patches of 8x8, untrained": Network(
        model="vit",
        options={"patch_size": 8},
        source=RAW,
        inner="patch_embedding",
        fished=(32, 50, 64, 256),
        whole="inverting_gradients",
        whole_steps={32: 60, 50: 50, 64: 40, 256: 15},
        most_seeds=10,
    ),
    "ConvNet, width 16, untrained": Network(
        model="convnet",
        options={"width": 16},
        source=RAW,
        inner="inverting_gradients",
        inner_options={"steps": 300},
        fished=(32, 50, 64, 256),
        whole="inverting_gradients",
        whole_steps={32: 12, 64: 8, 256: 3},
        most_seeds=5,
        beta=1e8,
    ),
    "ResNet-20, trained": Network(
        model="resnet20",
        options={"weights": "pretrained"},
        source=NORMALISED,
        inner="inverting_gradients",
        inner_options={"steps": 400},
        fished=(32, 50, 64),
        whole="inverting_gradients",
        whole_steps={32: 24},
        most_seeds=3,
    ),
}

COLUMNS = (
    Column("max", "best registered PSNR (dB) of the batch's pictures; fished: of the one picture", unit="dB"),
    Column("mean", f"mean registered PSNR (dB) over {REGISTERED} pictures; fished: the same one", unit="dB"),
    Column(
        "flat max", "PSNR (dB) of the best flat picture in its own mean colour: knowing no detail", unit="dB"
    ),
    Column("flat mean", "the same, the mean over the batch; fished: of the fished picture", unit="dB"),
    Column("above flat", "mean over the same pictures as 'mean' of what each is above its own flat picture"),
    Column(
        "isolated",
        "share of runs in which the server isolated a picture; others count as flat mid-grey",
        unit="share",
    ),
    Column("CPU s", "the server's processor seconds for the inversion", unit="seconds"),
)

NOTES = (
    "The paper: ImageNet at 224x224, pre-trained ResNet-18, 24,000 steps of Adam with pattern tiling. Here: "
    "CIFAR-10 test pictures at 32x32, small networks, ordinary total variation. Levels are not comparable "
    "(no margin is set); what is compared is fished against not fished and against the flat picture.",
    "A maximum over a batch grows with the batch by itself, and flat pictures of dull originals score high: "
    "read 'max' beside 'flat max' and 'mean' beside 'flat mean'. A fished row has a single picture, "
    "another one than those the other rows score; 'above flat' compares each picture with itself.",
    "LeNet and ViT (64 dimensions, as published, with layer norm and residual connections): the fished "
    "gradient is inverted in closed form (recursive_inversion, patch_embedding), which takes one example "
    "and no more; without fishing LeNet by L-BFGS on the Euclidean distance (idlg), ViT by "
    "inverting_gradients. The others: inverting_gradients with few steps (ConvNet 300, ResNet-20 400) on "
    "the fished gradient, and as many as fit on the batch. LeNet's and ViT's gap is therefore that of two "
    "attacks as well; ConvNet's and ResNet-20's is that of one attack.",
    "Without fishing so many steps are taken that the inversion needs about the processor seconds of the "
    "fished one or more (see 'CPU s'; the paper takes the same number of steps), so that the search "
    "on a batch takes far fewer steps; the labels are granted. Steps, beta and LeNet's attack without "
    "fishing (the better of two) were chosen on seeds that are not in the table (100 and above).",
    "Clients compute in single precision, and cuts have beta = 1e6; 1e8 on the untrained ConvNet, whose "
    "features differ by so little from picture to picture (1e-4 of their length) that at 1e6 they are tied.",
    "Batches of one seed are nested: the smaller is part of the larger, so that the same outlier may be "
    "fished from both, with the same picture.",
    f"Registration takes about a second a picture: 'max' is over the {REGISTERED} pictures with the best "
    f"plain PSNR, 'mean' over the first {REGISTERED} of the batch, which lie in random order.",
)
TOO_LONG = ("Without fishing: ConvNet at 50, and the trained ResNet-20 at 50 and more, to save time.",)


def run(
    *, seeds: int, out: Path, quiet: bool = False, networks: Mapping[str, Network] | None = None
) -> Table:
    """About 35 minutes on one core with ten seeds; finished rows are kept, so that it can be stopped."""
    networks = NETWORKS if networks is None else networks
    rows: tuple[Row, ...] = ()
    for title, network in networks.items():
        plans = plan_rows(title, network)
        rows += compute_rows(plans, seeds=min(seeds, network.most_seeds), out=out, quiet=quiet)
    return Table(
        name=NAME,
        title="Wen et al. 2022, Table 2: registered PSNR with and without the one-shot binary attack",
        columns=COLUMNS,
        rows=rows,
        notes=NOTES,
        missing=TOO_LONG,
    )


def plan_rows(title: str, network: Network) -> list[RowPlan]:
    """Both methods on the same batches."""
    dataset = load_one(network.source)
    sizes = [("without", size) for size in network.whole_steps] + [("fished", n) for n in network.fished]
    plans = []
    for method, size in sorted(sizes, key=lambda pair: pair[1]):
        settings = (
            {"inner": network.inner, **network.inner_options, "beta": network.beta}
            if method == "fished"
            else {"inner": network.whole, "steps": network.whole_steps[size]}
        )
        plans.append(
            RowPlan(
                group=title,
                label=f"{'without fishing' if method == 'without' else 'fished'}, batch {size}",
                measure=partial(measure, dataset, network, method=method, size=size),
                published={"max": PUBLISHED[method][size]} if size in PUBLISHED[method] else {},
                fingerprint=fingerprint(dataset, **settings, registered=REGISTERED, options=network.options),
            )
        )
    return plans


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
    known = known_to_server(dataset.spec, seed=seed)
    attack = one_shot_binary_fishing(
        beta=network.beta, inner=network.inner, inner_options=network.inner_options
    )
    exchanges = play_fishing(attack, model, [batch], known).exchanges
    start = time.process_time()
    catch = attack.fish(exchanges, known)
    found = invert_catch(catch, attack.inner, exchanges, known)
    seconds = time.process_time() - start
    truth = dataset.spec.to_raw(batch.inputs)
    if catch.fished:
        features = head_features(model, find_head(model, dataset.spec), batch.inputs)
        own, values = int((features - catch.fished[0].feature).norm(dim=1).argmin()), found.values
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
        "above flat": best - flat,
        "isolated": float(bool(catch.fished)),
        "CPU s": seconds,
    }


def batch_scores(
    dataset: Dataset, network: Network, model: nn.Module, batch: Batch, *, seed: int
) -> dict[str, float]:
    """All pictures at once, each compared with the one that the best assignment gives it."""
    broadcast = Broadcast(model)
    sent = local_update(broadcast, batch, LocalTraining())
    seen = Exchange(broadcast=broadcast, update=sent, clients=(0,), labels=batch.labels)
    inner = inner_attack(network.whole, {"steps": network.whole_steps[len(batch)]})
    start = time.process_time()
    values = inner.run([seen], known_to_server(dataset.spec, seed=seed)).values.clamp(0, 1)
    seconds = time.process_time() - start
    truth = dataset.spec.to_raw(batch.inputs)
    return {**paired_scores(values[assign(values, truth).candidate], truth), "CPU s": seconds}


def paired_scores(values: Tensor, truth: Tensor) -> dict[str, float]:
    """Maximum and mean over a batch, with those of flat pictures."""
    best = psnr(values, truth, data_range=1.0).topk(min(REGISTERED, len(truth))).indices
    some = slice(REGISTERED)
    flat = flat_psnr(truth)
    mean = registered_psnr(values[some], truth[some], data_range=1.0)
    top = registered_psnr(values[best], truth[best], data_range=1.0)
    return {
        "max": float(torch.maximum(top.max(), mean.max())),
        "mean": float(mean.mean()),
        "flat max": float(flat.max()),
        "flat mean": float(flat.mean()),
        "above flat": float((mean - flat[some]).mean()),
    }

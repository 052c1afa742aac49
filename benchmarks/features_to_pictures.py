"""Pictures behind convolutions: feature_inversion beside inverting_gradients at equal CPU time.

    SEEPAGE_DATA=... python benchmarks/features_to_pictures.py [--only "B = 8"] [--batches 5]

Networks with torch's initialisation whose dense layer has 400 neurons, one gradient of a batch, labels known
to the server. CIFAR-10's test images from 6100 on, with the usual mean and std: constants were chosen on
images below 3000 and seeds below 1000. inverting_gradients is run with as many steps as take at least the CPU
time that feature_inversion took, for each of two weights of total variation, its default and the one advised
for networks without batch norm; the better mean counts. PSNR of matched pictures, mean over a batch, an
example without a picture counts as a guess; the best guess without an update (`prior_only`) stands beside.
One thread.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from seepage.attacks import ATTACKS
from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Reconstruction
from seepage.data import load_data
from seepage.protocol import local_update

FIRST_IMAGE, WIDTH = 6100, 400
WEIGHTS = (0.1, 3.0)
"""Of total variation, for inverting_gradients."""


def strided() -> Sequence[nn.Module]:
    """768 features."""
    return (
        nn.Conv2d(3, 12, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, stride=2, padding=1),
        nn.ReLU(),
    )


def pooled() -> Sequence[nn.Module]:
    """4096 features, behind two max-pools."""
    return (
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


FRONTS = {"strided": (strided, 768), "pooled": (pooled, 4096)}


def network(front: str, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    build, features = FRONTS[front]
    return nn.Sequential(*build(), nn.Flatten(), nn.Linear(features, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))


@dataclass(frozen=True)
class Result:
    """dB and CPU seconds of one batch. `searched`: for each weight of total variation."""

    guessed: float
    read: float
    read_seconds: float
    pictures: int
    claims: int
    searched: dict[float, float]
    searched_seconds: float


def psnr(found: Reconstruction, guess: Reconstruction, batch: Batch, spec: InputSpec) -> float:
    truth = spec.to_raw(batch.inputs).flatten(1).double()
    values = torch.cat([found.values.flatten(1).double(), guess.values.flatten(1).double()])
    decibels = -10 * torch.log10((torch.cdist(values, truth).square() / truth.shape[1]).clamp_min(1e-10))
    missing = max(0, len(truth) - len(found))
    decibels = decibels[: len(found) + missing]
    rows, columns = linear_sum_assignment(decibels.numpy(), maximize=True)
    return float(decibels[rows, columns].mean())


def play(front: str, examples: int, seed: int) -> Result:
    data = load_data("cifar10", normalise=True)
    order = torch.randperm(len(data) - FIRST_IMAGE, generator=torch.Generator().manual_seed(seed))
    batch, model, local = data.batch(FIRST_IMAGE + order[:examples]), network(front, seed), LocalTraining()
    sent = local_update(Broadcast(model), batch, local)
    seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,), labels=batch.labels)
    known = Knowledge(input=data.spec, local=local, seed=seed)

    def timed(name: str, **settings: object) -> tuple[Reconstruction, float]:
        before = time.process_time()
        found = ATTACKS[name](**settings).run([seen], known)
        return found, time.process_time() - before

    guess, _ = timed("prior_only")
    read, seconds = timed("feature_inversion")
    timed("inverting_gradients", steps=3)  # the first run of anything is slower
    few, many = timed("inverting_gradients", steps=10)[1], timed("inverting_gradients", steps=60)[1]
    steps = math.ceil(1.1 * seconds / (max(many - few, 0.1 * many) / 50))
    searched, took = {}, []
    for weight in WEIGHTS:
        found, spent = timed("inverting_gradients", steps=steps, tv=weight)
        searched[weight] = psnr(found, guess, batch, data.spec)
        took.append(spent)
    return Result(
        guessed=psnr(guess, guess, batch, data.spec),
        read=psnr(read, guess, batch, data.spec),
        read_seconds=seconds,
        pictures=len(read),
        claims=0 if read.claimed is None else int(read.claimed.sum()),
        searched=searched,
        searched_seconds=statistics.mean(took),
    )


def line(name: str, examples: int, results: list[Result]) -> str:
    weight = max(WEIGHTS, key=lambda w: statistics.mean(r.searched[w] for r in results))
    read, searched = [r.read for r in results], [r.searched[weight] for r in results]
    better = sum(a > b for a, b in zip(read, searched, strict=True))
    mean = statistics.mean
    return (
        f"{name:18} feature_inversion {mean(read):.1f} dB ({min(read):.1f} to {max(read):.1f}) in "
        f"{mean(r.read_seconds for r in results):.1f} CPU s  inverting_gradients (tv = {weight:g}) "
        f"{mean(searched):.1f} dB ({min(searched):.1f} to {max(searched):.1f}) in "
        f"{mean(r.searched_seconds for r in results):.1f} CPU s  guess "
        f"{mean(r.guessed for r in results):.1f} dB  higher in {better} of {len(results)} batches  "
        f"pictures {sum(r.pictures for r in results)} of {examples * len(results)}  "
        f"claims {sum(r.claims for r in results)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="lines whose name has this in it")
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=81_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for front in FRONTS:
        for examples in (8, 20):
            name = f"{front}, B = {examples}"
            if options.only in name:
                seeds = range(options.first_seed, options.first_seed + options.batches)
                print(line(name, examples, [play(front, examples, seed) for seed in seeds]), flush=True)
    last = options.first_seed + options.batches - 1
    print(f"seeds {options.first_seed} to {last}, images from {FIRST_IMAGE} on")


if __name__ == "__main__":
    main()

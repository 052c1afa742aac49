"""Fishing where there are many classes: is one example alone, and is the fished gradient its own?

    SEEPAGE_DATA=... python benchmarks/fishing_classes.py [--trials 4] [--first-seed 241000] [--classes 100]

Pictures of CIFAR-10's test set with labels drawn from 100 or 1000 classes, a small CNN with a random head of
as many outputs, gradients and one step of FedAvg at .01. For `class_fishing` exactly one example is of the
class that is asked for; for `feature_fishing` all are (its condition, Remark 3.3: nobody else above the cut);
for the two that cut through mixed batches labels are as they fall. `false`: vouched for as one example, with
a cosine below .99 to the gradient of every example of the batch. One thread, CPU seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from fishing_fedavg import Line, cut, fedavg, small_cnn
from seepage.attacks.fishing.binary_fishing import binary_fishing, one_shot_binary_fishing
from seepage.attacks.fishing.class_fishing import class_fishing
from seepage.attacks.fishing.feature_fishing import feature_fishing
from seepage.attacks.fishing.shared import Fishing
from seepage.core.types import Batch, LocalTraining
from seepage.data import Dataset, load_data

ATTACKS: dict[str, tuple[Callable[[int], Fishing], int]] = {
    "class_fishing": (lambda target: class_fishing(target_class=target), 64),
    "feature_fishing, one class": (lambda target: feature_fishing(target_class=target, queries=20), 16),
    "one_shot_binary_fishing": (lambda _: one_shot_binary_fishing(), 64),
    "binary_fishing": (lambda _: binary_fishing(), 8),
}


def drawn(data: Dataset, attack: str, classes: int, examples: int, seed: int) -> tuple[int, Batch]:
    """The class that is asked for, and a batch."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randperm(len(data.labels), generator=generator)[:examples]
    target = int(torch.randint(classes, (1,), generator=generator))
    labels = torch.randint(classes, (examples,), generator=generator)
    if attack == "class_fishing":
        labels[labels == target] = (target + 1) % classes
        labels[int(torch.randint(examples, (1,), generator=generator))] = target
    elif attack.startswith("feature_fishing"):
        labels[:] = target
    return target, Batch(data.inputs[index], labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=241_000)
    parser.add_argument("--classes", type=int, nargs="+", default=[100, 1000])
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = load_data("cifar10")
    for classes in given.classes:
        spec = replace(data.spec, num_classes=classes)
        for name, (make, examples) in ATTACKS.items():
            line, twice = Line(), 0
            for seed in range(given.first_seed, given.first_seed + given.trials):
                for local in (LocalTraining(), fedavg(0.01)):
                    model = small_cnn(data, seed=seed)
                    model[-1] = nn.Linear(64, classes)
                    target, batch = drawn(data, name, classes, examples, seed)
                    line.trials += examples if name == "binary_fishing" else 1
                    twice += cut(line, make(target), model, spec, local, batch, seed)
            print(f"{classes} classes, {name}: {line}, {twice} twice", flush=True)


if __name__ == "__main__":
    main()

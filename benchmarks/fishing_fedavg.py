"""Fishing under FedAvg: is one example alone, and is the fished gradient its own?

    SEEPAGE_DATA=... python benchmarks/fishing_fedavg.py [--trials 2] [--first-seed 70000] [--only mnist]
    ... --cuts    the fishing attacks that cut, and moderate fishing, in 2, 5 and 10 local steps

A client holds n examples of a test set, exactly one of them of the class that is asked for, in any order. The
fished gradient is compared with that example's own under the same model, computed apart: the cosine of every
weight behind the classification layer, and the lowest of all layers one by one. `false`: vouched for as one
example, with a cosine below .99. Networks are untrained, or trained for 150 steps of Adam on the first 5000
images, and the public ResNet-20 with its trained weights; examples come from the images from 8000 on. With
--cuts a batch lacks class 1, or (`every class`) holds all ten: a cut in several steps finds no free row then;
moderate fishing vouches for nothing, and its lowest cosine is that of all it returns. Made on images 5000 to
8000 and seeds below 1000. One thread, CPU seconds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from seepage.attacks.fishing.binary_fishing import binary_fishing, one_shot_binary_fishing
from seepage.attacks.fishing.class_fishing import class_fishing, moderate_fishing
from seepage.attacks.fishing.feature_fishing import feature_fishing
from seepage.attacks.fishing.shared import Fishing
from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Broadcast, InputSpec, LocalTraining
from seepage.data import Dataset, load_data
from seepage.models.zoo.resnet import resnet20
from seepage.protocol import THREATS, client, knowledge, local_update, play

FIRST_IMAGE, TAUGHT = 8000, 5000
THREAT = THREATS["malicious_server"]


def small_cnn(data: Dataset, *, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    channels, side, _ = data.spec.shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (side // 4) ** 2, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


@cache
def network(kind: str, name: str, seed: int) -> nn.Module:
    data = dataset(name, kind)
    if kind == "resnet20":
        model = resnet20(data.spec)
        weights = Path(os.environ["SEEPAGE_DATA"]) / "weights" / "cifar10_resnet20.pt"
        names = [name for name in model.state_dict() if not name.endswith("num_batches_tracked")]
        found = dict(zip(names, torch.load(weights, weights_only=True).values(), strict=True))
        model.load_state_dict(found, strict=False)
        return model
    small = small_cnn(data, seed=seed)
    if kind == "trained":
        optimiser = torch.optim.Adam(small.parameters(), 1e-3)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(150):
            index = torch.randint(0, TAUGHT, (64,), generator=generator)
            optimiser.zero_grad()
            nn.functional.cross_entropy(small(data.inputs[index]), data.labels[index]).backward()
            optimiser.step()
    return small


@cache
def dataset(name: str, kind: str) -> Dataset:
    return load_data(name, normalise=kind == "resnet20")


def drawn(data: Dataset, examples: int, seed: int) -> tuple[int, Batch]:
    """A class, and a batch in which it has one example."""
    generator = torch.Generator().manual_seed(seed)
    target = int(torch.randint(10, (1,), generator=generator))
    index = FIRST_IMAGE + torch.randperm(len(data.labels) - FIRST_IMAGE, generator=generator)
    own = data.labels[index] == target
    chosen = torch.cat([index[own][:1], index[~own][: examples - 1]])
    chosen = chosen[torch.randperm(examples, generator=generator)]
    return target, Batch(data.inputs[chosen], data.labels[chosen])


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a.double() @ b.double() / (a.double().norm() * b.double().norm()).clamp_min(1e-300))


@dataclass
class Line:
    """What came of one setting's trials."""

    found: list[tuple[float, float]] = field(default_factory=list)
    """(cosine of all weights, lowest of the layers) of each that was vouched for."""
    trials: int = 0
    refused: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.refused:
            return f"{self.refused} of {self.trials} refused"
        lowest = min((all_of_them for all_of_them, _ in self.found), default=float("nan"))
        layer = min((one for _, one in self.found), default=float("nan"))
        false = sum(all_of_them < 0.99 for all_of_them, _ in self.found)
        return (
            f"isolated {len(self.found):3d} of {self.trials:3d}, false {false}, lowest cosine {lowest:.6f}, "
            f"of any layer {layer:.6f}, {self.seconds / max(1, self.trials):.2f} CPU s each"
        )


def attempt(line: Line, kind: str, name: str, local: LocalTraining, examples: int, seed: int) -> None:
    data, model = dataset(name, kind), network(kind, name, seed % 2)
    target, batch = drawn(data, examples, seed)
    known = knowledge(
        THREAT, "per_client", spec=data.spec, loss="cross_entropy", local=local, auxiliary=None, seed=seed
    )
    attack = class_fishing(target_class=target)
    line.trials += 1
    start = time.process_time()
    try:
        played = play(
            lambda current, history: attack.next_model(current, history, known),
            model,
            lambda _: [batch],
            step=client(local),
            threat=THREAT,
        )
        catch = attack.fish(played.exchanges, known)
    except NotApplicable:
        line.refused += 1
        return
    line.seconds += time.process_time() - start
    for fished in catch.fished:
        if fished.isolated:
            one = batch.select(batch.labels == target)
            truth = local_update(Broadcast(fished.model), one, LocalTraining()).tensors
            names = [n for n in list(truth)[:-2] if truth[n].any()]
            whole = (torch.cat([t[n].flatten() for n in names]) for t in (fished.tensors, truth))
            each = [cosine(fished.tensors[n].flatten(), truth[n].flatten()) for n in names]
            line.found.append((cosine(*whole), min(each)))


CUTS: dict[str, Callable[[], Fishing]] = {
    "one_shot_binary_fishing": one_shot_binary_fishing,
    "binary_fishing": binary_fishing,
    "feature_fishing, 20 queries": lambda: feature_fishing(queries=20),
    "moderate_fishing": moderate_fishing,
}


def lacking(data: Dataset, examples: int, seed: int, *, every_class: bool) -> Batch:
    """A batch without one class (1, whose row `feature_fishing` cuts by), or of all."""
    generator = torch.Generator().manual_seed(seed)
    index = FIRST_IMAGE + torch.randperm(len(data.labels) - FIRST_IMAGE, generator=generator)
    labels = data.labels[index]
    if every_class:
        firsts = torch.stack([(labels == c).nonzero()[0, 0] for c in range(10)])
        rest = torch.tensor([i for i in range(examples) if i not in firsts.tolist()])[: examples - 10]
        chosen = index[torch.cat([firsts, rest])]
    else:
        chosen = index[labels != 1][:examples]
    return Batch(data.inputs[chosen], data.labels[chosen])


def cut(
    line: Line,
    attack: Fishing,
    model: nn.Module,
    spec: InputSpec,
    local: LocalTraining,
    batch: Batch,
    seed: int,
) -> int:
    """Fish one batch; the number of examples vouched for that were met before."""
    known = knowledge(
        THREAT, "per_client", spec=spec, loss="cross_entropy", local=local, auxiliary=None, seed=seed
    )
    start = time.process_time()
    attack.check(model, known)
    played = play(
        lambda current, history: attack.next_model(current, history, known),
        model,
        lambda _: [batch],
        step=client(local),
        threat=THREAT,
        max_rounds=100,
    )
    catch = attack.fish(played.exchanges, known)
    line.seconds += time.process_time() - start
    met = []
    for fished in catch.fished:
        if not fished.isolated and not getattr(attack, "keep", 0):
            continue
        names = [n for n in list(fished.tensors)[:-2] if fished.tensors[n].any()]
        label = torch.tensor([fished.label])
        truths = [
            local_update(Broadcast(fished.model), Batch(one.unsqueeze(0), label), LocalTraining()).tensors
            for one in batch.inputs
        ]
        whole = torch.cat([fished.tensors[n].flatten() for n in names])
        found = [cosine(whole, torch.cat([t[n].flatten() for n in names])) for t in truths]
        met.append(max(range(len(found)), key=found.__getitem__))
        line.found.append((max(found), max(found)))
    return len(met) - len(set(met))


def cuts(trials: int, first_seed: int, only: str) -> None:
    place = 0
    for words, make in CUTS.items():
        for every_class in (False, True):
            for name, kind in (("mnist", "untrained"), ("mnist", "trained"), ("cifar10", "trained")):
                for lr in (0.001, 0.01, 0.1):
                    place += 1
                    told = f"{words}, {name}, {kind}, lr {lr:g}" + (", every class" if every_class else "")
                    if only not in told:
                        continue
                    line, twice = Line(), 0
                    for steps in (2, 5, 10):
                        for trial in range(trials):
                            seed = first_seed + 1000 * place + 10 * steps + trial
                            examples = 16 if words == "binary_fishing" else 16 + 48 * (trial % 2)
                            batch = lacking(dataset(name, kind), examples, seed, every_class=every_class)
                            line.trials += examples if words == "binary_fishing" else 1
                            local = fedavg(lr, epochs=steps)
                            model, spec = network(kind, name, seed % 2), dataset(name, kind).spec
                            twice += cut(line, make(), model, spec, local, batch, seed)
                    print(f"{told}: {line}, {twice} twice", flush=True)


def settings() -> list[tuple[str, str, str, list[LocalTraining], list[int]]]:
    """(what, data, network, local training, examples) of every line."""
    rates = (0.001, 0.01, 0.1)
    made = []
    for name, kind in (
        ("mnist", "untrained"),
        ("mnist", "trained"),
        ("cifar10", "untrained"),
        ("cifar10", "trained"),
        ("cifar10", "resnet20"),
    ):
        for lr in rates:
            sizes = [8, 64] if kind == "resnet20" else [8, 64, 256]
            made.append(("one step", name, kind, [fedavg(lr)], sizes))
            if kind == "resnet20":
                continue
            whole = [fedavg(lr, epochs=epochs) for epochs in (2, 5, 10)]
            made.append(("2, 5 and 10 steps, whole batch", name, kind, whole, [16, 128]))
            parts = [fedavg(lr, batch_size=16, shuffle_seed=7), fedavg(lr, batch_size=8, shuffle_seed=7)]
            made.append(("mini-batches of 16 and 8, 2 to 10 steps", name, kind, parts, [32, 80]))
    return made


def fedavg(lr: float, **more: int) -> LocalTraining:
    return LocalTraining(algorithm="fedavg", lr=lr, **more)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=2, help="of each size and kind of local training")
    parser.add_argument("--first-seed", type=int, default=70000)
    parser.add_argument("--only", default="")
    parser.add_argument("--cuts", action="store_true", help="other fishing attacks, in several local steps")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.cuts:
        cuts(given.trials, given.first_seed, given.only)
        return
    for place, (what, name, kind, locals_, sizes) in enumerate(settings()):
        words = f"{name}, {kind}, {what}, lr {locals_[0].lr:g}"
        if given.only not in words:
            continue
        line = Line()
        for which, local in enumerate(locals_):
            for examples in sizes:
                for trial in range(given.trials):
                    seed = given.first_seed + 1000 * place + 100 * which + 10 * trial + len(sizes)
                    attempt(line, kind, name, local, examples, seed + examples)
        print(f"{words}: {line}", flush=True)


if __name__ == "__main__":
    main()

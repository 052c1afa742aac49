"""Doors beside the plain gradient of a ReLU network: what exact_extraction reads there, and what it claims.

    SEEPAGE_DATA=... python benchmarks/other_doors.py [--only "5 steps"] [--batches 10] [--first-seed 50000]

Networks with torch's initialisation and 1000 neurons in the layer that is read, a server that changes nothing
and knows the value range and the local training. CIFAR-10's and MNIST's test images from 8000 on, fed in
[0, 1] unless a line says otherwise: the rules were made on images below 3000 and seeds below 1000. A claim is
false if no example of the batch is within the tolerance of exactness. Beside each line stands what the best
guess without an update has (`prior_only`). One thread, CPU seconds without the inference of labels.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.core.types import INPUT_SPACE, Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining
from seepage.data import Dataset, load_data
from seepage.metrics.exact import EXACT_TOLERANCE
from seepage.protocol import local_update

FIRST_IMAGE, WIDTH = 8000, 1000


def steps(**settings: object) -> LocalTraining:
    return LocalTraining(algorithm="fedavg", lr=0.05, **settings)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One line. `bar`: share of the examples that must be claimed."""

    local: LocalTraining
    examples: int = 20
    data: str = "cifar10"
    normalised: bool = False
    dropout: float = 0.0
    batch_norm: bool = False
    bias: bool = True
    bar: float | None = None
    change: Callable[[Tensor], Tensor] | None = None
    """Half of the batch is the other half, changed (raw values in grey steps)."""


def moved(inputs: Tensor) -> Tensor:
    """By two grey steps up or down, or not at all."""
    chance = torch.Generator().manual_seed(int(inputs.sum()) % 2**31)
    return inputs + 2 * torch.randint(-1, 2, inputs.shape, generator=chance)


_TRAINED = LocalTraining(batch_norm="train", send_buffers=True)
"""Batch norm in train mode, and what it counts is sent."""
SETTINGS: dict[str, Setting] = {}
for _data in ("cifar10", "mnist"):
    SETTINGS |= {
        f"{_data}, 5 steps": Setting(data=_data, local=steps(epochs=5), bar=0.95),
        f"{_data}, mini-batches of 5, 2 epochs": Setting(
            data=_data, local=steps(epochs=2, batch_size=5, shuffle_seed=3)
        ),
        f"{_data}, 5 steps, B = 60": Setting(data=_data, local=steps(epochs=5), examples=60),
        f"{_data}, dropout": Setting(data=_data, local=LocalTraining(batch_norm="train"), dropout=0.5),
        f"{_data}, dropout, B = 60": Setting(
            data=_data, local=LocalTraining(batch_norm="train"), dropout=0.5, examples=60
        ),
        f"{_data}, dropout, 5 steps": Setting(
            data=_data, local=steps(epochs=5, batch_norm="train"), dropout=0.5
        ),
        f"{_data}, batch norm, eval": Setting(data=_data, local=LocalTraining(), batch_norm=True),
        f"{_data}, batch norm, train": Setting(data=_data, local=_TRAINED, batch_norm=True),
        f"{_data}, no bias": Setting(data=_data, local=LocalTraining(), bias=False, bar=0.7),
        f"{_data}, no bias, mean and std": Setting(
            data=_data, local=LocalTraining(), bias=False, normalised=True
        ),
        f"{_data}, no bias, each twice, moved by 2 steps": Setting(
            data=_data, local=LocalTraining(), bias=False, change=moved
        ),
        f"{_data}, no bias, each twice, 2 steps brighter": Setting(
            data=_data, local=LocalTraining(), bias=False, change=lambda x: x + 2
        ),
        f"{_data}, 5 steps, each twice, 2 steps brighter": Setting(
            data=_data, local=steps(epochs=5), change=lambda x: x + 2
        ),
        f"{_data}, 5 steps, each twice, moved by 2 steps": Setting(
            data=_data, local=steps(epochs=5), change=moved
        ),
    }


@dataclass(frozen=True)
class Result:
    """One batch, in examples."""

    exact: int
    claimed: int
    false: int
    complete: bool
    guessed: int
    """Exact without the update."""
    seconds: float


@cache
def images(name: str, normalised: bool) -> Dataset:
    return load_data(name, normalise=normalised)


def network(setting: Setting, inputs: int, classes: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)

    def behind(width: int) -> list[nn.Module]:
        norm = [nn.BatchNorm1d(width)] if setting.batch_norm else []
        return [*norm, nn.ReLU(), nn.Dropout(setting.dropout)]

    first = [nn.Flatten(), nn.Linear(inputs, WIDTH, bias=setting.bias), *behind(WIDTH)]
    return nn.Sequential(*first, nn.Linear(WIDTH, 200), *behind(200), nn.Linear(200, classes))


def drawn(setting: Setting, seed: int) -> tuple[Batch, InputSpec]:
    data = images(setting.data, setting.normalised)
    order = torch.randperm(len(data) - FIRST_IMAGE, generator=torch.Generator().manual_seed(seed))
    batch = data.batch(FIRST_IMAGE + order[: setting.examples])
    if setting.change is None:
        return batch, data.spec
    half = setting.examples // 2
    kept = (batch.inputs[:half] * 255).round()
    both = torch.cat([kept, setting.change(kept).clamp(0, 255)]) / 255
    return Batch(both, batch.labels[:half].repeat(2)), data.spec


def play(setting: Setting, seed: int) -> Result:
    batch, spec = drawn(setting, seed)
    model = network(setting, batch.inputs[0].numel(), spec.num_classes, seed)
    sent = local_update(Broadcast(model), batch, setting.local)
    seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,), labels=batch.labels)
    known = Knowledge(input=spec, local=setting.local, seed=seed)
    before = time.process_time()
    found = ATTACKS["exact_extraction"]().run([seen], known)
    seconds = time.process_time() - before
    assert found.space == INPUT_SPACE and found.claimed is not None
    truth = spec.to_raw(batch.inputs).flatten(1).double()
    right = torch.cdist(found.values.flatten(1).double(), truth, p=torch.inf) <= EXACT_TOLERANCE
    guess = ATTACKS["prior_only"]().run([seen], known).values.flatten(1).double()
    guessed = torch.cdist(guess, truth, p=torch.inf) <= EXACT_TOLERANCE
    return Result(
        exact=int(right.any(0).sum()),
        claimed=int(right[found.claimed].any(0).sum()),
        false=int((found.claimed & ~right.any(1)).sum()),
        complete=bool(found.complete),
        guessed=int(guessed.any(0).sum()),
        seconds=seconds,
    )


def line(name: str, setting: Setting, results: list[Result]) -> str:
    shares = [r.claimed / setting.examples for r in results]
    claimed, all_of_them = statistics.mean(shares), setting.examples * len(results)
    held = "held" if setting.bar is not None and claimed >= setting.bar else "MISSED"
    bar = "" if setting.bar is None else f"  bar {setting.bar:.0%}: {held}"
    return (
        f"{name:48} claimed {claimed:6.1%} ({min(shares):.0%} to {max(shares):.0%})  "
        f"exact {sum(r.exact for r in results) / all_of_them:6.1%}  false {sum(r.false for r in results)}  "
        f"complete {sum(r.complete for r in results)} of {len(results)}  "
        f"guessed {sum(r.guessed for r in results) / all_of_them:.1%}  "
        f"CPU s {statistics.median(r.seconds for r in results):.1f}{bar}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="lines whose name has this in it")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=50_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    false = 0
    for name, setting in SETTINGS.items():
        if options.only in name:
            results = [play(setting, options.first_seed + k) for k in range(options.batches)]
            print(line(name, setting, results), flush=True)
            false += sum(r.false for r in results)
    last = options.first_seed + options.batches - 1
    print(f"seeds {options.first_seed} to {last}, images from {FIRST_IMAGE} on; false claims in all: {false}")


if __name__ == "__main__":
    main()

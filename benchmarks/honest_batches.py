"""How many examples of an honest network's update exact_extraction reads where no neuron is alone.

    SEEPAGE_DATA=... python benchmarks/honest_batches.py [--only "200 wide"] [--batches 20] [--out all.json]

`honest_batches_map.py` draws batch size against width. Networks of six layers with torch's initialisation,
one gradient of a batch, a server that changes nothing and knows mean, std and range, unless a line says
otherwise. Images: CIFAR-10's test images from 6100 on, with the usual mean and std; the search was made on
images below 6100 and seeds below 1000 (which take those), and a trained network is trained on images below
3000; of MNIST the same.
No image of CIFAR-100 had any part in it. The table is made up: 108 columns, six of them
numbers, the others one-hot codes of eight categories, as in Adult. A batch is complete if the attack
certifies so, and a claim is false if no example of the batch is within the tolerance of exactness. One
thread, CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.core.types import (
    INPUT_SPACE,
    Batch,
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Reconstruction,
)
from seepage.data import Dataset, load_data
from seepage.metrics.exact import EXACT_TOLERANCE
from seepage.models.hooks import layer_input
from seepage.models.loading import build_model
from seepage.protocol import local_update

TRAINED_ON, FRESH = 3000, 6100
DEVELOPMENT_SEEDS = 1000
GROUPS = (9, 16, 7, 15, 6, 5, 2, 42)
NUMBERS = 6


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One line. `bar`: share of the batches that must be complete; `most`: CPU seconds a batch may take."""

    width: int
    examples: int
    batches: int = 20
    bar: float | None = None
    most: float | None = None
    kind: str = "normalised"
    """normalised, raw (in [0, 1]) or table"""
    data: str = "cifar10"
    network: str = "six layers"
    """six layers, one hidden, convolutions, or FC-NN (Boenisch et al. 2021, Table 7, under Xavier uniform)"""
    activation: type[nn.Module] = nn.ReLU
    epochs: int = 0
    """Of Adam before the round, on the images below `TRAINED_ON`."""
    attack: str = "exact_extraction"
    local: LocalTraining = field(default_factory=LocalTraining)
    change: Callable[[Tensor], Tensor] = lambda sent: sent


SIGMAS = (1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 1e-2)
"""Of normal noise, in root mean squares of each tensor that is sent."""


def quantised(bits: int) -> Callable[[Tensor], Tensor]:
    """Each tensor on so many bits, evenly over its range."""

    def change(sent: Tensor) -> Tensor:
        step = sent.abs().max() / (2 ** (bits - 1) - 1)
        return (sent / step).round() * step

    return change


def noisy(sigma: float) -> Callable[[Tensor], Tensor]:
    """Normal noise of sigma root mean squares of each tensor."""

    def change(sent: Tensor) -> Tensor:
        noise = torch.randn(sent.shape, generator=torch.Generator().manual_seed(sent.numel()))
        return sent + sigma * sent.square().mean().sqrt() * noise

    return change


BARS: dict[str, Setting] = {
    "200 wide, B = 25": Setting(width=200, examples=25, bar=1.0),
    "200 wide, B = 30": Setting(width=200, examples=30, bar=0.95, most=10),
    "CIFAR-100, 200 wide, B = 30": Setting(width=200, examples=30, data="cifar100"),
    "table, 100 wide, B = 12": Setting(width=100, examples=12, bar=1.0, kind="table"),
    "table, 200 wide, B = 24": Setting(width=200, examples=24, bar=0.9, kind="table"),
    "trained, 200 wide, B = 20": Setting(width=200, examples=20, epochs=10),
    "trained, 200 wide, B = 25": Setting(width=200, examples=25, epochs=10),
    "trained, 200 wide, B = 30": Setting(width=200, examples=30, epochs=10),
    "convolutions, 400 wide, B = 32": Setting(width=400, examples=32, network="convolutions"),
    "convolutions, 400 wide, B = 64": Setting(width=400, examples=64, network="convolutions", batches=5),
    "[0, 1], 200 wide, B = 40": Setting(width=200, examples=40, kind="raw"),
    "1000 wide, B = 64": Setting(width=1000, examples=64, bar=0.95, most=30),
    "1000 wide, B = 80": Setting(width=1000, examples=80, bar=0.9, most=90),
    "1000 wide, B = 100": Setting(width=1000, examples=100, batches=5, bar=0.8, most=200),
    "[0, 1], 1000 wide, B = 200": Setting(width=1000, examples=200, batches=5, kind="raw"),
    "[0, 1], FC-NN, B = 200": Setting(width=1000, examples=200, batches=3, kind="raw", network="FC-NN"),
    "traps, 1000 wide, B = 100": Setting(width=1000, examples=100, batches=5, attack="trap_weights"),
    "1000 wide, B = 128": Setting(width=1000, examples=128, batches=2),
}
_NOISY = Setting(width=200, examples=16, batches=5)
_STEPS = LocalTraining(algorithm="fedavg", lr=0.1)
NOISE: dict[str, Setting] = {
    "noise: float16": replace(_NOISY, change=lambda sent: sent.half().float()),
    "noise: bfloat16": replace(_NOISY, change=lambda sent: sent.bfloat16().float()),
    "noise: 16 bits": replace(_NOISY, change=quantised(16)),
    "noise: 12 bits": replace(_NOISY, change=quantised(12)),
    "noise: 8 bits": replace(_NOISY, change=quantised(8)),
    **{f"noise: sigma = {sigma:g}": replace(_NOISY, change=noisy(sigma)) for sigma in SIGMAS},
    "steps: 1 at a rate of 0.1": replace(_NOISY, local=_STEPS),
    "steps: 2 at a rate of 0.1": replace(_NOISY, local=replace(_STEPS, epochs=2)),
    "steps: 5 at a rate of 0.1": replace(_NOISY, local=replace(_STEPS, epochs=5)),
    "steps: 5 at a rate of 0.1, B = 20": replace(_NOISY, examples=20, local=replace(_STEPS, epochs=5)),
    "steps: 20 at a rate of 0.1, B = 20": replace(_NOISY, examples=20, local=replace(_STEPS, epochs=20)),
    "steps: mini-batches of 5, 2 epochs, B = 20": replace(
        _NOISY, examples=20, local=replace(_STEPS, epochs=2, batch_size=5, shuffle_seed=3)
    ),
    "steps: 5 at a rate of 0.01, trained, B = 20": replace(
        _NOISY, examples=20, epochs=10, local=replace(_STEPS, lr=0.01, epochs=5)
    ),
    "steps: 5 at a rate of 0.1, table, B = 12": replace(
        _NOISY, width=100, examples=12, kind="table", local=replace(_STEPS, epochs=5)
    ),
    "steps: 5 at a rate of 0.1, GELU, B = 20": replace(
        _NOISY, examples=20, activation=nn.GELU, local=replace(_STEPS, epochs=5)
    ),
}
SMOOTH: dict[str, Setting] = {}
for _kind in (nn.Tanh, nn.GELU, nn.SiLU, nn.LeakyReLU):
    _of = Setting(width=200, examples=20, activation=_kind)
    _name = f"activation: {_kind.__name__}"
    SMOOTH |= {
        f"{_name}, 200 wide, B = 20": _of,
        f"{_name}, [0, 1], 200 wide, B = 20": replace(_of, kind="raw"),
        f"{_name}, MNIST, 200 wide, B = 20": replace(_of, data="mnist"),
        f"{_name}, 200 wide, B = 60": replace(_of, examples=60, batches=10),
        f"{_name}, 1000 wide, B = 64": replace(_of, width=1000, examples=64, batches=3),
        f"{_name}, trained, 200 wide, B = 20": replace(_of, epochs=10, batches=10),
        f"{_name}, convolutions, 400 wide, B = 20": replace(
            _of, network="convolutions", width=400, batches=5
        ),
        f"{_name}, table, 200 wide, B = 24": replace(_of, kind="table", examples=24, batches=10),
        f"{_name}, one local step, 200 wide, B = 20": replace(_of, local=_STEPS, batches=10),
        f"{_name}, one hidden, 200 wide, B = 20": replace(_of, network="one hidden"),
        f"{_name}, one hidden, [0, 1], 200 wide, B = 20": replace(_of, network="one hidden", kind="raw"),
        f"{_name}, one hidden, MNIST, 200 wide, B = 20": replace(_of, network="one hidden", data="mnist"),
        f"{_name}, one hidden, 200 wide, B = 60": replace(_of, network="one hidden", examples=60, batches=5),
        f"{_name}, one hidden, table, 200 wide, B = 24": replace(
            _of, network="one hidden", kind="table", examples=24, batches=10
        ),
    }
SETTINGS = BARS | NOISE | SMOOTH


@dataclass(frozen=True)
class Result:
    """One batch. `told_apart`: candidates within a tenth of the range of an example, claimed or not."""

    seed: int
    claimed: int
    false: int
    complete: bool
    told_apart: int
    seconds: float


@cache
def images(name: str, normalised: bool) -> Dataset:
    return load_data(name, normalise=normalised)


def network(
    inputs: int,
    width: int,
    classes: int,
    seed: int,
    activation: type[nn.Module] = nn.ReLU,
    *,
    hidden: int = 5,
) -> nn.Sequential:
    torch.manual_seed(seed)
    parts: list[nn.Module] = [nn.Flatten(), nn.Linear(inputs, width), activation()]
    for _ in range(hidden - 1):
        parts += [nn.Linear(width, width), activation()]
    return nn.Sequential(*parts, nn.Linear(width, classes))


def behind_convolutions(width: int, seed: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(seed)
    front = (
        nn.Conv2d(3, 12, 5, stride=2, padding=2),
        activation(),
        nn.Conv2d(12, 12, 3, stride=2, padding=1),
        activation(),
    )
    return nn.Sequential(*front, *network(12 * 64, width, 10, seed, activation))


@cache
def trained(
    width: int, epochs: int, normalised: bool, activation: type[nn.Module] = nn.ReLU
) -> nn.Sequential:
    """On the images that the search was made on; the same network for every batch."""
    data = images("cifar10", normalised)
    batch = data.batch(torch.arange(TRAINED_ON))
    model = network(batch.inputs[0].numel(), width, 10, 70_000, activation)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for some in torch.randperm(TRAINED_ON).split(100):
            adam.zero_grad()
            nn.functional.cross_entropy(model(batch.inputs[some]), batch.labels[some]).backward()
            adam.step()
    return model


def table(examples: int, seed: int) -> tuple[Batch, InputSpec]:
    """Standardised numbers, and categories of which the first are the most frequent."""
    generator = torch.Generator().manual_seed(seed)
    parts, groups, at = [torch.randn(examples, NUMBERS, generator=generator)], [], NUMBERS
    for size in GROUPS:
        often = 1.0 / torch.arange(1, size + 1).double()
        picked = torch.multinomial(often, examples, replacement=True, generator=generator)
        parts.append(nn.functional.one_hot(picked, size).float())
        groups.append(tuple(range(at, at + size)))
        at += size
    spec = InputSpec(
        modality=Modality.TABULAR, shape=(at,), num_classes=2, value_range=None, categories=tuple(groups)
    )
    return Batch(torch.cat(parts, dim=1), torch.randint(2, (examples,), generator=generator)), spec


def drawn(setting: Setting, seed: int) -> tuple[nn.Module, Batch, InputSpec]:
    """A network and a batch, both of the seed; images that nothing was tuned on."""
    hidden = 1 if setting.network == "one hidden" else 5
    if setting.kind == "table":
        batch, spec = table(setting.examples, seed)
        model = network(spec.shape[0], setting.width, 2, seed, setting.activation, hidden=hidden)
        return model, batch, spec
    normalised = setting.kind != "raw"
    data = images(setting.data, normalised)
    developed = seed < DEVELOPMENT_SEEDS
    first, end = (TRAINED_ON, FRESH) if developed else (FRESH, len(data))
    if setting.data == "cifar100":
        first, end = 0, len(data)
    order = torch.randperm(end - first, generator=torch.Generator().manual_seed(seed))
    batch = data.batch(first + order[: setting.examples])
    if setting.epochs:
        return trained(setting.width, setting.epochs, normalised, setting.activation), batch, data.spec
    if setting.network == "convolutions":
        return behind_convolutions(setting.width, seed, setting.activation), batch, data.spec
    if setting.network == "FC-NN":
        options = {"initialiser": "xavier_uniform", "width": setting.width}
        return build_model("fcnn", data.spec, seed=seed, **options), batch, data.spec
    inputs, classes = batch.inputs[0].numel(), data.spec.num_classes
    return network(inputs, setting.width, classes, seed, setting.activation, hidden=hidden), batch, data.spec


def attacked(setting: Setting, seed: int) -> tuple[Reconstruction, nn.Module, Batch, InputSpec, float]:
    """What the attack says, what it was about, and the CPU seconds of reading."""
    model, batch, spec = drawn(setting, seed)
    attack = ATTACKS[setting.attack](**({"read": "peel"} if setting.attack == "trap_weights" else {}))
    known = Knowledge(input=spec, seed=seed, local=setting.local)
    crafted = attack.craft(model, (), known)
    sent = Broadcast(model if crafted is None else crafted.model)
    update = local_update(sent, batch, setting.local)
    update = replace(update, tensors={name: setting.change(t) for name, t in update.tensors.items()})
    secret = None if crafted is None else crafted.secret
    seen = Exchange(broadcast=sent, update=update, clients=(0,), secret=secret)
    before = time.process_time()
    found = attack.run([seen], known)
    return found, sent.model, batch, spec, time.process_time() - before


def play(setting: Setting, seed: int) -> Result:
    found, model, batch, spec, seconds = attacked(setting, seed)
    if found.space == INPUT_SPACE:
        truth = spec.to_raw(batch.inputs).flatten(1).double()
        unit = 1.0 if spec.value_range is None else spec.value_range[1] - spec.value_range[0]
    else:
        truth = layer_input(model, found.space, batch.inputs).double()
        unit = float(truth.abs().max())
    claimed = torch.zeros(len(found), dtype=torch.bool) if found.claimed is None else found.claimed
    distance = torch.cdist(found.values.flatten(1).double(), truth, p=torch.inf) / unit
    right = (distance <= EXACT_TOLERANCE).any(1)
    mean = torch.cdist(found.values.flatten(1).double(), truth) / truth.shape[1] ** 0.5 / unit
    return Result(
        seed,
        claimed=int((distance[claimed] <= EXACT_TOLERANCE).any(0).sum()) if bool(claimed.any()) else 0,
        false=int((claimed & ~right).sum()),
        complete=bool(found.complete),
        told_apart=int((mean <= 0.1).any(0).sum()) if len(mean) else 0,
        seconds=seconds,
    )


def line(name: str, setting: Setting, results: list[Result]) -> str:
    examples = setting.examples * len(results)
    share = sum(r.complete for r in results) / len(results)
    seconds = [r.seconds for r in results]
    bar = ""
    if setting.bar is not None:
        within = setting.most is None or max(seconds) <= setting.most
        bar = f"  bar {setting.bar:.0%}{'' if setting.most is None else f' in {setting.most:g} s'}: "
        bar += "held" if share >= setting.bar and within else "MISSED"
    return (
        f"{name:34} complete {sum(r.complete for r in results):2} of {len(results):2}  "
        f"claimed {sum(r.claimed for r in results) / examples:6.1%}  false {sum(r.false for r in results)}  "
        f"within .1 {sum(r.told_apart for r in results) / examples:6.1%}  "
        f"CPU s {statistics.median(seconds):6.1f} (most {max(seconds):.1f}){bar}"
    )


def measured(name: str, setting: Setting, batches: int, first_seed: int) -> list[Result]:
    results = [play(setting, first_seed + k) for k in range(batches)]
    print(line(name, setting, results), flush=True)
    return results


def keep(path: Path | None, part: str, name: str, results: list[Result]) -> None:
    """Beside what the file has already."""
    if path is not None:
        every = json.loads(path.read_text()) if path.exists() else {}
        every.setdefault(part, {})[name] = [asdict(replace(r, seconds=round(r.seconds, 2))) for r in results]
        path.write_text(json.dumps(every, indent=0).replace(',\n"', ', "') + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="lines whose name has this in it")
    parser.add_argument("--batches", type=int, default=None)
    parser.add_argument("--first-seed", type=int, default=74_000)
    parser.add_argument("--out", type=Path, default=None, help="keep the results here, beside earlier ones")
    options = parser.parse_args()
    torch.set_num_threads(1)
    claimed = false = 0
    for name, setting in SETTINGS.items():
        if options.only in name:
            results = measured(name, setting, options.batches or setting.batches, options.first_seed)
            keep(options.out, "lines", name, results)
            claimed += sum(r.claimed for r in results)
            false += sum(r.false for r in results)
    print(f"false claims in all: {false}, beside {claimed} examples claimed rightly")


if __name__ == "__main__":
    main()

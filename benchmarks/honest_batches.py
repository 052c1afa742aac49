"""How many examples of an honest network's update exact_extraction reads where no neuron is alone.

    SEEPAGE_DATA=... python benchmarks/honest_batches.py [--only "200 wide"] [--batches 20] [--out bars.json]
    SEEPAGE_DATA=... python benchmarks/honest_batches.py --map docs/honest_batches.svg

Networks of six layers with torch's initialisation, one gradient of a batch, a server that changes nothing and
knows mean, std and range. CIFAR-10's test images from 6100 on, with its usual mean and std unless a line says
otherwise: the search was made on images below 3000 and seeds below 1000. The table is made up: 108 columns,
six of them numbers, the others one-hot codes of eight categories, as in Adult. A claim is false if no example
of the batch is within the tolerance of exactness. One thread, CPU seconds.
"""

# ruff: noqa: E501 (SVG written out)
from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
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
)
from seepage.data import Dataset, load_data
from seepage.metrics.exact import EXACT_TOLERANCE
from seepage.models.hooks import layer_input
from seepage.protocol import local_update

FIRST_IMAGE, DEVELOPED_ON = 6100, 3000
GROUPS = (9, 16, 7, 15, 6, 5, 2, 42)
NUMBERS = 6


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One line. `bar`: share of the examples that must be claimed; `most`: CPU seconds a batch may take."""

    width: int
    examples: int
    batches: int = 20
    bar: float | None = None
    most: float | None = None
    kind: str = "normalised"
    """normalised, raw, table or convolutions"""
    epochs: int = 0
    """Of Adam before the round, on the images the search was made on."""
    change: Callable[[Tensor], Tensor] = lambda sent: sent


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


SETTINGS: dict[str, Setting] = {
    "200 wide, B = 25": Setting(width=200, examples=25, bar=1.0),
    "200 wide, B = 30": Setting(width=200, examples=30, bar=0.95, most=10),
    "1000 wide, B = 64": Setting(width=1000, examples=64, bar=0.95, most=30),
    "table, 100 wide, B = 12": Setting(width=100, examples=12, bar=1.0, kind="table"),
    "table, 200 wide, B = 24": Setting(width=200, examples=24, bar=0.9, kind="table"),
    "200 wide, trained, B = 20": Setting(width=200, examples=20, epochs=10),
    "convolutions, 400 wide, B = 32": Setting(width=400, examples=32, kind="convolutions"),
    "1000 wide, B = 100": Setting(width=1000, examples=100, batches=5, bar=0.8, most=200),
    "1000 wide, B = 80": Setting(width=1000, examples=80, bar=0.9, most=90),
    "1000 wide, [0, 1], B = 200": Setting(width=1000, examples=200, batches=2, kind="raw"),
    "1000 wide, B = 128": Setting(width=1000, examples=128, batches=2),
    "noise: float16": Setting(width=200, examples=16, batches=5, change=lambda sent: sent.half().float()),
    "noise: bfloat16": Setting(width=200, examples=16, batches=5, change=lambda s: s.bfloat16().float()),
    "noise: 8 bits": Setting(width=200, examples=16, batches=5, change=quantised(8)),
    "noise: 16 bits": Setting(width=200, examples=16, batches=5, change=quantised(16)),
    "noise: sigma = 1e-6": Setting(width=200, examples=16, batches=5, change=noisy(1e-6)),
    "noise: sigma = 1e-4": Setting(width=200, examples=16, batches=5, change=noisy(1e-4)),
    "noise: sigma = 1e-2": Setting(width=200, examples=16, batches=5, change=noisy(1e-2)),
}
WIDTHS, SIZES = (100, 200, 500, 1000), (8, 16, 24, 32, 48, 64, 96, 128)


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
def cifar(normalised: bool) -> Dataset:
    return load_data("cifar10", normalise=normalised)


def network(inputs: int, width: int, classes: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    parts: list[nn.Module] = [nn.Flatten(), nn.Linear(inputs, width), nn.ReLU()]
    for _ in range(4):
        parts += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(width, classes))


def behind_convolutions(width: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    front = (
        nn.Conv2d(3, 12, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, stride=2, padding=1),
        nn.ReLU(),
    )
    return nn.Sequential(*front, *network(12 * 64, width, 10, seed))


@cache
def trained(width: int, epochs: int, normalised: bool) -> nn.Sequential:
    """On the images that the search was made on; the same network for every batch."""
    data = cifar(normalised)
    batch = data.batch(torch.arange(DEVELOPED_ON))
    model = network(batch.inputs[0].numel(), width, 10, 70_000)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for some in torch.randperm(DEVELOPED_ON).split(100):
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
    if setting.kind == "table":
        batch, spec = table(setting.examples, seed)
        return network(spec.shape[0], setting.width, 2, seed), batch, spec
    data = cifar(setting.kind != "raw")
    free = len(data) - FIRST_IMAGE
    order = torch.randperm(free, generator=torch.Generator().manual_seed(seed))
    batch = data.batch(FIRST_IMAGE + order[: setting.examples])
    if setting.epochs:
        return trained(setting.width, setting.epochs, setting.kind != "raw"), batch, data.spec
    if setting.kind == "convolutions":
        return behind_convolutions(setting.width, seed), batch, data.spec
    return network(batch.inputs[0].numel(), setting.width, 10, seed), batch, data.spec


def play(setting: Setting, seed: int) -> Result:
    model, batch, spec = drawn(setting, seed)
    update = local_update(Broadcast(model), batch, LocalTraining())
    update = replace(update, tensors={name: setting.change(t) for name, t in update.tensors.items()})
    seen = Exchange(broadcast=Broadcast(model), update=update, clients=(0,))
    before = time.process_time()
    found = ATTACKS["exact_extraction"]().run([seen], Knowledge(input=spec, seed=seed))
    seconds = time.process_time() - before
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
    share = sum(r.claimed for r in results) / examples
    seconds = [r.seconds for r in results]
    bar = ""
    if setting.bar is not None:
        within = setting.most is None or max(seconds) <= setting.most
        bar = f"  bar {setting.bar:.0%}{'' if setting.most is None else f' in {setting.most:g} s'}: "
        bar += "held" if share >= setting.bar and within else "MISSED"
    return (
        f"{name:34} claimed {share:6.1%}  complete {sum(r.complete for r in results):2} of {len(results):2}  "
        f"false {sum(r.false for r in results)}  within .1 {sum(r.told_apart for r in results) / examples:6.1%}  "
        f"CPU s {statistics.median(seconds):6.1f} (most {max(seconds):.1f}){bar}"
    )


def measured(name: str, setting: Setting, batches: int, first_seed: int) -> list[Result]:
    results = [play(setting, first_seed + k) for k in range(batches)]
    print(line(name, setting, results), flush=True)
    return results


def mapped(first_seed: int, batches: int) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Batch size against width; a width's larger batches are left out after two in which nothing was read."""
    panels = {
        "mean and std, untrained": Setting(width=0, examples=0),
        "mean and std, trained": Setting(width=0, examples=0, epochs=10),
        "[0, 1], untrained": Setting(width=0, examples=0, kind="raw"),
        "[0, 1], trained": Setting(width=0, examples=0, kind="raw", epochs=10),
    }
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for panel, base in panels.items():
        for width in WIDTHS:
            vain = 0
            for size in SIZES:
                if vain >= 2:
                    continue
                setting = replace(base, width=width, examples=size)
                results = measured(f"{panel}, {width} wide, B = {size}", setting, batches, first_seed)
                found.setdefault(panel, {})[f"{width} {size}"] = [asdict(r) for r in results]
                vain = vain + 1 if not any(r.claimed for r in results) else 0
    return found


def plot(found: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    """A square for each width and batch size: dark where every batch was complete, pale where none was read."""
    cell, left, top = 44, 60, 44
    panel_width, panel_height = left + cell * len(WIDTHS) + 20, top + cell * len(SIZES) + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {panel_width * len(found)} {panel_height}" font-family="sans-serif" font-size="11">'
    ]
    for number, (panel, cells) in enumerate(found.items()):
        x0 = number * panel_width
        parts.append(f'<text x="{x0 + left}" y="20" font-size="13">{panel}</text>')
        for i, width in enumerate(WIDTHS):
            parts.append(
                f'<text x="{x0 + left + i * cell + 8}" y="{top + cell * len(SIZES) + 16}">{width}</text>'
            )
            for j, size in enumerate(SIZES):
                y = top + (len(SIZES) - 1 - j) * cell
                if i == 0:
                    parts.append(f'<text x="{x0 + 26}" y="{y + 26}">{size}</text>')
                results = cells.get(f"{width} {size}")
                fill, words = "#eeeeee", ""
                if results is not None:
                    share = sum(r["claimed"] for r in results) / (size * len(results))
                    every = all(r["complete"] for r in results)
                    fill = "#1b7837" if every else "#a6dba0" if share > 0 else "#eeeeee"
                    words = f"{statistics.median(r['seconds'] for r in results):.0f} s" if share > 0 else ""
                parts.append(
                    f'<rect x="{x0 + left + i * cell}" y="{y}" width="{cell - 2}" height="{cell - 2}" fill="{fill}"/>'
                )
                ink = "white" if fill == "#1b7837" else "black"
                parts.append(f'<text x="{x0 + left + i * cell + 6}" y="{y + 26}" fill="{ink}">{words}</text>')
        parts.append(
            f'<text x="{x0 + left}" y="{panel_height - 8}">neurons of the layer; upwards: batch size</text>'
        )
    return "\n".join([*parts, "</svg>"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="lines whose name has this in it")
    parser.add_argument("--batches", type=int, default=None)
    parser.add_argument("--first-seed", type=int, default=70_000)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--map", type=Path, default=None, help="draw the plot instead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.map is not None:
        found = mapped(options.first_seed, options.batches or 2)
        options.map.write_text(plot(found))
        if options.out is not None:
            options.out.write_text(json.dumps(found))
        return
    every = {}
    for name, setting in SETTINGS.items():
        if options.only in name:
            results = measured(name, setting, options.batches or setting.batches, options.first_seed)
            every[name] = [asdict(r) for r in results]
    print("false claims in all:", sum(int(r["false"]) for results in every.values() for r in results))
    if options.out is not None:
        options.out.write_text(json.dumps(every))


if __name__ == "__main__":
    main()

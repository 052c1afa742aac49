"""What an audit of many clients costs: CPU time for each of them and peak memory, up to 10,000 clients.

    python benchmarks/scale.py [--only WORD] [--anew] [--plot docs/scale.svg] [--plan]

Every point is a fresh process, so that its peak (ru_maxrss) is its own; all runs in it with one thread,
from the draw of the clients to the written report. The attack is analytic_extraction on the default mlp, each
client has one example; examples are made up. `per_client` is a server that sees every update, `sum` one that
sees their sum alone, `secure_sum` the same by cryptography.

A client costs (CPU(n) - CPU(1)) / (n - 1). Audits of 100 clients run before and after the large one in
the same process: a machine that others use too is then equally slow for both. Their ratio is what is judged.

Beside these: one client with 1,000 pictures; clients with four pictures each; a network of ResNet-50's size
on a photo of 224 pixels; how scoring and pictures compare with the attack in an audit of 100 CIFAR-10
pictures (made up where SEEPAGE_DATA has none). Results are kept in scale.json as they come; what is there is
not measured again unless told so.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KEPT = Path(__file__).with_name("scale.json")
SIZES, FEW, AGAIN = (100, 1_000, 10_000), 100, 3
VIEWS = {
    "per_client": ("honest_but_curious", "per_client"),
    "sum": ("honest_but_curious_aggregate", "sum"),
    "secure_sum": ("honest_but_curious_aggregate", "secure_sum"),
}
KINDS = ("table", "picture")
WEIGHTS = (10**6, 10**7, 10**8)
FOUR_EACH = (500, 2_000, 10_000)
OTHERS = (
    "batch of 1000",
    "resnet50",
    "cifar10 scoring",
    *(f"four each {count}" for count in FOUR_EACH),
    *(f"weights {count}" for count in WEIGHTS),
)
MOST_MEMORY, MOST_RATIO, MOST_REPORT = 1024, 1.15, 3 * 2**20


def made_up(kind: str, count: int) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """(inputs, labels) and what the loader is told. Pictures are blocky, so that no two are alike."""
    import numpy as np

    draw = np.random.default_rng(0)
    if kind == "table":
        rows = draw.standard_normal((count, 30), dtype=np.float32)
        return (rows, draw.integers(0, 2, count)), {"modality": "tabular"}
    pictures = draw.random((count, 1, 7, 7), dtype=np.float32).repeat(4, axis=2).repeat(4, axis=3)
    return (pictures, draw.integers(0, 10, count)), {"value_range": (0.0, 1.0)}


def audited(data: Any, options: dict[str, Any], **settings: Any) -> dict[str, float]:
    """CPU seconds of an audit and its report, and the report's bytes."""
    import seepage

    began = time.process_time()
    wanted: dict[str, Any] = {"model": "mlp", "attacks": "analytic_extraction", "seeds": [0], **settings}
    with tempfile.TemporaryDirectory() as folder:
        log = seepage.audit(
            data=data, data_options=options, engine="here", out=folder, on_plan=lambda header: None, **wanted
        )
        assert [cell.status for cell in log.cells] == ["done", "done"], log.cells[-1].reason
        report = log.to_html().stat().st_size
    return {"cpu": time.process_time() - began, "report": report}


def clients(kind: str, view: str, n: int) -> dict[str, float]:
    threat, aggregation = VIEWS[view]
    data, options = made_up(kind, max(n, FEW) + 256)

    def run(count: int) -> dict[str, float]:
        shared = {"threat": threat, "aggregation": aggregation, "batch_size": 1}
        return audited(data, options, clients=count, **shared)

    def few() -> list[float]:
        return [run(FEW)["cpu"] for _ in range(AGAIN)]

    run(1)  # what is loaded and compiled once
    alone = min(run(1)["cpu"] for _ in range(AGAIN))
    before = few()
    found = run(n)
    small = (statistics.median(before + few()) - alone) / (FEW - 1)
    each = (found["cpu"] - alone) / (n - 1)
    return {**found, "ms_each": 1000 * each, "ms_each_of_100": 1000 * small, "ratio": each / small}


def large_batch() -> dict[str, float]:
    data, options = made_up("picture", 1_256)
    return audited(data, options, clients=1, batch_size=1_000)


def four_each(count: int) -> dict[str, float]:
    """Clients with four pictures each, update by update: what grows with them is what is kept of them."""
    data, options = made_up("picture", 4 * count + 256)
    audited(data, options, clients=1, batch_size=4)  # what is loaded and compiled once
    found = audited(data, options, clients=count, batch_size=4)
    return {**found, "ms_each": 1000 * found["cpu"] / count}


def weights(count: int) -> dict[str, float]:
    """What one more update of a dense network of so many weights costs, and an audit of one."""
    from torch import nn

    wide = round((-794 + (794**2 + 4 * count) ** 0.5) / 2)  # 784 w + w^2 + 10 w = count
    dense = nn.Sequential(
        nn.Flatten(), nn.Linear(784, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 10)
    )
    data, options = made_up("picture", 270)

    def run(clients: int) -> dict[str, float]:
        return audited(data, options, model=dense, clients=clients, batch_size=1)

    run(1)
    alone, found = run(1)["cpu"], run(4)
    return {**found, "alone": alone, "each": (found["cpu"] - alone) / 3}


def resnet50() -> Any:
    """Bottlenecks of He et al. 2016, 25.6 M weights, for 1,000 classes."""
    from torch import nn

    def bottleneck(inside: int, width: int, stride: int) -> nn.Module:
        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.way = nn.Sequential(
                    nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                    nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                    nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
                )  # fmt: skip
                same = stride == 1 and inside == 4 * width
                short = nn.Sequential(
                    nn.Conv2d(inside, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
                )
                self.short = nn.Identity() if same else short

            def forward(self, x: Any) -> Any:
                return nn.functional.relu(self.way(x) + self.short(x))

        return Block()

    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks, inside = [], 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(depth):
            blocks.append(bottleneck(inside, width, stride if number == 0 else 1))
            inside = 4 * width
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1_000))


def spent_in_attacks() -> Callable[[], float]:
    """CPU seconds in `Attack.run` from now on, the baseline's left out."""
    from seepage.attacks.base import Attack
    from seepage.attacks.prior_only import PriorOnly

    plain, total = Attack.run, 0.0

    def timed(self: Attack, *args: Any) -> Any:
        nonlocal total
        began = time.process_time()
        try:
            return plain(self, *args)
        finally:
            total += 0.0 if isinstance(self, PriorOnly) else time.process_time() - began

    Attack.run = timed  # type: ignore[method-assign]
    return lambda: total


def one_photo() -> dict[str, float]:
    import torch

    torch.manual_seed(0)
    data = (torch.rand(6, 3, 224, 224), torch.tensor([3, 999, 1, 2, 4, 5]))
    in_attack = spent_in_attacks()
    found = audited(data, {"num_classes": 1000}, model=resnet50(), clients=1, batch_size=1, public_examples=4)
    return {**found, "attack": in_attack()}


def cifar_scoring() -> dict[str, float]:
    """All of the audit's cells against the attack alone: the engine's share is what is left."""
    import torch

    from seepage.engine import run

    data: Any = "cifar10"
    if "SEEPAGE_DATA" not in os.environ:
        torch.manual_seed(0)
        data = (torch.rand(400, 3, 32, 32), torch.arange(400) % 10)
    in_attack, cells, plain = spent_in_attacks(), 0.0, run.work

    def timed(*args: Any, **kwargs: Any) -> Any:
        nonlocal cells
        began = time.process_time()
        result = plain(*args, **kwargs)
        cells += time.process_time() - began
        return result

    run.work = timed
    found = audited(data, {}, attacks="exact_extraction", clients=1, batch_size=100)
    return {**found, "attack": in_attack(), "cells": cells, "real": float(isinstance(data, str))}


def measure(point: str) -> dict[str, float]:
    if point.startswith("weights"):
        found = weights(int(point.split()[1]))
    elif point.startswith("four"):
        found = four_each(int(point.split()[2]))
    elif point in OTHERS:
        found = {"batch of 1000": large_batch, "resnet50": one_photo, "cifar10 scoring": cifar_scoring}[
            point
        ]()
    else:
        kind, view, n = point.split()
        found = clients(kind, view, int(n))
    return {**found, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def missed(point: str, found: dict[str, float]) -> list[str]:
    """Which bars do not hold."""
    if point.startswith("weights"):
        return []  # no bar: docs/scale.md plans by them
    memory = 1536 if point == "resnet50" else MOST_MEMORY
    wrong = [f"peak {found['peak_mb']:.0f} MB of {memory}"] if found["peak_mb"] >= memory else []
    if found["report"] >= MOST_REPORT:
        wrong.append(f"report of {found['report'] / 2**20:.1f} MB")
    if found.get("ratio", 1.0) > MOST_RATIO:
        wrong.append(f"a client costs {found['ratio']:.2f} of one among 100")
    if point == "resnet50" and found["attack"] >= 3:
        wrong.append(f"the attack takes {found['attack']:.1f} CPU s of 3")
    if point == "cifar10 scoring" and found["cells"] - found["attack"] >= 2 * found["attack"]:
        wrong.append(f"the cells take {found['cells']:.1f} s, the attack {found['attack']:.1f} of them")
    return wrong


def plot(results: dict[str, dict[str, float]]) -> str:
    """CPU for each client, and peak memory, over the number of clients."""
    colours = dict(zip(VIEWS, ("#b3261e", "#1f6f8b", "#5b8c2a"), strict=True))
    width, height, left, top = 340, 220, 60, 40
    panels = (
        ("CPU ms for each client", "ms_each", 40.0),
        ("peak memory, MB", "peak_mb", float(MOST_MEMORY)),
    )
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 330" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="860" height="330" fill="white"/>',
    ]
    for column, (title, field, most) in enumerate(panels):
        x0 = left + column * (width + 80)

        def place(n: int, value: float, x0: int = x0, most: float = most) -> tuple[float, float]:
            across = (len(str(n)) - 3) / 2
            return x0 + across * width, top + height * (1 - value / most)

        parts.append(f'<text x="{x0}" y="{top - 15}" font-size="14">{title}</text>')
        parts.append(f'<path d="M{x0} {top}V{top + height}H{x0 + width}" stroke="#888" fill="none"/>')
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            y = top + height * (1 - share)
            parts.append(f'<text x="{x0 - 8}" y="{y + 4}" text-anchor="end">{share * most:g}</text>')
        for n in SIZES:
            parts.append(
                f'<text x="{place(n, 0)[0]}" y="{top + height + 18}" text-anchor="middle">{n:,}</text>'
            )
        for kind in KINDS:
            for view, colour in colours.items():
                line = [(n, results.get(f"{kind} {view} {n}")) for n in SIZES]
                points = [place(n, found[field]) for n, found in line if found is not None]
                way = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
                dashes = ' stroke-dasharray="5 4"' if kind == "table" else ""
                parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}"{dashes}/>')
                parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    for number, (view, colour) in enumerate(colours.items()):
        x = left + number * 150
        parts.append(f'<rect x="{x}" y="300" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 20}" y="306">{view}</text>')
    parts.append('<text x="520" y="306">solid: 28 x 28 pictures, dashed: 30 columns; clients across</text>')
    return "\n".join([*parts, "</svg>", ""])


def plan(results: dict[str, dict[str, float]]) -> Iterator[str]:
    """Costs fitted on small sizes, beside what larger ones took; docs/scale.md plans with them."""
    for kind in KINDS:
        for view in VIEWS:
            found = results.get(f"{kind} {view} {SIZES[-1]}")
            if found is not None:
                alone = found["cpu"] - found["ms_each"] * (SIZES[-1] - 1) / 1000
                expected = alone + found["ms_each_of_100"] * (SIZES[-1] - 1) / 1000
                yield (
                    f"{kind} {view}: {alone:.1f} s and {found['ms_each_of_100']:.2f} ms a client among 100, "
                    f"so {expected:.0f} CPU s for 10,000; measured {found['cpu']:.0f}"
                )
    small, middle, large = (results.get(f"weights {count}") for count in WEIGHTS)
    if small is None or middle is None or large is None:
        return
    for field, unit in (("each", "CPU s an update"), ("alone", "CPU s for one"), ("peak_mb", "MB")):
        slope = (middle[field] - small[field]) / (WEIGHTS[1] - WEIGHTS[0])

        def line(count: int, slope: float = slope, field: str = field) -> float:
            return small[field] + slope * (count - WEIGHTS[0])

        yield (
            f"weights, {unit}: by 1 and 10 million {line(WEIGHTS[2]):,.1f} at 100 million, measured "
            f"{large[field]:,.1f}; {line(10**9):,.0f} at 1 billion"
        )


def main() -> None:
    points = [f"{kind} {view} {n}" for n in SIZES[::-1] for kind in KINDS for view in VIEWS] + list(OTHERS)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="points that have this in their name")
    parser.add_argument("--anew", action="store_true", help="measure again what is in scale.json")
    parser.add_argument("--plot", type=Path, help="where to draw it")
    parser.add_argument("--plan", action="store_true", help="print what larger sizes are expected to cost")
    parser.add_argument("--point", choices=points, help="measure this one here and print it")
    asked = parser.parse_args()
    if asked.point:
        print(json.dumps(measure(asked.point)))
        return
    results: dict[str, dict[str, float]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if asked.plan:
        print("\n".join(plan(results)))
        return
    for point in points:
        if asked.only in point and (asked.anew or point not in results):
            alone = {**os.environ, "OMP_NUM_THREADS": "1"}
            called = [sys.executable, __file__, "--point", point]
            done = subprocess.run(called, env=alone, check=True, stdout=subprocess.PIPE, text=True)
            results[point] = {name: round(value, 4) for name, value in json.loads(done.stdout).items()}
            KEPT.write_text(json.dumps(results, indent=1) + "\n")
        if asked.only in point:
            shown = ", ".join(f"{name} {value:,.4g}" for name, value in results[point].items())
            print(
                f"{point}: {shown}; {'; '.join(missed(point, results[point])) or 'all bars hold'}", flush=True
            )
    if asked.plot:
        asked.plot.write_text(plot(results))


if __name__ == "__main__":
    main()

"""What exact_extraction costs and recovers as the batch (B) and the layer (N neurons) grow.

    SEEPAGE_DATA=... python research/exact_extraction_growth.py [--out growth.svg] [--seeds 2]

Passive, CIFAR-10 pixels in [0, 1], the FC-NN of Boenisch et al. (Table 7) under Xavier uniform. CPU seconds on
one thread, without the client's own gradient; memory as a multiple of the layer's gradient.
"""

# ruff: noqa: E501 (SVG written out)
from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path

import torch

from seepage.attacks import ATTACKS
from seepage.core.types import Broadcast, Exchange, Knowledge, LocalTraining
from seepage.data import Dataset, load_data
from seepage.engine.cost import measure
from seepage.metrics import ExactRule
from seepage.models.loading import build_model
from seepage.protocol import local_update

BATCHES = (20, 50, 100, 200, 500)
NEURONS = (200, 500, 1000, 3000)
EXACT = 1e-3


def run(data: Dataset, batch_size: int, neurons: int, seed: int) -> dict[str, float]:
    """One attack on one batch."""
    model = build_model("fcnn", data.spec, initialiser="xavier_uniform", seed=seed, width=neurons)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    batch = data.batch(order[:batch_size])
    update = local_update(Broadcast(model), batch, LocalTraining())
    seen = Exchange(broadcast=Broadcast(model), update=update, clients=(0,))
    attack = ATTACKS["exact_extraction"]()
    start = time.process_time()
    with measure(torch.device("cpu")) as cost:
        found = attack.run([seen], Knowledge(input=data.spec))
    seconds = time.process_time() - start
    claimed = found.values[found.claimed]
    gradient_mb = update.tensors["dense0.weight"].numel() * 4 / 2**20
    same = ExactRule(tolerance=EXACT).every(claimed, batch.inputs)  # (claims, B)
    return {
        "B": batch_size,
        "N": neurons,
        "seed": seed,
        "cpu_seconds": round(seconds, 2),
        "memory_over_gradient": round(cost.peak_memory_mb / gradient_mb, 2),
        "recall": float(same.any(0).float().mean()),
        "false_claims": int((~same.any(1)).sum()),
    }


def plot(results: list[dict[str, float]]) -> str:
    """CPU seconds over B, one line for each N, on logarithmic axes."""
    width, height, left, bottom = 640, 400, 60, 50
    top = max(r["cpu_seconds"] for r in results)
    least = min(r["cpu_seconds"] for r in results)
    low, high = math.log10(max(least, 0.05)) - 0.1, math.log10(top) + 0.1

    def x(batch: float) -> float:
        share = math.log(batch / BATCHES[0]) / math.log(BATCHES[-1] / BATCHES[0])
        return left + share * (width - left - 90)

    def y(seconds: float) -> float:
        return (
            height - bottom - (math.log10(max(seconds, 0.05)) - low) / (high - low) * (height - bottom - 20)
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'
    ]
    parts.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    for batch in BATCHES:
        parts.append(
            f'<text x="{x(batch):.0f}" y="{height - 28}" text-anchor="middle" font-size="12">{batch}</text>'
        )
    parts.append(
        f'<text x="{width / 2:.0f}" y="{height - 8}" text-anchor="middle" font-size="13">batch size B</text>'
    )
    for seconds in (0.1, 0.3, 1, 3, 10, 30, 100):
        if low <= math.log10(seconds) <= high:
            parts.append(
                f'<line x1="{left}" x2="{width - 90}" y1="{y(seconds):.0f}" y2="{y(seconds):.0f}" stroke="#ddd"/>'
            )
            parts.append(
                f'<text x="{left - 6}" y="{y(seconds) + 4:.0f}" text-anchor="end" font-size="12">{seconds:g} s</text>'
            )
    for colour, neurons in zip(("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad"), NEURONS, strict=True):
        mean = {
            b: statistics.fmean(r["cpu_seconds"] for r in results if r["B"] == b and r["N"] == neurons)
            for b in BATCHES
            if any(r["B"] == b and r["N"] == neurons for r in results)
        }
        if not mean:  # not asked for
            continue
        points = " ".join(f"{x(b):.1f},{y(s):.1f}" for b, s in mean.items())
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        last = max(mean)
        parts.append(
            f'<text x="{x(last) + 8:.0f}" y="{y(mean[last]) + 4:.0f}" font-size="12" fill="{colour}">N={neurons}</text>'
        )
    return "\n".join([*parts, "</svg>"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("exact_extraction_growth.svg"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="*", default=list(BATCHES))
    parser.add_argument("--neurons", type=int, nargs="*", default=list(NEURONS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load_data("cifar10")
    run(data, 20, 200, 0)  # warm up
    results = []
    for neurons in options.neurons:
        for batch_size in options.batches:
            for seed in range(options.seeds):
                results.append(run(data, batch_size, neurons, seed))
                print(json.dumps(results[-1]), flush=True)
    options.out.write_text(plot(results))
    print(f"Plot: {options.out}")


if __name__ == "__main__":
    main()

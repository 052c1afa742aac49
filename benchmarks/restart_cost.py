"""What eight restarts cost against one, with successive halving and without, in CPU time.

    python benchmarks/restart_cost.py [--networks lenet convnet] [--images 2] [--steps 60] [--seed 100]

One image of `photos` at a time, its label granted; one restart, eight halved and eight to the end take turns
in one process, each from the first line of the attack, checks included. The truth serves to measure only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch
from torch import Tensor

from seepage.attacks.inversion.inverting_gradients import inverting_gradients
from seepage.core.types import Broadcast, Exchange, Knowledge, LocalTraining
from seepage.data import load_data
from seepage.models.loading import build_model
from seepage.protocol import local_update

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "lenet": ("lenet_zhu", {}),
    "convnet": ("convnet", {"width": 64}),
}
RUNS: dict[str, dict[str, Any]] = {
    "1 restart": {"restarts": 1},
    "8 halved": {"restarts": 8},
    "8 to the end": {"restarts": 8, "halving": False},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=sorted(NETWORKS), default=sorted(NETWORKS))
    parser.add_argument("--runs", nargs="+", choices=sorted(RUNS), default=list(RUNS))
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for network in options.networks:
        found: dict[str, list[tuple[float, float]]] = {run: [] for run in options.runs}
        for image in range(options.images):
            for run in options.runs:
                found[run].append(one(network, run, options.seed + image, options.steps))
        report(network, found)


def one(network: str, run: str, seed: int, steps: int) -> tuple[float, float]:
    """CPU seconds and PSNR."""
    data = load_data("photos")
    name, settings = NETWORKS[network]
    torch.manual_seed(seed)
    model = build_model(name, data.spec, **settings)
    index = torch.randint(len(data), (1,), generator=torch.Generator().manual_seed(seed))
    batch = data.batch(index)
    local = LocalTraining()
    exchange = Exchange(
        broadcast=Broadcast(model),
        update=local_update(Broadcast(model), batch, local),
        clients=(0,),
        labels=batch.labels,
    )
    attack = inverting_gradients(steps=steps, **RUNS[run])
    before = time.process_time()
    result = attack.run([exchange], Knowledge(input=data.spec, local=local, seed=seed))
    return time.process_time() - before, psnr(result.values, data.spec.to_raw(batch.inputs))


def psnr(values: Tensor, truth: Tensor) -> float:
    return float(-10 * (values - truth).square().mean().log10())


def report(network: str, found: dict[str, list[tuple[float, float]]]) -> None:
    seconds = {run: [s for s, _ in pairs] for run, pairs in found.items()}
    for run, pairs in found.items():
        line = {
            "network": network,
            "run": run,
            "cpu seconds": round(statistics.median(seconds[run]), 2),
            "psnr": [round(p, 2) for _, p in pairs],
        }
        if "1 restart" in seconds:
            ratios = [s / base for s, base in zip(seconds[run], seconds["1 restart"], strict=True)]
            line["times one restart"] = round(statistics.median(ratios), 2)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

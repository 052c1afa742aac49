"""Examples out of secure sums of many clients: imprint, quantile traps, LOKI and Scale-MIA beside the guess.

    SEEPAGE_DATA=... python benchmarks/secure_sums.py [--data mnist,cifar10] [--seeds 2] [--first-seed 155000]

Ten clients with 32 examples each send one gradient, of which the server sees the sum over 320 examples. Two
networks: one convolution, then dense layers, the first with 128 neurons (LOKI needs no inserted layer there);
and two convolutions with pooling, then 256 neurons, behind which features can be read and pictures cannot.
Inserted layers have 128 neurons too. `exact`: examples that were rebuilt exactly; `claims`: right of all
claims. Made on seed 500. CPU seconds of all attacks together.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

from torch import nn

import seepage
from seepage.core.types import InputSpec
from seepage.record import summarise

THREAT = {
    "base": "malicious_server_secure_aggregation",
    "grant": ["different_models", "auxiliary_data", "batch_size"],
}


def one_convolution(spec: InputSpec) -> nn.Module:
    channels, height, width = spec.shape
    filters = 10 * (channels + 1)
    return nn.Sequential(
        nn.Conv2d(channels, filters, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(filters * height * width, 128),
        nn.ReLU(),
        nn.Linear(128, spec.num_classes),
    )


def pooled(spec: InputSpec) -> nn.Module:
    channels, height, width = spec.shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 256),
        nn.ReLU(),
        nn.Linear(256, spec.num_classes),
    )


NETWORKS: dict[str, tuple[Any, list[Any]]] = {
    "one convolution": (
        one_convolution,
        [
            {"name": "imprint", "bins": 128},
            {"name": "quantile_traps", "batch_size": 320},
            {"name": "loki", "batch_size": 32},
            {"name": "loki", "insert": True, "bins": 128, "batch_size": 32},
        ],
    ),
    "pooling": (
        pooled,
        [{"name": "scale_mia", "batch_size": 320}, {"name": "scale_mia", "batch_size": 320, "steps": 0}],
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default="mnist,cifar10")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=155_000)
    given = parser.parse_args()
    seeds = list(range(given.first_seed, given.first_seed + given.seeds))
    for data in given.data.split(","):
        for words, (network, attacks) in NETWORKS.items():
            start = time.process_time()
            with tempfile.TemporaryDirectory() as folder:
                log = seepage.audit(
                    model=network,
                    data=data,
                    batch_size=32,
                    clients=10,
                    aggregation="secure_sum",
                    threat=THREAT,
                    attacks=attacks,
                    seeds=seeds,
                    out=folder,
                    engine="here",
                )
                for found in summarise(log):
                    psnr = found.scores["psnr"].value if "psnr" in found.scores else float("nan")
                    settings = ", ".join(f"{name} {value}" for name, value in found.attack.params.items())
                    print(
                        f"{data}, {words}: {found.attack.name} ({settings}): {found.status} {found.reason}"
                        f" exact {found.exact} of {found.examples}, claims {found.claims_right} of "
                        f"{found.claims}, PSNR {psnr:.1f}",
                        flush=True,
                    )
            print(f"{data}, {words}: {time.process_time() - start:.0f} CPU s", flush=True)


if __name__ == "__main__":
    main()

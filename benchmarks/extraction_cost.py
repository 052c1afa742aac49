"""What analytic_extraction costs, as a ratio: against copying the layer's gradient once, in the same run.

    python benchmarks/extraction_cost.py [--neurons 1000] [--inputs 150528] [--repeat 5] [--threads 1]

Both sides are measured alternately in one process, in CPU time (the machine may be shared), and the median
of the ratios is printed. The gradient is that of 20 random images; most rows are mixtures, as in practice.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from torch import nn

from seepage.attacks import ATTACKS
from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Modality
from seepage.engine.cost import measure
from seepage.protocol import local_update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--neurons", type=int, default=1000)
    parser.add_argument("--inputs", type=int, default=3 * 224 * 224)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="CPU time of several threads includes waiting")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(options.inputs, options.neurons), nn.ReLU(), nn.Linear(options.neurons, 10)
    )
    spec = InputSpec(modality=Modality.IMAGE, shape=(options.inputs,), num_classes=10)
    batch = Batch(torch.rand(options.batch, options.inputs), torch.arange(options.batch) % 10)
    update = local_update(Broadcast(model), batch, LocalTraining())
    seen = Exchange(broadcast=Broadcast(model), update=update, clients=(0,))
    known = Knowledge(input=spec)
    gradient = update.tensors["1.weight"]
    attack = ATTACKS["analytic_extraction"]()

    ratios, copies, attacks, peaks = [], [], [], []
    for _ in range(options.repeat + 1):  # the first round warms up and is dropped
        start = time.process_time()
        copy = gradient.clone()
        copied = time.process_time() - start
        del copy
        start = time.process_time()
        with measure(torch.device("cpu")) as cost:
            found = attack.run([seen], known)
        attacked = time.process_time() - start
        copies.append(copied)
        attacks.append(attacked)
        ratios.append(attacked / copied)
        peaks.append(cost.peak_memory_mb)
    size = gradient.numel() * gradient.element_size() / 2**20
    print(
        json.dumps(
            {
                "gradient_mb": round(size, 1),
                "copy_cpu_seconds": round(statistics.median(copies[1:]), 3),
                "attack_cpu_seconds": round(statistics.median(attacks[1:]), 3),
                "ratio": round(statistics.median(ratios[1:]), 2),
                "peak_memory_over_gradient": round(max(peaks) / size, 2),
                "candidates": len(found),
                "threads": torch.get_num_threads(),
            }
        )
    )


if __name__ == "__main__":
    main()

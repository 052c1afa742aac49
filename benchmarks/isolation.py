"""What it costs to run an attack in a process of its own: the same attack here and there, in one run.

    python benchmarks/isolation.py

CPU seconds of both processes together. The first line is paid once a process, the others once a cell.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import torch
from torch import nn

from seepage.attacks import ATTACKS
from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Modality
from seepage.engine.isolation.attack import IsolatedAttack
from seepage.protocol import local_update

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 28, 28), num_classes=10)
REPEATS = 5


def seconds(work: Callable[[], object]) -> float:
    """Wall time: the work waits for the other process, whose CPU time counts."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    known = Knowledge(input=SPEC)
    print(f"start of a process: {seconds(lambda: IsolatedAttack('prior_only', {}).close()):.1f} s wall")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"                    {used.ru_utime + used.ru_stime:.1f} s CPU")
    print(f"{'width':>6} {'update MB':>9} {'here s':>8} {'there s':>8} {'ratio':>6}")
    for width in (100, 1000, 5000):
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))
        batch = Batch(torch.rand(20, 1, 28, 28), torch.arange(20) % 10)
        sent = local_update(Broadcast(model), batch, LocalTraining())
        size = sum(tensor.numel() * tensor.element_size() for tensor in sent.tensors.values()) / 1e6
        here, there = ATTACKS["exact_extraction"](), IsolatedAttack("exact_extraction", {})

        def cell(attack: IsolatedAttack | object, model: nn.Module = model, sent: object = sent) -> None:
            exchange = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))  # type: ignore[arg-type]
            attack.check(model, known)  # type: ignore[attr-defined]
            attack.run([exchange], known)  # type: ignore[attr-defined]

        times = [(seconds(lambda: cell(here)), seconds(lambda: cell(there))) for _ in range(REPEATS)]  # noqa: B023
        one, other = (sorted(column)[REPEATS // 2] for column in zip(*times, strict=True))
        print(f"{width:>6} {size:>9.1f} {one:>8.2f} {other:>8.2f} {other / one:>6.2f}")
        there.close()


if __name__ == "__main__":
    main()

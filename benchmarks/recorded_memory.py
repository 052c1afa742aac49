"""Ten thousand recorded exchanges in flat memory: peak memory of audits of 100, 3,000 and 10,000.

    python benchmarks/recorded_memory.py [how many ...]

Every exchange has a model and an update of its own (15 kB each). One passive attack, no truth, everything in
one process. Each size runs in a fresh process, so that its peak is its own; what is on disk is what a program
that keeps it all would add.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import seepage
from seepage.record.exchanges import Recorder

SIZES = (100, 3_000, 10_000)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))


def record(folder: Path, count: int) -> None:
    recorder, loss = Recorder(folder), nn.functional.cross_entropy
    for client in range(count):
        torch.manual_seed(client)
        model = network()
        loss(model(torch.rand(1, 64)), torch.randint(10, (1,))).backward()
        gradient = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        recorder.write(model.state_dict(), gradient, kind="gradient", round=1, client=client, examples=1)


def audit(folder: Path, out: Path, count: int) -> None:
    chosen = {"folder": str(folder), "clients": list(range(count))}
    started = time.process_time()
    log = seepage.audit(
        model=network, recorded=chosen, attacks="analytic_extraction", out=out, engine="here",
        on_plan=lambda header: None,
    )  # fmt: skip
    claimed = sum(cell.claimed_examples for cell in log.cells)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    spent = time.process_time() - started
    print(
        f"{count:>6} exchanges: peak {peak:.0f} MB, {spent:.1f} CPU s, {claimed} examples claimed", flush=True
    )


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        audit(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
        return
    sizes = [int(size) for size in sys.argv[1:]] or SIZES
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "recorded"
        record(folder, max(sizes))
        size = sum(file.stat().st_size for file in folder.iterdir()) / 2**20
        print(f"{size:.0f} MB on disk")
        for count in sizes:
            given = ["--one", str(folder), f"{place}/{count}", str(count)]
            subprocess.run([sys.executable, __file__, *given], check=True)


if __name__ == "__main__":
    main()

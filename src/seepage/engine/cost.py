"""What a cell costs: the memory it needed on top of what was there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

_STATM = Path("/proc/self/statm")
_PAGE = 4096
_INTERVAL = 0.01


@dataclass
class Measured:
    """Filled when the block ends."""

    peak_memory_mb: float = 0.0


def _resident() -> int:
    """Resident bytes of this process; 0 where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


@contextmanager
def measure(device: torch.device) -> Iterator[Measured]:
    """Sample the peak memory of a block: of the GPU where the work is there, else of the process."""
    result = Measured()
    on_gpu = device.type == "cuda"
    start_memory = torch.cuda.memory_allocated(device) if on_gpu else _resident()
    peak = start_memory
    stop = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not stop.wait(_INTERVAL):
            peak = max(peak, _resident())

    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.synchronize(device)
    sampler = threading.Thread(target=sample, daemon=True)
    if not on_gpu:
        sampler.start()
    try:
        yield result
    finally:
        if on_gpu:
            torch.cuda.synchronize(device)
            peak = torch.cuda.max_memory_allocated(device)
        if not on_gpu:
            stop.set()
            sampler.join()
            peak = max(peak, _resident())
        result.peak_memory_mb = max(0, peak - start_memory) / 2**20

"""Run under the peer's own python: its script unchanged, with the candidate noted down on the way.

    PEER_PYTHON peer_trace.py OUT.npz EVERY PEER_SCRIPT [arguments of the script ...]

Writes steps, CPU seconds since the first step, and candidates in model units after every EVERYth step. The
peer moves its candidate by torch.optim.Adam, so that is where it can be seen without a change to its code.
"""

from __future__ import annotations

import runpy
import sys
import time

import numpy
import torch


def main() -> None:
    out, every, script = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    plain_step = torch.optim.Adam.step
    started: list[float] = []
    steps: list[int] = []
    seconds: list[float] = []
    candidates: list[numpy.ndarray] = []
    done = 0

    def step(self, closure=None):  # type: ignore[no-untyped-def]
        nonlocal done
        if not started:
            started.append(time.process_time())
        value = plain_step(self, closure)
        done += 1
        if done % every == 0:
            steps.append(done)
            seconds.append(time.process_time() - started[0])
            candidates.append(self.param_groups[0]["params"][0].detach().clone().numpy())
        return value

    torch.optim.Adam.step = step  # type: ignore[method-assign]
    sys.argv = sys.argv[3:]
    runpy.run_path(script, run_name="__main__")
    numpy.savez(out, steps=steps, seconds=seconds, candidates=numpy.stack(candidates))


if __name__ == "__main__":
    main()

"""What a step of an inversion costs on ten networks, beside breaching's.

    SEEPAGE_DATA=... python benchmarks/inversion_cost.py [--peer-python PATH --peer-folder PATH]
        [--rounds 5] [--steps 12] [--seed 90000] [--only NAME]

`plain`: CPU time of a forward and backward pass. `evaluation`: of the objective and its gradient. `double`:
the same by double backprop. `step`: from one call of the optimiser to the next, regulariser and all, median
of the steps of a search; the lowest of some rounds, in which the two sides take turns. Pictures are drawn by
the seed from CIFAR-10's test set, weights are torch's own initialisation of the seed, labels are known. One
thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from inversion_networks import SETTINGS, step_times
from inversion_sides import Peer, Side, cifar
from seepage.attacks import ATTACKS
from seepage.attacks.inversion.distances import cosine
from seepage.attacks.inversion.objective import Candidates, update_matching
from seepage.attacks.inversion.problem import pose_problem

BAR = 0.6


def cost(function: Callable[[], object], repeat: int = 5) -> float:
    """Lowest of some CPU times in ms: the machine may be shared."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return 1000 * min(times)


def evaluations(side: Side) -> tuple[float, float, float]:
    """Of a plain forward and backward pass, of double backprop, and of what is used."""
    problem = pose_problem(side.exchange, side.known, num_examples=len(side.batch))
    noise = torch.randn(1, *side.batch.inputs.shape, generator=torch.Generator().manual_seed(0))
    at = Candidates(noise, side.batch.labels[None])
    attack = ATTACKS["inverting_gradients"](tv=0.1)

    def plain() -> None:
        loss = nn.functional.cross_entropy(side.model(side.batch.inputs), side.batch.labels)
        torch.autograd.grad(loss, list(side.model.parameters()))

    with sdpa_kernel(SDPBackend.MATH):
        slow, used = update_matching(problem, cosine), attack._matching(problem, at)
        return cost(plain), cost(lambda: slow(at)), cost(lambda: used(at))


def middle(times: Sequence[float]) -> float:
    """ms of a step, without the first ones, which warm up."""
    return 1000 * statistics.median(b - a for a, b in pairwise(times[2:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python")
    parser.add_argument("--peer-folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=90000)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    torch.set_num_threads(1)
    data, ratios = cifar(), []
    peer = Peer(given.peer_python, given.peer_folder) if given.peer_python else None
    for name in SETTINGS:
        if given.only not in name:
            continue
        side = Side(name, data, model_seed=given.seed, image_seed=given.seed)
        plain, double, used = evaluations(side)
        own, theirs = [], []
        for _ in range(given.rounds):
            with step_times() as times:
                side.ours(seed=1, steps=given.steps, tv=0.1)
            own.append(middle(times))
            if peer:
                theirs.append(middle(peer.search(side, seed=1, steps=given.steps).times))
        line = f"{name:20} plain {plain:6.2f} ms, evaluation {used:6.2f} ({used / plain:5.2f} plain, "
        line += f"{used / double:4.2f} double), step {min(own):6.2f}"
        if peer:
            ratios.append(min(own) / min(theirs))
            line += f", peer's {min(theirs):6.2f}: {ratios[-1]:4.2f}"
        print(line, flush=True)
    if ratios:
        below = sum(ratio <= BAR for ratio in ratios)
        print(f"steps at most {BAR} of the peer's: {below} of {len(ratios)}; highest {max(ratios):.2f}")


if __name__ == "__main__":
    main()

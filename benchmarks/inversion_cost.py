"""What a step of an inversion costs, and what equal CPU time brings, on ten networks beside breaching.

    SEEPAGE_DATA=... python benchmarks/inversion_cost.py [--peer-python PATH --peer-folder PATH]
        [--images 2] [--seconds 4] [--first-seed 90000] [--only NAME]

`evaluation`: CPU time of the objective and its gradient. `double`: by double backprop, as all of these but
single pictures in ReLU networks were evaluated before. `step / peer`: by the slope of CPU time between two
lengths of a search, regulariser and optimiser included, on both sides. `dB`: PSNR of inverting_gradients with
its defaults in as many steps as fit into `--seconds`, the peer's at its default and tuned (step .3, cosine
decay, tv .01) in the same CPU time, and of the flat picture. Pictures are drawn by the seed from CIFAR-10's
test set, weights are torch's own initialisation of the seed, labels are known. One thread.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from inversion_networks import SETTINGS
from seepage.attacks import ATTACKS
from seepage.attacks.inversion.distances import cosine
from seepage.attacks.inversion.objective import Candidates, update_matching
from seepage.attacks.inversion.problem import pose_problem
from seepage.core.types import Batch, Broadcast, Exchange, Knowledge, LocalTraining
from seepage.data import Dataset, load_data
from seepage.protocol import local_update

TUNED = (
    "optim.step_size=0.3",
    "optim.step_size_decay=cosine-decay",
    "regularization.total_variation.scale=0.01",
)
SHORT, LONG = 5, 45
"""Steps, between whose times the slope is taken."""


def cost(function: Callable[[], object], repeat: int = 5) -> float:
    """Lowest of some CPU times: the machine may be shared."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def psnr(raw: Tensor, truth: Tensor) -> float:
    error = (raw.clamp(0, 1) - truth).square().flatten(1).mean(dim=1)
    return float((-10 * error.log10()).mean())


class Side:
    """One setting, seed and draw of pictures, for us and for the peer."""

    def __init__(self, name: str, data: Dataset, seed: int, peer: tuple[str, str] | None) -> None:
        setting = SETTINGS[name]
        self.name, self.seed, self.peer, self.spec = name, seed, peer, data.spec
        self.model = setting.model(seed)
        index = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[: setting.batch]
        self.batch = Batch(data.batch(index).inputs, torch.arange(setting.batch) % 10)
        self.local = LocalTraining()
        if setting.local_steps:
            size = setting.batch // setting.local_steps
            self.local = LocalTraining(algorithm="fedavg", lr=0.01, batch_size=size)
        update = local_update(Broadcast(self.model), self.batch, self.local)
        self.exchange = Exchange(
            broadcast=Broadcast(self.model), update=update, clients=(0,), labels=self.batch.labels
        )
        self.known = Knowledge(input=data.spec, local=self.local, loss="cross_entropy", seed=seed + 1)
        self.truth = data.spec.to_raw(self.batch.inputs)

    def evaluations(self) -> tuple[float, float, float]:
        """CPU seconds of a plain forward and backward pass, of double backprop, and of what is used."""
        problem = pose_problem(self.exchange, self.known, num_examples=len(self.batch))
        noise = torch.randn(1, *self.batch.inputs.shape, generator=torch.Generator().manual_seed(self.seed))
        at = Candidates(noise, self.batch.labels[None])
        attack = ATTACKS["inverting_gradients"](tv=0.1)
        with sdpa_kernel(SDPBackend.MATH):
            slow, used = update_matching(problem, cosine), attack._matching(problem, at)
            return cost(self._plain), cost(lambda: slow(at)), cost(lambda: used(at))

    def _plain(self) -> None:
        loss = nn.functional.cross_entropy(self.model(self.batch.inputs), self.batch.labels)
        torch.autograd.grad(loss, list(self.model.parameters()))

    def ours(self, steps: int, **settings: Any) -> tuple[float, float]:
        """dB and CPU seconds."""
        start = time.process_time()
        found = ATTACKS["inverting_gradients"](steps=steps, **settings).run([self.exchange], self.known)
        return psnr(found.values, self.truth), time.process_time() - start

    def theirs(self, steps: int, *options: str) -> tuple[float, float]:
        assert self.peer is not None
        python, folder = self.peer
        with tempfile.TemporaryDirectory() as place:
            images, out = Path(place) / "images.npz", Path(place) / "out.npz"
            np.savez(images, inputs=self.batch.inputs.numpy(), labels=self.batch.labels.numpy())
            script = Path(__file__).with_name("peer_networks.py")
            command = [
                python,
                str(script),
                folder,
                self.name,
                str(self.seed),
                str(images),
                str(out),
                str(steps),
            ]
            done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"the peer failed: {done.stderr[-2000:]}")
            with np.load(out, allow_pickle=False) as stored:
                found, seconds = torch.from_numpy(stored["found"]), float(stored["seconds"])
        return psnr(self.spec.to_raw(found), self.truth), seconds


def slope(run: Callable[[int], tuple[float, float]]) -> float:
    """CPU seconds of one more step, from the lowest of three times each: a shared machine adds to them."""
    run(SHORT)  # the first call warms up
    long, short = (min(run(steps)[1] for _ in range(3)) for steps in (LONG, SHORT))
    return (long - short) / (LONG - SHORT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python")
    parser.add_argument("--peer-folder")
    parser.add_argument("--images", type=int, default=2, help="draws a network for the dB; 0: costs only")
    parser.add_argument("--seconds", type=float, default=4.0, help="CPU time of a search")
    parser.add_argument("--first-seed", type=int, default=90000)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    torch.set_num_threads(1)
    peer = (given.peer_python, given.peer_folder) if given.peer_python and given.peer_folder else None
    data = load_data("cifar10", mean=[0.4914, 0.4822, 0.4465], std=[0.2470, 0.2435, 0.2616])
    ratios, gains = [], []
    for name in SETTINGS:
        if given.only not in name:
            continue
        side = Side(name, data, given.first_seed, peer)
        plain, slow, used = side.evaluations()
        line = f"{name:20} evaluation / plain {used / plain:5.2f}, / double {used / slow:5.2f}"
        own = slope(lambda steps, side=side: side.ours(steps, tv=0.1))  # type: ignore[misc]
        if peer:
            ratios.append(own / slope(side.theirs))
            line += f", step / peer {ratios[-1]:5.2f}"
        print(line, flush=True)
        for number in range(given.images):
            side = Side(name, data, given.first_seed + number, peer)
            found, seconds = side.ours(max(30, int(given.seconds / own)))
            flat = psnr(torch.full_like(side.truth, 0.5), side.truth)
            line = f"{name:20} seed {side.seed}: {found:5.1f} dB in {seconds:4.1f} s, flat {flat:5.1f}"
            if peer:
                steps = max(30, int(seconds / (own / ratios[-1])))
                (default, _), (tuned, took) = side.theirs(steps), side.theirs(steps, *TUNED)
                gains.append(found - tuned)
                line += f", peer {default:5.1f}, tuned {tuned:5.1f} in {took:4.1f} s"
            print(line, flush=True)
    if ratios:
        below = sum(r <= 0.6 for r in ratios)
        print(f"steps at most .6 of the peer's: {below} of {len(ratios)}; highest {max(ratios):.2f}")
    if gains:
        spread = f"{min(gains):.1f} to {max(gains):.1f}"
        print(f"above the tuned peer at equal CPU time: {statistics.fmean(gains):.1f} dB ({spread})")


if __name__ == "__main__":
    sys.exit(main())

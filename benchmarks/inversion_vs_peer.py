"""Gradient inversion side by side with the peer library breaching, in one run, in CPU time.

    python benchmarks/inversion_vs_peer.py [--peer-python PATH --peer-script PATH] [--images 4] [--seeds 2]

The peer runs in its own environment, by its own script, alternating with ours picture by picture and seed by
seed; without it our side runs alone. Pictures are the script's (whole centre crops of photographs inside
scikit-image and scikit-learn), the network an untrained ConvNet64 on 32x32 pixels. The truth serves to
measure only. Our times count from the first line of the attack, its checks included; the peer's from its
first step. Our runs share a process, so that all but the first are warm. Reckoned from the cost of a step,
the default takes about 15 minutes of CPU time, two thirds of them the peer's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import resources
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.attacks.base import Attack
from seepage.attacks.inversion.distances import cosine
from seepage.attacks.inversion.objective import Candidates, update_matching
from seepage.attacks.inversion.problem import pose_problem
from seepage.core.progress import Progress, listening
from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Modality
from seepage.models.loading import build_model
from seepage.protocol import local_update

MEAN = (0.4914672374725342, 0.4822617471218109, 0.4467701315879822)
STD = (0.24703224003314972, 0.24348513782024384, 0.26158785820007324)
SPEC = InputSpec(modality=Modality.IMAGE, shape=(3, 32, 32), num_classes=10, mean=MEAN, std=STD)
PHOTOGRAPHS = (
    ("skimage.data", "astronaut.png"),
    ("skimage.data", "chelsea.png"),
    ("skimage.data", "coffee.png"),
    ("skimage.data", "rocket.jpg"),
    ("sklearn.datasets.images", "china.jpg"),
    ("sklearn.datasets.images", "flower.jpg"),
)
LEVELS = (16.0, 18.0)
"""dB to be reached."""


@dataclass(frozen=True)
class Trace:
    """A run: CPU seconds since its start and PSNR on the way; `step` is the CPU seconds of one step."""

    seconds: list[float]
    psnr: list[float]
    step: float
    answer: float
    """PSNR of what the attack returned."""

    def time_to(self, level: float) -> float | None:
        """CPU seconds until `level` dB, between two looks by a straight line."""
        before = (0.0, -np.inf)
        for now in zip(self.seconds, self.psnr, strict=True):
            if now[1] >= level:
                if not np.isfinite(before[1]):
                    return now[0]
                share = (level - before[1]) / (now[1] - before[1])
                return before[0] + share * (now[0] - before[0])
            before = now
        return None


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    with_peer = options.peer_python is not None and options.peer_script is not None
    pairs = [(image, seed) for seed in range(options.seeds) for image in range(options.images)]
    context = get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        races = []
        for done in pool.map(race, pairs, [options] * len(pairs), [with_peer] * len(pairs)):
            print(json.dumps(done), file=sys.stderr, flush=True)  # of use if the rest is cut short
            races.append(done)
    result: dict[str, Any] = {"pictures": options.images, "seeds": options.seeds}
    result |= summarise(races, with_peer) | lenet() | restarts() | fedavg_memory()
    for name, value in result.items():
        print(f"{name:48} {value}")
    print(json.dumps({**result, "races": races}))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", help="python of the peer's own environment")
    parser.add_argument("--peer-script", help="the peer's run_breaching.py")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, nargs="+", default=[30, 120], help="lengths of our runs")
    parser.add_argument("--peer-steps", type=int, nargs="+", default=[200], help="lengths of the peer's runs")
    parser.add_argument("--jobs", type=int, default=1, help="pairs of picture and seed at once")
    options = parser.parse_args()
    if not 1 <= options.images <= len(PHOTOGRAPHS):
        parser.error(f"--images must be from 1 to {len(PHOTOGRAPHS)}")
    return options


def crop(number: int) -> Tensor:
    """The whole of a photograph's centre as (1, 3, 32, 32), as the peer's script cuts it."""
    package, file = PHOTOGRAPHS[number]
    with (resources.files(package) / file).open("rb") as handle:
        picture = Image.open(handle).convert("RGB")
    width, height = picture.size
    side = min(width, height)
    x, y = (width - side) // 2, (height - side) // 2
    small = picture.crop((x, y, x + side, y + side)).resize((32, 32), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1).float()[None] / 255


def psnr(raw: Tensor, truth: Tensor) -> float:
    return float(-10 * (raw.clamp(0, 1) - truth).square().mean().log10())


def race(pair: tuple[int, int], options: argparse.Namespace, with_peer: bool) -> dict[str, Any]:
    """One picture and seed: ours, the peer's, and a plain forward and backward pass, one after the other."""
    torch.set_num_threads(1)
    image, seed = pair
    truth, model = crop(image), build_model("convnet", SPEC, seed=seed)
    batch = Batch(SPEC.to_model(truth), torch.tensor([0]))
    plain = [plain_pass(model, batch)]
    theirs: list[Trace] = []
    ours: list[Trace] = []
    for turn in range(max(len(options.steps), len(options.peer_steps))):
        if turn < len(options.steps):
            attack = ATTACKS["inverting_gradients"](steps=options.steps[turn])
            ours.append(our_trace(attack, model, batch, truth, seed))
        if with_peer and turn < len(options.peer_steps):
            theirs.append(peer_trace(options, image, seed, options.peer_steps[turn], truth))
        plain.append(plain_pass(model, batch))
    return {
        "image": PHOTOGRAPHS[image][1],
        "seed": seed,
        "plain": statistics.median(plain),
        "ours": [vars(t) for t in ours],
        "peer": [vars(t) for t in theirs],
    }


def seen(model: nn.Module, batch: Batch, local: LocalTraining) -> Exchange:
    update = local_update(Broadcast(model), batch, local)
    return Exchange(broadcast=Broadcast(model), update=update, clients=(0,), labels=batch.labels)


def our_trace(attack: Attack, model: nn.Module, batch: Batch, truth: Tensor, seed: int) -> Trace:
    exchange = seen(model, batch, LocalTraining())
    looks: list[tuple[float, Tensor]] = []

    def look(progress: Progress) -> None:
        looks.append((time.process_time() - start, progress.inputs[0].clone()))

    known = Knowledge(input=SPEC, local=LocalTraining(), seed=100 + seed)
    start = time.process_time()
    with listening(look):
        found = attack.run([exchange], known)
    times = [at for at, _ in looks]
    return Trace(
        seconds=times,
        psnr=[psnr(SPEC.to_raw(candidate), truth) for _, candidate in looks],
        step=(times[-1] - times[0]) / (len(times) - 1),
        answer=psnr(found.values, truth),
    )


def peer_trace(options: argparse.Namespace, image: int, seed: int, steps: int, truth: Tensor) -> Trace:
    tracer = Path(__file__).with_name("peer_trace.py")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "trace.npz"
        command = [options.peer_python, tracer, out, str(max(1, steps // 40)), options.peer_script]
        command += ["ig", "--model", "ConvNet", "--threads", "1"]
        command += ["--iters", str(steps), "--img", str(image), "--seed", str(seed)]
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        with np.load(out, allow_pickle=False) as stored:
            seconds, candidates = stored["seconds"].tolist(), torch.from_numpy(stored["candidates"])
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    said = json.loads(line.removeprefix("RESULT "))
    return Trace(
        seconds=seconds,
        psnr=[psnr(SPEC.to_raw(candidate), truth) for candidate in candidates],
        step=said["cpu_ms_per_iter"] / 1000,
        answer=said["psnr_mean"],
    )


def plain_pass(model: nn.Module, batch: Batch, repeat: int = 5) -> float:
    """CPU seconds of one forward and one backward pass to all parameters."""
    model.eval()
    parameters = list(model.parameters())
    costs = []
    for _ in range(repeat):
        start = time.process_time()
        loss = nn.functional.cross_entropy(model(batch.inputs), batch.labels)
        torch.autograd.grad(loss, parameters)
        costs.append(time.process_time() - start)
    return statistics.median(costs)


def summarise(races: list[dict[str, Any]], with_peer: bool) -> dict[str, Any]:
    ours = [[Trace(**t) for t in r["ours"]] for r in races]
    theirs = [[Trace(**t) for t in r["peer"]] for r in races]
    step = statistics.median(t.step for traces in ours for t in traces)
    plain = statistics.median(r["plain"] for r in races)
    found: dict[str, Any] = {
        "step, ours, CPU ms": round(1000 * step, 1),
        "step, ours / plain forward+backward": round(step / plain, 2),
        "PSNR of our answers, longest run, mean": mean([traces[-1].answer for traces in ours]),
        "CPU s of our longest run, mean": mean([traces[-1].seconds[-1] for traces in ours]),
    }
    if with_peer:
        peer_step = statistics.median(t.step for traces in theirs for t in traces)
        found["step, peer, CPU ms"] = round(1000 * peer_step, 1)
        found["step, ours / peer"] = round(step / peer_step, 2)
    for level in LEVELS:
        found |= times_to(level, ours, theirs)
    return found | (equal_time(ours, theirs) if with_peer else {})


def times_to(level: float, ours: list[list[Trace]], theirs: list[list[Trace]]) -> dict[str, Any]:
    """By each side's longest run. A ratio is had only where both sides got there; the rest is counted.

    Picking the best of several lengths would be a choice by the truth, and a run that never got there has no
    time: to put its length in its place would make up a ratio.
    """
    name = f"CPU s to {level:g} dB"
    mine = [traces[-1].time_to(level) for traces in ours]
    peers = [traces[-1].time_to(level) if traces else None for traces in theirs]
    found: dict[str, Any] = {f"{name}, ours": _reached(mine)}
    if any(theirs):
        both = [a / b for a, b in zip(mine, peers, strict=True) if a is not None and b is not None]
        only = [
            a / traces[-1].seconds[-1]
            for a, b, traces in zip(mine, peers, theirs, strict=True)
            if a is not None and b is None
        ]
        found[f"{name}, peer"] = _reached(peers)
        found[f"{name}, ours / peer where both did"] = [round(r, 2) for r in both]
        found[f"{name}, below this where only we did"] = [round(r, 2) for r in only]
    return found


def _reached(times: list[float | None]) -> str:
    there = [t for t in times if t is not None]
    shown = f"{mean(there)} on average, " if there else ""
    return f"{shown}{len(there)} of {len(times)} reached it"


def equal_time(ours: list[list[Trace]], theirs: list[list[Trace]]) -> dict[str, Any]:
    """The peer's answer of its longest run, and ours of the longest run that had ended by then."""
    gains, times = [], []
    for mine, peers in zip(ours, theirs, strict=True):
        limit = peers[-1].seconds[-1]
        ended = [t for t in mine if t.seconds[-1] <= limit]
        if ended:
            gains.append((ended[-1].answer, peers[-1].answer))
            times.append((ended[-1].seconds[-1], limit))
    if not gains:
        return {"PSNR at equal CPU time": "none of our runs ended within the peer's time"}
    name = "PSNR at equal CPU time"
    sides = zip(("ours", "peer"), zip(*gains, strict=True), zip(*times, strict=True), strict=True)
    found: dict[str, Any] = {f"{name}, {side} (CPU s)": f"{mean(p)} ({mean(t)})" for side, p, t in sides}
    return found | {f"{name}, gain in dB": mean([a - b for a, b in gains])}


def mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 2)


def lenet() -> dict[str, Any]:
    """recursive_inversion on the sigmoid LeNet of Zhu et al."""
    answers, costs = [], []
    for number in range(4):
        truth, model = crop(number), build_model("lenet_zhu", SPEC, seed=number)
        exchange = seen(model, Batch(SPEC.to_model(truth), torch.tensor([number])), LocalTraining())
        start = time.process_time()
        found = ATTACKS["recursive_inversion"]().run([exchange], Knowledge(input=SPEC, local=LocalTraining()))
        costs.append(time.process_time() - start)
        answers.append(psnr(found.values, truth))
    return {
        "LeNet (Zhu), recursive_inversion, dB": f"{mean(answers)} (worst {min(answers):.1f})",
        "LeNet (Zhu), recursive_inversion, CPU s": f"{mean(costs)} (worst {max(costs):.2f})",
    }


def restarts(steps: int = 60) -> dict[str, Any]:
    """Time of eight restarts over one, on a model that leaves a CPU idle (LeNet)."""
    model = build_model("lenet_zhu", SPEC, seed=0)
    exchange = seen(model, Batch(SPEC.to_model(crop(0)), torch.tensor([0])), LocalTraining())
    known, ratios = Knowledge(input=SPEC, local=LocalTraining()), []
    for _ in range(3):
        costs = []
        for count in (1, 8):
            start = time.process_time()
            ATTACKS["inverting_gradients"](steps=steps, restarts=count).run([exchange], known)
            costs.append(time.process_time() - start)
        ratios.append(costs[1] / costs[0])
    return {"8 restarts / 1, LeNet (Zhu)": round(statistics.median(ratios), 2)}


def fedavg_memory(examples: int = 8) -> dict[str, Any]:
    """Peak bytes of one objective evaluation under 20 local steps over one, from torch's own allocations."""
    model = build_model("convnet", SPEC, seed=0, width=16)
    batch = Batch(torch.randn(examples, *SPEC.shape), torch.arange(examples) % 10)
    peaks = [peak_bytes(model, batch, steps) for steps in (1, 20)]
    return {
        "FedAvg memory, 1 local step, MB": round(peaks[0] / 2**20, 1),
        "FedAvg memory, 20 local steps / 1": round(peaks[1] / peaks[0], 3),
    }


def peak_bytes(model: nn.Module, batch: Batch, steps: int) -> int:
    local = LocalTraining(algorithm="fedavg", epochs=steps, lr=0.01)
    known = Knowledge(input=SPEC, local=local)
    problem = pose_problem(seen(model, batch, local), known, num_examples=len(batch))
    objective = update_matching(problem, cosine)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        objective(Candidates(batch.inputs[None], batch.labels[None]))
    live = peak = 0
    for event in profile.profiler.kineto_results.events():  # in order of time; frees are negative
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


if __name__ == "__main__":
    main()

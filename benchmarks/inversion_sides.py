"""One update, and its inversion by us and by the peer: shared by the benchmarks that compare the two."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inversion_networks import SETTINGS
from seepage.attacks import ATTACKS
from seepage.core.types import Batch, Broadcast, Exchange, Knowledge, LocalTraining
from seepage.data import Dataset, load_data
from seepage.protocol import local_update

TUNED = (
    "optim.step_size=0.3",
    "optim.step_size_decay=cosine-decay",
    "regularization.total_variation.scale=0.01",
)
"""Options of the peer that a user finds by trying."""


def cifar() -> Dataset:
    """CIFAR-10's test pictures with the usual mean and std."""
    return load_data("cifar10", mean=[0.4914, 0.4822, 0.4465], std=[0.2470, 0.2435, 0.2616])


def psnr(raw: Tensor, truth: Tensor) -> float:
    error = (raw.clamp(0, 1) - truth).square().flatten(1).mean(dim=1)
    return float((-10 * error.log10()).mean())


class Side:
    """One setting with its weights and pictures, each drawn by a seed; labels 0, 1, 2, ... are known."""

    def __init__(self, name: str, data: Dataset, *, model_seed: int, image_seed: int) -> None:
        setting = SETTINGS[name]
        self.name, self.model_seed, self.spec = name, model_seed, data.spec
        self.model = setting.model(model_seed)
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(image_seed))
        inputs = data.batch(order[: setting.batch]).inputs
        self.batch = Batch(inputs, torch.arange(setting.batch) % 10)
        self.local = LocalTraining()
        if setting.local_steps:
            size = setting.batch // setting.local_steps
            self.local = LocalTraining(algorithm="fedavg", lr=0.01, batch_size=size)
        update = local_update(Broadcast(self.model), self.batch, self.local)
        self.exchange = Exchange(
            broadcast=Broadcast(self.model), update=update, clients=(0,), labels=self.batch.labels
        )
        self.known = self._known(0)
        self.truth = data.spec.to_raw(self.batch.inputs)

    def _known(self, seed: int) -> Knowledge:
        return Knowledge(input=self.spec, local=self.local, loss="cross_entropy", seed=seed)

    @property
    def flat(self) -> float:
        """dB of a grey picture."""
        return psnr(torch.full_like(self.truth, 0.5), self.truth)

    def ours(self, *, seed: int, **settings: Any) -> tuple[float, float, tuple[str, ...]]:
        """dB, CPU seconds and notes of inverting_gradients."""
        start = time.process_time()
        found = ATTACKS["inverting_gradients"](**settings).run([self.exchange], self._known(seed))
        return psnr(found.values, self.truth), time.process_time() - start, found.notes


@dataclass(frozen=True)
class Answer:
    found: Tensor
    """In model units."""
    seconds: float
    times: list[float]


class Peer:
    """The peer in its own environment, one process for all searches."""

    def __init__(self, python: str, folder: str) -> None:
        command = [python, str(Path(__file__).with_name("peer_networks.py")), folder]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def search(self, side: Side, *, seed: int, steps: int, options: tuple[str, ...] = ()) -> Answer:
        assert self._process.stdin is not None and self._process.stdout is not None
        with tempfile.TemporaryDirectory() as place:
            images, out = Path(place) / "images.npz", Path(place) / "out.npz"
            np.savez(images, inputs=side.batch.inputs.numpy(), labels=side.batch.labels.numpy())
            request = {
                "name": side.name,
                "model_seed": side.model_seed,
                "seed": seed,
                "images": str(images),
                "out": str(out),
                "steps": steps,
                "options": list(options),
            }
            print(json.dumps(request), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
            if not line:
                self._log.seek(0)
                raise SystemExit(f"the peer failed: {self._log.read().decode()[-2000:]}")
            with np.load(out, allow_pickle=False) as stored:
                return Answer(torch.from_numpy(stored["found"]), **json.loads(line))

"""Class representatives on MNIST: how much do they look like their class, and like anybody's example?

    SEEPAGE_DATA=... python benchmarks/class_representatives.py [--seeds 3] [--first-seed 154000]

A small CNN, trained for 200 steps of Adam on the first half of the images, goes to a client with 64 of the
last thousand, of four classes, for five local steps at .05. `likeness`: share of the pictures that a judge
takes for their class; the judge is another CNN, trained on the second half, that no attack sees. `nearest`:
mean PSNR to the nearest of the client's examples, beside that of the class mean of 200 public images and of a
flat picture. A likeness of a class is no example: what counts is whether the attack comes nearer than the
class mean does. One thread, CPU seconds.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn

from seepage.attacks.representatives.class_representatives import (
    _after,
    _Multitask,
    _wanted,
    represent,
)
from seepage.core.progress import Clock
from seepage.core.types import Batch, Broadcast, Exchange, Knowledge, LocalTraining
from seepage.data import Dataset, load_data
from seepage.protocol import local_update


def cnn(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1568, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def trained(data: Dataset, first: int, last: int, *, steps: int, seed: int) -> nn.Sequential:
    model = cnn(seed)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    own = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        index = torch.randint(first, last, (64,), generator=own)
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(data.inputs[index]), data.labels[index]).backward()
        optimiser.step()
    return model.eval()


def scored(pictures: Tensor, classes: Tensor, batch: Batch, judge: nn.Module) -> tuple[float, float]:
    with torch.no_grad():
        like = float((judge(pictures).argmax(dim=1) == classes).double().mean())
    apart = (pictures.unsqueeze(1) - batch.inputs).square().flatten(2).mean(dim=2)
    return like, float((-10 * apart.amin(dim=1).log10()).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=154_000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = load_data("mnist")
    half = len(data) // 2
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        model = trained(data, 0, half, steps=200, seed=seed)
        judge = trained(data, half, len(data) - 1000, steps=300, seed=seed + 1)
        own = torch.Generator().manual_seed(seed)
        index = len(data) - 1000 + torch.randperm(1000, generator=own)
        held = torch.randperm(10, generator=own)[:4]
        mine = index[torch.isin(data.labels[index], held)][:64]
        batch = Batch(data.inputs[mine], data.labels[mine])
        local = LocalTraining(algorithm="fedavg", epochs=5, lr=0.05)
        public = data.batch(torch.randint(half, (200,), generator=own))
        known = Knowledge(input=data.spec, local=local, auxiliary=public, seed=seed)
        sent = local_update(Broadcast(model), batch, local)
        exchange = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
        body, wanted = _after([exchange], known), _wanted(exchange, known)
        means = torch.stack([public.inputs[public.labels == c].mean(dim=0) for c in wanted.tolist()])
        found = {"class mean": means, "flat": torch.full_like(means, 0.5)}
        for name in ("hitaj", "mgan_ai"):
            start = time.process_time()
            more = _Multitask(body, exchange, known, wanted.unique()).judge if name == "mgan_ai" else None
            found[name] = represent(body, known, wanted, Clock(seconds=None), steps=300, judge=more).pictures
            print(f"seed {seed}, {name}: {time.process_time() - start:.1f} CPU s", flush=True)
        for name, pictures in found.items():
            like, near = scored(pictures, wanted, batch, judge)
            print(f"seed {seed}, {name}: likeness {like:.2f}, nearest example {near:.1f} dB", flush=True)


if __name__ == "__main__":
    main()

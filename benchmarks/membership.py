"""Was a given example in the batch? Areas under ROC curves of four tests, with their intervals.

    SEEPAGE_DATA=... python benchmarks/membership.py [--batches 5] [--first-seed 75000] [--only mnist]

Each batch has n members; as many others come from the same test set, with the members' own labels, so that a
label alone tells nothing. Networks: the CNN of fishing_fedavg.py, untrained and trained, and a dense one.
The server has 128 public examples among the images 5000 to 8000.
Made on seeds below 1000; the matched filter's one constant was chosen on seeds 500 and 501, whose batches
come from the images from 8000 on, as all batches here do: seeds are fresh, the pool is not. Areas are pooled
over batches: the interval takes examples for independent. One thread, CPU seconds.
"""

from __future__ import annotations

import argparse
import time
from functools import cache

import torch
from torch import Tensor, nn

from fishing_fedavg import FIRST_IMAGE, TAUGHT, dataset, network
from seepage.attacks.membership import membership
from seepage.core.types import Batch, Broadcast, Exchange, LocalTraining
from seepage.data import Dataset
from seepage.metrics.membership import roc
from seepage.protocol import custom_threat, knowledge, local_update

LOCAL = {
    "gradient": LocalTraining(),
    "5 steps, lr .05": LocalTraining(algorithm="fedavg", lr=0.05, epochs=5),
}


@cache
def net(kind: str, name: str, seed: int) -> nn.Module:
    if kind != "dense":
        return network(kind, name, seed)
    torch.manual_seed(seed)
    width = dataset(name, kind).inputs[0].numel()
    return nn.Sequential(
        nn.Flatten(), nn.Linear(width, 200), nn.ReLU(), nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 10)
    )


def drawn(data: Dataset, examples: int, seed: int) -> Batch:
    """Members, then others with the same labels."""
    generator = torch.Generator().manual_seed(seed)
    index = FIRST_IMAGE + torch.randperm(len(data.labels) - FIRST_IMAGE, generator=generator)
    members, rest = index[:examples], index[examples:].tolist()
    others = []
    for label in data.labels[members].tolist():
        others.append(next(i for i in rest if int(data.labels[i]) == label))
        rest.remove(others[-1])
    chosen = torch.cat([members, torch.tensor(others)])
    return Batch(data.inputs[chosen], data.labels[chosen])


def public(data: Dataset, seed: int) -> Batch:
    order = torch.randperm(FIRST_IMAGE - TAUGHT, generator=torch.Generator().manual_seed(seed))
    chosen = TAUGHT + order[:128]
    return Batch(data.inputs[chosen], data.labels[chosen])


def line(kind: str, name: str, what: str, examples: int, seeds: range) -> str:
    data, local = dataset(name, kind), LOCAL[what]
    scores: dict[str, list[Tensor]] = {"dot": [], "cosine": [], "matched": [], "span": []}
    start = time.process_time()
    for seed in seeds:
        model, asked = net(kind, name, seed % 2), drawn(data, examples, seed)
        update = local_update(Broadcast(model), asked.select(slice(examples)), local)
        exchange = Exchange(broadcast=Broadcast(model), update=update, clients=(0,))
        known = knowledge(
            custom_threat("honest_but_curious", grant=["auxiliary_data"]),
            "per_client",
            spec=data.spec,
            loss="cross_entropy",
            local=local,
            auxiliary=public(data, seed),
            seed=seed,
        )
        found = membership(exchange, known, asked)
        for test, kept in scores.items():
            if (value := getattr(found, test)) is not None:
                kept.append(value)
    words = []
    for test, kept in scores.items():
        if len(kept) < len(seeds):
            words.append(f"{test} says nothing in {len(seeds) - len(kept)} of {len(seeds)}")
            continue
        both = torch.stack(kept)
        judged = roc(both[:, :examples].flatten(), both[:, examples:].flatten())
        low, high = judged.interval
        at = judged.found_at(0.01)
        words.append(f"{test} {judged.area:.3f} [{low:.3f}, {high:.3f}], found at 1 % false alarms {at:.2f}")
    cost = (time.process_time() - start) / len(seeds)
    return f"{name}, {kind}, {what}, n = {examples}: {'; '.join(words)}; {cost:.1f} CPU s a batch"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=75000)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in ("mnist", "cifar10"):
        for kind in ("dense", "untrained", "trained"):
            for what in LOCAL:
                for examples in (16, 64, 256):
                    if given.only in f"{name}, {kind}, {what}, n = {examples}":
                        seeds = range(given.first_seed, given.first_seed + given.batches)
                        print(line(kind, name, what, examples, seeds), flush=True)


if __name__ == "__main__":
    main()

"""How often label inference gives the exact multiset of labels, from gradients and FedAvg deltas.

    python benchmarks/label_inference.py [--data digits] [--models mlp,lenet] [--sizes 4,16] [--trials 50]
                                         [--settings "20 steps, lr 0.01"] [--trained 150]

Each trial has a network and a batch of its own; half of the batches have a skewed mix of classes. A line
says, for one setting, how many counts were exact, how many were called certain, and how many of those were
false. Real data: --data cifar10 or mnist, with SEEPAGE_DATA naming their folder. `lenet` has torch's own
initial weights; `lenet_zhu` those of Zhu et al., whose first predictions are nearly one-hot. `convnet16` is
the convnet of width 16; like resnet20 it takes a client many seconds a batch. Size 0 draws one from 2 to 64
for each batch. --trained trains every network for so many steps of Adam on the same data first; without it
networks are untrained. Settings of the inference were chosen on seeds below 60000.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

from seepage.core.types import Batch, Broadcast, Exchange, Knowledge, LocalTraining
from seepage.data import Dataset, load_data, standardised
from seepage.labels import infer_label_counts
from seepage.models.loading import build_model
from seepage.protocol import local_update

SETTINGS = {
    "fedsgd": LocalTraining(),
    "4 steps, lr 0.05": LocalTraining(algorithm="fedavg", epochs=4, lr=0.05),
    "4 steps, lr 0.02, momentum 0.9": LocalTraining(algorithm="fedavg", epochs=4, lr=0.02, momentum=0.9),
    "4 steps, lr 0.01": LocalTraining(algorithm="fedavg", epochs=4, lr=0.01),
    "20 steps, lr 0.01": LocalTraining(algorithm="fedavg", epochs=20, lr=0.01),
    "20 steps, lr 0.1": LocalTraining(algorithm="fedavg", epochs=20, lr=0.1),
    "20 steps, lr 0.5": LocalTraining(algorithm="fedavg", epochs=20, lr=0.5),
    "2 epochs of batches of 4, lr 0.02": LocalTraining(algorithm="fedavg", epochs=2, batch_size=4, lr=0.02),
    "2 epochs of batches of 8, lr 0.1": LocalTraining(algorithm="fedavg", epochs=2, batch_size=8, lr=0.1),
    "5 epochs of batches of 8, lr 0.01": LocalTraining(algorithm="fedavg", epochs=5, batch_size=8, lr=0.01),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--models", default="mlp,lenet")
    parser.add_argument("--sizes", default="4,16", help="examples in a batch; 0: from 2 to 64")
    parser.add_argument("--trials", type=int, default=5, help="50 for figures worth quoting")
    parser.add_argument("--first-seed", type=int, default=80_000)
    parser.add_argument("--settings", default="", help="only settings whose names contain this")
    parser.add_argument("--trained", type=int, default=0, help="steps of Adam before the client's own")
    options = parser.parse_args()

    torch.set_num_threads(1)
    data = load_data(options.data)
    data = standardised(data, torch.arange(len(data)))
    seeds = range(options.first_seed, options.first_seed + options.trials)
    print(f"{data.name}, {options.trials} batches a line, seeds from {options.first_seed}")
    print(f"{'model':10} {'n':>3}  {'local training':34} {'exact':>5} {'certain':>7} {'false':>5}  CPU s")
    for model in options.models.split(","):
        for size in map(int, options.sizes.split(",")):
            for name, local in SETTINGS.items():
                if options.settings in name:
                    row = [measure(data, model, size, local, seed, options.trained) for seed in seeds]
                    exact, certain, false = (sum(column) for column in list(zip(*row, strict=True))[:3])
                    cost = sum(r[3] for r in row) / len(row)
                    print(
                        f"{model:10} {size:3}  {name:34} {exact:5} {certain:7} {false:5}  {cost:.2f}",
                        flush=True,
                    )


def measure(
    data: Dataset, model: str, size: int, local: LocalTraining, seed: int, trained: int = 0
) -> tuple[bool, bool, bool, float]:
    """Exact, called certain, certain but wrong, CPU seconds: of one client's update."""
    size = size or int(torch.randint(2, 65, (1,), generator=torch.Generator().manual_seed(seed)))
    network = train(build_network(model, data, seed), data, trained, seed)
    batch = draw(data, size, seed)
    update = local_update(Broadcast(network), batch, local)
    exchange = Exchange(broadcast=Broadcast(network), update=update, clients=(0,))
    start = time.process_time()
    estimate = infer_label_counts(exchange, Knowledge(input=data.spec, local=local))
    cost = time.process_time() - start
    truth = torch.bincount(batch.labels, minlength=data.spec.num_classes)
    exact = torch.equal(estimate.counts.cpu(), truth)
    return exact, estimate.certain, estimate.certain and not exact, cost


def build_network(name: str, data: Dataset, seed: int) -> nn.Module:
    """A network of the catalogue, convnet16, or `lenet`: lenet_zhu with torch's own initial weights."""
    if name == "convnet16":
        return build_model("convnet", data.spec, seed=seed, width=16)
    network = build_model("lenet_zhu" if name == "lenet" else name, data.spec, seed=seed)
    if name == "lenet":
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for module in network.modules():
                if isinstance(module, nn.Conv2d | nn.Linear):
                    module.reset_parameters()
    return network


def train(network: nn.Module, data: Dataset, steps: int, seed: int) -> nn.Module:
    """Adam at 1e-3 on batches of 64, in train mode."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    network.train()
    for _ in range(steps):
        batch = data.batch(torch.randint(len(data), (64,), generator=generator))
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(batch.inputs), batch.labels).backward()
        optimiser.step()
    return network.eval()


def draw(data: Dataset, size: int, seed: int) -> Batch:
    """Labels drawn evenly for even seeds and from a skewed mix for odd ones, so that many are duplicates."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.rand(data.spec.num_classes, generator=generator) ** (3 * (seed % 2))
    weights = mix[data.labels] / torch.bincount(data.labels, minlength=len(mix))[data.labels]
    return data.batch(torch.multinomial(weights, size, replacement=False, generator=generator))


if __name__ == "__main__":
    main()

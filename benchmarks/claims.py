"""How many claims and certificates of the readers are false, where that is hard.

    python benchmarks/claims.py [--data faces,digits,cases.csv,imagenet_photos@24]
                                [--attacks analytic_extraction] [--batches 60] [--first-seed 9900]
                                [--kinds "fp16/saturated 100"]

Every batch has a network and a draw of examples of its own; `KINDS` says what is hard about them. A line says
how many examples were claimed rightly, how many claims show no example of the batch (by the rule of exactness
that an audit has), how many updates were certified to hold nothing else, and how many of those hold an
example that was not claimed (one whose share of every row is below the row's rounding is not in it). Rules
were developed on seeds below 9000, from 15000 to 15999 and from 20000 to 20999; 9000 to 9899, 12000, 13200,
41000, 52000, 61000 to 61011 and 65000 to 65002 were looked at while they were made.

Where every example has a near copy, the client counts each pair once, no neuron lies between the two of any
pair and the update shows no products of floats, nothing parts the pairs from their means. A claim there holds
if the declared number is right, and says so (`Reconstruction.if_declared`). Where it says so and the number
is wrong, it counts in the column "if" and not as false.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from scipy.stats import beta
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.core.types import INPUT_SPACE, Batch, Broadcast, Exchange, Knowledge, LocalTraining
from seepage.data import Dataset, load_data
from seepage.data.columns import standardised
from seepage.engine.views import raw_candidates
from seepage.metrics import exact_rule
from seepage.metrics.exact import EXACT_TOLERANCE
from seepage.protocol import local_update

GRADIENT = LocalTraining()
FEDAVG = LocalTraining(algorithm="fedavg", lr=0.1)
STEPS = LocalTraining(algorithm="fedavg", lr=0.1, epochs=5)
DEEP = (200,) * 5
"""With the output six layers, in which no neuron of the first is alone once inputs are normalised."""
PUBLIC = 50
"""Examples that tables are standardised by, and that no batch is drawn from."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is hard about a batch, its network or its update."""

    examples: int = 20
    hidden: tuple[int, ...] = (1000,)
    """Neurons of each hidden layer."""
    activation: Callable[[], nn.Module] = nn.ReLU
    bias: bool = True
    """Whether the first layer has one."""
    sharpness: float = 1.0
    """Factor on the output layer's weights: a large one saturates the loss."""
    trained: int = 0
    """Steps of Adam on other examples before the round."""
    alike: int = 0
    """So many examples of the batch have a copy with one value moved by `steps` grey steps."""
    steps: int = 1
    """An even number puts the mean of two on the grid."""
    twice: int = 0
    """So many examples are in the batch twice."""
    relabelled: bool = False
    """The copy has another label."""
    one_class: bool = False
    """Four of five examples have the same label."""
    declared: float = 1.0
    """The number of examples that the client declares, over the true one; 0: none is declared."""
    normalised: bool = False
    """The model is fed (x - mean) / std, and the server knows both."""
    local: LocalTraining = GRADIENT
    change: Callable[[Tensor], Tensor] = lambda sent: sent
    """What happens to the update on its way."""


KINDS: dict[str, Kind] = {
    "plain": Kind(),
    "fp16": Kind(change=lambda sent: sent.half().float()),
    "bf16": Kind(change=lambda sent: sent.bfloat16().float()),
    "saturated 30": Kind(sharpness=30.0),
    "saturated 100": Kind(sharpness=100.0),
    "saturated 300": Kind(sharpness=300.0),
    "trained 50": Kind(trained=50),
    "trained 300": Kind(trained=300),
    "pairs": Kind(alike=4),
    "all pairs": Kind(alike=10),
    "copies": Kind(twice=4),
    "all copies": Kind(twice=10),
    "relabelled": Kind(twice=4, relabelled=True),
    "declared half": Kind(declared=0.5),
    "declared twice": Kind(declared=2.0),
    "undeclared": Kind(declared=0.0),
    "pairs undecl.": Kind(alike=10, declared=0.0),
    "copies, half": Kind(twice=10, declared=0.5),
    "pairs, half": Kind(alike=10, declared=0.5),
    "width 50": Kind(hidden=(50,)),
    "width 200": Kind(hidden=(200,)),
    "width 3000": Kind(hidden=(3000,)),
    "deep": Kind(hidden=(500, 200, 100)),
    "leaky": Kind(activation=nn.LeakyReLU),
    "one example": Kind(examples=1),
    "five examples": Kind(examples=5),
    "60 examples": Kind(examples=60),
    "normalised": Kind(normalised=True),
    "normalised 100": Kind(normalised=True, sharpness=100.0),
    "one class": Kind(one_class=True),
    "fedavg": Kind(local=FEDAVG),
    "fedavg undecl.": Kind(alike=10, declared=0.0, local=FEDAVG),
    "deep p., half": Kind(hidden=(500, 200, 100), alike=10, declared=0.5),
    "six p., half": Kind(hidden=DEEP, alike=10, declared=0.5),
    "even few": Kind(alike=4, steps=2),
    "even pairs": Kind(alike=10, steps=2),
    "even undecl.": Kind(alike=10, steps=2, declared=0.0),
    "even, half": Kind(alike=10, steps=2, declared=0.5),
    "no bias": Kind(bias=False),
    "no b. even few": Kind(bias=False, alike=4, steps=2),
    "no b. pairs": Kind(bias=False, alike=10),
    "no b. even": Kind(bias=False, alike=10, steps=2),
    "no b. e. undecl.": Kind(bias=False, alike=10, steps=2, declared=0.0),
    "fedavg even few": Kind(alike=4, steps=2, local=FEDAVG),
    "fedavg even": Kind(alike=10, steps=2, local=FEDAVG),
    "fedavg e. und.": Kind(alike=10, steps=2, declared=0.0, local=FEDAVG),
    "fedavg, half": Kind(alike=10, declared=0.5, local=FEDAVG),
    "5 steps": Kind(local=STEPS),
    "5 steps pairs": Kind(alike=10, local=STEPS),
    "5 steps even": Kind(alike=10, steps=2, local=STEPS),
    "unmixed": Kind(hidden=DEEP, normalised=True),
    "unm. pairs": Kind(hidden=DEEP, normalised=True, alike=4),
    "unm. all pairs": Kind(hidden=DEEP, normalised=True, alike=10),
    "unm. p. undecl.": Kind(hidden=DEEP, normalised=True, alike=10, declared=0.0),
    "unm. copies": Kind(hidden=DEEP, normalised=True, twice=4),
    "unm. fp16": Kind(hidden=DEEP, normalised=True, change=lambda sent: sent.half().float()),
    "unm. bf16": Kind(hidden=DEEP, normalised=True, change=lambda sent: sent.bfloat16().float()),
    "unm. half": Kind(hidden=DEEP, normalised=True, declared=0.5),
    "unm. saturated": Kind(hidden=DEEP, normalised=True, sharpness=100.0),
    "unm. trained": Kind(hidden=DEEP, normalised=True, trained=50),
    "no b. e., half": Kind(bias=False, alike=10, steps=2, declared=0.5),
    "fedavg e., half": Kind(alike=10, steps=2, declared=0.5, local=FEDAVG),
    "unm. p., half": Kind(hidden=DEEP, normalised=True, alike=10, declared=0.5),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="faces,digits")
    parser.add_argument("--attacks", default="analytic_extraction,exact_extraction")
    parser.add_argument("--batches", type=int, default=3, help="60 for figures worth quoting")
    parser.add_argument("--first-seed", type=int, default=9900)
    parser.add_argument("--kinds", default="/".join(KINDS), help="names divided by /")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.first_seed, options.first_seed + options.batches)
    print(f"{options.batches} batches a line, seeds {seeds.start} to {seeds.stop - 1}")
    titles = f"{'right':>6} {'false':>5} {'certified':>9} {'false':>5} {'if':>5}"
    print(f"{'data':13} {'attack':20} {'kind':15} {titles}")
    total = torch.zeros(5, dtype=torch.long)
    for name in options.data.split(","):
        reference, _, size = name.partition("@")
        data = load_data(reference, size=int(size)) if size else load_data(reference)
        for attack in options.attacks.split(","):
            for kind in options.kinds.split("/"):
                counts = [trial(data, attack, KINDS[kind], seed) for seed in seeds]
                summed = torch.tensor(counts).sum(0)
                total += summed
                wrong = [seed for seed, count in zip(seeds, counts, strict=True) if count[1] or count[3]]
                line = f"{Path(name).stem:13.13} {attack:20} {kind:15} {row(summed)}"
                print(line + (f"  seeds {wrong}" if wrong else ""), flush=True)
    right, false, certified, wrongly, conditional = total.tolist()
    print(f"{'all':50} {row(total)}")
    print(
        f"false claims: {false} of {right + false} (95 % upper bound {most(false, right + false):.2%});",
        end=" ",
    )
    print(f"false certificates: {wrongly} of {certified} ({most(wrongly, certified):.2%})")
    print(f"claims that say they hold if the declared number is right, where it is not: {conditional}")


def row(counts: Tensor) -> str:
    right, false, certified, wrongly, conditional = counts.tolist()
    return f"{right:6} {false:5} {certified:9} {wrongly:5} {conditional:5}"


def most(wrong: int, of: int) -> float:
    """One-sided upper bound of 95 % on a share (Clopper and Pearson 1934), as if claims were independent."""
    return 1.0 if wrong >= of else float(beta.ppf(0.95, wrong + 1, of - wrong))


def trial(data: Dataset, attack: str, kind: Kind, seed: int) -> tuple[int, int, int, int, int]:
    """Examples that were claimed rightly, false claims, certificates and false certificates of one batch; and
    claims that would be false, but for a condition that they state and that does not hold."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    public, private = order[:PUBLIC], order[PUBLIC:]
    data = prepared(data, public, kind)
    batch = drawn(data, private, kind)
    model = network(data, batch, private, kind, seed)
    seen = exchange(model, batch, kind)
    # A column's spread is for measuring: no server is told.
    known = Knowledge(input=replace(data.spec, spread=None), local=kind.local)
    result = ATTACKS[attack]().run([seen], known)
    if result.claimed is None:
        return 0, 0, 0, 0, 0
    truth = data.spec.to_raw(batch.inputs)
    rule = exact_rule(data.spec, truth, space=INPUT_SPACE, tolerance=EXACT_TOLERANCE)
    same = rule.every(raw_candidates(result, data.spec, truth.dtype)[result.claimed.cpu()], truth)
    missed = (~same.any(0)).nonzero().flatten().tolist()
    wrong = int((~same.any(1)).sum())
    if result.if_declared and kind.declared != 1.0:
        return len(batch) - len(missed), 0, 0, 0, wrong
    certified = bool(result.complete)
    wrongly = certified and any(sent(model, batch, i, kind) for i in missed)
    return len(batch) - len(missed), wrong, certified, wrongly, 0


def prepared(data: Dataset, public: Tensor, kind: Kind) -> Dataset:
    """Tables standardised as in an audit; pictures with their mean and std, where the kind says so."""
    if kind.normalised and not data.standardise:
        channels = data.inputs[public].transpose(0, 1).flatten(1)
        mean, std = (tuple(each.tolist()) for each in (channels.mean(1), channels.std(1)))
        return replace(data, spec=replace(data.spec, mean=mean, std=std))
    return standardised(data, public)


def drawn(data: Dataset, private: Tensor, kind: Kind) -> Batch:
    if kind.one_class:
        labels = data.labels[private]
        main = labels == labels[0]
        most = kind.examples * 4 // 5
        private = torch.cat([private[main][:most], private[~main]])
    extra = kind.alike + kind.twice
    batch = data.batch(private[: kind.examples - extra])
    if not extra:
        return batch
    raw = data.inputs[private[:extra]].flatten(1).clone()
    labels = batch.labels[:extra]
    if kind.alike:
        column = raw.shape[1] // 2
        values = data.inputs.flatten(1)[:, column]
        low, high = values.min(), values.max()
        if data.spec.value_range is not None:
            low, high = (raw.new_tensor(v) for v in data.spec.value_range)
        step = kind.steps * (high - low) / 255
        raw[:, column] += torch.where(raw[:, column] < (low + high) / 2, step, -step)
    if kind.relabelled:
        labels = (labels + 1) % data.spec.num_classes
    copies = data.spec.to_model(raw.reshape(-1, *data.spec.shape))
    return Batch.concat([batch, Batch(copies, labels)])


def network(data: Dataset, batch: Batch, private: Tensor, kind: Kind, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    widths = [data.inputs[0].numel(), *kind.hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        biased = kind.bias or len(layers) > 1
        layers += [nn.Linear(before, after, bias=biased), kind.activation()]
    output = nn.Linear(widths[-1], data.spec.num_classes)
    with torch.no_grad():
        output.weight *= kind.sharpness
    model = nn.Sequential(*layers, output)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    others = private[len(batch) :]
    for _ in range(kind.trained):
        some = data.batch(others[torch.randint(len(others), (64,))])
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(some.inputs), some.labels).backward()
        optimiser.step()
    return model.requires_grad_(True)


def exchange(model: nn.Module, batch: Batch, kind: Kind) -> Exchange:
    update = local_update(Broadcast(model), batch, kind.local)
    update = replace(
        update,
        tensors={key: kind.change(tensor) for key, tensor in update.tensors.items()},
        num_examples=round(kind.declared * len(batch)) or None,
    )
    return Exchange(broadcast=Broadcast(model), update=update, clients=(0,))


def sent(model: nn.Module, batch: Batch, index: int, kind: Kind) -> bool:
    """Whether the example has more of any row of the update than its rounding, and than a millionth.

    Rounding is what parts the update from the same one in double precision. An example whose label the model
    predicts with near certainty does not have as much.
    """
    exactly = Broadcast(copy.deepcopy(model).double())
    inputs = batch.inputs.double()
    of = slice(index, index + 1)
    received = kind.change(_bias_gradient(Broadcast(model), batch)).double()
    all_ = _bias_gradient(exactly, Batch(inputs, batch.labels))
    own = _bias_gradient(exactly, Batch(inputs[of], batch.labels[of])).abs() / len(batch)
    return bool((own > torch.maximum(1e-6 * all_.abs(), (received - all_).abs())).any())


def _bias_gradient(broadcast: Broadcast, batch: Batch) -> Tensor:
    tensors = local_update(broadcast, batch, GRADIENT).tensors
    # Without a bias, what the row received is as good.
    return tensors["1.bias"] if "1.bias" in tensors else tensors["1.weight"].norm(dim=1)


if __name__ == "__main__":
    main()

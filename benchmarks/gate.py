"""Does the gate name beforehand whom a server then recovers?

    python benchmarks/gate.py [--seeds 3] [--quiet 18]

For each data set, model and server: the server crafts (or does not), the client computes its update, the gate
looks at it without the server's secret, and then the server reads with it. Printed: examples that the server
recovers, the share of them that the gate had named (full and quick), CPU seconds, and false blocks: updates
that the gate stops although the server recovers nothing.

With --quiet so many batches of each honest setting that may hide a batch are gated in place of that (noise,
narrow layers, pooling, LeNet-5, a residual network, an LSTM), and false blocks are counted over those of
which a server that takes longer than the gate recovers nothing, neither inputs nor features of a layer.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from seepage.attacks import ATTACKS
from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining
from seepage.data import load_data, standardised
from seepage.engine.rating import rated
from seepage.engine.views import Views
from seepage.gating import Gatekeeper, gate
from seepage.gating.attacked import PICTURE
from seepage.guardian import guard
from seepage.models.choice import unreadable
from seepage.models.layers import trace_linear_layers
from seepage.models.loading import build_model
from seepage.protocol import Played, client
from seepage.record.intervals import clopper_pearson

SERVERS: dict[str, Callable[[int], object]] = {
    "honest": lambda size: ATTACKS["exact_extraction"](budget=2.0),
    "shifted_rows": lambda size: ATTACKS["shifted_rows"](batch_size=size),
    "trap_weights": lambda size: ATTACKS["trap_weights"](),
    "trap_weights, hidden": lambda size: ATTACKS["trap_weights"](hidden=True),
    "quantile_traps": lambda size: ATTACKS["quantile_traps"](batch_size=size),
    "imprint": lambda size: ATTACKS["imprint"](bins=4 * size),
    "sparse_traps": lambda size: ATTACKS["sparse_traps"](batch_size=size),
    "amplification": lambda size: ATTACKS["amplification"](),
}
PUBLIC = 200
SIZES = (8, 64)


@dataclass(frozen=True)
class Case:
    data: str
    model: str
    build: Callable[[InputSpec], nn.Module]


def _mlp(spec: InputSpec) -> nn.Module:
    size = int(torch.tensor(spec.shape).prod())
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(size, 1000),
        nn.ReLU(),
        nn.Linear(1000, 200),
        nn.ReLU(),
        nn.Linear(200, spec.num_classes),
    )


def _cnn(spec: InputSpec) -> nn.Module:
    channels, side, _ = spec.shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * side * side, 200), nn.ReLU(), nn.Linear(200, spec.num_classes),
    )  # fmt: skip


def _pooled(spec: InputSpec) -> nn.Module:
    """Nothing reads this one directly: the features that reach its dense layers are means over all places."""
    channels = spec.shape[0]
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, stride=2), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, spec.num_classes),
    )  # fmt: skip


CASES = (
    Case("mnist", "mlp", _mlp),
    Case("cifar10", "mlp", _mlp),
    Case("mnist", "cnn", _cnn),
    Case("mnist", "pooled cnn", _pooled),
    Case("cifar10", "pooled cnn", _pooled),
    Case("breast_cancer", "mlp", _mlp),
)


def drawn(case: Case, size: int, seed: int) -> tuple[InputSpec, Batch, Batch, nn.Module]:
    data = load_data(case.data)
    data = standardised(data, torch.arange(len(data)))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    torch.manual_seed(seed)
    model = case.build(data.spec)
    return data.spec, data.batch(order[:size]), data.batch(order[size : size + PUBLIC]), model


def recovered(
    attack: object, seen: Exchange, known: Knowledge, batch: Batch, spec: InputSpec, budget: float = 2.0
) -> torch.Tensor:
    """(n,) what the server has of the batch: inputs or what a layer reads exactly, or a picture of 25 dB."""
    everything = torch.arange(len(batch))
    played = Played((seen,), batch, torch.zeros(len(batch), dtype=torch.long), (everything,), 1)
    hits = torch.zeros(len(batch), dtype=torch.bool)
    attacks = [attack]
    if seen.secret is None:  # an honest server reads any layer it likes
        layers = trace_linear_layers(seen.broadcast.model, spec)
        attacks = [
            ATTACKS["exact_extraction"](layer=x.name, budget=budget) for x in layers if not unreadable(x)
        ]
    for each in attacks:
        result = each.run([seen], known)  # type: ignore[attr-defined]
        scored = rated(result, Views(played, spec, result.space, 1e-3), ())
        hits |= scored.pairing.exact
        if "psnr" in scored.scores:
            hits |= scored.pairing.recovered & (scored.scores["psnr"] >= PICTURE)
    return hits


def _narrow(spec: InputSpec) -> nn.Module:
    size = int(torch.tensor(spec.shape).prod())
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(),
        nn.Linear(30, spec.num_classes),
    )  # fmt: skip


def _lenet5(spec: InputSpec) -> nn.Module:
    channels, side, _ = spec.shape
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * ((side // 2 - 4) // 2) ** 2, 120), nn.ReLU(),
        nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, spec.num_classes),
    )  # fmt: skip


def _pooled_mlp(spec: InputSpec) -> nn.Module:
    return nn.Sequential(
        nn.AvgPool2d(4), nn.Flatten(), nn.Linear(spec.shape[0] * (spec.shape[1] // 4) ** 2, 40), nn.ReLU(),
        nn.Linear(40, spec.num_classes),
    )  # fmt: skip


class _Lstm(nn.Module):
    """Reads a picture line by line."""

    def __init__(self, spec: InputSpec) -> None:
        super().__init__()
        self.rnn = nn.LSTM(spec.shape[0] * spec.shape[2], 32, batch_first=True)
        self.head = nn.Linear(32, spec.num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.rnn(x.transpose(1, 2).flatten(2))
        logits: torch.Tensor = self.head(states[:, -1])
        return logits


def _resnet(spec: InputSpec) -> nn.Module:
    return build_model("resnet20", spec, width=8)


HONEST = tuple(
    (Case(data, name, build), 0.0)
    for name, build in (
        ("lstm", _Lstm), ("pooled mlp", _pooled_mlp), ("lenet-5", _lenet5), ("resnet", _resnet),
    )
    for data in ("mnist", "cifar10")
)  # fmt: skip
QUIET = (
    *HONEST,
    *((Case(data, "mlp, noise", _mlp), 0.01) for data in ("mnist", "cifar10", "breast_cancer")),
    *((Case(data, "narrow mlp", _narrow), 0.0) for data in ("mnist", "cifar10", "breast_cancer")),
    *((Case(data, "pooled cnn", _pooled), 0.0) for data in ("mnist", "cifar10")),
)
"""Honest models and what clients add to their updates, B = 64."""


def quiet(seeds: range, only: str, size: int) -> None:
    """Prints a line for each batch, then false blocks."""
    silent, false, quick_false = 0, 0, 0
    for case, noise in (one for one in QUIET if only in f"{one[0].data}, {one[0].model}"):
        for seed in seeds:
            spec, batch, public, model = drawn(case, size, seed)
            known = Knowledge(input=spec, local=LocalTraining(), auxiliary=public, seed=seed)
            update = client(LocalTraining())(Broadcast(model), batch)
            generator = torch.Generator().manual_seed(seed)
            noisy = {
                n: t + noise * torch.randn(t.shape, generator=generator) for n, t in update.tensors.items()
            }
            update = replace(update, tensors=noisy)
            told = gate(model, update, batch, spec=spec, advice=False)
            quick = gate(model, update, batch, spec=spec, quick=True)
            seen = Exchange(broadcast=Broadcast(model), update=update, clients=(0,))
            hits = int(recovered(None, seen, known, batch, spec, budget=5.0).sum())
            silent += hits == 0
            false += hits == 0 and told.answer == "block"
            quick_false += hits == 0 and quick.answer == "block"
            how = sorted({f"{e.how} by {e.by} at {e.layer}" for e in told.exposures})
            line = {"data": case.data, "model": case.model, "seed": seed, "recovered": hits}
            print(json.dumps({**line, "gate": told.answer, "quick": quick.answer, "how": how}), flush=True)
    for words, count in (("", false), ("quick mode (it looks at no update, so at no noise): ", quick_false)):
        low, high = clopper_pearson(count, max(1, silent))
        print(f"{words}false blocks: {count} of {silent} (95 % interval {low:.4f} to {high:.4f})")


def cases(seeds: range) -> Iterator[dict[str, object]]:
    for case in CASES:
        for size in SIZES:
            for seed in seeds:
                spec, batch, public, honest = drawn(case, size, seed)
                known = Knowledge(input=spec, local=LocalTraining(), auxiliary=public, seed=seed)
                for server, build in SERVERS.items():
                    attack = build(size)
                    try:
                        attack.check(honest, known)
                        sent = attack.craft(honest, [], known)
                        found = one(honest, attack, sent, known, batch, spec)
                    except NotApplicable:
                        continue
                    yield {
                        "data": case.data,
                        "model": case.model,
                        "server": server,
                        "size": size,
                        "seed": seed,
                        **found,
                    }


def one(
    honest: nn.Module, attack: object, sent: object, known: Knowledge, batch: Batch, spec: InputSpec
) -> dict[str, object]:
    model = honest if sent is None else sent.model  # type: ignore[attr-defined]
    secret = None if sent is None else sent.secret  # type: ignore[attr-defined]
    update = client(LocalTraining())(Broadcast(model), batch)
    full = gate(model, update, batch, spec=spec, advice=False)
    quick = gate(model, update, batch, spec=spec, quick=True)
    started = time.process_time()
    client(LocalTraining())(Broadcast(model), batch)
    step = time.process_time() - started
    seen = Exchange(broadcast=Broadcast(model), update=update, clients=(0,), secret=secret)
    hits = set(recovered(attack, seen, known, batch, spec).nonzero().flatten().tolist())
    kept = (
        Gatekeeper("noise", {"spec": spec}).decide(model, update, batch) if full.answer == "block" else None
    )
    after = 0
    if kept is not None:
        altered = Exchange(broadcast=Broadcast(model), update=kept, clients=(0,), secret=secret)
        after = int(recovered(attack, altered, known, batch, spec).sum())
    return {
        "recovered": len(hits),
        "altered": kept is not None,
        "recovered_after": after,
        "named": len(hits & set(full.exposed)),
        "named_quick": len(hits & set(quick.exposed)),
        "blocked": full.answer == "block",
        "blocked_quick": quick.answer == "block",
        "by_input": any(e.how in ("exact", "picture") for e in full.exposures),
        "seconds": full.seconds,
        "quick_over_step": quick.seconds / max(step, 1e-4),
        "guard": guard(model, spec=spec).verdict.value,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=61000)
    parser.add_argument("--quiet", type=int, default=0, help="batches of each setting that hides a batch")
    parser.add_argument("--only", default="", help="with --quiet: settings with this word")
    parser.add_argument("--size", type=int, default=SIZES[-1], help="with --quiet: examples in a batch")
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if given.quiet:
        quiet(range(given.first, given.first + given.quiet), given.only, given.size)
        return
    rows = []
    for row in cases(range(given.first, given.first + given.seeds)):
        rows.append(row)
        print(json.dumps(row), flush=True)
    hits, named, quick = (sum(int(r[k]) for r in rows) for k in ("recovered", "named", "named_quick"))  # type: ignore[call-overload]
    silent = [r for r in rows if r["recovered"] == 0]
    false = sum(bool(r["blocked"]) for r in silent)
    low, high = clopper_pearson(false, max(1, len(silent)))
    slowest = max(float(r["seconds"]) for r in rows)  # type: ignore[arg-type]
    steps = sorted(float(r["quick_over_step"]) for r in rows)  # type: ignore[arg-type]
    print(
        f"{named} of {hits} recovered examples were named (quick: {quick}); slowest gate {slowest:.1f} CPU s;"
        f" quick mode in steps: median {steps[len(steps) // 2]:.2f}, most {steps[-1]:.2f}"
    )
    after = sum(int(r["recovered_after"]) for r in rows)  # type: ignore[call-overload]
    altered = sum(bool(r["altered"]) for r in rows)
    print(f"after noise: {after} examples recovered from {altered} altered updates")
    print(f"false blocks: {false} of {len(silent)} (95 % interval {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()

"""What servers that know the guard and the gate still get: leakage at a clean verdict against effort.

    python benchmarks/guard_and_gate.py [--seeds 3] [--first 83000] [--out benchmarks/guard_and_gate.json]
    python benchmarks/guard_and_gate.py --draw docs/guard_and_gate.svg

Each attacker is played at several strengths. Leaked is what its own reading recovers of the batch: exactly
or as a picture of 25 dB. Then the guard looks at the model, in the first round (no earlier one is there)
or, for a drift, with all rounds before; and the gate at the update, without the server's secret. "guard"
counts what leaks at a clean verdict, "gate" what leaks through updates that it lets pass, "both" what leaks
past both of them.
The bar: both leave at most what the honest model leaks, read by anybody, and five points.
Data that are not at hand (SEEPAGE_DATA) are replaced by the digits that come with scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from seepage.attacks import ATTACKS
from seepage.core.errors import SeepageError
from seepage.core.types import Batch, Broadcast, Crafted, InputSpec, Knowledge, LocalTraining, Update, Verdict
from seepage.data import load_data
from seepage.engine.rating import rated
from seepage.engine.views import Views
from seepage.gating import gate
from seepage.gating.attacked import PICTURE
from seepage.guardian import guard
from seepage.protocol import Played, client, custom_threat, play

PUBLIC = 300
ROUNDS = 40
NOISE = 0.01
BAR = 0.05


@dataclass(frozen=True, kw_only=True)
class World:
    """Data and a network that hide most of a batch while the server is honest."""

    data: str
    hidden: tuple[int, ...]
    batch: int


WORLDS = (
    World(data="mnist", hidden=(300, 100), batch=100),
    World(data="cifar10", hidden=(300, 100), batch=100),
)
FISHING = 16
"""Examples of a batch that is fished: of more, no class holds just one."""


@dataclass(frozen=True, kw_only=True)
class Attacker:
    """One server at several strengths, the weakest first; `noise`: clients add it to what they send."""

    name: str
    effort: str
    strengths: tuple[float, ...]
    settings: Callable[[float, int], dict[str, Any]]
    noise: float = 0.0
    batch: int | None = None


ATTACKERS = (
    Attacker(
        name="shifted_rows", effort="share of rows", strengths=(0.01, 0.03, 0.1, 0.3, 1.0),
        settings=lambda share, size: {"share": share, "batch_size": size},
    ),
    Attacker(
        name="sparse_traps", effort="share of rows", strengths=(0.01, 0.03, 0.1, 0.3, 1.0),
        settings=lambda share, size: {"share": share, "batch_size": size},
    ),
    Attacker(
        name="moderate_fishing", effort="energy taken from the other rows",
        strengths=(0.5, 0.8, 0.92, 0.97, 0.999),
        settings=lambda taken, size: {"keep": 1 - taken}, batch=FISHING,
    ),
    Attacker(
        name="slow_drift", effort="rounds", strengths=(2, 4, 8, 16),
        settings=lambda steps, size: {
            "steps": int(steps), "toward_options": {"batch_size": size, "share": 1.0}
        },
    ),
    Attacker(
        name="amplification", effort="factor", strengths=(1e2, 1e3, 1e4, 1e5, 1e6),
        settings=lambda factor, size: {"factor": factor}, noise=NOISE, batch=32,
    ),
)  # fmt: skip


def network(spec: InputSpec, hidden: Sequence[int]) -> nn.Module:
    size = int(torch.tensor(spec.shape).prod())
    layers: list[nn.Module] = [nn.Flatten()]
    for width in hidden:
        layers += [nn.Linear(size, width), nn.ReLU()]
        size = width
    return nn.Sequential(*layers, nn.Linear(size, spec.num_classes))


def at_hand(name: str) -> str:
    try:
        load_data(name)
    except SeepageError:
        return "digits"
    return name


def step_with(noise: float, seed: int) -> Callable[[Broadcast, Batch], Update]:
    """What a client sends: its gradient, with noise on every coordinate where there is some."""
    plain, generator = client(LocalTraining()), torch.Generator().manual_seed(seed)

    def step(broadcast: Broadcast, batch: Batch) -> Update:
        update = plain(broadcast, batch)
        noisy = {n: t + noise * torch.randn(t.shape, generator=generator) for n, t in update.tensors.items()}
        return replace(update, tensors=noisy) if noise else update

    return step


def leaked(attack: Any, played: Played, known: Knowledge, spec: InputSpec) -> torch.Tensor:
    """(n,) bool: exact, or a picture that can be recognised."""
    result = attack.run(played.exchanges, known)
    scored = rated(result, Views(played, spec, result.space, 1e-3), ())
    hits: torch.Tensor = scored.pairing.exact.clone()
    if "psnr" in scored.scores:
        hits |= scored.pairing.recovered & (scored.scores["psnr"] >= PICTURE)
    return hits


def measure(world: World, attacker: Attacker | None, strength: float, seed: int) -> dict[str, Any]:
    """One batch; attacker None: an honest server that reads what it gets."""
    data = load_data(world.data)
    size = world.batch if attacker is None or attacker.batch is None else attacker.batch
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    batch, public = data.batch(order[:size]), data.batch(order[size : size + PUBLIC])
    torch.manual_seed(seed)
    model = network(data.spec, world.hidden)
    known = Knowledge(input=data.spec, local=LocalTraining(), auxiliary=public, seed=seed)
    started = time.process_time()
    noise = 0.0 if attacker is None else attacker.noise
    if attacker is None:
        attack, craft = ATTACKS["exact_extraction"](budget=5.0), lambda m, h: None if h else Crafted(m)
    else:
        attack = ATTACKS[attacker.name](**attacker.settings(strength, size))
        craft = lambda m, h: attack.next_model(m, h, known)  # noqa: E731
    played = play(
        craft, model, lambda number: [batch], step=step_with(noise, seed), max_rounds=ROUNDS,
        threat=custom_threat("malicious_server", grant=["auxiliary_data"]),
    )  # fmt: skip
    hits = leaked(attack, played, known, data.spec)
    drifts = attacker is not None and attacker.name == "slow_drift"
    # A drift is read in its last round; what fishes asks again and again, and the first answer is judged.
    exchange = played.exchanges[-1 if drifts else 0]
    sent = exchange.broadcast.model
    earlier = [e.broadcast.model for e in played.exchanges[:-1]] if drifts else []
    seen = guard(sent, history=earlier, spec=data.spec, sample=batch if drifts else None)
    told = gate(sent, exchange.update, batch, spec=data.spec, advice=False)
    places = set(hits.nonzero().flatten().tolist())
    return {
        "data": world.data,
        "attacker": "honest" if attacker is None else attacker.name,
        "strength": strength,
        "seed": seed,
        "examples": size,
        "leaked": len(places) / size,
        "named": len(places & set(told.exposed)),
        "guard": seen.verdict.value,
        "detector": seen.detector,
        "gate": told.answer,
        "gate_seconds": told.seconds,
        "seconds": time.process_time() - started,
    }


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["data"], row["attacker"], row["strength"], row["seed"]


def rows(
    seeds: range, only: str, data: str, done: Collection[tuple[Any, ...]] = ()
) -> Iterator[dict[str, Any]]:
    """Points that are not done already."""
    for world in WORLDS:
        if data not in ("", world.data):
            continue
        known = replace(world, data=at_hand(world.data))
        for seed in seeds:
            if not only and (known.data, "honest", 0.0, seed) not in done:
                yield measure(known, None, 0.0, seed)
            for attacker in ATTACKERS:
                if only in ("", attacker.name):
                    for strength in attacker.strengths:
                        if (known.data, attacker.name, strength, seed) not in done:
                            yield measure(known, attacker, strength, seed)


def curve(results: Sequence[dict[str, Any]], data: str, attacker: str) -> dict[float, dict[str, float]]:
    """By strength: the mean share that leaks without a check, and past each of them."""
    points: dict[float, dict[str, float]] = {}
    chosen = [r for r in results if (r["data"], r["attacker"]) == (data, attacker)]
    for strength in sorted({r["strength"] for r in chosen}):
        same = [r for r in chosen if r["strength"] == strength]
        past = {
            "none": [True] * len(same),
            "guard": [r["guard"] == Verdict.CLEAN.value for r in same],
            "gate": [r["gate"] == "pass" for r in same],
        }
        past["both"] = [a and b for a, b in zip(past["guard"], past["gate"], strict=True)]
        points[strength] = {
            k: sum(r["leaked"] * ok for r, ok in zip(same, oks, strict=True)) / len(same)
            for k, oks in past.items()
        }
    return points


def summary(results: Sequence[dict[str, Any]]) -> str:
    lines = []
    for data in dict.fromkeys(r["data"] for r in results):
        honest = curve(results, data, "honest").get(0.0, {}).get("none", float("nan"))
        lines.append(f"{data}: the honest model leaks {honest:.3f}")
        for attacker in dict.fromkeys(r["attacker"] for r in results if r["attacker"] != "honest"):
            points = curve(results, data, attacker)
            worst = {k: max(p[k] for p in points.values()) for k in ("none", "guard", "gate", "both")}
            met = "met" if worst["both"] <= honest + BAR else "MISSED"
            words = ", ".join(f"{k} {v:.3f}" for k, v in worst.items())
            lines.append(f"  {attacker}: most over all strengths past {words}; bar {met}")
    hits = sum(round(r["leaked"] * r["examples"]) for r in results)
    lines.append(f"{sum(r['named'] for r in results)} of {hits} recovered examples were named by the gate")
    return "\n".join(lines)


COLOURS = {"none": "#bbbbbb", "guard": "#c44e52", "gate": "#4c72b0", "both": "#111111"}
WIDTH, HEIGHT, LEFT, TOP = 210, 150, 44, 40


def draw(results: Sequence[dict[str, Any]]) -> str:
    """A panel for each data set and attacker: across the strength, upwards the share that leaks."""
    sets = list(dict.fromkeys(r["data"] for r in results))
    wide, high = LEFT + (WIDTH + 24) * len(ATTACKERS), TOP + (HEIGHT + 66) * len(sets) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" '
        'font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    x = LEFT
    words = {
        "none": "leaks",
        "guard": "at a clean verdict of the guard",
        "gate": "past the gate",
        "both": "past both",
    }
    for name, word in words.items():
        parts.append(f'<rect x="{x}" y="8" width="14" height="4" fill="{COLOURS[name]}"/>')
        parts.append(f'<text x="{x + 20}" y="14">{word}</text>')
        x += 200
    for j, data in enumerate(sets):
        honest = curve(results, data, "honest").get(0.0, {}).get("none", 0.0)
        for i, attacker in enumerate(ATTACKERS):
            parts += panel(results, data, attacker, honest, LEFT + i * (WIDTH + 24), TOP + j * (HEIGHT + 66))
    return "\n".join([*parts, "</svg>\n"])


def panel(
    results: Sequence[dict[str, Any]], data: str, attacker: Attacker, honest: float, x0: float, y0: float
) -> list[str]:
    points = curve(results, data, attacker.name)
    line = y0 + HEIGHT * (1 - honest)
    parts = [
        f'<rect x="{x0}" y="{y0}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#cccccc"/>',
        f'<text x="{x0}" y="{y0 - 6}" font-size="12">{data}: {attacker.name}</text>',
        f'<text x="{x0}" y="{y0 + HEIGHT + 30}" fill="#666666">{attacker.effort}</text>',
        f'<line x1="{x0}" x2="{x0 + WIDTH}" y1="{line:.1f}" y2="{line:.1f}" stroke="#55a868" '
        'stroke-dasharray="4 3"/>',
    ]
    places = [x0 + WIDTH * (n + 0.5) / len(points) for n in range(len(points))]
    for place, strength in zip(places, points, strict=True):
        parts.append(f'<text x="{place:.1f}" y="{y0 + HEIGHT + 14}" text-anchor="middle">{strength:g}</text>')
    for number, name in enumerate(COLOURS):
        shown = [
            f"{place:.1f},{y0 + HEIGHT * (1 - p[name]) + 1.5 * (number - 1.5):.1f}"
            for place, p in zip(places, points.values(), strict=True)
        ]
        parts.append(
            f'<polyline points="{" ".join(shown)}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>'
        )
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=83000)
    parser.add_argument("--only", default="", help="one attacker")
    parser.add_argument("--data", default="", help="one data set")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/guard_and_gate.json"))
    parser.add_argument("--resume", action="store_true", help="keep the points that --out holds already")
    parser.add_argument("--draw", type=Path, help="draw what --out holds, and measure nothing")
    given = parser.parse_args()
    if given.draw is not None:
        results = json.loads(given.out.read_text(encoding="utf-8"))
        given.draw.write_text(draw(results), encoding="utf-8")
        print(summary(results))
        return
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    results = []
    if given.resume and given.out.exists():
        results = json.loads(given.out.read_text(encoding="utf-8"))
    seeds, done = range(given.first, given.first + given.seeds), set(map(key, results))
    for row in rows(seeds, given.only, given.data, done):
        results.append(row)
        print(json.dumps(row), flush=True)
        given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(summary(results))


if __name__ == "__main__":
    main()

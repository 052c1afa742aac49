"""The gate away from home: does it name beforehand whom a server recovers, on what it was not made on?

    python benchmarks/gate_abroad.py [--first 120000] [--seeds 1] [--only WORD] [--servers WORD]

Every attack of the catalogue that fits plays the server, and servers that are not in the catalogue
(`gate_newcomers.py`), on pictures, tables and tokens, with networks and local trainings that no threshold of
the gate was chosen on. Each update is gated without the server's secret before the server reads it. An
example is recovered exactly, as a picture of 25 dB, or as a text with nine tenths of its tokens right.
Printed, one line an attack: examples recovered, those that the gate had named (full and quick), whether it
blocked, and what the same server gets of the update that the gatekeeper altered.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from gate_newcomers import NEWCOMERS
from gate_worlds import WORLDS, World
from seepage.attacks import ATTACKS
from seepage.core.errors import SeepageError
from seepage.core.types import Batch, Crafted, Grant, InputSpec, Knowledge, Modality
from seepage.engine.rating import rated
from seepage.engine.views import Views
from seepage.gating import Gatekeeper, GateReport, gate
from seepage.gating.attacked import PICTURE
from seepage.models.loading import build_model
from seepage.protocol import Played, client, custom_threat, play
from seepage.record.intervals import clopper_pearson

ROUNDS = 2
SERVER = 12.0
"""CPU seconds of a server, which gives up then."""
VERBOSE = bool(os.environ.get("VERBOSE"))
RIGHT_TOKENS = 0.9
SEARCH = {"steps": 300, "budget": 4.0}
"""What a search of the catalogue is given here: enough to be seen, not all that a server has."""


def catalogue(size: int) -> dict[str, dict[str, Any]]:
    """Settings of the attacks that play the server; what is not named here needs several clients."""
    sized = {"batch_size": max(2, size)}
    return {
        "analytic_extraction": {"bare": True}, "exact_extraction": {"budget": 3.0},
        "inverting_gradients": SEARCH, "recursive_inversion": {}, "april": {}, "patch_embedding": {},
        "embedding_rows": {}, "exact_text": {}, "exact_table": {}, "feature_inversion": {"budget": 3.0},
        "tableak": {"budget": 3.0, "steps": 300}, "tag": SEARCH,
        "trap_weights": {}, "quantile_traps": sized, "shifted_rows": {**sized, "share": 1.0},
        "sparse_traps": {**sized, "share": 0.3}, "imprint": {"bins": 4 * size},
        "slow_drift": {"steps": 4, "toward_options": {**sized, "share": 1.0}}, "amplification": {},
        "class_fishing": {}, "moderate_fishing": {}, "feature_fishing": {}, "one_shot_binary_fishing": {},
    }  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """One batch of one world."""

    world: World
    size: int
    seed: int
    spec: InputSpec
    batch: Batch
    known: Knowledge
    model: nn.Module
    honest: dict[bool, list[GateReport]] = field(default_factory=dict)

    def played(self, attack: Any) -> Played:
        step = client(self.world.local)
        threat = custom_threat("malicious_server", grant=["auxiliary_data"])

        def craft(model: nn.Module, history: Sequence[Any]) -> Crafted | None:
            crafted: Crafted | None = attack.next_model(model, history, self.known)
            return Crafted(model) if crafted is None and not history else crafted

        return play(craft, self.model, lambda _: [self.batch], step=step, threat=threat, max_rounds=ROUNDS)


def settings(world: World, seeds: range) -> Iterator[Setting]:
    for size in world.sizes:
        for seed in seeds:
            spec, batch, public = world.drawn(size, seed)
            torch.manual_seed(seed)
            model = build_model(world.build, spec, seed=seed)
            known = Knowledge(
                input=replace(spec, spread=None), local=world.local, auxiliary=public, seed=seed,
                loss=world.loss,
            )  # fmt: skip
            yield Setting(world, size, seed, spec, batch, known, model)


def hits(result: Any, played: Played, spec: InputSpec) -> torch.Tensor:
    """(n,) bool: recovered, by the rule above."""
    scored = rated(result, Views(played, spec, result.space, 1e-3), ())
    found: torch.Tensor = scored.pairing.exact.clone()
    for name, least in (("psnr", PICTURE), ("token_accuracy", RIGHT_TOKENS)):
        if name in scored.scores:
            found |= scored.pairing.recovered & (scored.scores[name] >= least)
    return found


def gated(each: Setting, played: Played, **options: Any) -> list[GateReport]:
    told = []
    for exchange in played.exchanges:
        told.append(
            gate(
                exchange.broadcast.model, exchange.update, each.batch, spec=each.spec, local=each.world.local,
                advice=False, **options,
            )
        )  # fmt: skip
    return told


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """CPU time of one server, here."""

    def stop(_number: int, _frame: Any) -> None:
        raise TimeoutError("a server took too long.")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def asked(each: Setting, attack: Any, played: Played, *, quick: bool) -> list[GateReport]:
    """Servers that change nothing are sent one and the same update, which is gated once."""
    if Grant.CRAFT_WEIGHTS in attack.requires:
        return gated(each, played, quick=quick)
    if quick not in each.honest:
        each.honest[quick] = gated(each, played, quick=quick)
    return each.honest[quick]


def measured(each: Setting, name: str, attack: Any) -> dict[str, Any] | None:
    """None: the attack does not fit."""
    line = {"world": each.world.name, "server": name, "size": each.size, "seed": each.seed}
    started = time.process_time()
    try:
        with at_most(SERVER):
            attack.check(each.model, each.known)
            played = each.played(attack)
            found = hits(attack.run(played.exchanges, each.known), played, each.spec)
    except (SeepageError, RuntimeError, TimeoutError) as error:
        if VERBOSE:
            print(json.dumps({**line, "refused": str(error)[:100]}))
        return None
    spent = time.process_time() - started
    got = set(found.nonzero().flatten().tolist())
    try:
        full, quick = (asked(each, attack, played, quick=quick) for quick in (False, True))
    except SeepageError as error:
        return {
            **line,
            "recovered": len(got),
            "named": 0,
            "named_quick": 0,
            "after": None,
            "blocked": str(error)[:90],
        }
    named, soon = ({i for one in told for i in one.exposed} for told in (full, quick))
    after = _after(each, attack, played) if got else None
    return {
        **line, "recovered": len(got), "named": len(got & named), "named_quick": len(got & soon),
        "blocked": "/".join(sorted({one.answer for one in full})), "exposed": len(named), "after": after,
        "quick": "/".join(sorted({one.answer for one in quick})), "quick_exposed": len(soon),
        "seconds": round(max(one.seconds for one in full), 2), "attack_seconds": round(spent, 1),
        "how": sorted({f"{e.how}:{e.layer}" for one in full for e in one.exposures})[:6],
    }  # fmt: skip


def _after(each: Setting, attack: Any, played: Played) -> int | str:
    """What the server still has, where the gatekeeper adds noise; what is withheld shows nothing."""
    keeper = Gatekeeper("noise", {"spec": each.spec, "local": each.world.local})
    kept = []
    for exchange in played.exchanges:
        sent = keeper.decide(exchange.broadcast.model, exchange.update, each.batch)
        if sent is None:
            return "withheld"
        kept.append(replace(exchange, update=sent))
    again = replace(played, exchanges=tuple(kept))
    try:
        with at_most(SERVER):
            return int(hits(attack.run(kept, each.known), again, each.spec).sum())
    except (SeepageError, RuntimeError, TimeoutError):
        return 0  # the server's own reckoning breaks off: it has nothing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=120000)
    parser.add_argument("--only", default="", help="worlds with this word")
    parser.add_argument("--skip", default="none", help="worlds without these words, by commas")
    parser.add_argument("--servers", default="", help="servers with one of these words, by commas")
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    rows = []
    words = given.servers.split(",")
    for world in (
        one
        for one in WORLDS
        if given.only in one.name and not any(w in one.name for w in given.skip.split(","))
    ):
        for each in settings(world, range(given.first, given.first + given.seeds)):
            servers = {n: ATTACKS[n](**o) for n, o in catalogue(each.size).items()}
            if each.spec.modality is not Modality.TEXT:
                del servers["tag"]
            servers |= {f"new: {n}": build(each) for n, build in NEWCOMERS.items()}
            for name, attack in servers.items():
                if any(word in name for word in words) and (row := measured(each, name, attack)):
                    print(json.dumps(row), flush=True)
                    rows.append(row)
    print(summary(rows))


def summary(rows: Sequence[dict[str, Any]]) -> str:
    total, named, quick = (sum(row[key] for row in rows) for key in ("recovered", "named", "named_quick"))
    altered = [row["after"] for row in rows if isinstance(row["after"], int)]
    withheld = sum(row["after"] == "withheld" for row in rows)
    low, high = clopper_pearson(named, max(1, total))
    return (
        f"{len(rows)} servers, {total} examples recovered, {named} named beforehand (quick: {quick}; 95 % "
        f"interval {low:.4f} to {high:.4f}); {sum(altered)} after noise from {len(altered)} altered "
        f"updates; {withheld} withheld"
    )


if __name__ == "__main__":
    main()

"""Whether a study's advice holds against attackers that the study did not have.

`PYTHONPATH=benchmarks python benchmarks/held_back.py FOLDER` takes the folder of a finished study
(`seepage tradeoff`), and attacks every defense that it could recommend (a score of at least one half) by
servers that were kept back. Bar: none gets more than 5 points of leakage beyond what the study reports.

- `repeating`: sends the same model again and again, and reads the mean of what comes back.
- `amplifying`: multiplies the last layer, so that gradients rise above noise that nothing is clipped for.
- `both`: the two together.
- `inverting_gradients` with more steps and a weaker prior than `auto` gives it.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from seepage import Attack
from seepage.attacks.reading.exact_extraction import exact_extraction
from seepage.core.types import Crafted, Exchange, Grant, Knowledge, Reconstruction
from seepage.engine.grid import Grid
from seepage.engine.run import run_grid
from seepage.engine.study import parse_study
from seepage.record import BASELINE
from seepage.report.study import StudyResult, advise
from seepage.report.study.advice import BEARABLE
from seepage.report.study.leakage import leak

ROUNDS = 16
BAR = 0.05


class Repeating(Attack):
    """The same model for several rounds, its last layer times `factor`; the mean of the answers is read."""

    requires = frozenset({Grant.CRAFT_WEIGHTS})

    def __init__(self, *, rounds: int = ROUNDS, factor: float = 1.0) -> None:
        self.rounds, self.factor = rounds, factor

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Crafted | None:
        if len({exchange.broadcast.round for exchange in history}) >= self.rounds:
            return None
        if history:
            return Crafted(history[0].broadcast.model)
        sent = copy.deepcopy(model)
        last = [layer for layer in sent.modules() if isinstance(layer, nn.Linear)][-1]
        with torch.no_grad():
            last.weight.mul_(self.factor)
        return Crafted(sent)

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        by_clients: dict[tuple[int, ...], list[Exchange]] = {}
        for exchange in exchanges:
            by_clients.setdefault(exchange.clients, []).append(exchange)
        found = []
        for same in by_clients.values():
            names = same[0].update.tensors
            mean = {n: torch.stack([e.update.tensors[n] for e in same]).mean(dim=0) for n in names}
            found.append(replace(same[0], update=replace(same[0].update, tensors=mean)))
        place = [exchanges.index(same[0]) for same in by_clients.values()]
        read = exact_extraction().run(found, known)
        source = None if read.source is None else torch.tensor(place)[read.source]
        return replace(read, source=source, claimed=None, complete=None)


def repeating() -> Attack:
    return Repeating()


def amplifying() -> Attack:
    return Repeating(rounds=1, factor=1e4)


def both() -> Attack:
    return Repeating(factor=1e4)


HELD_BACK: tuple[dict[str, Any], ...] = (
    {"name": "held_back:repeating"},
    {"name": "held_back:amplifying"},
    {"name": "held_back:both"},
    {"name": "inverting_gradients", "steps": 300, "tv": 1e-4},
)


def main(folder: str) -> None:
    torch.set_num_threads(1)
    result = StudyResult.read(folder)
    advice = advise(result)
    print(advice.headline)
    grid = parse_study({k: v for k, v in result.log.header.spec.items() if v is not None}).grid()
    points = {point.key: point for point in grid.points}
    for place in [place for place in advice.ranking if place.score >= BEARABLE]:
        row = place.row
        assert row.leakage is not None
        print(f"{row.point.title}: the study has a leakage of {100 * row.leakage.value:.1f} % ({row.worst})")
        for wanted in HELD_BACK:
            spec = points[row.point.key].spec
            asked = spec.model_dump() | {"attacks": [wanted], "threat": {"base": "malicious_server"}}
            asked["threat"]["rounds"] = ROUNDS
            audit = Grid.of_audit(type(spec).model_validate(asked))
            with tempfile.TemporaryDirectory() as out:
                log = run_grid(audit, out=Path(out) / "run", engine="here").point()
                for ref in log.header.attacks:
                    if ref.name == BASELINE:
                        continue
                    cells = log.cells_where(lambda cell, ref=ref: cell.attack == ref)  # type: ignore[misc]
                    _tell(leak(ref, cells, len(spec.seeds)), row.leakage.value)


def _tell(got: Any, reported: float) -> None:
    if got.leakage is None:
        print(f"  {got.attack.title}: {got.status}: {got.reason}")
        return
    more = got.leakage.value - reported
    verdict = "BEYOND THE BAR" if more > BAR else "within the bar"
    print(f"  {got.attack.title}: {100 * got.leakage.value:.1f} %, {100 * more:+.1f} points, {verdict}")


if __name__ == "__main__":
    main(sys.argv[1])

"""What the cells of a seed have in common is computed once, and no attack can change it for another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from seepage.attacks.prior_only import PriorOnly
from seepage.attacks.reading.analytic_extraction import AnalyticExtraction
from seepage.core.types import Exchange, Knowledge, Reconstruction
from seepage.engine.cell import run_cell
from seepage.engine.grid import Grid, Job
from seepage.engine.points import Points
from seepage.engine.prepare import prepare
from seepage.engine.prepared import Prepared
from seepage.engine.run import run_audit
from seepage.engine.shared import LastShared, Shared
from seepage.engine.spec import parse_spec
from seepage.engine.work import work
from seepage.record import AttackRef

PASSIVE = ["analytic_extraction", "exact_extraction", {"name": "analytic_extraction", "layer": "dense0"}]
SPEC: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [40]},
    "data": "digits",
    "attacks": PASSIVE,
    "protocol": {"batch_size": 3, "clients": 2},
    "seeds": [5, 6],
}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls by name, while they go on as they would."""
    calls: Counter[str] = Counter()

    def count(owner: Any, name: str, key: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def counting(*args: Any, **settings: Any) -> Any:
            calls[key] += 1
            return inner(*args, **settings)

        monkeypatch.setattr(owner, name, counting)

    from seepage.engine import rating, scoring, source

    count(source.Simulation, "play", "rounds")
    count(PriorOnly, "guess", "guesses")
    count(rating, "score_examples", "scored")
    count(scoring, "example_traits", "traits")
    count(Prepared, "model", "models")
    return calls


def test_the_cells_of_a_seed_play_guess_and_score_the_guess_once(
    counted: Counter[str], tmp_path: Path
) -> None:
    log = run_audit(parse_spec(SPEC), out=tmp_path, engine="here")
    cells, seeds = 4, 2
    assert [cell.status for cell in log.cells] == ["done"] * cells * seeds
    assert counted["rounds"] == counted["guesses"] == counted["traits"] == seeds
    assert counted["scored"] == cells * seeds  # the baseline's own is the one that stands beside the others
    assert counted["models"] == 1 + 2 * seeds  # whose attacks fit it; its digest; the cells


def test_a_crafted_model_has_rounds_and_guesses_of_its_own(counted: Counter[str], tmp_path: Path) -> None:
    active = {**SPEC, "attacks": ["trap_weights", "analytic_extraction"], "threat": "malicious_server"}
    log = run_audit(parse_spec({**active, "seeds": [5]}), out=tmp_path, engine="here")
    assert [cell.status for cell in log.cells] == ["done"] * 3
    assert counted["rounds"] == counted["guesses"] == 2


def test_sharing_changes_no_cell() -> None:
    prepared = prepare(parse_spec({**SPEC, "defenses": [{"name": "gaussian_noise", "sigma": 1e-4}]}))
    shared = Shared(prepared, 5)
    for ref in (*prepared.refs, *reversed(prepared.refs)):
        alone, together = run_cell(prepared, ref, 5)[0], run_cell(prepared, ref, 5, shared)[0]
        assert alone.model_copy(update={"cost": None}) == together.model_copy(update={"cost": None})


class Writing(AnalyticExtraction):
    """Spoils everything that it is given, by every way that torch has."""

    def invert(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        found = super().invert(exchange, known)
        for tensor in (*exchange.update.tensors.values(), *exchange.broadcast.model.parameters()):
            tensor.data.zero_()
            tensor.detach().numpy()[...] = 7
        assert known.auxiliary is not None and exchange.labels is not None
        known.auxiliary.inputs.fill_(7)
        exchange.labels.fill_(7)
        return found


def test_an_attack_that_writes_to_what_it_is_given_spoils_nobody_elses() -> None:
    threat = {"base": "honest_but_curious", "grant": ["auxiliary_data", "labels"]}
    prepared = prepare(parse_spec({**SPEC, "threat": threat}))
    first, shared = prepared.refs[1], Shared(prepared, 5)
    clean = [run_cell(prepared, ref, 5)[0] for ref in prepared.refs]
    spoiling = replace(prepared, attacks={**prepared.attacks, first.key: Writing()})
    assert run_cell(spoiling, first, 5, shared)[0].status == "done"
    after = [run_cell(prepared, ref, 5, shared)[0] for ref in prepared.refs]
    assert [cell.examples for cell in after] == [cell.examples for cell in clean]


def test_one_seed_is_kept_at_a_time() -> None:
    prepared, kept = prepare(parse_spec(SPEC)), LastShared()
    first = kept.of(0, prepared, 5)
    assert kept.of(0, prepared, 5) is first
    other = kept.of(0, prepared, 6)
    assert other is not first and kept.of(0, prepared, 5) is not first
    assert kept.of(1, prepared, 5) is not kept.of(0, prepared, 5)


def test_what_is_handed_out_has_the_values_that_were_sent() -> None:
    from seepage.engine.source import handed_out

    prepared = prepare(parse_spec({**SPEC, "protocol": {**SPEC["protocol"], "rounds": 2}}))
    played = Shared(prepared, 5).honest
    own = list(handed_out(played.exchanges))
    assert [e.clients for e in own] == [e.clients for e in played.exchanges]
    for one, kept in zip(own, played.exchanges, strict=True):
        assert one.broadcast.model is not kept.broadcast.model
        for name, tensor in kept.update.tensors.items():
            assert torch.equal(one.update.tensors[name], tensor)
    assert own[0].broadcast.model is own[1].broadcast.model is not own[2].broadcast.model


def test_a_worker_runs_attacks_that_another_process_chose_on_the_work_of_the_cells_before() -> None:
    """With "auto" a worker learns of an attack with its job; the seed's shared work is older than that."""
    spec = parse_spec({**SPEC, "attacks": "auto", "budget": 10})
    points = Points(Grid.of_audit(spec))
    key = points[0].run_key
    for name in ("prior_only", "analytic_extraction", "exact_extraction"):
        job = Job(point=0, attack=AttackRef(name=name), seed=5, run_key=key)
        result = work(points, job)
        assert (result.cell.status, result.traceback) == ("done", "")

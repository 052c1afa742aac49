"""What a trial says of the cells to come, by a clock that only the trials move."""

from __future__ import annotations

import pytest

from seepage.engine.prepare import prepare
from seepage.engine.prepared import Prepared
from seepage.engine.rehearsal import Rehearsal
from seepage.engine.spec import parse_spec
from seepage.record import AttackRef, Cell


@pytest.mark.parametrize(("batch_size", "seconds"), [(1, 0.25), (16, 4.0)])
def test_what_only_the_first_trial_takes_is_not_expected_of_every_cell(
    batch_size: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    imports = [5.0]  # once, whatever is tried

    def run_cell(prepared: Prepared, ref: AttackRef, seed: int) -> tuple[Cell, object]:
        now[0] += 0.25 * prepared.spec.protocol.batch_size + (imports.pop() if imports else 0.0)
        return Cell(attack=ref, seed=seed, status="done"), None

    monkeypatch.setattr(Rehearsal, "_clock", lambda self, ref: lambda: now[0])
    spec = {"model": {"name": "mlp", "hidden": [8]}, "data": "digits", "protocol": {"batch_size": batch_size}}
    prepared = prepare(parse_spec({**spec, "attacks": ["analytic_extraction"]}))
    forecast = Rehearsal(prepared, run_cell, limit=100.0).whole(prepared.refs[-1])
    assert forecast.seconds == pytest.approx(seconds)

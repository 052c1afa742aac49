"""Many cells of a run are kept packed, and say the same as cells that are not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seepage.engine.run import run_audit
from seepage.engine.spec import parse_spec
from seepage.record import AttackRef, AuditLog, Cell, summarise
from seepage.record import packed as module
from seepage.record.cell import Cost, Example
from seepage.record.packed import HELD, PackedCells, pack, where
from seepage.report import print_summary, render_html, to_json


def _cell(number: int) -> Cell:
    digest = f"{number * 7919:064x}"
    return Cell(
        attack=AttackRef(name="exact_extraction", params={"tries": 3}),
        seed=number,
        status="done" if number % 3 else "failed",
        reason="" if number % 3 else "it did not",
        examples=(Example(index=0, client=0, label=1, recovered=True, scores={"psnr": 1 / (number + 1)}),),
        cost=Cost(seconds=0.1 * number, rounds=1, peak_memory_mb=1.0),
        made_by={"torch": "2.13.0", "the weights": digest},
        files={"tensors": digest},
    )


def test_packed_cells_are_a_sequence_of_the_same_cells() -> None:
    plain = [_cell(number) for number in range(HELD + 40)]
    found = pack(iter(plain))
    assert isinstance(found, PackedCells) and len(found) == len(plain)
    assert list(found) == plain
    assert found[7] == plain[7] and found[-1] == plain[-1]
    assert list(found[5:9]) == plain[5:9]
    done = where(found, lambda c: c.status == "done")
    assert isinstance(done, PackedCells)
    assert list(done) == [cell for cell in plain if cell.status == "done"]
    with pytest.raises(IndexError):
        found[len(plain)]


def test_few_cells_stay_as_they_are() -> None:
    plain = [_cell(number) for number in range(HELD)]
    assert pack(plain) == tuple(plain)


def test_a_packed_cell_takes_few_bytes() -> None:
    found = pack(_cell(number) for number in range(HELD + 200))
    assert isinstance(found, PackedCells)
    sizes = [sys.getsizeof(one) for one in found._packed]
    assert sum(sizes) / len(sizes) < 400  # the JSON has about 1,100, the objects 6,000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    out = tmp_path_factory.mktemp("packed") / "run"
    spec = parse_spec(
        {
            "model": "mlp",
            "data": "digits",
            "attacks": ["analytic_extraction"],
            "protocol": {"batch_size": 2},
            "seeds": 3,
        }
    )
    run_audit(spec, out=out, engine="here")
    yield out


def test_a_report_says_the_same_of_packed_cells(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = AuditLog.read(folder)
    print_summary(plain)
    said = capsys.readouterr().out
    monkeypatch.setattr(module, "HELD", 1)
    packed = AuditLog.read(folder)
    assert isinstance(packed.cells, PackedCells) and not isinstance(plain.cells, PackedCells)
    assert summarise(packed) == summarise(plain)
    assert to_json(packed) == to_json(plain)
    assert render_html(packed) == render_html(plain)
    print_summary(packed)
    assert capsys.readouterr().out == said

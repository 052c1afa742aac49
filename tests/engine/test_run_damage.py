"""Run folders that were damaged, mixed up or given by mistake; who may read them; how one starts anew."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from seepage.cli import app
from seepage.core.checkpoint import unpack
from seepage.core.errors import LogError
from seepage.core.progress import Progress
from seepage.engine.cell import run_cell
from seepage.engine.run import run_audit, run_grid
from seepage.engine.spec import parse_spec
from seepage.engine.study import parse_study
from seepage.record import AuditLog, summarise
from seepage.report import write_html
from seepage.report.study import StudyResult

SPEC: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [16]},
    "data": "digits",
    "attacks": ["analytic_extraction"],
    "seeds": [0],
    "protocol": {"batch_size": 2},
}
STUDY: dict[str, Any] = {
    **SPEC,
    "defenses": [{"name": "clipping", "norm": 0.5}],
    "training": {"rounds": 2, "clients": 2, "examples": 4, "test_examples": 20},
}


def run_study(wanted: dict[str, Any], out: Path, **settings: Any) -> StudyResult:
    return StudyResult.of(run_grid(parse_study(wanted).grid(), out=out, jobs=1, **settings))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_audit(parse_spec(SPEC), out=tmp_path_factory.mktemp("runs") / "run").folder.path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def figures(path: Path) -> Any:
    """Everything that a report could say."""
    log = AuditLog.read(path)
    arrays = [
        {name: array.tobytes() for name, array in log.folder.read_arrays(cell.id).items()}
        for cell in log.cells
    ]
    return log.header, log.cells, summarise(log), arrays


def flips(size: int, count: int) -> Iterator[tuple[int, int]]:
    """Places and masks: both ends, where lengths and checksums are, and anywhere in between."""
    rng = np.random.default_rng(size)
    places = {*range(min(size, 12)), size - 1, *rng.integers(0, size, count).tolist()}
    for number, place in enumerate(sorted(places)):
        yield place, 1 << (number % 8)


def test_no_flipped_bit_changes_a_figure_unnoticed(run: Path) -> None:
    """Of every file of a run: noticed with one sentence, or without any effect (pictures are drawn anew)."""
    before = figures(run)
    noticed = total = 0
    for file in sorted(run.rglob("*")):
        if file.is_dir():
            continue
        good = file.read_bytes()
        for place, mask in flips(len(good), 80):
            bad = bytearray(good)
            bad[place] ^= mask
            file.write_bytes(bad)
            total += 1
            try:
                after = figures(run)
            except LogError as error:
                assert "\n" not in str(error) and str(error).endswith(".")
                noticed += 1
            else:
                assert after == before
        file.write_bytes(good)
    assert total > 400
    assert noticed == total  # a checksum covers every byte, so all are
    assert figures(run) == before


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_a_file_that_was_cut_off_is_noticed(run: Path, cut: int) -> None:
    for file in [f for f in run.rglob("*") if f.is_file()]:
        good = file.read_bytes()
        file.write_bytes(good[:cut])
        with pytest.raises(LogError):
            AuditLog.read(run)
        file.write_bytes(good)


def test_an_audit_repeats_damaged_cells_and_says_so(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = AuditLog.read(run)
    tensors = before.folder.cell_file(before.cells[1].id, ".safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"?")
    with pytest.raises(LogError, match="run the same audit again, which repeats this cell"):
        AuditLog.read(run)
    ran: list[str] = []
    monkeypatch.setattr(
        "seepage.engine.work.run_cell",
        lambda p, ref, *more: (ran.append(ref.name), run_cell(p, ref, *more))[1],
    )
    notes: list[str] = []
    after = run_audit(parse_spec(SPEC), out=run, on_note=notes.append)
    assert ran == ["analytic_extraction"]
    assert len(notes) == 1 and "1 finished cell is run again" in notes[0] and "damaged" in notes[0]
    assert [c.examples for c in after.cells] == [c.examples for c in before.cells]


def test_a_damaged_header_is_refused_and_fresh_starts_anew(run: Path) -> None:
    header = run / "log.json"
    header.write_bytes(header.read_bytes().replace(b'"digits"', b'"digitz"', 1))
    with pytest.raises(LogError, match=r"damaged or edited.*start anew with --fresh"):
        run_audit(parse_spec(SPEC), out=run)
    assert run_audit(parse_spec(SPEC), out=run, fresh=True).missing == 0


def test_another_runs_cell_is_refused_and_never_served(run: Path, tmp_path: Path) -> None:
    other = run_audit(parse_spec({**SPEC, "exact_tolerance": 0.5}), out=tmp_path / "other")
    stranger = other.cells[1]
    for suffix in (".json", ".safetensors"):
        shutil.copy(other.folder.cell_file(stranger.id, suffix), run / "cells")
    with pytest.raises(LogError, match="belongs to another run"):
        AuditLog.read(run)
    after = run_audit(parse_spec(SPEC), out=run)
    assert {cell.run_key for cell in after.cells} == {after.header.run_key} != {stranger.run_key}


@pytest.mark.parametrize("fresh", [True, False])
def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path, fresh: bool) -> None:
    for name in ("thesis.tex", "log.json"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text('{"log": "of another program"}')
        with pytest.raises(LogError, match=r"choose a|choose another|not a readable"):
            run_audit(parse_spec(SPEC), out=folder, fresh=fresh)
        assert [file.name for file in folder.iterdir()] == [name]
    (tmp_path / "empty").mkdir()
    assert run_audit(parse_spec(SPEC), out=tmp_path / "empty", fresh=fresh).missing == 0


def test_fresh_removes_what_seepage_wrote_and_nothing_else(run: Path, tmp_path: Path) -> None:
    write_html(AuditLog.read(run))
    secret = tmp_path / "elsewhere"
    secret.mkdir()
    (secret / "tag-seed0.json").write_text("a link leads here")
    (run / "cells" / "x-seed1.json").symlink_to(secret / "tag-seed0.json")
    mine = [run / "notes.txt", run / "cells" / "my.json", run / "pictures" / "me.png"]
    for file in mine:
        file.write_text("mine")
    leftovers = [
        run / "cells" / "tag-seed0.partial0.safetensors",
        run / "cells" / "tag-seed0.traceback.txt",
        run / "cells" / ".tag-seed0.json.abcd1234",
        run / "pictures" / "tag-seed0.live.png",
    ]
    for file in leftovers:
        file.write_text("an interrupted run's")
    old = AuditLog.read(run).header.created
    header = run / "log.json"
    os.utime(header, (0, 0))
    log = run_audit(parse_spec({**SPEC, "seeds": [3]}), out=run, fresh=True)
    assert log.missing == 0 and log.header.created >= old and header.stat().st_mtime > 0
    names = {str(file.relative_to(run)) for file in run.rglob("*") if file.is_file()}
    ids = [cell.id for cell in log.cells]
    written = {f"cells/{i}{s}" for i in ids for s in (".json", ".safetensors")}
    assert names == {
        "log.json",
        *written,
        *(f"pictures/{i}.png" for i in ids),
        *(str(file.relative_to(run)) for file in mine),
    }
    assert (secret / "tag-seed0.json").read_text() == "a link leads here"


def test_a_log_of_the_first_schema_gets_one_sentence_and_fresh_replaces_it(tmp_path: Path) -> None:
    old = tmp_path / "run"
    old.mkdir()
    (old / "log.json").write_text('{"schema_version": 1, "title": "old", "packages": {"seepage": "0.1.0"}}')
    said = "written by seepage 0.1.0 with log schema 1, .* run the audit again with --fresh or another --out"
    for read in (AuditLog.read, lambda path: run_audit(parse_spec(SPEC), out=path)):
        with pytest.raises(LogError, match=said):
            read(old)
    assert run_audit(parse_spec(SPEC), out=old, fresh=True).missing == 0


def modes(folder: Path) -> set[tuple[str, int]]:
    everything = [folder, *folder.rglob("*")]
    return {("folder" if f.is_dir() else "file", stat.S_IMODE(f.stat().st_mode)) for f in everything}


def test_only_the_owner_reads_what_holds_originals(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        log = run_audit(parse_spec(SPEC), out=tmp_path / "deep" / "run")
        write_html(log)
        elsewhere = write_html(log, tmp_path / "reports" / "report.html")
        run_study(STUDY, tmp_path / "study")
    finally:
        os.umask(before)
    private = {("folder", 0o700), ("file", 0o600)}
    assert modes(tmp_path / "deep") == modes(tmp_path / "study") == private
    assert modes(elsewhere.parent) == private


def test_a_studys_damaged_and_foreign_parts_are_noticed_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_study(STUDY, tmp_path / "study").log.folder
    before = StudyResult.read(folder.path)
    files = [f for f in folder.path.rglob("*") if f.suffix in (".json", ".safetensors")]
    for file in files:
        good = file.read_bytes()
        for place, mask in flips(len(good), 6):
            bad = bytearray(good)
            bad[place] ^= mask
            file.write_bytes(bad)
            with pytest.raises(LogError):
                StudyResult.read(folder.path)
        file.write_bytes(good)
    training = folder.at("none").cell_file("training-seed0")
    training.write_bytes(training.read_bytes().replace(b'"tested": 20', b'"tested": 21'))
    notes: list[str] = []
    again = run_study(STUDY, folder.path, on_note=notes.append)
    assert again.rows == before.rows and len(notes) == 1 and "1 finished cell" in notes[0]
    monkeypatch.setattr("seepage.engine.identity.packages.platform.python_version", lambda: "4.0")
    run_study(STUDY, folder.path, on_note=notes.append)
    assert f"{2 + 2 + 3} finished cells are run again" in notes[1] and "-> 4.0" in notes[1]
    (folder.path / "mine.txt").write_text("mine")
    other = {**STUDY, "training": {**STUDY["training"], "rounds": 1}}
    with pytest.raises(LogError, match=r"different study .* replace it with --fresh"):
        run_study(other, folder.path)
    run_study(other, folder.path, fresh=True)
    assert (folder.path / "mine.txt").read_text() == "mine"


def test_a_half_done_search_of_other_code_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seepage.engine.work._KEEP_EVERY", 0.0)
    monkeypatch.setattr("seepage.core.checkpoint._LARGEST_SHARE", float("inf"))
    spec = parse_spec({**SPEC, "attacks": [{"name": "tag", "steps": 24}]})

    def interrupt(progress: Progress) -> None:
        if progress.step == 12:
            raise KeyboardInterrupt

    def interrupted() -> Path:
        with pytest.raises(KeyboardInterrupt):
            run_audit(spec, out=tmp_path / "run", on_step=interrupt)
        (file,) = (tmp_path / "run" / "cells").glob("*.partial*")
        return file

    def steps() -> tuple[int, str]:
        seen: list[int] = []
        log = run_audit(spec, out=tmp_path / "run", on_step=lambda p: seen.append(p.step))
        log.folder.cell_file(log.cells[1].id).unlink()
        return seen[0], " ".join(log.cells[1].notes)

    interrupted()
    assert steps()[0] == 12
    interrupted()
    monkeypatch.setattr("seepage.engine.identity.packages.platform.python_version", lambda: "4.0")
    first, notes = steps()
    assert first == 0 and "other code or another model wrote it" in notes
    file = interrupted()
    good = file.read_bytes()
    for place, mask in flips(len(good), 100):
        bad = bytearray(good)
        bad[place] ^= mask
        with pytest.raises(ValueError, match="damaged"):
            unpack(bytes(bad))
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    first, notes = steps()
    assert first == 0 and "it is damaged" in notes


def test_the_command_line_starts_anew_with_fresh(tmp_path: Path) -> None:
    spec = 'model = "mlp"\ndata = "digits"\nseeds = [0]\n[protocol]\nbatch_size = 1\n'
    (tmp_path / "audit.toml").write_text(spec)
    command = ["audit", "audit.toml", "--out", "run"]
    assert CliRunner().invoke(app, command).exit_code == 0
    (tmp_path / "audit.toml").write_text(spec.replace("[0]", "[1]"))
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2 and "different audit" in refused.stderr and "--fresh" in refused.stderr
    assert CliRunner().invoke(app, [*command, "--fresh"]).exit_code == 0
    for name in ("tradeoff", "reproduce"):
        assert "--fresh" in CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).output

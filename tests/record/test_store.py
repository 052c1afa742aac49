"""Run folders: whole files or none, refusals in one sentence, logs that are broken or hostile."""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seepage.core.errors import LogError
from seepage.record import (
    SCHEMA_VERSION,
    AttackRef,
    AuditLog,
    Cell,
    Cost,
    Example,
    Header,
    InputRecord,
    RunFolder,
    RunHeader,
    ThreatRecord,
    seal,
    write_atomically,
    write_record,
)

A, B = AttackRef(name="prior_only"), AttackRef(name="other", params={"steps": 3})


def header(**changes: Any) -> Header:
    values: dict[str, Any] = {
        "title": "a test",
        "created": "2026-01-01T00:00:00+00:00",
        "spec": {"model": {"name": "mlp"}},
        "run_key": "",
        "seeds": (0, 1),
        "attacks": (A, B),
        "threat": ThreatRecord(name="t", description="d", grants=(), server_sees="all"),
        "input": InputRecord(modality="image", shape=(1, 2, 2), num_classes=2),
        "model_name": "mlp",
        "model_parameters": 7,
        "data_name": "digits",
        "data_source": "bundled",
        "data_examples": 10,
        "exact_tolerance": 1e-3,
        "device": "cpu",
        "packages": {"seepage": "0.1.0"},
        "python": "3.11",
    }
    return Header(**(values | changes))


def run(**changes: Any) -> RunHeader:
    point = header(**changes)
    return RunHeader(
        written_by="0.1.0",
        kind="audit",
        title=point.title,
        spec=point.spec,
        run_key=point.run_key,
        points=(point,),
    )


def one_sentence(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text
    assert text.isprintable()
    assert text.endswith(".")
    return text


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch) -> None:
    target = tmp_path / "deep" / "file.json"
    write_atomically(target, b"old")

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full_disk)
        with pytest.raises(OSError, match="No space left"):
            write_atomically(target, b"new and longer")
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["deep/file.json"]

    def interrupted(self: Path, _: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_atomically(target, b"newer")
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["deep/file.json"]
    write_atomically(target, b"new")
    assert target.read_bytes() == b"new"
    assert names(tmp_path) == ["deep/file.json"]


def test_the_json_of_a_cell_comes_last(tmp_path, monkeypatch) -> None:
    folder = RunFolder(tmp_path)
    folder.open(run())
    cell = Cell(attack=A, seed=0, status="done")
    with monkeypatch.context() as patched:
        patched.setattr(Cell, "model_dump_json", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            folder.write_cell(cell, {"truth": np.zeros((2, 3))}, b"png")
    assert not folder.has_cell(cell.id)
    assert AuditLog.read(tmp_path).missing == 4
    reversed_view = np.arange(6.0).reshape(2, 3)[::-1, ::-1]  # not contiguous
    folder.write_cell(cell, {"truth": reversed_view}, b"png")
    assert folder.has_cell(cell.id)
    assert np.array_equal(folder.read_arrays(cell.id)["truth"], [[5.0, 4.0, 3.0], [2.0, 1.0, 0.0]])
    assert folder.picture_file(cell.id).read_bytes() == b"png"


def test_a_partial_log_is_readable(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    folder.open(run())
    assert AuditLog.read(tmp_path).cells == ()
    written = [Cell(attack=A, seed=1, status="done"), Cell(attack=B, seed=0, status="failed", reason="r")]
    for cell in written:
        folder.write_cell(cell, {}, None)
    log = AuditLog.read(str(tmp_path))
    assert log.missing == 2
    assert log.cells == (written[1], written[0])  # in the order of the plan: by seed, then by attack
    assert log.cells_where(lambda c: c.status == "failed") == [written[1]]
    assert folder.read_arrays(written[0].id) == {}


def test_the_same_spec_resumes_and_another_is_refused(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    first = run(created="first")
    assert folder.open(first) == first
    assert folder.open(run(created="second")) == first
    with pytest.raises(LogError) as error:
        folder.open(run(run_key="xyz"))
    assert one_sentence(error.value) == (
        f"'{tmp_path}' holds the log of a different audit ('a test': another spec, model or data): choose "
        "another folder with --out, or replace it with --fresh."
    )
    assert folder.read_header() == first


@pytest.mark.parametrize("change", [{}, {"a_field_of_the_future": 1}, {"points": None}])
def test_another_schema_version_says_so_whatever_else_changed(tmp_path, change) -> None:
    content = json.loads(run().model_dump_json()) | {"schema_version": SCHEMA_VERSION + 1} | change
    (tmp_path / "log.json").write_text(json.dumps(content))
    with pytest.raises(LogError) as error:
        AuditLog.read(tmp_path)
    assert one_sentence(error.value) == (
        f"'{tmp_path}' was written by seepage 0.1.0 with log schema {SCHEMA_VERSION + 1}, this version reads "
        f"{SCHEMA_VERSION}: run the audit again with --fresh or another --out, or read it with that version."
    )


def test_a_folder_without_a_log(tmp_path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(LogError, match=r"has no log\.json"):
            AuditLog.read(path)


GOOD = run().model_dump_json().encode()
BROKEN_JSON = {
    "empty": b"",
    "truncated": GOOD[: len(GOOD) // 2],
    "not utf-8": b"\xff\xfe\x00{",
    "null": b"null",
    "a list": b"[1, 2]",
    "no version": json.dumps({k: v for k, v in json.loads(GOOD).items() if k != "schema_version"}).encode(),
    "deep": b"[" * 100_000,
    "deep inside": GOOD.replace(b'"spec":{', b'"spec":{"a":' + b"[" * 5000 + b"]" * 5000 + b","),
    "huge number": GOOD.replace(
        b'"schema_version":%d' % SCHEMA_VERSION, b'"schema_version":' + b"9" * 10_000
    ),
    "lone surrogate": GOOD.replace(b'"title":"a test"', b'"title":"\\ud800"'),
    "unknown field": GOOD[:-1] + b',"x":1}',
    "field with line breaks": GOOD[:-1] + b',"a\\nb\\u001b[31m' + b"c" * 500 + b'":1}',
    "wrong type": GOOD.replace(b'"seeds":[0,1]', b'"seeds":"all"'),
}


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("content", BROKEN_JSON.values(), ids=BROKEN_JSON)
def test_a_broken_header_gets_one_sentence(tmp_path, content, sealed) -> None:
    assert content != GOOD
    (tmp_path / "log.json").write_bytes(seal(content) if sealed else content)
    with pytest.raises(LogError) as error:
        AuditLog.read(tmp_path)
    assert "is not a readable seepage log" in one_sentence(error.value)
    assert len(str(error.value)) < 500


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_cut_or_flipped_header_never_escapes_as_another_error(tmp_path_factory, data) -> None:
    folder = tmp_path_factory.mktemp("log")
    good = seal(GOOD)
    content = bytearray(good[: data.draw(st.integers(0, len(good)))])
    if content:
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / "log.json").write_bytes(bytes(content))
    if content == good:
        assert AuditLog.read(folder).header == header()
        return
    with pytest.raises(LogError) as error:
        AuditLog.read(folder)
    one_sentence(error.value)


def tensors_file(head: Any, body: bytes) -> bytes:
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(dtype: str, shape: list[int], end: int) -> dict[str, Any]:
    return {"truth": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}


BROKEN_TENSORS = {
    "empty": b"",
    "garbage": b"\x80\x04\x95 not a pickle either" * 9,
    "huge header": struct.pack("<Q", 2**62) + b"{}",
    "truncated": tensors_file(entry("F32", [2], 8), b"1234"),
    "huge shape": tensors_file(entry("F32", [2**40, 2**40], 4), b"1234"),
    "type unknown to numpy": tensors_file(entry("BF16", [2], 4), b"1234"),
    "other type unknown to numpy": tensors_file(entry("F8_E4M3", [2], 2), b"12"),
    "no type": tensors_file(entry("PICKLE", [2], 2), b"12"),
}


@pytest.mark.parametrize("content", BROKEN_TENSORS.values(), ids=BROKEN_TENSORS)
def test_broken_tensors_get_one_sentence(tmp_path, content) -> None:
    folder = RunFolder(tmp_path)
    write_atomically(folder.cell_file("x", ".safetensors"), content)
    with pytest.raises(LogError) as error:
        folder.read_arrays("x")
    assert "cannot read 'x.safetensors'" in one_sentence(error.value)


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a/b", "x" * 300])
def test_a_log_cannot_name_files_outside_its_folder(tmp_path, name) -> None:
    write_record(tmp_path / "log.json", run(attacks=(AttackRef(name=name),)))
    with pytest.raises(LogError) as error:
        AuditLog.read(tmp_path)
    assert "is no plain file name" in one_sentence(error.value)
    with pytest.raises(LogError):
        RunFolder(tmp_path).picture_file(name)


def test_a_cell_under_another_cells_name_is_refused(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    folder.open(run())
    other = Cell(attack=B, seed=1, status="done")
    write_record(folder.cell_file("prior_only-seed0"), other)
    with pytest.raises(LogError, match="holds the result of another cell"):
        AuditLog.read(tmp_path)


def test_attack_keys_are_unique_for_their_parameters() -> None:
    variants = [{}, {"a": 1}, {"a": 2}, {"b": 1}, {"a": 1, "b": 1}, {"a": "1"}, {"a": [1]}, {"a": None}]
    keys = {AttackRef(name="x", params=p).key for p in variants}
    assert len(keys) == len(variants)
    assert AttackRef(name="x").key == "x"
    assert (
        AttackRef(name="x", params={"a": 1, "b": 2}).key == AttackRef(name="x", params={"b": 2, "a": 1}).key
    )
    assert AttackRef(name="x", params={"a": 1, "b": "c"}).title == "x(a=1, b=c)"
    many = {AttackRef(name="x", params={"steps": i}).key for i in range(200)}
    assert len(many) == 200


@pytest.mark.parametrize("value", [(1, 2), float("inf"), 0.1, {"b": 1, "a": 2}])
def test_a_key_survives_the_file(value) -> None:
    ref = AttackRef(name="x", params={"a": value})
    assert AttackRef.model_validate_json(ref.model_dump_json()).key == ref.key


numbers = st.floats(allow_nan=False) | st.sampled_from([5e-324, 1.7976931348623157e308, -0.0, math.inf])


@settings(max_examples=100, deadline=None)
@given(
    scores=st.dictionaries(st.text(max_size=5), numbers, max_size=3),
    reason=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    seconds=numbers,
)
def test_a_cell_survives_the_file_with_extreme_numbers(scores, reason, seconds) -> None:
    cell = Cell(
        attack=B,
        seed=2,
        status="done",
        reason=reason,
        examples=(Example(index=0, client=1, label=2, recovered=True, scores=scores, baseline=scores),),
        batch_scores=scores,
        label_counts=(1, 0),
        cost=Cost(seconds=seconds, rounds=1, peak_memory_mb=0.5),
    )
    text = cell.model_dump_json()
    json.loads(text, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
    assert Cell.model_validate_json(text) == cell


def test_nan_scores_are_written_as_words_and_read_as_numbers(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    folder.open(run())
    cell = Cell(attack=A, seed=0, status="done", batch_scores={"m": float("nan"), "low": -math.inf})
    folder.write_cell(cell, {}, None)
    assert json.loads(folder.cell_file(cell.id).read_text())["batch_scores"] == {
        "m": "NaN",
        "low": "-Infinity",
    }
    read = AuditLog.read(tmp_path).cells[0].batch_scores
    assert math.isnan(read["m"])
    assert read["low"] == -math.inf

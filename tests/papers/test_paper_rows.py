"""Rows are computed once, kept, and found again under the same conditions only."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from seepage.attacks import ATTACKS
from seepage.errors import SpecError
from seepage.identity.sources import parse
from seepage.papers.rows import RowPlan, compute_rows, fingerprint, remove_rows
from seepage.workloads.data import load_data


class Counting:
    """A measurement that remembers the seeds it was asked for."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.seeds: list[int] = []
        self.stop_at = stop_at

    def __call__(self, seed: int) -> dict[str, float]:
        if seed == self.stop_at:
            raise KeyboardInterrupt
        self.seeds.append(seed)
        return {"R": seed / 10}


def plan(label: str, measure: Counting, data: str = "data") -> RowPlan:
    return RowPlan(group="G", label=label, measure=measure, published={"R": 0.2}, fingerprint=data)


def test_a_finished_row_is_not_computed_again(tmp_path):
    first, again = Counting(), Counting()
    (before,) = compute_rows([plan("a", first)], seeds=3, out=tmp_path, quiet=True)
    (after,) = compute_rows([plan("a", again)], seeds=3, out=tmp_path, quiet=True)
    assert first.seeds == [0, 1, 2]
    assert again.seeds == []
    assert before == after
    assert before.figures["R"].mean == pytest.approx(0.1)
    assert before.figures["R"].difference == pytest.approx(-0.1)


def test_an_interrupted_run_resumes_after_its_last_finished_row(tmp_path):
    done, broken = Counting(), Counting(stop_at=1)
    with pytest.raises(KeyboardInterrupt):
        compute_rows([plan("a", done), plan("b", broken)], seeds=2, out=tmp_path, quiet=True)
    skipped, rest = Counting(), Counting()
    rows = compute_rows([plan("a", skipped), plan("b", rest)], seeds=2, out=tmp_path, quiet=True)
    assert skipped.seeds == []
    assert rest.seeds == [0, 1]
    assert [row.label for row in rows] == ["a", "b"]


@pytest.mark.parametrize(("seeds", "data"), [(3, "data"), (2, "other data")])
def test_another_seed_count_or_other_data_is_another_row(tmp_path, seeds, data):
    compute_rows([plan("a", Counting())], seeds=2, out=tmp_path, quiet=True)
    again = Counting()
    compute_rows([plan("a", again, data)], seeds=seeds, out=tmp_path, quiet=True)
    assert again.seeds == list(range(seeds))


def test_another_version_of_seepage_computes_again(tmp_path, monkeypatch):
    compute_rows([plan("a", Counting())], seeds=1, out=tmp_path, quiet=True)
    monkeypatch.setattr("seepage.identity.packages.metadata.version", lambda name: "99")
    again = Counting()
    compute_rows([plan("a", again)], seeds=1, out=tmp_path, quiet=True)
    assert again.seeds == [0]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"key": 1}', "\0"])
def test_a_damaged_file_is_computed_again(tmp_path, content):
    compute_rows([plan("a", Counting())], seeds=1, out=tmp_path, quiet=True)
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    again = Counting()
    compute_rows([plan("a", again)], seeds=1, out=tmp_path, quiet=True)
    assert again.seeds == [0]
    assert json.loads(file.read_text())["values"] == {"R": [0.0]}


def test_fresh_removes_rows_and_nothing_else(tmp_path):
    compute_rows([plan("a", Counting())], seeds=1, out=tmp_path, quiet=True)
    (row,) = tmp_path.iterdir()
    others = {"notes.json": "{}", "table.json": "[1]", "row.txt": row.read_text(), "broken.json": "{"}
    for name, content in others.items():
        (tmp_path / name).write_text(content)
    remove_rows(tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == others
    remove_rows(tmp_path / "absent")


def test_a_row_of_another_model_or_of_edited_code_is_another_row(tmp_path, monkeypatch):
    def measure(model: nn.Module, seed: int) -> dict[str, float]:
        computed.append(seed)
        return {"R": 0.0 * len(ATTACKS)}

    computed: list[int] = []
    net = nn.Linear(2, 2)
    for change in (None, "weights", "code", None):
        computed.clear()
        if change == "weights":
            nn.init.zeros_(net.weight)
        if change == "code":  # of an attack that this row might look up
            monkeypatch.setattr("seepage.identity.code.parse", edited("seepage.attacks.parts.rows"))
        row = replace(plan("a", Counting()), measure=partial(measure, net))
        compute_rows([row], seeds=1, out=tmp_path, quiet=True)
        compute_rows([row], seeds=1, out=tmp_path, quiet=True)
        first = change is not None or not list(tmp_path.glob("done"))
        assert computed == ([0] if first else [])
        (tmp_path / "done").touch()


def edited(module: str):
    """`parse` for a disk on which one module has a line more."""

    def read(text: bytes, name: str, is_package: bool):
        return parse(text + b"\nEDITED = 1\n" if name == module else text, name, is_package)

    return read


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="choose a folder with --out"):
        compute_rows([plan("a", Counting())], seeds=1, out=tmp_path / "file", quiet=True)


def test_progress_goes_to_stderr_and_quiet_is_silent(tmp_path, capsys):
    compute_rows([plan("a", Counting())], seeds=1, out=tmp_path / "1", quiet=True)
    silent = capsys.readouterr()
    assert (silent.out, silent.err) == ("", "")
    compute_rows([plan("a", Counting())], seeds=1, out=tmp_path / "2")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "1/1" in shown.err


def test_a_fingerprint_follows_every_pixel_label_and_setting():
    data = load_data("digits")
    pixel, label = data.inputs.clone(), data.labels.clone()
    pixel[-1, 0, 0, 0] += 0.01
    label[-1] = (label[-1] + 1) % 10
    prints = {
        fingerprint(data, width=1),
        fingerprint(data, width=2),
        fingerprint(replace(data, inputs=pixel), width=1),
        fingerprint(replace(data, labels=label), width=1),
    }
    assert len(prints) == 4
    assert fingerprint(replace(data, inputs=torch.clone(data.inputs)), width=1) in prints

"""`seepage init` in a terminal: questions, asked again until the file runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seepage.asking import fill_in, tried
from seepage.engine.spec import read_spec
from seepage.starter import starting_files


def test_wrong_answers_are_asked_again_and_the_file_runs(tmp_path, capsys):
    file = tmp_path / "audit.toml"
    file.write_text(starting_files(file.name)[file.name])
    answers = iter(["mlpp", "digits", "8", "mlp", "digits", "4"])
    assert fill_in(file, ask=lambda question, usual: next(answers))
    assert "unknown model 'mlpp': did you mean 'mlp'?" in capsys.readouterr().out
    assert tried(file) is None
    spec = read_spec(file)
    assert (spec.model.name, spec.data.name, spec.protocol.batch_size) == ("mlp", "digits", 4)


def test_a_csv_is_asked_for_its_label(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,sick\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(60)))
    file = tmp_path / "audit.toml"
    file.write_text(starting_files(file.name)[file.name])
    answers = {"Model": "mlp", "Data": "t.csv", "Column": "sick", "Examples": "2"}
    assert fill_in(file, ask=lambda question, usual: answers[question.split()[0].strip(":")])
    assert read_spec(file).data.options == {"label": "sick"}


def test_later_leaves_the_file_as_it_is(tmp_path):
    file = tmp_path / "audit.toml"
    file.write_text(starting_files(file.name)[file.name])
    before = file.read_text()
    assert not fill_in(file, ask=lambda question, usual: "later")
    assert file.read_text() == before


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are POSIX's")
def test_in_a_real_terminal_it_asks(tmp_path: Path):
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "seepage", "init", "mine.toml"]
    run = subprocess.Popen(command, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
    os.close(theirs)
    os.write(ours, b"mlp\ndigits\n3\n")
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # the other end is closed: Linux says it so
        pass
    os.close(ours)
    assert run.wait(timeout=120) == 0, said
    assert b"tried and runs: seepage audit mine.toml" in said
    assert read_spec(tmp_path / "mine.toml").protocol.batch_size == 3

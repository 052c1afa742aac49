"""An audit in a notebook, as a frame and on one line; `seepage.show`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import seepage
from seepage.api import AuditResult
from seepage.core.errors import DataError, SpecError
from seepage.core.types import Reconstruction
from seepage.report.evidence import Evidence
from seepage.report.evidence.examples import csv_text

EVIL = "<script>alert(1)</script>"


def _result(new_log, **changes) -> AuditResult:
    builder = new_log(**changes)
    builder.add_images("prior_only", [10.0] * 4)
    builder.add_images("reader", [100.0, 30.0, 20.0, 9.0], recovered=[True, True, True, False])
    log = builder.build()
    return AuditResult(log.folder, log.header, log.cells)


def test_the_last_line_of_a_cell_shows_verdict_pictures_and_table(new_log):
    html = _result(new_log)._repr_html_()
    assert "Leak shown" in html
    assert html.count("data:image/png") == 6  # three originals with what was rebuilt
    assert html.count("<tr>") == 3  # heads, the guess, the attack
    assert "<script" not in html
    assert "<style" not in html


def test_names_of_users_are_escaped(new_log):
    input_changes = {"class_names": (EVIL, "b", "c")}
    assert EVIL not in _result(new_log, input_changes=input_changes)._repr_html_()


def test_the_repr_fits_a_line(new_log):
    text = repr(_result(new_log, header_changes={"title": "t" * 300 + "\n"}))
    assert text.startswith("<audit 'ttt")
    assert "Leak shown, 1 attack, in" in text
    assert "\n" not in text


def test_frames_hold_what_the_log_holds(new_log):
    pytest.importorskip("pandas", reason="pandas is not installed")
    log = _result(new_log)
    attacks = log.to_frame().set_index("attack")
    assert attacks.loc["reader", "exact_copies"] == 1
    assert attacks.loc["reader", "psnr"] == pytest.approx(np.mean([100.0, 30.0, 20.0, 9.0]))
    assert attacks.loc["reader", "psnr_guess"] == 10.0
    examples = log.to_frame("examples")
    assert len(examples) == 8
    assert list(examples.columns) == csv_text(Evidence.of(log)).splitlines()[0].split(",")
    with pytest.raises(SpecError, match="'attacks' or of 'examples'"):
        log.to_frame("cells")


def test_a_reconstruction_can_be_looked_at(tmp_path):
    pictures = torch.rand(5, 3, 8, 8)
    found = Reconstruction(values=pictures, claimed=torch.tensor([True] * 2 + [False] * 3), notes=(EVIL,))
    shown = seepage.show(found, truth=pictures)
    assert repr(shown) == "5 pictures of shape 3×8×8, 2 of them vouched for by the attack"
    assert EVIL not in shown._repr_html_()
    assert shown.save(tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    rows = seepage.show(np.arange(6.0).reshape(2, 3), truth=np.zeros((2, 3)))
    assert rows.rows[:2] == (("original", "0", "0", "0"), ("rebuilt", "0", "1", "2"))
    with pytest.raises(DataError, match="no picture"):
        rows.save(tmp_path / "y.png")


@pytest.mark.parametrize("given", [3.0, [1.0, 2.0], np.array([["a", "b"]])])
def test_what_cannot_be_shown_is_a_sentence(given):
    with pytest.raises(DataError, match="cannot be shown"):
        seepage.show(given)
    with pytest.raises(DataError, match="do not belong"):
        seepage.show(np.zeros((2, 3)), truth=np.zeros((3, 3)))


def test_progress_in_python(tmp_path, capsys):
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    settings = {"attacks": ["analytic_extraction"], "batch_size": 1, "seeds": 1}
    seepage.audit(model=net, data="digits", out=tmp_path, progress=True, **settings)
    assert "2 of 2 cells after" in capsys.readouterr().err

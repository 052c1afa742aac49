"""The page of a table, from a real run."""

from tests.tables.test_definition import SMALL

from seepage.engine.run import run_grid
from seepage.report.published import Table, write_table_html
from seepage.tables.definition import parse_table
from seepage.tables.grid import table_grid


def test_the_page_holds_figures_notes_and_the_best_runs_picture(tmp_path):
    changes = {"attacks": [{"name": "analytic_extraction"}], "notes": ["<b>bold</b> words"]}
    table = parse_table({**SMALL, **changes, "pictures": "extraction_recall"})
    log = run_grid(table_grid(table, name="mine", seeds=(0,)), out=tmp_path / "run", engine="here")
    shown = Table.of(log)
    page = write_table_html(shown)
    text = page.read_text()
    assert page == tmp_path / "run/report.html"
    assert "B = 2" in text and "0.500" in text and "1.000" in text
    assert "&lt;b&gt;bold&lt;/b&gt; words" in text and "<b>bold" not in text
    assert text.count("data:image/png;base64,") == 2
    (one,) = [c for c in log.points[0].cells if c.attack.name == "analytic_extraction"]
    assert shown.rows[0].picture == log.points[0].folder.picture_file(one.id).read_bytes()


def test_an_unfinished_table_says_what_was_not_run(tmp_path):
    table = parse_table({**SMALL, "attacks": [{"name": "analytic_extraction"}]})
    grid = table_grid(table, name="mine", seeds=(0,), budget=1e-9)
    shown = Table.of(run_grid(grid, out=tmp_path / "run", engine="here"))
    assert any("not run" in gap for gap in shown.not_measured())
    assert "not run" in write_table_html(shown, tmp_path / "page.html").read_text()


def test_heads_stand_over_their_figures(tmp_path, browser):
    """Those of the second row too, whose first cell is no name of a row."""
    table = parse_table({**SMALL, "attacks": [{"name": "analytic_extraction"}]})
    shown = Table.of(
        run_grid(table_grid(table, name="mine", seeds=(0,)), out=tmp_path / "run", engine="here")
    )
    browser.get(write_table_html(shown, tmp_path / "page.html").as_uri())
    aligned = "return [...document.querySelectorAll(arguments[0])].map(e => getComputedStyle(e).textAlign)"
    assert set(browser.execute_script(aligned, "thead tr + tr th")) == {"right"}
    assert set(browser.execute_script(aligned, "tbody td")) == {"right"}
    assert browser.execute_script(aligned, "th.first")[0] == "left"

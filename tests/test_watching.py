"""Progress where there is no terminal: lines, not silence."""

from __future__ import annotations

import io

from rich.console import Console

from seepage.watching import Lines, watched


def test_a_log_file_gets_the_first_line_the_last_and_some_between():
    said: list[str] = []
    lines = Lines(said.append, every=0.0)
    for number in range(3):
        lines.on_cell(f"cell {number}", number, 3)
    lines.on_cell("", 3, 3)
    assert [line.partition(" after")[0] for line in said] == [f"{n} of 3 cells" for n in range(4)]
    assert said[1].endswith("next: cell 1")


def test_without_a_terminal_lines_are_written():
    text = io.StringIO()
    with watched(Console(file=text)) as calls:
        calls["on_cell"]("first", 0, 2)
        calls["on_note"]("a note")
    assert text.getvalue() == "0 of 2 cells after 0 s; next: first\nseepage: a note\n"


def test_a_terminal_gets_bars():
    text = io.StringIO()
    with watched(Console(file=text, force_terminal=True, width=100)) as calls:
        calls["on_cell"]("first", 1, 2)
    assert "1/2" in text.getvalue()

"""The tests mirror the source: tests of `room/part.py` are in `tests/room/test_part*.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "seepage"
FILES = sorted(f for f in TESTS.rglob("test_*.py") if f.parent != TESTS)


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(TESTS)))
def test_a_test_file_is_named_after_a_source_file_and_lies_beside_it(file: Path) -> None:
    room = SOURCE / file.parent.relative_to(TESTS)
    assert room.is_dir(), f"{room} does not exist"
    parts = {p.stem for p in room.iterdir() if p.suffix == ".py" or p.is_dir()} | {room.name}
    subject = file.stem.removeprefix("test_")
    assert any(subject == part or subject.startswith(f"{part}_") for part in parts), sorted(parts)

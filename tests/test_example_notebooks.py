"""The notebooks of examples/ run from top to bottom, and are kept without their outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

BOOKS = sorted((Path(__file__).parents[1] / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("file", BOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    book = nbformat.read(file, as_version=4)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in book.cells)
    nbclient.NotebookClient(
        book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [output for cell in book.cells for output in cell.get("outputs", ())]
    text = "\n".join(str(output.get("text", output.get("data", {}))) for output in shown)
    assert EXPECTED[file.stem] in text


EXPECTED = {
    "1_audit_your_model": "Leak shown",
    "2_is_this_model_a_trap": "Verdict: trap (layer '1')",
    "3_before_and_after_a_change": "after gives away less than before",
}

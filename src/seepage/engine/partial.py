"""Half-done searches of a cell in the run's folder, so that an interrupted audit goes on inside them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seepage.record import RunFolder, write_atomically


@dataclass(frozen=True)
class PartialStates:
    """One file for each search of one cell: cells/<cell>.partial<number>.safetensors."""

    folder: RunFolder
    cell: str

    def _file(self, key: str) -> Path:
        return self.folder.cell_file(self.cell, f".partial{key}.safetensors")

    def read(self, key: str) -> bytes | None:
        try:
            return self._file(key).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, key: str, content: bytes) -> None:
        write_atomically(self._file(key), content)

    def remove(self) -> None:
        """The cell is done."""
        cells = self._file("").parent
        for file in list(cells.iterdir()) if cells.is_dir() else []:
            if file.name.startswith(f"{self.cell}.partial"):
                file.unlink(missing_ok=True)

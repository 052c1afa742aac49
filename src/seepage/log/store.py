"""Reading and writing run folders. A file appears whole or not at all: `kill -9` loses one cell at most."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from seepage.errors import LogError
from seepage.log.record import SCHEMA_VERSION, Cell, Header

B = TypeVar("B", bound=BaseModel)
Arrays = Mapping[str, "np.ndarray[Any, Any]"]


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a temporary file beside `path`, flush it to disk, then rename: readers never see a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())  # mkstemp lets only its owner read
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)  # gone already, unless something failed


def _umask() -> int:
    current = os.umask(0o077)  # it can only be read by setting it
    os.umask(current)
    return current


class _Version(BaseModel):
    """The one field of log.json that every schema has; read first, as other fields come and go."""

    schema_version: int


def read_record(kind: type[B], path: Path, *, run: str = "audit") -> B:
    """One JSON file of a run, or a LogError in one sentence. run: what wrote it, for the remedy."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(p) for p in first["loc"]) or "the whole file"
        where = "".join(c if c.isprintable() else " " for c in place)[:80]  # keys come from the file
        raise LogError(
            f"{path.name} in '{path.parent.name}' is not a readable seepage log ({where}: {first['msg']}): "
            f"restore the file or run the {run} again into a new folder."
        ) from None
    except OSError as error:
        raise LogError(
            f"cannot read '{path}': {error.strerror}; give the folder of a finished {run}."
        ) from None


def _plain_name(cell: str) -> str:
    """Names of cells come from log.json: one that leads out of the folder is refused."""
    if Path(cell).name != cell or len(cell) > 200:
        raise LogError(
            f"the log names a cell {cell[:80]!r}, which is no plain file name: seepage did not write it; "
            "run the audit again into a new folder."
        )
    return cell


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @property
    def header_file(self) -> Path:
        return self.path / "log.json"

    def cell_file(self, cell: str, suffix: str = ".json") -> Path:
        return self.path / "cells" / f"{_plain_name(cell)}{suffix}"

    def picture_file(self, cell: str) -> Path:
        return self.path / "pictures" / f"{_plain_name(cell)}.png"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    def open(self, header: Header) -> Header:
        """Start this run, or find it already started by the same spec. Another run's folder is refused."""
        if self.header_file.exists():
            existing = self.read_header()
            if existing.spec_hash != header.spec_hash:
                raise LogError(
                    f"'{self.path}' holds the log of a different audit ('{existing.title}'): "
                    "choose another folder with --out, or delete it."
                )
            return existing
        write_atomically(self.header_file, header.model_dump_json(indent=2).encode())
        return header

    def read_header(self) -> Header:
        if not self.header_file.is_file():
            raise LogError(
                f"'{self.path}' has no log.json: give the folder of an audit (seepage prints it at the end)."
            )
        written = read_record(_Version, self.header_file).schema_version
        if written != SCHEMA_VERSION:
            raise LogError(
                f"'{self.path}' was written with log schema {written}, this version reads "
                f"{SCHEMA_VERSION}: install the seepage version named in its log.json."
            )
        return read_record(Header, self.header_file)

    def has_cell(self, cell: str) -> bool:
        return self.cell_file(cell).is_file()

    def write_cell(self, cell: Cell, arrays: Arrays, picture: bytes | None) -> None:
        """Tensors and picture first, the JSON last: its presence says that the cell is complete."""
        if arrays:
            contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
            write_atomically(self.cell_file(cell.id, ".safetensors"), save(contiguous))
        if picture is not None:
            write_atomically(self.picture_file(cell.id), picture)
        write_atomically(self.cell_file(cell.id), cell.model_dump_json(indent=1).encode())

    def read_cell(self, cell: str) -> Cell:
        result = read_record(Cell, self.cell_file(cell))
        if result.id != cell:
            raise LogError(
                f"{cell}.json holds the result of another cell, {result.id[:80]!r}: "
                "delete that file and resume the audit."
            )
        return result

    def read_arrays(self, cell: str) -> dict[str, np.ndarray[Any, Any]]:
        file = self.cell_file(cell, ".safetensors")
        if not file.is_file():
            return {}
        try:
            return dict(load_file(file))
        # TypeError, AttributeError: a type that numpy lacks (bfloat16, float8) and seepage never writes.
        except (SafetensorError, OSError, TypeError, AttributeError) as error:
            raise LogError(
                f"cannot read '{file.name}': {error}; delete that cell's files and resume the audit."
            ) from None


@dataclass(frozen=True)
class AuditLog:
    """A run as it is on disk now: complete, or as far as it got."""

    folder: RunFolder
    header: Header
    cells: tuple[Cell, ...]

    @classmethod
    def read(cls, path: Path | str) -> AuditLog:
        """Read a run folder, finished or not. Raises LogError with one sentence if it is none."""
        folder = RunFolder(Path(path))
        header = folder.read_header()
        cells = [folder.read_cell(id_) for _, _, id_ in header.planned() if folder.has_cell(id_)]
        return cls(folder, header, tuple(cells))

    @property
    def missing(self) -> int:
        """Planned cells that have not been run."""
        return len(self.header.planned()) - len(self.cells)

    def cells_where(self, predicate: Callable[[Cell], bool]) -> list[Cell]:
        return [cell for cell in self.cells if predicate(cell)]

"""Reading and writing run folders. A file appears whole or not at all: `kill -9` loses one cell at most.

Every record carries a checksum, its own and those of the files beside it. A damaged cell, or one of another
run, is refused when it is read and run again when the run is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from seepage.core.errors import LogError
from seepage.record.cell import Cell
from seepage.record.earlier import earlier_format, remove_earlier
from seepage.record.files import printable, refuse_foreign, remove_run, write_atomically
from seepage.record.header import SCHEMA_VERSION, RunHeader
from seepage.record.sealing import file_checksum, seal, unseal

B = TypeVar("B", bound=BaseModel)
Arrays = Mapping[str, "np.ndarray[Any, Any]"]


class _Version(BaseModel):
    """What tells one schema from another; read first, as other fields come and go."""

    schema_version: int
    written_by: Any = None
    packages: dict[str, Any] = {}
    """Of schemas 1 and 2."""


def read_record(
    kind: type[B],
    path: Path,
    *,
    remedy: str = "restore the file, or start anew with --fresh",
    sealed: bool = True,
) -> B:
    """One JSON file of a run, or a LogError in one sentence."""
    try:
        # never two copies of a large record: the file's bytes have no name
        return kind.model_validate_json(unseal(path.read_bytes()) if sealed else path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(p) for p in first["loc"]) or "the whole file"
        reason = f"{printable(place)}: {first['msg']}"  # keys come from the file
    except ValueError as error:
        reason = str(error)
    except OSError as error:
        raise LogError(f"cannot read '{path}': {error.strerror}; give the folder of a run.") from None
    raise LogError(f"{path.name} in '{path.parent.name}' is not a readable seepage log ({reason}): {remedy}.")


def write_record(path: Path, record: BaseModel) -> None:
    write_atomically(path, _sealed(record))


def _sealed(record: BaseModel) -> bytes:
    """With its checksum."""
    return seal(record.model_dump_json(indent=1).encode())


def _plain_name(name: str) -> str:
    """Names of cells and points come from log.json: one that leads out of the folder is refused."""
    if Path(name).name != name or len(name) > 200:
        raise LogError(
            f"the log names a cell or point {name[:80]!r}, which is no plain file name: seepage did not "
            "write it; run the audit again into a new folder."
        )
    return name


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run, seen from one of its points."""

    path: Path
    point: str = ""

    def at(self, point: str) -> RunFolder:
        """The same folder with another point's cells."""
        return replace(self, point=point)

    def _inside(self, folder: str) -> Path:
        return self.path / folder / _plain_name(self.point) if self.point else self.path / folder

    @property
    def header_file(self) -> Path:
        return self.path / "log.json"

    def cell_file(self, cell: str, suffix: str = ".json") -> Path:
        return self._inside("cells") / f"{_plain_name(cell)}{suffix}"

    def picture_file(self, cell: str) -> Path:
        return self._inside("pictures") / f"{_plain_name(cell)}.png"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    def claim(self, *, fresh: bool = False) -> None:
        """Nothing is written among files that are not a run's. fresh: remove what is there of any run."""
        earlier = earlier_format(self.path)
        if fresh and (earlier or self.header_file.exists()):
            self.clear()
        elif not self.header_file.exists():
            if earlier:
                raise LogError(earlier)
            refuse_foreign(self.path)

    def open(self, header: RunHeader) -> RunHeader:
        """Start this run, or find it started already. Another run's folder is refused.

        A run that was started by other code goes on with the plan's new keys: cells of the old code count as
        not run.
        """
        if not self.header_file.exists():
            return self.rewrite(header)
        existing = self.read_header()
        if existing.run_key != header.run_key:
            kind = existing.kind if existing.kind != header.kind else f"different {header.kind}"
            raise LogError(
                f"'{self.path}' holds the log of a {kind} ('{existing.title}': another spec, model "
                "or data): choose another folder with --out, or replace it with --fresh."
            )
        if existing.plan == header.plan and existing.spec == header.spec:
            return existing
        since = {point.key: point.created for point in existing.points}
        points = [p.model_copy(update={"created": since.get(p.key, p.created)}) for p in header.points]
        return self.rewrite(header.model_copy(update={"points": tuple(points)}))

    def rewrite(self, header: RunHeader) -> RunHeader:
        """With this header of the same run, if it is another."""
        content = _sealed(header)  # bytes are compared: read again, a long header would be in memory twice
        if not self.header_file.exists() or self.header_file.read_bytes() != content:
            write_atomically(self.header_file, content)
        return header

    def clear(self) -> None:
        """Remove a run, whatever state and format it is in, and nothing else."""
        remove_earlier(self.path)
        if not self.header_file.exists():
            return
        if b'"schema_version"' not in self.header_file.read_bytes():
            raise LogError(
                f"'{self.header_file}' is not seepage's: nothing was removed; choose another --out."
            )
        remove_run(self.path)

    def read_header(self) -> RunHeader:
        if not self.header_file.is_file():
            raise LogError(
                earlier_format(self.path)
                or f"'{self.path}' has no log.json: give the folder of a run (seepage prints it at the end)."
            )
        written = read_record(_Version, self.header_file, sealed=False)
        if written.schema_version != SCHEMA_VERSION:
            version = str(written.written_by or written.packages.get("seepage", "another version"))[:40]
            raise LogError(
                f"'{self.path}' was written by seepage {printable(version)} with log schema "
                f"{written.schema_version}, this version reads {SCHEMA_VERSION}: run the audit again with "
                "--fresh or another --out, or read it with that version."
            )
        return read_record(RunHeader, self.header_file)

    def has_cell(self, cell: str) -> bool:
        """A file of this name is there; `read_cell` says whether it is any good."""
        return self.cell_file(cell).is_file()

    def write_cell(self, cell: Cell, arrays: Arrays, picture: bytes | None) -> None:
        """Tensors and picture first, the JSON last: its presence says that the cell is complete."""
        self.cell_file(cell.id).unlink(missing_ok=True)  # an older result's: it does not fit what comes
        for _, file in self._beside(cell.id):
            file.unlink(missing_ok=True)
        if arrays:
            contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
            write_atomically(
                self.cell_file(cell.id, ".safetensors"), lambda file: save_file(contiguous, file)
            )
        if picture is not None:
            write_atomically(self.picture_file(cell.id), picture)
        sums = {kind: file_checksum(file) for kind, file in self._beside(cell.id)}
        files = {kind: checksum for kind, checksum in sums.items() if checksum is not None}
        write_record(self.cell_file(cell.id), cell.model_copy(update={"files": files}))

    def _beside(self, cell: str) -> tuple[tuple[str, Path], ...]:
        return ("tensors", self.cell_file(cell, ".safetensors")), ("picture", self.picture_file(cell))

    def read_cell(self, cell: str, run_key: str) -> Cell:
        """A whole cell of this run, with its files as they were written, or LogError."""
        again = "run the same audit again, which repeats this cell"
        result = read_record(Cell, self.cell_file(cell), remedy=again)
        if result.id != cell:
            raise LogError(f"{cell}.json holds the result of another cell, {result.id[:80]!r}: {again}.")
        if result.run_key != run_key:
            raise LogError(f"{cell}.json belongs to another run than log.json beside it: {again}.")
        for kind, file in self._beside(cell):
            if kind in result.files and file_checksum(file) != result.files[kind]:
                raise LogError(f"the file of {cell}'s {kind} is missing, damaged or edited: {again}.")
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

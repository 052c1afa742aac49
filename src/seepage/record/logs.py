"""A run as it is on disk now: complete, or as far as it got."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from seepage.core.errors import LogError
from seepage.record.cell import Cell
from seepage.record.header import Header, Kind, RunHeader
from seepage.record.packed import pack, where
from seepage.record.refs import TRAINING, AttackRef
from seepage.record.store import RunFolder


@dataclass(frozen=True)
class AuditLog:
    """One point of a run: all that an audit is."""

    folder: RunFolder
    header: Header
    cells: Sequence[Cell]
    """Of attacks. Of many, each is made when it is looked at: go through them, do not list them."""
    trainings: tuple[Cell, ...] = ()

    @classmethod
    def read(cls, path: Path | str) -> AuditLog:
        """Read an audit's folder, finished or not. Raises LogError with one sentence if it is none."""
        return RunLog.read(path, kind="audit").point()

    @classmethod
    def of(cls, folder: RunFolder, header: Header) -> AuditLog:
        """Cells of code that has since changed, which the run is about to repeat, count as missing."""
        trainings: list[Cell] = []

        def attacked() -> Iterator[Cell]:
            for _, _, id_ in header.planned():
                if not folder.has_cell(id_):
                    continue
                cell = folder.read_cell(id_, header.run_key)
                if cell.key != header.cell_keys.get(cell.id, ""):
                    continue
                if cell.attack.name == TRAINING:
                    trainings.append(cell)
                else:
                    yield cell

        attacks = pack(attacked())
        return cls(folder, header, attacks, tuple(trainings))

    @property
    def missing(self) -> int:
        """Planned cells that have not been run."""
        return len(self.header.planned()) - len(self.cells) - len(self.trainings)

    def cells_where(self, predicate: Callable[[Cell], bool]) -> Sequence[Cell]:
        return where(self.cells, predicate)

    def cells_of(self, attack: AttackRef, *, done: bool = False) -> Sequence[Cell]:
        """Those of one attack. done: that have a result."""
        return self.cells_where(lambda c: c.attack == attack and not (done and c.status != "done"))


@dataclass(frozen=True)
class RunLog:
    """A whole run, of any kind."""

    folder: RunFolder
    header: RunHeader
    points: tuple[AuditLog, ...]

    @classmethod
    def read(cls, path: Path | str, *, kind: Kind | None = None) -> RunLog:
        """Read a run's folder, finished or not. Raises LogError with one sentence if it is none."""
        folder = RunFolder(Path(path))
        header = folder.read_header()
        if kind is not None and header.kind != kind:
            raise LogError(
                f"'{folder.path}' holds a {header.kind}, not {'an' if kind == 'audit' else 'a'} {kind}: "
                "seepage report and seepage.open_log read it."
            )
        return cls.of(folder, header)

    @classmethod
    def of(cls, folder: RunFolder, header: RunHeader) -> RunLog:
        """The cells that are there, of a run whose header is known."""
        points = [AuditLog.of(folder.at(point.key), point) for point in header.points]
        return cls(folder, header, tuple(points))

    def point(self, key: str = "") -> AuditLog:
        """The log of one point; of an audit there is only one."""
        return next(one for one in self.points if one.header.key == key)

    @property
    def missing(self) -> int:
        """Planned cells that have not been run."""
        return sum(point.missing for point in self.points)

    def not_run(self) -> tuple[str, ...]:
        """One sentence for every point with planned cells that have not been run."""
        return tuple(said for point in self.points if (said := _not_run(point)))


_NAMED = 3
"""Cells of a point that are named; more of them are counted."""


def _not_run(point: AuditLog) -> str:
    done = {cell.id for cells in (point.cells, point.trainings) for cell in cells}
    left = [f"{what.title}, seed {seed}" for what, seed, id_ in point.header.planned() if id_ not in done]
    more = f"; and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    return f"{point.header.title}: not run: {'; '.join(left[:_NAMED])}{more}" if left else ""

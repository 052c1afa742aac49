"""The folder of a study. Every file appears whole or not at all, so `kill -9` loses the running cells only.

tradeoff.json               `StudyHeader`: spec, points with their guarantees, seeds
points/<point>/             a run folder like any audit's: `seepage report` reads it
training/<point>-seed<n>.json   `TrainingCell`: its presence means that the training is finished
tradeoff.html
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from seepage.errors import LogError
from seepage.log import (
    DefenseRecord,
    RunFolder,
    origin_key,
    read_record,
    refuse_foreign,
    remove_written,
    write_record,
)
from seepage.log.record import Record

STUDY_VERSION = 3


class StudyHeader(Record):
    """Written before the first cell runs."""

    study_version: int = STUDY_VERSION
    title: str
    created: str
    spec: dict[str, Any]
    run_key: str
    """Of the spec, the data and the model as it behaves: whose study this is."""
    training_keys: dict[str, str] = Field(default_factory=dict)
    """By training: the key that its result must have."""
    points: tuple[DefenseRecord, ...]
    seeds: tuple[int, ...]
    training_seeds: tuple[int, ...]
    model_name: str
    data_name: str
    num_classes: int
    prior_success: float


class TrainingCell(Record):
    """One training: a point and a seed."""

    point: str
    seed: int
    status: Literal["done", "failed"]
    accuracy: float | None = None
    tested: int = 0
    reason: str = ""
    run_key: str = ""
    made_by: dict[str, str] = Field(default_factory=dict)
    """As a `Cell`'s."""

    @property
    def id(self) -> str:
        return training_id(self.point, self.seed)

    @property
    def key(self) -> str:
        return origin_key(self.made_by)


def training_id(point: str, seed: int) -> str:
    """
    >>> training_id("none", 0)
    'none-seed0'
    """
    return f"{point}-seed{seed}"


class _Version(BaseModel):
    """The one field that every version has."""

    study_version: int


@dataclass(frozen=True)
class StudyFolder:
    """Where the parts of a study are."""

    path: Path

    @property
    def header_file(self) -> Path:
        return self.path / "tradeoff.json"

    @property
    def page_file(self) -> Path:
        return self.path / "tradeoff.html"

    def point(self, key: str) -> RunFolder:
        return RunFolder(self.path / "points" / _plain(key))

    def training_file(self, key: str, seed: int) -> Path:
        return self.path / "training" / f"{training_id(_plain(key), seed)}.json"

    def claim(self, *, fresh: bool = False) -> None:
        """Nothing is written among files that are not a study's. fresh: remove what is there of any."""
        if not self.header_file.exists():
            refuse_foreign(self.path)
        elif fresh:
            self.clear()

    def open(self, header: StudyHeader) -> StudyHeader:
        """Start this study, or find it already started; another one's folder is refused."""
        if not self.header_file.exists():
            write_record(self.header_file, header)
            return header
        existing = self.read_header()
        if existing.run_key != header.run_key:
            raise LogError(
                f"'{self.path}' holds a different study ('{existing.title}': another spec, model or data): "
                "choose another folder with --out, or replace it with --fresh."
            )
        if existing.training_keys == header.training_keys:
            return existing
        renewed = header.model_copy(update={"created": existing.created})
        write_record(self.header_file, renewed)
        return renewed

    def clear(self) -> None:
        """Remove a study, whatever state it is in, and nothing else."""
        if not self.header_file.exists():
            return
        if b'"study_version"' not in self.header_file.read_bytes():
            raise LogError(
                f"'{self.header_file}' is not seepage's: nothing was removed; choose another --out."
            )
        points = self.path / "points"
        for point in list(points.iterdir()) if points.is_dir() and not points.is_symlink() else ():
            if not point.is_symlink():
                RunFolder(point).clear()
        remove_written(points, "(?!)")  # nothing in it is a file: the folder itself, if it is empty now
        remove_written(self.path / "training", r".+-seed-?\d+\.json")
        remove_written(self.path, r"tradeoff\.html")
        remove_written(self.path, r"tradeoff\.json")  # last: what is done in part can be done again

    def read_header(self) -> StudyHeader:
        written = read_record(_Version, self.header_file, run="study", sealed=False).study_version
        if written != STUDY_VERSION:
            raise LogError(
                f"'{self.path}' holds a study of version {written}, this seepage reads {STUDY_VERSION}: run "
                "it again with --fresh or another --out, or read it with the seepage that wrote it."
            )
        return read_record(StudyHeader, self.header_file, run="study")

    def write_training(self, cell: TrainingCell) -> None:
        write_record(self.training_file(cell.point, cell.seed), cell)

    def read_training(self, key: str, seed: int, run_key: str) -> TrainingCell | None:
        """A whole training of this study; None: not run yet."""
        file = self.training_file(key, seed)
        if not file.is_file():
            return None
        again = "run the same study again, which repeats this training"
        cell = read_record(TrainingCell, file, run="study", remedy=again)
        if (cell.point, cell.seed) != (key, seed):
            raise LogError(f"'{file.name}' holds the result of another training: {again}.")
        if cell.run_key != run_key:
            raise LogError(f"'{file.name}' belongs to another study than tradeoff.json: {again}.")
        return cell

    def finished_training(self, header: StudyHeader, key: str, seed: int) -> TrainingCell | None:
        """The same, without those of code that has since changed: the study is about to run them again."""
        cell = self.read_training(key, seed, header.run_key)
        return cell if cell is not None and cell.key == header.training_keys.get(cell.id, "") else None


def _plain(key: str) -> str:
    """Keys come from tradeoff.json: one that leads out of the folder is refused."""
    if Path(key).name != key or len(key) > 150:
        raise LogError(f"the study names a point {key[:80]!r}, which is no plain file name.")
    return key

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

from seepage.errors import LogError
from seepage.log import DefenseRecord, RunFolder, read_record, write_atomically
from seepage.log.record import Record

STUDY_VERSION = 2


class StudyHeader(Record):
    """Written before the first cell runs."""

    study_version: int = STUDY_VERSION
    title: str
    created: str
    spec: dict[str, Any]
    fingerprint: str
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
        return self.path / "training" / f"{_plain(key)}-seed{seed}.json"

    def open(self, header: StudyHeader) -> StudyHeader:
        """Start this study, or find it already started by the same spec; another one's folder is refused."""
        if self.header_file.exists():
            existing = self.read_header()
            if existing.fingerprint != header.fingerprint:
                raise LogError(
                    f"'{self.path}' holds a different study ('{existing.title}'): choose another folder "
                    "with --out, or delete it."
                )
            return existing
        write_atomically(self.header_file, header.model_dump_json(indent=2).encode())
        return header

    def read_header(self) -> StudyHeader:
        return read_record(StudyHeader, self.header_file, run="study")

    def write_training(self, cell: TrainingCell) -> None:
        write_atomically(self.training_file(cell.point, cell.seed), cell.model_dump_json(indent=1).encode())

    def read_training(self, key: str, seed: int) -> TrainingCell | None:
        """None: not run yet."""
        file = self.training_file(key, seed)
        if not file.is_file():
            return None
        cell = read_record(TrainingCell, file, run="study")
        if (cell.point, cell.seed) != (key, seed):
            raise LogError(f"'{file.name}' holds the result of another training: delete it and resume.")
        return cell


def _plain(key: str) -> str:
    """Keys come from tradeoff.json: one that leads out of the folder is refused."""
    if Path(key).name != key or len(key) > 150:
        raise LogError(f"the study names a point {key[:80]!r}, which is no plain file name.")
    return key

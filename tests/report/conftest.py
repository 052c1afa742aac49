"""Run folders with synthetic content, written through seepage.record as the auditor would."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seepage.record import (
    AttackRef,
    AuditLog,
    Cell,
    ColumnRecord,
    Cost,
    Example,
    Header,
    InputRecord,
    RunFolder,
    RunHeader,
    ThreatRecord,
)

Array = np.ndarray[Any, Any]
COLUMNS = (
    ColumnRecord(name="sex", kind="categorical", right=2, guessed=2, examples=2),
    ColumnRecord(name="income", kind="integer", right=1, guessed=0, examples=2),
    ColumnRecord(name="height", kind="real", right=0, guessed=1, examples=2),
)
"""Of one cell with two rows."""
BASE = AttackRef(name="prior_only")
SHAPES = {"image": (1, 8, 8), "text": (4,), "tabular": (3,)}


@dataclass
class LogBuilder:
    """Collects cells, then writes the folder and reads it back."""

    path: Path
    modality: str = "image"
    seeds: tuple[int, ...] = (0,)
    spec: dict[str, Any] = field(default_factory=lambda: {"protocol": {"clients": 1}})
    grants: tuple[str, ...] = ()
    header_changes: dict[str, Any] = field(default_factory=dict)
    input_changes: dict[str, Any] = field(default_factory=dict)
    threat_changes: dict[str, Any] = field(default_factory=dict)
    attacks: list[AttackRef] = field(default_factory=lambda: [BASE])
    cells: list[tuple[Cell, dict[str, Array]]] = field(default_factory=list)

    def plan(self, *names: str) -> LogBuilder:
        """Attacks that are planned but not (yet) run."""
        self.attacks += [ref for n in names if (ref := AttackRef(name=n)) not in self.attacks]
        return self

    def add(
        self,
        name: str,
        scores: Sequence[dict[str, float]],
        *,
        guess: Sequence[dict[str, float]] | dict[str, float],
        seed: int = 0,
        arrays: tuple[Array, Array] | None = None,
        texts: Sequence[tuple[str, str]] = (),
        recovered: Sequence[bool] | None = None,
        labels: Sequence[int] | None = None,
        **cell: Any,
    ) -> LogBuilder:
        """One finished cell: scores of each example, and of the guess for it."""
        self.plan(name)
        guesses = [guess] * len(scores) if isinstance(guess, dict) else guess
        examples = tuple(
            Example(
                index=i,
                client=0,
                label=labels[i] if labels else i % 3,
                recovered=recovered[i] if recovered else True,
                scores=score,
                baseline=guesses[i],
                claimed=score.get("exact") == 1.0,
                truth_text=texts[i][0] if texts else None,
                reconstruction_text=texts[i][1] if texts else None,
            )
            for i, score in enumerate(scores)
        )
        fields: dict[str, Any] = {"cost": Cost(seconds=1.5, rounds=1, peak_memory_mb=120.0), **cell}
        record = Cell(attack=AttackRef(name=name), seed=seed, status="done", examples=examples, **fields)
        tensors = {} if arrays is None else {"truth": arrays[0], "reconstruction": arrays[1]}
        self.cells.append((record, tensors))
        return self

    def add_images(
        self, name: str, values: Sequence[float], *, guess: float = 10.0, **rest: Any
    ) -> LogBuilder:
        """PSNR values; 100 means exact. The pictures are noise of the right shape."""
        rng = np.random.default_rng(len(values))
        truth = rng.random((len(values), *self.shape)).astype(np.float32)
        rest.setdefault("arrays", (truth, truth.copy()))
        scores = [{"psnr": v, "ssim": min(1.0, v / 40), "exact": float(v == 100.0)} for v in values]
        return self.add(name, scores, guess={"psnr": guess, "ssim": 0.1, "exact": 0.0}, **rest)

    def add_status(self, name: str, status: str, reason: str, *, seed: int = 0) -> LogBuilder:
        self.plan(name)
        record = Cell.model_validate(
            {"attack": AttackRef(name=name), "seed": seed, "status": status, "reason": reason}
        )
        self.cells.append((record, {}))
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.input_changes.get("shape", SHAPES[self.modality]))

    def header(self) -> Header:
        record = {
            "modality": self.modality,
            "shape": self.shape,
            "num_classes": 3,
            "value_range": (0.0, 1.0) if self.modality == "image" else None,
        } | self.input_changes
        threat = {
            "name": "curious",
            "description": "follows the protocol and looks",
            "grants": self.grants,
            "server_sees": "each client's update",
        } | self.threat_changes
        fields = {
            "title": "A test audit",
            "created": "2024-05-01T10:00:00Z",
            "spec": self.spec,
            "run_key": "abc123",
            "seeds": self.seeds,
            "attacks": tuple(self.attacks),
            "threat": ThreatRecord.model_validate(threat),
            "input": InputRecord.model_validate(record),
            "model_name": "lenet",
            "model_parameters": 15826,
            "data_name": "faces",
            "data_source": "synthetic",
            "data_examples": 200,
            "exact_tolerance": 0.001,
            "device": "cpu",
            "packages": {"torch": "2.13.0"},
            "python": "3.11",
        } | self.header_changes
        return Header.model_validate(fields)

    def build(self) -> AuditLog:
        folder = RunFolder(self.path)
        header = self.header()
        folder.open(
            RunHeader(
                written_by="0.1.0",
                kind="audit",
                title=header.title,
                spec=header.spec,
                run_key=header.run_key,
                points=(header,),
            )
        )
        for cell, arrays in self.cells:
            folder.write_cell(cell.model_copy(update={"run_key": header.run_key}), arrays, None)
        return AuditLog.read(self.path)


@pytest.fixture
def new_log(tmp_path: Path) -> Callable[..., LogBuilder]:
    """A builder on a fresh folder: `new_log(modality="text", seeds=(0, 1))`."""
    made: list[int] = []

    def make(**changes: Any) -> LogBuilder:
        made.append(1)
        return LogBuilder(tmp_path / f"run{len(made)}", **changes)

    return make


@pytest.fixture
def columns() -> tuple[ColumnRecord, ...]:
    return COLUMNS


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium; skipped where none is installed."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver_file = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver_file is None:
        pytest.skip("no chromium with its driver is installed")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for one in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(one)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_file))
    yield driver
    driver.quit()

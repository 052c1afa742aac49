"""Audits of tables as people have them: raw columns of mixed kinds, no option given."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_wine

from seepage.core.errors import SpecError
from seepage.engine.fits import why_not
from seepage.engine.prepare import prepare
from seepage.engine.run import run_audit
from seepage.engine.shared import Shared
from seepage.engine.spec import DataSpec, parse_spec
from seepage.record import BASELINE, AuditLog

Table = tuple[list[str], list[list[Any]]]


def _bundle(bundle: Any) -> Table:
    names = [str(n).replace(" ", "_") for n in bundle.feature_names]
    return [*names, "label"], [
        [*row, int(label)] for row, label in zip(bundle.data, bundle.target, strict=True)
    ]


def _titanic() -> Table:
    """Few categories, small counts, fares that repeat; every row another passenger."""
    rng, rows = np.random.default_rng(0), {}
    while len(rows) < 400:
        row = (
            int(rng.integers(1, 4)),
            str(rng.choice(["male", "female"], p=[0.65, 0.35])),
            int(rng.gamma(4, 7)) + 1,
            int(rng.poisson(0.5)),
            int(rng.poisson(0.4)),
            round(float(rng.gamma(1, 30)) + 4, 4),
            str(rng.choice(["S", "C", "Q"], p=[0.7, 0.2, 0.1])),
        )
        rows[row] = int(rng.random() < (0.7 if row[1] == "female" else 0.2))
    header = ["pclass", "sex", "age", "siblings", "parents", "fare", "embarked", "survived"]
    return header, [[*row, label] for row, label in rows.items()]


def _credit() -> Table:
    """Age, sex, HIV status and income: one wide column beside a few narrow ones that matter most."""
    rng, rows = np.random.default_rng(1), {}
    while len(rows) < 400:
        row = (
            int(rng.integers(18, 90)),
            int(rng.random() < 0.5),
            int(rng.random() < 0.05),
            int(rng.lognormal(10.3, 0.6)),
        )
        rows[row] = int(row[3] + 300 * row[0] > 42000)
    return ["age", "sex", "hiv", "income", "default"], [[*row, label] for row, label in rows.items()]


TABLES = {
    "breast_cancer": lambda: _bundle(load_breast_cancer()),
    "wine": lambda: _bundle(load_wine()),
    "titanic": _titanic,
    "credit": _credit,
}


def written(folder: Path, name: str) -> Path:
    header, rows = TABLES[name]()
    with (folder / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return folder / f"{name}.csv"


def audited(tmp_path: Path, name: str, **more: Any) -> AuditLog:
    spec = {
        "model": {"name": "mlp", "hidden": [512]},
        "data": str(written(tmp_path, name)),
        "attacks": ["analytic_extraction"],
        "protocol": {"batch_size": 8},
        "seeds": [0, 1, 2],
        "public_examples": 96,
        **more,
    }
    return run_audit(parse_spec(spec), out=tmp_path / "run")


def right_in_every_column(truth: np.ndarray, rebuilt: np.ndarray, name: str) -> np.ndarray:
    """The rule, written once more: (n,) bool from the file's own columns."""
    header, rows = TABLES[name]()
    right = np.ones(len(truth), dtype=bool)
    at = 0
    for column, _ in enumerate(header[:-1]):
        values = [row[column] for row in rows]
        if isinstance(values[0], str):
            width = len(set(values))
            part = slice(at, at + width)
            right &= (np.rint(rebuilt[:, part]) == np.rint(truth[:, part])).all(1)
            at += width
            continue
        if all(float(v).is_integer() for v in values):
            right &= np.rint(rebuilt[:, at]) == np.rint(truth[:, at])
        else:
            right &= np.abs(rebuilt[:, at] - truth[:, at]) <= 1e-3 * np.std(np.asarray(values, dtype=float))
        at += 1
    assert at == truth.shape[1]
    return right


@pytest.mark.parametrize("name", TABLES)
def test_the_baseline_has_no_row_and_what_is_exact_is_right_in_every_column(
    tmp_path: Path, name: str
) -> None:
    log, found = audited(tmp_path, name), 0
    for cell in log.cells:
        assert cell.status == "done", cell.reason
        arrays = log.folder.read_arrays(cell.id)
        expected = right_in_every_column(arrays["truth"], arrays["reconstruction"], name)
        exact = np.array([example.scores["exact"] == 1.0 for example in cell.examples])
        recovered = np.array([example.recovered for example in cell.examples])
        assert (exact == (expected & recovered)).all()
        assert all(example.baseline["exact"] == 0.0 for example in cell.examples)
        assert cell.claims_right == cell.claims
        found += 0 if cell.attack.name == BASELINE else int(exact.sum())
        assert cell.attack.name != BASELINE or not exact.any()
    assert found > 0


def test_what_a_model_is_fed_does_not_depend_on_any_clients_row(tmp_path: Path) -> None:
    path = written(tmp_path, "credit")
    spec = parse_spec({"model": "mlp", "data": str(path), "protocol": {"batch_size": 300}})
    prepared = prepare(spec)
    for seed in (0, 1):
        data = prepared.data(seed)
        held, public = prepared._split(seed)
        assert not set(held[0].tolist()) & set(public.tolist())
        rows = prepared.dataset.inputs[public].double().numpy()
        np.testing.assert_allclose(data.spec.mean, rows.mean(0), rtol=1e-12)
        np.testing.assert_allclose(data.spec.std, rows.std(0), rtol=1e-12)
        assert data.spec.spread == prepared.dataset.spec.spread  # errors are counted alike under every seed


def test_a_table_without_public_rows_is_refused_unless_it_is_fed_as_it_is(tmp_path: Path) -> None:
    path = str(written(tmp_path, "credit"))
    with pytest.raises(SpecError, match=r"0 of its 400 are set aside: .* standardise = false"):
        prepare(parse_spec({"model": "mlp", "data": path, "public_examples": 0}))
    raw = {"name": path, "standardise": False}
    prepared = prepare(parse_spec({"model": "mlp", "data": raw, "public_examples": 0}))
    assert prepared.data(0).spec.mean is None


def test_what_fits_a_table_is_judged_by_the_scale_it_is_fed_on(tmp_path: Path) -> None:
    path = str(written(tmp_path, "wine"))
    spec = parse_spec({"model": "mlp", "data": path, "threat": "malicious_server", "public_examples": 96})
    assert why_not(Shared(prepare(spec), 0), "trap_weights") is None
    raw = spec.model_copy(update={"data": DataSpec(name=path, options={"standardise": False})})
    refused = why_not(Shared(prepare(raw), 0), "trap_weights")
    assert refused is not None and "range of the input values is unknown" in refused.reason


def test_an_attack_that_breaks_off_over_a_model_is_not_tried_and_does_not_end_the_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a view of a view")

    shared = Shared(prepare(parse_spec({"model": "mlp", "data": str(written(tmp_path, "wine"))})), 0)
    assert why_not(shared, "exact_extraction") is None
    monkeypatch.setattr("seepage.attacks.reading.exact_extraction.ExactExtraction.check", broken)
    refused = why_not(shared, "exact_extraction")
    assert refused is not None and refused.why == "does_not_fit"
    assert refused.reason == "it broke off when it looked into the model (RuntimeError: a view of a view)."

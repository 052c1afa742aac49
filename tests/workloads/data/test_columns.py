"""Kinds and spreads of a table's columns: found by looking, or as told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from seepage.errors import DataError, SpecError
from seepage.workloads.data import load_data, standardised
from seepage.workloads.data.columns import LARGEST_WHOLE

CSV = """age,sex,hiv,income,height,label
41,f,1,32156,1.625,0
44,m,0,32168,1.75,1
29,m,0,51000,1.875,1
33,f,0,18250,1.5,0
"""


def table(folder: Path, text: str = CSV) -> Path:
    (folder / "people.csv").write_text(text)
    return folder / "people.csv"


def kinds(data: object) -> dict[str, str]:
    spec = data.spec  # type: ignore[attr-defined]
    return {name: str(kind) for name, kind in zip(spec.column_names, spec.kinds, strict=True)}


def test_kinds_are_found_by_looking(tmp_path: Path) -> None:
    data = load_data(table(tmp_path))
    assert kinds(data) == {
        "age": "integer",
        "sex=f": "categorical",
        "sex=m": "categorical",
        "hiv": "integer",
        "income": "integer",
        "height": "real",
    }
    np.testing.assert_allclose(data.spec.spread, data.inputs.double().numpy().std(0), rtol=1e-12)


def test_kinds_can_be_told(tmp_path: Path) -> None:
    path = table(tmp_path)
    assert kinds(load_data(path, real=["income"]))["income"] == "real"
    assert kinds(load_data(path, categorical=["hiv"]))["hiv=1"] == "categorical"
    rows = torch.tensor([[1.0, 0.5], [2.0, 0.25]])
    assert load_data((rows, [0, 1])).spec.integer == (0,)
    assert load_data((rows, [0, 1]), real=[0]).spec.integer == ()
    assert load_data((rows, [0, 1]), integer=[0]).spec.integer == (0,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"integer": ["height"]}, "'height' is named in integer, but row 0 holds 1.625"),
        ({"integer": ["sex=f"]}, "'sex=f' is a category in one-hot code; leave it out of integer"),
        ({"real": ["sex=f"]}, "leave it out of real"),
        ({"integer": ["salary"]}, "no column 'salary' to name in integer; it has age, sex=f"),
        ({"integer": "age"}, r"give a list of columns, as \['age'\]"),
        ({"integer": ["age"], "real": ["age"]}, "'age' is named in integer and in real"),
        ({"real": [9]}, "no column 9"),
        ({"standardise": "yes"}, "give true or false"),
        ({"standardise": True, "mean": 0.0, "std": 1.0}, "leave it out, or mean and std"),
        ({"standardize": True}, "people.csv has no option 'standardize'; valid options: label, delimiter"),
    ],
)
def test_what_cannot_be_gets_one_sentence(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises((DataError, SpecError), match=message) as error:
        load_data(table(tmp_path), **options)
    assert "\n" not in str(error.value)


def test_only_tables_have_columns() -> None:
    for key, value in {"integer": [0], "real": [0], "standardise": True}.items():
        with pytest.raises(SpecError, match=f"{key} belongs to tables"):
            load_data("digits", **{key: value})


def test_whole_numbers_survive_standardising_up_to_the_largest_one() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(-LARGEST_WHOLE, LARGEST_WHOLE + 1, (2000, 1), generator=generator).float()
    data = load_data((rows, torch.arange(2000) % 2), standardise=True)
    assert data.spec.integer == (0,)
    fed = standardised(data, torch.arange(100))
    back = fed.spec.to_raw(fed.batch(torch.arange(2000)).inputs)
    assert torch.equal(back.round(), rows)
    assert load_data((2 * rows, torch.arange(2000) % 2)).spec.integer == ()  # float32 would mix them up


def test_constant_columns_are_scaled_by_their_magnitude() -> None:
    rows = torch.tensor([[5.0, 0.0, 1.0], [5.0, 0.0, 2.0], [7.0, 3.0, 4.0]])
    data = standardised(load_data((rows, [0, 1, 0]), standardise=True), torch.tensor([0, 1]))
    assert data.spec.std == (5.0, 1.0, 0.5)
    fed = data.batch(torch.arange(3)).inputs[:, :2]
    torch.testing.assert_close(fed, torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.4, 3.0]]))

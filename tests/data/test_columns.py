"""Kinds and spreads of a table's columns: found by looking, or as told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm

from seepage.core.errors import DataError, SpecError
from seepage.data import load_data, standardised
from seepage.data.columns import LARGEST_WHOLE, spreads
from seepage.metrics import exact_rule

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
    std = data.inputs.double().numpy().std(0)
    assert (np.asarray(data.spec.spread) <= std * (1 + 1e-12)).all()
    np.testing.assert_allclose(data.spec.spread[:4], std[:4], rtol=1e-12)


def _shortest_half(values: np.ndarray) -> float:
    """By brute force: the least width of any interval between two values that holds more than half."""
    widths = [
        high - low
        for low in values
        for high in values
        if low <= high and 2 * ((values >= low) & (values <= high)).sum() > len(values)
    ]
    return float(min(widths))


@pytest.mark.parametrize("n", [2, 3, 8, 61])
def test_the_spread_is_that_of_the_middle_where_tails_are_heavy(n: int) -> None:
    columns = np.random.default_rng(n).standard_normal((n, 3)) @ np.diag([1.0, 3.0, 4.0])
    columns[:, 1:] = np.exp(columns[:, 1:])
    found = spreads(torch.from_numpy(columns)).numpy()
    middle = [_shortest_half(column) / (2 * norm.ppf(0.75)) for column in columns.T]
    np.testing.assert_allclose(found, np.minimum(columns.std(0), middle), rtol=1e-9)


def test_the_spread_of_a_column_that_is_mostly_one_value_is_how_far_the_others_lie_from_it() -> None:
    mostly_zero = torch.tensor([0.0] * 7 + [10.0, 30.0, 1e9]).unsqueeze(1)
    assert spreads(mostly_zero).item() == 30.0
    assert spreads(torch.full((5, 1), 3.0)).item() == 0.0
    rare = torch.tensor([0.0] * 99 + [1.0]).unsqueeze(1)
    assert spreads(rare).item() == pytest.approx(0.0995, abs=1e-4)  # the standard deviation, as ever


def test_one_outlier_does_not_make_all_others_the_same() -> None:
    income = torch.normal(40_000.0, 9_000.0, (200, 1), generator=torch.Generator().manual_seed(3)).double()
    with_outlier = torch.cat([income, income.new_tensor([[5e9]])])
    assert spreads(with_outlier).item() == pytest.approx(spreads(income).item(), rel=0.05)
    labels = [0, 1] * 100 + [0]
    spec = load_data((with_outlier.float(), labels), real=[0]).spec
    same = exact_rule(spec, income[:20]).every(income[:20], income[:20])
    assert bool((same == torch.eye(20, dtype=torch.bool)).all())


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

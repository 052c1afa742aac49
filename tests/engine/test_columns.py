"""Which columns came out, counted by hand."""

from __future__ import annotations

import torch

from seepage.core.types import Batch, InputSpec, Modality
from seepage.engine.columns import column_records, right_values
from seepage.metrics import exact_rule

SPEC = InputSpec(
    modality=Modality.TABULAR,
    shape=(5,),
    num_classes=2,
    value_range=None,
    mean=(40.0, 0.0, 0.0, 0.0, 1.7),
    std=(10.0, 1.0, 1.0, 1.0, 0.1),
    column_names=("age", "sex=f", "sex=m", "hiv", "height"),
    categories=((1, 2),),
    integer=(0, 3),
    spread=(12.0, 0.5, 0.5, 0.2, 0.1),
)
TRUTH = torch.tensor(
    [[41.0, 1, 0, 0, 1.60], [44.0, 0, 1, 0, 1.80], [29.0, 0, 1, 0, 1.90], [33.0, 1, 0, 1, 1.75]]
)


def test_a_value_is_right_by_its_columns_kind_and_a_category_is_one_column() -> None:
    rebuilt = TRUTH + torch.tensor([0.3, 0.2, -0.2, 0.4, 0.00009])
    rebuilt[0, 0] += 1  # another age
    rebuilt[1, 1] = 0.9  # both sexes
    rebuilt[2, 4] += 0.001  # a tenth of a centimetre
    guess = torch.tensor([41.0, 1, 0, 1, 1.60]).expand(4, 5)
    rule = exact_rule(SPEC, TRUTH)
    # the last row was not recovered; blocks add up
    right = right_values(rebuilt[:1], TRUTH[:1], SPEC, rule) + right_values(
        rebuilt[1:3], TRUTH[1:3], SPEC, rule
    )
    guessed = right_values(guess, TRUTH, SPEC, rule)
    found = column_records(right.tolist(), guessed.tolist(), TRUTH, spec=SPEC, rule=rule, public=None)
    assert [(c.name, c.kind, c.right, c.guessed, c.examples) for c in found] == [
        ("age", "integer", 2, 1, 4),
        ("sex", "categorical", 2, 2, 4),
        ("hiv", "integer", 3, 1, 4),
        ("height", "real", 2, 1, 4),
    ]
    assert [c.excess for c in found] == [0.25, 0.0, 0.5, 0.25]


def test_the_guess_may_name_the_most_common_public_value() -> None:
    rows = torch.tensor(
        [[50.0, 0, 1, 0, 1.5], [51.0, 0, 1, 0, 1.6], [29.0, 0, 1, 0, 1.6], [60.0, 1, 0, 1, 1.4]]
    )
    public = Batch(SPEC.to_model(rows), torch.zeros(4, dtype=torch.long))
    guess = torch.tensor([0.0, 0, 0, 1, 9.0]).expand(4, 5)
    rule = exact_rule(SPEC, TRUTH)
    right, guessed = (right_values(rows, TRUTH, SPEC, rule).tolist() for rows in (TRUTH, guess))
    found = column_records(right, guessed, TRUTH, spec=SPEC, rule=rule, public=public)
    # hiv is 0 in three of four public rows, and in three of the four true ones
    assert {c.name: c.guessed for c in found} == {"age": 1, "sex": 2, "hiv": 3, "height": 1}
    assert {c.name: c.right for c in found} == dict.fromkeys(("age", "sex", "hiv", "height"), 4)


def test_columns_without_names_are_numbered() -> None:
    spec = InputSpec(
        modality=Modality.TABULAR, shape=(3,), num_classes=2, value_range=None, categories=((1, 2),)
    )
    rows = torch.tensor([[0.5, 1.0, 0.0]])
    found = column_records([1, 1], [1, 1], rows, spec=spec, rule=exact_rule(spec, rows), public=None)
    assert [c.name for c in found] == ["column 0", "columns 1 to 2"]

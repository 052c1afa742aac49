"""One record of a table, written out by hand from end to end."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from seepage.core.metric import Metric
from seepage.core.types import (
    Batch,
    Broadcast,
    Crafted,
    InputSpec,
    Modality,
    Reconstruction,
    RowCount,
    Update,
    UpdateKind,
)
from seepage.engine import rating, scoring
from seepage.engine.scoring import Beside, Scored, _by_example, score
from seepage.protocol import THREATS, Played, play

SPEC = InputSpec(
    modality=Modality.TABULAR,
    shape=(2,),
    num_classes=3,
    value_range=None,
    mean=(3.0, 1.0),
    std=(1.0, 1.0),
    spread=(1.0, 1.0),
)
RAW = torch.tensor([[0.0, 0.0], [4.0, 4.0], [2.0, 0.0]])
LABELS = torch.tensor([0, 2, 0])
PUBLIC = Batch(SPEC.to_model(torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 3.0]])), torch.tensor([0, 0, 1]))
GUESS = Reconstruction(values=torch.tensor([[1.0, 1.0], [1.0, 1.0]]), shared=True)


def silent(broadcast: Broadcast, batch: Batch) -> Update:
    tensors = {name: torch.zeros_like(p) for name, p in broadcast.model.named_parameters()}
    return Update(kind=UpdateKind.GRADIENT, tensors=tensors, num_examples=len(batch))


def level() -> nn.Module:
    """All classes are as likely, whatever the input."""
    model = nn.Linear(2, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def played() -> Played:
    """The first client holds two rows, the second one."""
    rows = SPEC.to_model(RAW)
    batches = [Batch(rows[:2], LABELS[:2]), Batch(rows[2:], LABELS[2:])]
    threat = THREATS["honest_but_curious"]
    return play(None, level(), lambda _: batches, step=silent, threat=threat, max_rounds=1)


def scored(result: Reconstruction) -> Scored:
    return score(result, played(), SPEC, guesses=GUESS, public=PUBLIC, honest=level(), tolerance=1e-3)


def test_every_field_of_a_record_is_what_it_says() -> None:
    """One row comes out exactly, one is off by 1 in a column, and for the second client there is nothing: it
    is scored by the row (3, 1) that the table is centred on, (1, 1) away."""
    found = scored(
        Reconstruction(
            values=torch.tensor([[4.0, 3.0], [0.0, 0.0]]),
            source=torch.zeros(2, dtype=torch.long),
            claimed=torch.tensor([False, True]),
            support=torch.tensor([2, 3]),
            rows=RowCount(total=20, active=6),
            label_counts=torch.tensor([1, 1, 1]),
        )
    )
    assert found.matched.tolist() == [[0.0, 0.0], [4.0, 3.0], [3.0, 1.0]]
    torch.testing.assert_close(found.truth, RAW)
    assert [(e.index, e.client, e.label) for e in found.examples] == [(0, 0, 0), (1, 0, 2), (2, 1, 0)]
    assert [e.recovered for e in found.examples] == [True, True, False]
    assert [e.claimed for e in found.examples] == [True, False, False]
    assert [(e.truth_text, e.reconstruction_text) for e in found.examples] == [(None, None)] * 3
    assert [e.scores for e in found.examples] == [
        pytest.approx({"rmse": error, "exact": exact}, abs=1e-6)
        for error, exact in ((0.0, 1.0), (math.sqrt(1 / 2), 0.0), (1.0, 0.0))
    ]
    # the guess (1, 1): from (0, 0) and (2, 0) as far as a unit in each column, from (4, 4) three
    assert [e.baseline for e in found.examples] == [
        pytest.approx({"rmse": error, "exact": 0.0}, abs=1e-6) for error in (1.0, 3.0, 1.0)
    ]
    # the public rows of class 0 are (0, 0); class 2 has none, and the mean of all is (1, 1)
    assert [e.traits for e in found.examples] == [
        pytest.approx({"loss": math.log(3), "distance": away}) for away in (0.0, 3.0, math.sqrt(2))
    ]
    # three of 20 rows, of which 6 were active, hold one of the three examples; labels 0 and 2 are right
    assert found.batch_scores == pytest.approx(
        {
            "extraction_precision_all": 3 / 20,
            "extraction_precision_active": 3 / 6,
            "extraction_recall": 1 / 3,
            "active_neurons": 6 / 20,
            "label_accuracy": 2 / 3,
        }
    )
    assert (found.claims, found.claims_right, found.claimed_examples) == (1, 1, 1)
    assert found.true_label_counts.tolist() == [2, 0, 1]
    # of the three rows only the two that came out count; the guess names the common public 0
    assert [(c.right, c.guessed, c.examples) for c in found.columns] == [(2, 1, 3), (1, 2, 3)]


def test_a_metric_that_is_asked_for_is_computed_beside_the_others_and_on_the_guess() -> None:
    """How far the first column is above the truth, in the spread that the spec gives it."""

    def above(recon: Tensor, truth: Tensor, spec: InputSpec) -> Tensor:
        assert spec.spread is not None
        return (recon - truth)[:, 0] / spec.spread[0]

    facts = {"description": "", "higher_leaks": False, "compute": above}
    of_inputs = Metric(name="above", title="above", **facts)
    of_features = Metric(name="features", title="features", space="features", **facts)
    found = score(
        Reconstruction(values=torch.tensor([[6.0, 4.0], [1.0, 0.0]]), source=torch.tensor([0, 0])),
        played(),
        replace(SPEC, spread=(2.0, 1.0)),
        guesses=GUESS,
        public=PUBLIC,
        honest=level(),
        tolerance=1e-3,
        metrics=(of_inputs, of_features),
    )
    # rows (0, 0), (4, 4) and (2, 0) against (1, 0), (6, 4) and the flat guess (3, 1), and against (1, 1)
    assert [e.scores["above"] for e in found.examples] == pytest.approx([0.5, 1.0, 0.5], abs=1e-6)
    assert [e.baseline["above"] for e in found.examples] == pytest.approx([0.5, -1.5, -0.5], abs=1e-6)
    assert all({*e.scores} == {*e.baseline} == {"rmse", "exact", "above"} for e in found.examples)


def test_attacks_on_the_same_exchanges_share_the_guess_and_the_traits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each attack's record is what it would be alone, but guess and traits are looked at once."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 3))
    model[0].weight = nn.Parameter(torch.eye(2))
    batch = Batch(SPEC.to_model(RAW), LABELS)
    threat = THREATS["honest_but_curious"]
    seen = play(None, model, lambda _: [batch], step=silent, threat=threat, max_rounds=1)
    rows = Reconstruction(values=RAW[:1], claimed=torch.tensor([True]))
    features = Reconstruction(values=batch.inputs[1:] + 0.5, space="1")
    settings = {"guesses": GUESS, "public": PUBLIC, "honest": model, "tolerance": 1e-3}
    results = [features, rows, GUESS, features]
    alone = [score(result, seen, SPEC, **settings) for result in results]
    paired, looked = Mock(wraps=rating.pair), Mock(wraps=scoring.example_traits)
    monkeypatch.setattr(rating, "pair", paired)
    monkeypatch.setattr(scoring, "example_traits", looked)
    beside = Beside()
    together = [score(result, seen, SPEC, beside=beside, **settings) for result in results]
    for one, other in zip(together, alone, strict=True):
        assert (one.examples, one.columns, one.claims_right) == (
            other.examples,
            other.columns,
            other.claims_right,
        )
        assert torch.equal(one.matched, other.matched) and torch.equal(one.truth, other.truth)
    assert looked.call_count == 1
    # the features, then the guess and the rows, then the features again, which have a guess of their own
    assert [call.args[0] is GUESS for call in paired.call_args_list] == [False, True, False, False]
    assert beside.guess is not None and [e.scores for e in together[2].examples] == [
        e.baseline for e in together[1].examples
    ]


def test_what_an_attack_does_not_say_is_not_scored() -> None:
    found = scored(Reconstruction(values=RAW[:2], source=torch.zeros(2, dtype=torch.long)))
    assert found.batch_scores == {}
    assert (found.claims, found.claims_right, found.claimed_examples) == (0, 0, 0)
    assert [e.claimed for e in found.examples] == [False] * 3
    assert [e.scores["exact"] for e in found.examples] == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("public", "tolerance", "exact"),
    [
        ((0.05, 0.05), 1e-3, [0.0, 0.0]),  # 1 % of the first model's range
        ((4.002, 4.002), 1e-3, [0.0, 1.0]),  # 0.05 % of the second one's
        ((4.002, 4.002), 1e-4, [0.0, 0.0]),
        ((0.002, 0.002), 1e-3, [1.0, 0.0]),
    ],
)
def test_a_guess_is_held_to_the_rule_that_holds_for_the_candidates_of_its_exchange(
    public: tuple[float, float], tolerance: float, exact: list[float]
) -> None:
    """The second model's features are a thousand times as large: by their range any guess about the first
    model's would be exact, and a copy that an attack found would be no news."""
    models = [nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 3)) for _ in range(2)]
    for model, size in zip(models, (1.0, 1000.0), strict=True):
        model[0].weight = nn.Parameter(size * torch.eye(2))
    batch = Batch(RAW[:2], LABELS[:2])
    seen = play(
        lambda _, history: Crafted(models[len(history)]),
        models[0],
        lambda _: [batch],
        step=silent,
        threat=THREATS["malicious_server"],
        max_rounds=2,
    )
    found = score(
        Reconstruction(values=torch.tensor([[0.0, 0.0], [4e3, 4e3]]), space="1", source=torch.tensor([0, 1])),
        seen,
        replace(SPEC, mean=None, std=None),
        guesses=GUESS,
        public=Batch(torch.tensor([public]), torch.tensor([0])),
        honest=models[0],
        tolerance=tolerance,
    )
    assert [e.scores["exact"] for e in found.examples] == [1.0, 1.0]
    assert [e.baseline["exact"] for e in found.examples] == exact


def test_token_ids_may_be_of_another_width_than_the_candidates() -> None:
    spec = InputSpec(modality=Modality.TEXT, shape=(2,), num_classes=3, value_range=None)
    model = nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(4, 3))
    batch = Batch(torch.tensor([[1, 2], [3, 1]], dtype=torch.int32), torch.arange(2))
    threat = THREATS["honest_but_curious"]
    seen = play(None, model, lambda _: [batch], step=silent, threat=threat, max_rounds=1)
    result = Reconstruction(values=torch.tensor([[3, 1]]))
    found = score(result, seen, spec, guesses=result, public=None, honest=model, tolerance=1e-3)
    assert found.matched.tolist() == [[0, 0], [3, 1]]
    assert [e.scores["exact"] for e in found.examples] == [0.0, 1.0]


def test_a_candidate_is_given_to_the_row_that_is_nearest_in_units_of_each_column() -> None:
    """From one row (0.2, 500) away, from the other (4.8, 350): the second column is much wider."""
    spec = replace(SPEC, mean=None, std=None, spread=(1.0, 1000.0))
    batch = Batch(torch.tensor([[0.0, 900.0], [5.0, 50.0]]), LABELS[:2])
    threat = THREATS["honest_but_curious"]
    seen = play(None, level(), lambda _: [batch], step=silent, threat=threat, max_rounds=1)
    result = Reconstruction(values=torch.tensor([[0.2, 400.0]]))
    found = score(result, seen, spec, guesses=result, public=None, honest=level(), tolerance=1e-3)
    assert [e.recovered for e in found.examples] == [True, False]


def test_columns_of_different_lengths_are_no_records() -> None:
    whole = _by_example({"psnr": torch.tensor([10.0, 20.0]), "exact": torch.tensor([0.0, 1.0])})
    assert list(whole) == [{"psnr": 10.0, "exact": 0.0}, {"psnr": 20.0, "exact": 1.0}]
    with pytest.raises(ValueError, match="shorter"):
        list(_by_example({"psnr": torch.zeros(2), "exact": torch.zeros(1)}))

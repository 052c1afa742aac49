"""Rows found by search: where reading fails, with rows that are known, and with a vote of restarts."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.attacks.tables.confirming import confirm
from seepage.attacks.tables.exact_table import exact_table
from seepage.attacks.tables.held import Held, held_rows
from seepage.attacks.tables.pooling import guess_where_unsure, pool_restarts
from seepage.attacks.tables.settling import Settled, labels_of
from seepage.attacks.tables.sight import sight_of
from seepage.attacks.tables.tableak import TabLeak, tableak
from seepage.attacks.tables.usual import usual_values
from seepage.core.errors import NotApplicable, SeepageError
from seepage.core.types import (
    Batch,
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Reconstruction,
)
from seepage.protocol import local_update

from .test_exact_table import SPEC, found_of, network, rows


def sent(model: nn.Module, raw: Tensor, **training: object) -> tuple[Exchange, Knowledge]:
    local = LocalTraining(**training)  # type: ignore[arg-type]
    batch = Batch(SPEC.to_model(raw), torch.arange(len(raw)) % 2)
    update = local_update(Broadcast(model), batch, local)
    exchange = Exchange(broadcast=Broadcast(model), update=update, clients=(0,))
    return exchange, Knowledge(input=SPEC, local=local)


def categories_right(found: Reconstruction, raw: Tensor) -> float:
    """The share of categories that are right in the best order of rows."""
    same = torch.stack(
        [
            found.values[:, list(group)].argmax(1)[:, None] == raw[:, list(group)].argmax(1)[None]
            for group in SPEC.categories
        ]
    ).double()
    score = same.mean(0)
    return float(score[linear_sum_assignment(-score.numpy())].mean())


def test_a_search_alone_finds_all_rows_and_the_layer_proves_them() -> None:
    raw = rows(6, 5)
    exchange, known = sent(network("relu"), raw)
    found = tableak(read_first=(), steps=300, restarts=2).run([exchange], known)
    assert found_of(found, raw) == 6 and found.complete
    assert found.claimed is not None and bool(found.claimed.all())
    assert not any("read exactly" in note for note in found.notes)


def test_what_is_read_exactly_is_not_searched_for() -> None:
    exchange, known = sent(network("relu"), rows(6, 5))
    found = tableak(steps=10**9).run([exchange], known)  # that many steps would never end
    assert found.complete and "nothing was searched for" in found.notes[-1]


def test_rows_that_are_read_through_dropout_are_not_searched_for() -> None:
    raw = rows(6, 4)
    torch.manual_seed(1)
    exchange, known = sent(network("dropout"), raw, batch_norm="train")
    found = tableak(steps=10**9).run([exchange], known)
    assert found_of(found, raw) == 6 and "nothing was searched for" in found.notes[-1]


def test_near_copies_are_not_taken_for_one_row_that_is_there_twice() -> None:
    raw = rows(8, 11)
    raw[1] = raw[0]
    raw[1, -2] += 1.0  # of a column whose numbers go to 100,000: below what the update shows
    spec = replace(SPEC, std=(*SPEC.std[:-2], 1e5, SPEC.std[-1]))  # type: ignore[index]
    labels = torch.tensor([0, 0, 1, 1, 0, 1, 0, 1])
    local, model = LocalTraining(), network("relu")
    update = local_update(Broadcast(model), Batch(spec.to_model(raw), labels), local)
    exchange = Exchange(broadcast=Broadcast(model), update=update, clients=(0,))
    found = exact_table().run([exchange], Knowledge(input=spec, local=local))
    assert not found.complete


def test_a_batch_norm_in_train_mode_is_searched_where_nothing_can_be_read() -> None:
    raw = rows(4, 6)
    exchange, known = sent(network("batch norm"), raw, batch_norm="train")
    with pytest.raises(NotApplicable, match="'tableak' searches instead"):
        exact_table().run([exchange], known)
    found = tableak(steps=300, restarts=2).run([exchange], known)
    assert categories_right(found, raw) >= 0.8
    assert found.confidence is not None and float(found.confidence.min()) >= 0


def test_known_rows_are_held_and_leave_less_to_search() -> None:
    raw = rows(14, 7)
    exchange, known = sent(network("relu"), raw)
    held = Held(SPEC.to_model(raw[:12]), torch.arange(12) % 2)
    attack = tableak(read_first=(), steps=60, restarts=1)
    alone, helped = (
        super(TabLeak, a).invert(exchange, known) for a in (attack, TabLeak(**{**vars(attack), "held": held}))
    )
    assert torch.allclose(helped.values[:12], raw[:12], atol=1e-3)
    assert categories_right(helped, raw) > categories_right(alone, raw)
    assert any("12 row(s)" in note for note in helped.notes)


def test_labels_of_known_rows_are_read_from_neurons_of_their_own() -> None:
    raw = rows(3, 8)
    exchange, known = sent(network("relu"), raw)
    read = Reconstruction(values=raw, claimed=torch.tensor([True, True, False]))
    held = held_rows(read, sight_of(exchange, known), known)
    assert held is not None and held.labels.tolist() == [0, 1]


def test_the_layer_confirms_true_rows_and_no_others() -> None:
    raw, others = rows(6, 9), rows(20, 10)
    exchange, known = sent(network("relu"), raw)
    both = SPEC.to_model(torch.cat([raw, others]))
    found = confirm(both, torch.arange(26) % 2, sight_of(exchange, known), known)
    assert bool(found.right[:6].all()) and not bool(found.right[6:].any())


def test_restarts_vote_and_disagreement_lowers_confidence() -> None:
    truth = torch.tensor([[1.0, 0.0, 0.0, 2.0], [0.0, 0.0, 1.0, -1.0]])
    torn = torch.tensor([[1.0, 0.0, 0.0, 2.1], [0.0, 1.0, 0.0, 5.0]])
    restarts = torch.stack([truth.flip(0), truth, torn])
    found = pool_restarts(restarts, torch.tensor([[1, 0], [0, 1], [0, 1]]), ((0, 1, 2),), best=1, unit=1.0)
    assert torch.equal(found.rows[:, :3], truth[:, :3])
    assert found.rows[:, 3].tolist() == [2.0, -1.0]
    assert float(found.confidence[0]) == pytest.approx(1.0)
    # two votes of three against one, in both columns: the entropy of (2/3, 1/3) over ln 3
    assert float(found.confidence[1]) == pytest.approx(1 - 0.6365 / 1.0986, abs=1e-3)


def test_pictures_are_refused() -> None:
    picture = InputSpec(modality=Modality.IMAGE, shape=(1, 2, 2), num_classes=2)
    with pytest.raises(NotApplicable, match="rows of tables"):
        tableak().check(network("relu"), Knowledge(input=picture))
    with pytest.raises(ValueError, match="restarts must be"):
        tableak(restarts=0)
    with pytest.raises(ValueError, match="does not read single updates"):
        tableak(read_first=["prior_only"])


def test_a_row_cannot_be_there_more_often_than_there_are_examples() -> None:
    raw = rows(6, 12)
    exchange, known = sent(network("relu"), raw)
    sight = sight_of(exchange, known)
    assert sight.signals is not None
    found = confirm(SPEC.to_model(raw), torch.arange(6) % 2, sight, known)
    features = sight.front.features(found.choices, found.numbers)
    seen = sight.signals(features, found.labels) * 1e30
    settled = Settled(found.choices, found.numbers, seen, torch.zeros_like(found.numbers))
    _, counts = labels_of(settled, sight.front, sight.signals, classes=2, factor=1.0, most=6)
    assert counts.tolist() == [0] * 6
    once = replace(settled, seen=seen * 1e-30)
    labels, counts = labels_of(once, sight.front, sight.signals, classes=2, factor=1.0, most=6)
    assert counts.tolist() == [1] * 6 and labels.tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("name", sorted(set(ATTACKS) - {"adaptive"}))
def test_embeddings_of_categories_end_no_audit(name: str) -> None:
    """An attack that cannot work on them says so: a traceback of its check would end the whole audit."""
    with contextlib.suppress(SeepageError):
        ATTACKS[name]().check(network("embedding"), Knowledge(input=SPEC, local=LocalTraining()))


def test_where_restarts_disagree_the_commonest_category_is_given() -> None:
    """Known answer: three restarts of two rows; only the first row's category is agreed on."""
    groups, shares = ((0, 1, 2),), torch.tensor([0.6, 0.3, 0.1, 0.0])
    table = torch.eye(3)[torch.tensor([[2, 2], [2, 1], [2, 0]])]  # (restarts, rows, categories)
    number = torch.tensor([1.0, 9.0]).expand(3, 2)[..., None]
    restarts = torch.cat([table, number], dim=2)
    rows, count = guess_where_unsure(
        restarts[0], restarts, torch.zeros(3, 2), groups, best=0, unit=1.0, shares=shares
    )
    assert count == 1 and rows[:, :3].argmax(1).tolist() == [2, 0]
    assert torch.equal(rows[:, 3], restarts[0][:, 3])  # numbers stay


def test_a_number_that_restarts_disagree_on_is_the_columns_commonest() -> None:
    """Three restarts, one number: all agree in the first row, none in the second."""
    restarts = torch.tensor([[[1.0], [2.0]], [[1.0], [-1.0]], [[1.0], [0.4]]])
    raw = torch.tensor([[10.0], [20.0]])
    found, count = guess_where_unsure(
        raw,
        restarts,
        torch.tensor([[0, 1]] * 3),
        (),
        best=0,
        unit=1.0,
        shares=torch.tensor([0.6]),
        typical=torch.tensor([7.0]),
    )
    assert found.tolist() == [[10.0], [7.0]] and count == 1
    kept, none = guess_where_unsure(
        raw,
        restarts,
        torch.tensor([[0, 1]] * 3),
        (),
        best=0,
        unit=1.0,
        shares=torch.tensor([0.0]),
        typical=torch.tensor([7.0]),
    )
    assert torch.equal(kept, raw) and none == 0  # nothing gives way to a value that nobody knows to be common


def test_the_commonest_values_come_from_public_rows_or_from_mean_and_spread() -> None:
    spec = InputSpec(
        modality=Modality.TABULAR,
        shape=(4,),
        num_classes=2,
        value_range=None,
        categories=((0, 1),),
        mean=(0.3, 0.7, 2.0, 50.0),
        std=(0.5, 0.5, 8.0, 10.0),
    )
    public = torch.tensor([[1.0, 0.0, 0.0, 40.0], [0.0, 1.0, 0.0, 40.0], [0.0, 1.0, 9.0, 55.0]])
    told = Knowledge(input=spec, auxiliary=Batch(spec.to_model(public), torch.zeros(3).long()))
    found = usual_values(told)
    assert found is not None
    assert found.numbers[2:].tolist() == pytest.approx([0.0, 40.0])
    assert found.shares.tolist() == pytest.approx([1 / 3, 2 / 3, 2 / 3, 2 / 3])
    alone = usual_values(Knowledge(input=spec))
    assert alone is not None and alone.shares.tolist() == pytest.approx([0.3, 0.7, 64 / 68, 0.0])
    assert usual_values(Knowledge(input=replace(spec, mean=None, std=None))) is None

"""A candidate counts for the clients it was read from, and for nobody else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import t as student
from sklearn.datasets import load_digits
from torch import Tensor, nn

from seepage.attacks.base import Attack, PerUpdateAttack
from seepage.attacks.prior_only import PriorOnly
from seepage.core.errors import DataError
from seepage.core.types import (
    Batch,
    Broadcast,
    Crafted,
    Exchange,
    Grant,
    InputSpec,
    Knowledge,
    Modality,
    Reconstruction,
    RowCount,
    Update,
    UpdateKind,
)
from seepage.engine import pairing
from seepage.engine.pairing import _free_or_assigned, pair
from seepage.engine.rating import read_text
from seepage.engine.scoring import Scored, score
from seepage.engine.views import Views
from seepage.metrics.assignment import best_pairs
from seepage.protocol import THREATS, Played, play

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=10)
MODEL = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
DIGITS = Batch(
    torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 16, torch.tensor(load_digits().target)
)
PUBLIC, PRIVATE = DIGITS.select(slice(0, 400)), DIGITS.select(slice(400, None))
KNOWN = Knowledge(input=SPEC, auxiliary=PUBLIC)


def silent(broadcast: Broadcast, batch: Batch) -> Update:
    """An update that says nothing at all."""
    tensors = {name: torch.zeros_like(p) for name, p in broadcast.model.named_parameters()}
    return Update(kind=UpdateKind.GRADIENT, tensors=tensors, num_examples=len(batch))


def drawn(clients: int, each: int, seed: int = 0) -> list[Batch]:
    """Every client's own draw of the private digits."""
    index = torch.randint(len(PRIVATE), (clients, each), generator=torch.Generator().manual_seed(seed))
    return [PRIVATE.select(one) for one in index]


def honest(rounds: Sequence[Sequence[Batch]], **options: object) -> Played:
    return play(
        None,
        MODEL,
        lambda number: rounds[number],
        step=silent,
        threat=THREATS["honest_but_curious"],
        max_rounds=len(rounds),
        **options,  # type: ignore[arg-type]
    )


def scored(result: Reconstruction, played: Played, spec: InputSpec = SPEC, public: Batch = PUBLIC) -> Scored:
    guesses = PriorOnly().run(played.exchanges, Knowledge(input=spec, auxiliary=public))
    return score(result, played, spec, guesses=guesses, public=public, honest=MODEL, tolerance=1e-3)


def exact_examples(found: Scored) -> list[int]:
    return [e.index for e in found.examples if e.scores["exact"] == 1]


class RandomDigits(PerUpdateAttack):
    """Looks at no update: as many public digits as there are examples, drawn at random."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def invert(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        assert known.auxiliary is not None and exchange.update.num_examples is not None
        index = torch.randint(len(known.auxiliary), (exchange.update.num_examples,), generator=self.generator)
        return Reconstruction(values=known.auxiliary.inputs[index])


def figures(clients: int, seeds: Sequence[int]) -> dict[tuple[str, str], np.ndarray]:
    """PSNR and SSIM of every example, of the attack (`scores`) and of the baseline beside it."""
    examples = []
    for seed in seeds:
        played = honest([drawn(clients, 2, seed)])
        examples += scored(RandomDigits(seed).run(played.exchanges, KNOWN), played).examples
    return {
        (whose, name): np.array([getattr(e, whose)[name] for e in examples])
        for whose in ("scores", "baseline")
        for name in ("psnr", "ssim")
    }


def test_a_score_without_content_does_not_rise_with_the_number_of_clients() -> None:
    """Pooled over clients, 100 of them lifted the SSIM of random digits from .08 to .43."""
    alone = figures(1, range(100))
    for clients, seeds in ((10, range(20)), (100, range(2)), (1000, range(1))):
        many = figures(clients, seeds)
        for which, values in many.items():
            error = np.hypot(*(part.std(ddof=1) / len(part) ** 0.5 for part in (alone[which], values)))
            # by chance one of the twelve comparisons would stray beyond this for 1 in 100 sets of seeds
            limit = error * student.ppf(1 - 0.01 / 24, len(alone[which]) - 1)
            assert abs(values.mean() - alone[which].mean()) < limit, (clients, which)


def test_somebody_elses_example_is_neither_exact_nor_a_right_claim() -> None:
    batches = drawn(2, 2)
    played = honest([batches])
    values = torch.cat([batches[1].inputs, batches[0].inputs])  # each client's examples named as the other's
    claims = {"claimed": torch.ones(4, dtype=torch.bool), "rows": RowCount(total=8, active=4)}
    swapped = scored(Reconstruction(values=values, source=torch.tensor([0, 0, 1, 1]), **claims), played)
    assert exact_examples(swapped) == []
    assert (swapped.claims, swapped.claims_right, swapped.claimed_examples) == (4, 0, 0)
    assert swapped.batch_scores["extraction_recall"] == swapped.batch_scores["extraction_precision_all"] == 0
    right = scored(Reconstruction(values=values, source=torch.tensor([1, 1, 0, 0]), **claims), played)
    assert exact_examples(right) == [0, 1, 2, 3]
    assert (right.claims, right.claims_right, right.claimed_examples) == (4, 4, 4)
    assert right.batch_scores["extraction_recall"] == 1
    assert right.batch_scores["extraction_precision_active"] == 1


def test_an_aggregate_pools_the_clients_that_are_in_it() -> None:
    batches = drawn(5, 2)
    played = honest([batches], aggregation="secure_sum", fakes=1, minimum_honest=2)
    assert [e.clients for e in played.exchanges] == [(0, 1), (2, 3, 4)]
    values = torch.cat([batch.inputs for batch in reversed(batches)])
    source = torch.tensor([1] * 6 + [0] * 4)
    assert exact_examples(scored(Reconstruction(values=values, source=source), played)) == list(range(10))
    assert exact_examples(scored(Reconstruction(values=values, source=1 - source), played)) == []


def test_rounds_with_the_same_examples_are_one_and_fresh_ones_are_not() -> None:
    same, other = drawn(1, 3, seed=1), drawn(1, 3, seed=2)
    values, late = same[0].inputs, torch.tensor([1, 0, 1])
    again = honest([same, same])
    assert exact_examples(scored(Reconstruction(values=values, source=late), again)) == [0, 1, 2]
    assert exact_examples(scored(Reconstruction(values=values), again)) == [0, 1, 2]
    each = Reconstruction(values=values, source=torch.tensor([2, 0, 1]))
    assert exact_examples(scored(each, honest([same, same, same]))) == [0, 1, 2]
    fresh = honest([same, other])
    assert exact_examples(scored(Reconstruction(values=values, source=late), fresh)) == [1]
    with pytest.raises(DataError) as refused:
        scored(Reconstruction(values=values), fresh)
    assert str(refused.value) == (
        "the attack does not say from which of 2 exchanges its candidates were read, and not all of them "
        "have the same examples behind them: give `source`, the index of each one's exchange."
    )


def overlapping(batches: Sequence[Batch], *, alone: int = 1) -> Played:
    """Two rounds: both clients in one aggregate, and the second alone in round `alone`."""

    def craft(model: nn.Module, history: Sequence[Exchange]) -> Crafted | None:
        return Crafted(model, clients=(1,) if len(history) == alone else None)

    threat = THREATS["malicious_server"]
    return play(
        craft,
        MODEL,
        lambda _: batches,
        step=silent,
        threat=replace(threat, grants=threat.grants - {Grant.INDIVIDUAL_UPDATES}),
        aggregation="mean",
        max_rounds=2,
    )


def test_where_exchanges_overlap_a_candidate_stays_within_its_own() -> None:
    """The second client's example may be shown by either exchange, but once."""
    batches = drawn(2, 1)
    played = overlapping(batches)
    assert [rows.tolist() for rows in played.behind] == [[0, 1], [1]]
    first, second = (batch.inputs for batch in batches)
    # named for the second client alone, the first one's digit fits nothing exactly, and takes nothing away
    both = Reconstruction(values=torch.cat([first, second]), source=torch.tensor([1, 0]))
    found = pair(both, both.values, Views(played, SPEC, "input", 1e-3))
    assert found.candidate.tolist() == [-1, 1] and found.exact.tolist() == [False, True]
    assert found.right.tolist() == [False, True] and found.exchange.tolist() == [0, 0]
    fits = Reconstruction(values=torch.cat([first, second]), source=torch.tensor([0, 1]))
    found = pair(fits, fits.values, Views(played, SPEC, "input", 1e-3))
    assert found.candidate.tolist() == [0, 1] and found.exchange.tolist() == [0, 1]


def test_a_hundred_clients_are_a_hundred_small_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(errors: np.ndarray, **options: object) -> tuple[np.ndarray, np.ndarray]:
        sizes.append(errors.size)
        return best_pairs(errors, **options)  # type: ignore[arg-type]

    best_pairs = pairing.best_pairs
    monkeypatch.setattr(pairing, "best_pairs", counted)
    played = honest([drawn(100, 2)])
    result = RandomDigits(0).run(played.exchanges, KNOWN)
    pair(result, result.values, Views(played, SPEC, "input", 1e-3))
    assert sizes == [4] * 100


@pytest.mark.parametrize("clients", [1, 2])
def test_where_nothing_was_found_every_example_is_compared_in_the_first_exchange(clients: int) -> None:
    nothing = Reconstruction(values=PRIVATE.inputs[:0])
    found = pair(nothing, nothing.values, Views(honest([drawn(clients, 2)]), SPEC, "input", 1e-3))
    assert found.candidate.tolist() == [-1] * 2 * clients and not found.recovered.any()
    assert found.exchange.tolist() == [0] * 2 * clients
    assert found.claimed_examples == 0 and not found.exact.any() and not found.held.any()


def test_of_equal_candidates_the_first_of_an_exchange_is_named() -> None:
    """On every machine, however it sorts a few hundred of them."""
    batches = drawn(2, 1)
    source = torch.arange(400) % 2
    values = torch.cat([batch.inputs for batch in batches])[source]
    found = pair(
        Reconstruction(values=values, source=source), values, Views(honest([batches]), SPEC, "input", 1e-3)
    )
    assert found.candidate.tolist() == [0, 1] and found.right.all()


def layered(scale: float) -> nn.Module:
    torch.manual_seed(2)  # with some weights all six features of a digit are 0, and have no relative error
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))
    with torch.no_grad():
        model[1].weight.mul_(scale)
    return model


def test_features_are_those_of_the_model_that_was_sent() -> None:
    """Two rounds with other weights: the same example reaches the layer as something else."""
    models, batches = [layered(1.0), layered(-30.0)], drawn(2, 3)
    played = play(
        lambda model, history: Crafted(models[len(history) // 2]),
        models[0],
        lambda _: batches,
        step=silent,
        threat=THREATS["malicious_server"],
        max_rounds=2,
    )
    reaching = [[model[:3](batch.inputs).detach() for batch in batches] for model in models]
    # the first client's features come from round 0, the second one's from round 1
    values, source = torch.cat([reaching[0][0], reaching[1][1]]), torch.tensor([0, 0, 0, 3, 3, 3])
    found = scored(Reconstruction(values=values, space="3", source=source), played)
    assert exact_examples(found) == list(range(6))
    torch.testing.assert_close(found.truth, values)
    means = [model[:3](PUBLIC.inputs).mean(0).detach() for model in models]
    for i, example in enumerate(found.examples):
        expected = (means[i // 3] - values[i]).norm() / values[i].norm()
        assert example.baseline["relative_error"] == pytest.approx(float(expected), rel=1e-4)
    crossed = scored(
        Reconstruction(values=values, space="3", source=torch.tensor([2, 2, 2, 1, 1, 1])), played
    )
    assert exact_examples(crossed) == []


def test_an_example_that_is_claimed_twice_counts_once() -> None:
    batch = drawn(1, 3)
    values = batch[0].inputs[[0, 0, 1, 1, 1]]
    claimed = torch.tensor([True, True, True, False, True])
    found = scored(Reconstruction(values=values, claimed=claimed), honest([batch]))
    assert (found.claims, found.claims_right, found.claimed_examples) == (4, 4, 2)
    assert len(exact_examples(found)) == 2
    twins = [Batch(batch[0].inputs[[0, 0, 1]], batch[0].labels)]  # one claim cannot be two examples
    once = Reconstruction(values=values[:1], claimed=claimed[:1])
    found = scored(once, honest([twins]))
    assert (found.claims_right, found.claimed_examples, len(exact_examples(found))) == (1, 1, 1)


@pytest.mark.parametrize("seed", range(20))
def test_exact_examples_are_never_fewer_than_the_claimed_ones(seed: int) -> None:
    """Mixtures that are nearer on the whole must not take an exact copy's place."""
    generator = torch.Generator().manual_seed(seed)
    batches = drawn(3, 6, seed)
    values, source = [], []
    for client, batch in enumerate(batches):
        weights = torch.rand(8, 6, generator=generator).softmax(1)
        mixed = (weights @ batch.inputs.flatten(1)).reshape(8, 1, 8, 8)
        copies = batch.inputs[torch.randint(6, (4,), generator=generator)]
        values += [mixed, copies]
        source += [client] * 12
    claimed = (torch.arange(36) % 12) >= 8
    result = Reconstruction(values=torch.cat(values), source=torch.tensor(source), claimed=claimed)
    found = scored(result, honest([batches]))
    assert found.claims_right == found.claims == 12
    assert len(exact_examples(found)) >= found.claimed_examples > 0


def test_a_diverged_feature_does_not_upset_the_others() -> None:
    model, batches = layered(1.0), drawn(1, 3)
    played = play(
        None, model, lambda _: batches, step=silent, threat=THREATS["honest_but_curious"], max_rounds=1
    )
    right = model[:3](batches[0].inputs).detach().double()
    values = torch.cat([torch.full((1, 6), 1e300, dtype=torch.float64), right[:2] + 0.01 * right.max()])
    found = scored(Reconstruction(values=values, space="3"), played)
    assert [e.recovered for e in found.examples] == [True] * 3
    torch.testing.assert_close(found.matched[:2], values[1:].float())


class Answering(Attack):
    """Returns what it is given."""

    def __init__(self, result: Reconstruction) -> None:
        self.result = result

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        return self.result


def digits(k: int, **fields: object) -> Callable[[], Reconstruction]:
    return lambda: Reconstruction(values=PUBLIC.inputs[:k], **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (digits(4), "does not say from which of 2 exchanges with different clients"),
        (digits(4, source=torch.zeros(4)), "float32: give whole numbers"),
        (digits(4, source=torch.zeros(4, dtype=torch.bool)), "bool: give whole numbers"),
        (digits(4, source=torch.tensor([0, 1, 2, 0])), "names exchanges 0 to 2, but there are 2"),
        (digits(4, source=torch.tensor([0, -1, 1, 0])), "names exchanges -1 to 1, but there are 2"),
        (digits(4, source=torch.tensor([0, 1])), "'source' has shape"),
        (digits(4, source=torch.zeros(4, 1, dtype=torch.long)), "'source' has shape"),
        (digits(2, shared=True, source=torch.tensor([0, 1])), "shared by all exchanges"),
        (digits(2, shared=True, claimed=torch.tensor([True, False])), "shared by all exchanges"),
        (digits(2, shared=True, rows=RowCount(total=2, active=2)), "shared by all exchanges"),
    ],
)
def test_candidates_of_several_clients_must_name_their_exchange(
    answer: Callable[[], Reconstruction], reason: str
) -> None:
    exchanges = honest([drawn(2, 2)]).exchanges
    with pytest.raises(DataError, match=reason):
        Answering(answer()).run(exchanges, KNOWN)


def test_nothing_found_and_one_client_need_no_source() -> None:
    two, one = honest([drawn(2, 2)]).exchanges, honest([drawn(1, 2)] * 2).exchanges
    assert len(Answering(digits(0)()).run(two, KNOWN)) == 0
    assert len(Answering(digits(3)()).run(one, KNOWN)) == 3
    assert Answering(digits(3, shared=True)()).run(two, KNOWN).shared


def test_guesses_without_an_update_are_offered_to_each_exchange() -> None:
    """Both clients hold a public digit: the one guess that is right counts for each of them."""
    digit = Batch(PUBLIC.inputs[:1], PUBLIC.labels[:1])
    played = honest([[digit, Batch(digit.inputs.clone(), digit.labels)]])
    guesses = PriorOnly(samples=8).run(played.exchanges, KNOWN)
    assert len(guesses) == 9  # the mean once for the one example of each exchange, and 8 samples
    found = scored(guesses, played)
    assert [e.scores["exact"] for e in found.examples] == [1, 1]
    assert [e.baseline["exact"] for e in found.examples] == [1, 1]


def test_each_example_of_an_exchange_may_be_guessed_as_the_mean() -> None:
    mean = PUBLIC.inputs.mean(0)
    near: Tensor = mean + 0.01 * torch.arange(1, 4).reshape(3, 1, 1, 1)
    played = honest([[Batch(near, torch.arange(3))]])
    found = scored(PriorOnly(samples=0).run(played.exchanges, KNOWN), played)
    assert [e.recovered for e in found.examples] == [True] * 3
    torch.testing.assert_close(found.matched, mean.expand(3, 1, 8, 8))


def test_a_grey_example_that_nobody_found_is_not_exact() -> None:
    """It is scored by the flat guess, which happens to be right."""
    grey = Batch(torch.full((2, 1, 8, 8), 0.5), torch.arange(2))
    found = scored(Reconstruction(values=grey.inputs[:1]), honest([[grey]]))
    assert sorted(e.recovered for e in found.examples) == [False, True]
    assert [e.scores["psnr"] for e in found.examples] == [100, 100]
    assert [e.scores["exact"] for e in found.examples] == [float(e.recovered) for e in found.examples]


def test_candidates_are_held_to_the_value_range_and_to_raw_units() -> None:
    spec = replace(SPEC, mean=(0.25,), std=(0.5,))
    black = Batch(spec.to_model(torch.zeros(1, 1, 8, 8)), torch.zeros(1, dtype=torch.long))
    played = honest([[black]])
    below = Reconstruction(values=torch.full((1, 1, 8, 8), -7.0))
    assert exact_examples(scored(below, played, spec)) == [0]
    assert exact_examples(scored(Reconstruction(values=black.inputs + 0.1), played, spec)) == [0]
    same = Reconstruction(values=black.inputs + 0.1, model_units=True)  # 0.05 in raw units
    assert exact_examples(scored(same, played, spec)) == []


@pytest.mark.parametrize("alone", [0, 1])
def test_of_several_exchanges_a_guess_counts_where_it_is_exact(alone: int) -> None:
    """Beside the first client the second one's example has to take the other guess: nearer in the mean, but a
    pixel is off. Alone it takes the exact one."""
    grey = torch.full((1, 1, 8, 8), 0.5)
    shifted, spotted = grey + 9e-4, grey.clone()
    spotted[0, 0, 0, 0] += 2e-3
    batches = [Batch(values, torch.zeros(1, dtype=torch.long)) for values in (shifted, grey)]
    guesses = Reconstruction(values=torch.cat([shifted, spotted]), shared=True)
    found = pair(guesses, guesses.values, Views(overlapping(batches, alone=alone), SPEC, "input", 1e-3))
    assert found.exact.tolist() == [True, True]
    assert found.candidate.tolist() == [0, 0] and found.exchange.tolist() == [0, 1]
    assert found.right.tolist() == [True, False] and found.held.tolist() == [True, True]


def test_of_exchanges_that_serve_alike_the_first_is_named() -> None:
    batches = drawn(2, 1)
    guesses = Reconstruction(values=torch.cat([batch.inputs for batch in batches]), shared=True)
    found = pair(guesses, guesses.values, Views(overlapping(batches), SPEC, "input", 1e-3))
    assert found.exact.tolist() == [True, True] and found.exchange.tolist() == [0, 0]


def test_a_single_guess_is_offered_to_each_exchange_and_no_guess_to_none() -> None:
    batches = drawn(2, 1)
    views = Views(honest([batches]), SPEC, "input", 1e-3)
    one = Reconstruction(values=batches[1].inputs, shared=True)
    found = pair(one, one.values, views)
    assert found.candidate.tolist() == [0, 0] and found.exact.tolist() == [False, True]
    assert found.right.tolist() == [True] and found.held.tolist() == [False, True]
    none = Reconstruction(values=batches[1].inputs[:0], shared=True)
    found = pair(none, none.values, views)
    assert found.candidate.tolist() == [-1, -1] and found.right.tolist() == []
    assert found.exchange.tolist() == [0, 1]  # each is compared where it is behind


@pytest.mark.parametrize("shown", [0, 1])
@pytest.mark.parametrize("alone", [False, True])
def test_a_shared_guess_about_features_counts_for_every_model_that_was_sent(shown: int, alone: bool) -> None:
    """Two rounds, each with a model of its own, and guesses that are what one of them shows: exact there, and
    not undone by the other round. `alone`: the second client is in the second round by itself."""
    models, batches = [layered(1.0), layered(-30.0)], drawn(2, 1)
    threat = THREATS["malicious_server"]
    played = play(
        lambda model, history: Crafted(models[len(history)], clients=(1,) if alone and history else None),
        models[0],
        lambda _: batches,
        step=silent,
        threat=replace(threat, grants=threat.grants - {Grant.INDIVIDUAL_UPDATES}),
        aggregation="mean",
        max_rounds=2,
    )
    values = torch.cat([models[shown][:3](batch.inputs) for batch in batches]).detach()
    found = pair(
        Reconstruction(values=values, space="3", shared=True), values, Views(played, SPEC, "3", 1e-3)
    )
    seen = [not (alone and shown), True]
    assert found.exact.tolist() == found.held.tolist() == found.right.tolist() == seen
    assert found.candidate[1] == 1 and found.exchange[1] == shown


def test_an_example_without_a_candidate_is_claimed_by_nobody() -> None:
    batches = drawn(1, 3)
    result = Reconstruction(values=batches[0].inputs[:1], claimed=torch.tensor([True]))
    found = scored(result, honest([batches]))
    assert (
        [e.claimed for e in found.examples] == [e.recovered for e in found.examples] == [True, False, False]
    )


def test_columns_of_rows_that_nobody_found_are_not_right() -> None:
    """The flat guess stands in for such a row, and is right here. In no public row is every column right, but
    in every column the most common public value is."""
    spec = InputSpec(
        modality=Modality.TABULAR, shape=(64,), num_classes=10, value_range=(0.0, 1.0), spread=(1.0,) * 64
    )
    rows = Batch(torch.full((3, 64), 0.5), torch.tensor([0, 2, 2]))
    public = Batch(0.5 * (torch.arange(64) % 4 != torch.arange(4)[:, None]), torch.arange(4))
    found = scored(Reconstruction(values=rows.inputs[:1]), honest([[rows]]), spec, public)
    assert [(column.right, column.guessed, column.examples) for column in found.columns] == [(1, 3, 3)] * 64
    assert found.true_label_counts.tolist() == [1, 0, 2] + [0] * 7


def test_a_grey_example_that_nobody_guessed_is_no_exact_guess() -> None:
    grey = Batch(torch.full((1, 1, 8, 8), 0.5), torch.zeros(1, dtype=torch.long))
    nothing = Reconstruction(values=grey.inputs[:0], shared=True)
    found = score(
        Reconstruction(values=grey.inputs),
        honest([[grey]]),
        SPEC,
        guesses=nothing,
        public=None,
        honest=MODEL,
        tolerance=1e-3,
    )
    assert [(e.scores["exact"], e.baseline["exact"], e.baseline["psnr"]) for e in found.examples] == [
        (1, 0, 100)
    ]


@pytest.mark.parametrize("public", [None, PUBLIC.select(slice(0, 0)), PUBLIC.select(slice(0, 1)), PUBLIC])
def test_features_are_guessed_as_the_mean_public_one_or_as_zero(public: Batch | None) -> None:
    model, batch = layered(1.0), PUBLIC.select(slice(0, 1))
    played = play(
        None, model, lambda _: [batch], step=silent, threat=THREATS["honest_but_curious"], max_rounds=1
    )
    own = model[:3](batch.inputs).detach()
    guess = model[:3](public.inputs).mean(0).detach() if public is not None and len(public) else 0 * own
    found = score(
        Reconstruction(values=own, space="3"),
        played,
        SPEC,
        guesses=PriorOnly().run(played.exchanges, KNOWN),
        public=public,
        honest=model,
        tolerance=1e-3,
    )
    (example,) = found.examples
    expected = float((guess - own).norm() / own.norm())
    assert example.baseline["relative_error"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert example.baseline["exact"] == float(expected < 1e-6)  # of the one public example itself


def test_texts_are_kept_beside_their_reconstruction() -> None:
    spec = InputSpec(
        modality=Modality.TEXT, shape=(3,), num_classes=10, value_range=None, tokens=("<pad>", "a", "bee")
    )
    model = nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Linear(6, 10))
    batch = Batch(torch.tensor([[1, 2, 0], [2, 2, 1]]), torch.arange(2))
    played = play(
        None, model, lambda _: [batch], step=silent, threat=THREATS["honest_but_curious"], max_rounds=1
    )
    result = Reconstruction(values=torch.tensor([[2, 2, 2]]))
    found = score(result, played, spec, guesses=result, public=None, honest=model, tolerance=1e-3)
    assert [(e.truth_text, e.reconstruction_text) for e in found.examples] == [
        ("a bee", None),
        ("bee bee a", "bee bee bee"),
    ]
    assert found.columns == ()


def test_token_ids_are_read_as_words() -> None:
    spec = InputSpec(modality=Modality.TEXT, shape=(5,), num_classes=2, tokens=("<pad>", "a", "bee", "sea"))
    assert read_text(torch.tensor([3, 1, 0, 4, 9]), spec) == "sea a #4 #9"  # 0 is padding, 4 has no word


def test_one_guess_without_a_limit_stands_for_as_many_copies_as_there_are_examples() -> None:
    """Against the assignment with the copies written out: as many exact pairs, and the same total error."""
    rng = np.random.default_rng(7)
    for _ in range(200):
        samples, n = rng.integers(0, 6), rng.integers(1, 7)
        errors = rng.choice([0.0, 0.1, 0.4, 1.0, 3.0], (samples + 1, n)) + 1e-3 * rng.random((samples + 1, n))
        exact = (errors < 0.05) & (rng.random(errors.shape) < 0.6)
        written_out = [np.concatenate([np.repeat(part[:1], n, 0), part[1:]]) for part in (errors, exact)]
        rows, columns = best_pairs(written_out[0], exact=written_out[1])
        chosen, every = _free_or_assigned(errors, exact, 1)
        assert every.tolist() == list(range(n))
        limited = chosen[chosen > 0].tolist()
        assert len(limited) == len(set(limited))
        assert exact[chosen, every].sum() == written_out[1][rows, columns].sum()
        assert errors[chosen, every].sum() == pytest.approx(written_out[0][rows, columns].sum())


def test_a_large_exchange_is_guessed_without_copies_of_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    played = honest([[Batch(PUBLIC.inputs[:5] + 0.02, PUBLIC.labels[:5])]])
    written_out = scored(PriorOnly(samples=3).run(played.exchanges, KNOWN), played)
    monkeypatch.setattr("seepage.attacks.prior_only.MOST_COPIES", 4)
    guesses = PriorOnly(samples=3).run(played.exchanges, KNOWN)
    assert len(guesses) == 4 and guesses.unlimited == 1
    found = scored(guesses, played)
    assert [e.scores for e in found.examples] == [e.scores for e in written_out.examples]

"""The tables on trap weights in small, against activations counted directly."""

import pytest
import torch

from seepage.federation import aggregate, client, draw_clients
from seepage.papers import (
    boenisch2021_section84,
    boenisch2021_table3,
    boenisch2021_table5,
    boenisch2021_table6,
    boenisch2021_table9,
)
from seepage.papers.extraction import Source
from seepage.papers.trapping import draw_batch, fresh_model, set_traps, trap_extraction
from seepage.types import Broadcast, InputSpec, Modality
from seepage.workloads.data import Dataset, load_data

DIGITS = Source("MNIST", "digits", ({},))
SMALL = {"width": 60, "hidden": (20,)}


def counted(fires: torch.Tensor, examples: int | None = None) -> dict[str, float]:
    """Section 8.1's scores from an activation pattern (examples, neurons), by counting alone."""
    users = [sum(column) for column in zip(*fires.tolist(), strict=True)]
    alone = [k for k, n in enumerate(users) if n == 1]
    active = sum(n > 0 for n in users)
    found = {i for i, row in enumerate(fires.tolist()) for k in alone if row[k]}
    return {
        "A": active / len(users),
        "P": len(alone) / active,
        "P all": len(alone) / len(users),
        "R": len(found) / (examples or len(fires)),
    }


def section_8_1(scores: dict[str, float]) -> dict[str, float]:
    """Without the R of kept batches."""
    return {name: scores[name] for name in ("A", "P", "P all", "R")}


def pattern(dataset: Dataset, batch, scale: float, seed: int) -> torch.Tensor:
    model = fresh_model(dataset.spec, seed=seed, **SMALL)
    layer = set_traps(model, dataset.spec, scale=scale, seed=seed).model.dense0
    with torch.no_grad():
        return layer(batch.inputs.flatten(1)) > 0


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_data("digits")


@pytest.fixture(scope="module")
def reviews() -> Dataset:
    """40 made-up texts of 6 tokens."""
    generator = torch.Generator().manual_seed(0)
    spec = InputSpec(modality=Modality.TEXT, shape=(6,), num_classes=2, vocabulary=50, value_range=None)
    tokens = torch.randint(2, 50, (40, 6), generator=generator)
    return Dataset("made up", tokens, torch.arange(40) % 2, spec, "drawn at random")


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("scale", [0.6, 0.8])
def test_a_run_with_traps_is_what_counting_activations_gives(digits, scale, seed):
    fires = pattern(digits, draw_batch(digits, 12, seed), scale, seed)
    expected = counted(fires)
    assert 0 < expected["R"] < 1  # otherwise this would compare nothing
    assert section_8_1(trap_extraction(digits, scale, seed, batch_size=12, **SMALL)) == pytest.approx(
        expected
    )


def test_the_network_behind_the_traps_does_not_matter(digits):
    """What the notes say: one short layer gives the figures of Table 7's whole network."""
    short = trap_extraction(digits, 0.7, 0, batch_size=30, width=200, hidden=(200,))
    whole = trap_extraction(digits, 0.7, 0, batch_size=30, width=200, hidden=(3000, 3000, 2000, 1000))
    assert 0 < short["R"] < 1
    assert short == whole


def test_table_5_has_a_row_for_each_scale_and_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr(boenisch2021_table5, "SOURCES", (DIGITS,))
    settings = {"scales": (0.7, 0.9), "batch_size": 12, **SMALL}
    table = boenisch2021_table5.run(seeds=2, out=tmp_path, quiet=True, **settings)
    assert [row.label for row in table.rows] == ["s = 0.700", "s = 0.900"]
    figures = table.rows[0].figures
    assert [figures[name].paper for name in "APR"] == [0.796, 0.203, 0.540]

    def never(*_args, **_kwargs):
        raise AssertionError("a kept row was computed again")

    # The measuring itself is part of a row's key, so what calls it is replaced.
    monkeypatch.setattr("seepage.papers.rows._measure", never)
    assert boenisch2021_table5.run(seeds=2, out=tmp_path, quiet=True, **settings).rows == table.rows


def test_photographs_get_the_scale_of_their_size(tmp_path, monkeypatch):
    """(1 - s) sqrt(d) is kept, and scales without a counterpart are named and not run."""
    monkeypatch.setattr(boenisch2021_table5, "SOURCES", (Source("ImageNet", "photos", ({"size": 64},)),))
    here = boenisch2021_table5.scale_here("ImageNet", 0.99)
    assert (1 - here) * 64 == pytest.approx((1 - 0.99) * 224)
    table = boenisch2021_table5.run(
        seeds=1, out=tmp_path, quiet=True, scales=(0.7, 0.99), batch_size=5, width=20, hidden=(5,)
    )
    assert [row.label for row in table.rows] == ["s = 0.990 (0.9650 here)"]
    assert table.missing[0].startswith("ImageNet, s = 0.7:")


def test_table_6_pairs_sizes_with_the_published_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(boenisch2021_table6, "SOURCES", (DIGITS,))
    table = boenisch2021_table6.run(
        seeds=1, out=tmp_path, quiet=True, neurons=(200, 500), batch_sizes=(20, 30), hidden=(20,)
    )
    assert [row.label for row in table.rows] == [f"N = {n}, B = {b}" for n in (200, 500) for b in (20, 30)]
    assert table.rows[2].figures["R"].paper == 0.915
    assert table.rows[3].figures["R"].paper is None  # the paper has no B = 30
    more, fewer = table.rows[2].figures["R"].mean, table.rows[0].figures["R"].mean
    assert more > fewer


@pytest.mark.parametrize("seed", [0, 1])
def test_an_average_activates_what_any_of_its_batches_does(digits, seed):
    batches = boenisch2021_table9.mini_batches(digits, (6, 3), seed)
    fires = [pattern(digits, batch, 0.7, seed) for batch in batches]
    settings = {"scale": 0.7, **SMALL}
    mean = boenisch2021_table9.averaged(digits, (6, 3), seed, **settings)
    assert mean == pytest.approx(counted(torch.cat(fires)))
    one = boenisch2021_table9.one_against_all(digits, (6, 3), seed, **settings)
    assert one == pytest.approx(counted(fires[-1], examples=18))
    assert mean["A"] > one["A"]


def test_both_readings_of_table_9_agree_on_a_single_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(boenisch2021_table9, "SOURCES", (DIGITS,))
    table = boenisch2021_table9.run(seeds=2, out=tmp_path, quiet=True, sizes=((20, 1), (20, 5)), **SMALL)
    first, averaged, second, one = table.rows
    assert first.figures == second.figures
    assert averaged.figures["A"].mean > one.figures["A"].mean
    assert [row.figures["R"].paper for row in table.rows] == [0.995, 0.190] * 2


@pytest.mark.parametrize("scale", [None, 0.9])
def test_reviews_are_read_where_one_alone_fires_a_neuron(reviews, scale):
    sizes = {"dim": 8, "width": 60}
    model = boenisch2021_table3.text_model(reviews.spec, seed=1, **sizes)
    if scale is not None:
        model = set_traps(model, reviews.spec, scale=scale, seed=1).model
    batch = draw_batch(reviews, 8, 1)
    with torch.no_grad():
        fires = model.dense0(model.embedding(batch.inputs).flatten(1)) > 0
    expected = counted(fires)
    assert 0 < expected["R"] <= 1
    assert float(model.embedding.weight.detach().min()) >= 0
    scores = boenisch2021_table3.measure(reviews, scale, 1, batch_size=8, **sizes)
    assert section_8_1(scores) == pytest.approx(expected)


def test_a_server_reads_each_user_and_the_average_hides_them(digits):
    """Users' own updates give what counting gives; the average of all gives less of each."""
    opened = boenisch2021_section84.open_round(digits.spec, 0.7, **SMALL)
    with torch.no_grad():
        layer = opened.sent.model.dense0
        drawn = draw_clients(digits.labels, clients=4, examples_each=12, seed=0)  # nobody shares an example
        batches = [digits.batch(mine) for mine in drawn]
        fires = [layer(batch.inputs.flatten(1)) > 0 for batch in batches]
    single = [boenisch2021_section84.one_user(opened, batches.__getitem__, user) for user in range(4)]
    assert single == [pytest.approx(counted(each)) for each in fires]
    everyone = counted(torch.cat(fires))
    hidden = [
        boenisch2021_section84.one_user_in_average(opened, batches.__getitem__, 4, user) for user in range(4)
    ]
    assert hidden[0]["A"] == pytest.approx(everyone["A"])
    assert sum(h["R"] for h in hidden) / 4 == pytest.approx(everyone["R"])
    assert everyone["R"] < sum(s["R"] for s in single) / 4


def test_the_running_average_is_that_of_all_users(digits):
    opened = boenisch2021_section84.open_round(digits.spec, 0.7, **SMALL)
    batches = [draw_batch(digits, n, n) for n in (4, 7, 9)]
    for batch in batches:
        opened.serve(batch)
    sent = [client(opened.training)(Broadcast(opened.sent.model), batch) for batch in batches]
    together = aggregate(sent, "mean").tensors
    for name, tensor in opened.mean.tensors.items():
        assert torch.allclose(tensor, together[name], atol=1e-7)


def test_section_8_4_has_the_papers_scale_a_fitting_one_and_the_baseline(tmp_path, monkeypatch):
    title = "MNIST in place of EMNIST"
    monkeypatch.setattr(boenisch2021_section84, "SOURCES", (Source(title, "digits", ({},)),))
    table = boenisch2021_section84.run(seeds=3, out=tmp_path, quiet=True, batch_size=12, **SMALL)
    assert [row.label for row in table.rows] == [
        "traps, s = 0.99",
        "traps, s = 0.8",
        "no traps (baseline)",
        "traps, s = 0.8, weight deltas",
        "traps, s = 0.8, averaged first",
    ]
    assert [row.figures["R"].paper for row in table.rows] == [0.32, 0.32, 0.10, None, None]
    assert all(row.figures["R"].n == 3 for row in table.rows)


def test_published_values_are_complete():
    for values in boenisch2021_table5.PUBLISHED.values():
        assert len(values) == len(boenisch2021_table5.SCALES)
    pairs = len(boenisch2021_table6.NEURONS) * len(boenisch2021_table6.BATCH_SIZES)
    for values in boenisch2021_table6.PUBLISHED.values():
        assert len(values) == pairs
        # for every N: more examples activate more neurons, and fewer of them are alone
        for k in range(0, pairs, 4):
            active, _, recall = zip(*values[k : k + 4], strict=True)
            assert list(active) == sorted(active)
            assert list(recall) == sorted(recall, reverse=True)
    for values in boenisch2021_table3.PUBLISHED.values():
        assert len(values) == len(boenisch2021_table3.BATCH_SIZES)
    assert len(boenisch2021_table9.PUBLISHED) == 12
    for table in (boenisch2021_table5, boenisch2021_table6):
        assert {source.title for source in table.SOURCES} == set(table.PUBLISHED)
    assert {s.title for s in boenisch2021_section84.SOURCES} == set(boenisch2021_section84.PUBLISHED)

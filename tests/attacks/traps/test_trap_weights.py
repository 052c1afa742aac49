"""The attacks end to end on small worlds in which the answer can be counted by hand or by brute force."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from seepage.attacks.traps.crafted_extraction import CraftedExtraction, Secret, find_reader, read_bait
from seepage.attacks.traps.quantile_traps import quantile_traps
from seepage.attacks.traps.trap_weights import trap_weights
from seepage.attacks.traps.traps import lonely, peelable
from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Broadcast, Exchange, Grant, InputSpec, LocalTraining, Modality
from seepage.protocol import local_update

from .helpers import (
    activations,
    attack_clients,
    dense_net,
    found_examples,
    image_batch,
    image_spec,
    knowing,
)


@pytest.mark.parametrize("normalised", [False, True], ids=["raw", "normalised"])
@pytest.mark.parametrize(
    "attack",
    [trap_weights(scale=0.65, read="rows"), quantile_traps(batch_size=24, read="rows")],
    ids=["s", "q"],
)
def test_recall_is_the_brute_force_count_of_lonely_examples(
    attack: CraftedExtraction, normalised: bool
) -> None:
    spec = image_spec((1, 8, 8), normalised=normalised)
    batch = image_batch(spec, 24)
    result, played = attack_clients(attack, dense_net(spec, 80, 30), [batch], knowing(spec))
    expected = lonely(activations(played.exchanges[0].broadcast.model, "1", batch.inputs))
    assert 5 < int(expected.sum()) < 24
    truth = spec.to_raw(batch.inputs)
    assert torch.equal(found_examples(result.values, truth), expected)
    assert result.claimed is not None and int(result.claimed.sum()) == int(expected.sum())
    assert bool(found_examples(truth, result.values[result.claimed]).all())


def test_exactly_k_of_a_hand_built_batch_are_recoverable() -> None:
    """Neuron i fires for pixel i alone: three examples have a pixel of their own, two share theirs."""
    spec = image_spec((1, 2, 2), classes=3)
    model = dense_net(spec, 4)
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(4))
        model[1].bias.fill_(-0.5)
    raw = torch.full((5, 4), 0.1)
    for example, pixel in enumerate((0, 1, 2, 3, 3)):
        raw[example, pixel] = 0.9 - 0.05 * example
    batch = Batch(raw.view(5, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1]))
    # Four values say nothing against near copies of each; a loss that is a sum does not leave that open.
    for loss, claimed in (("cross_entropy", 0), ("cross_entropy_sum", 3)):
        sent = local_update(Broadcast(model), batch, LocalTraining(loss=loss))
        seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,), secret=Secret(layer="1"))
        result = read_bait(seen, replace(knowing(spec), loss=loss), find_reader("rows"))
        assert found_examples(result.values, batch.inputs).tolist() == [True, True, True, False, False]
        assert result.claimed is not None and int(result.claimed.sum()) == claimed


@pytest.mark.parametrize("hidden", [False, True])
def test_the_convolutional_net_gives_away_what_the_dense_net_does(hidden: bool) -> None:
    spec = image_spec((3, 6, 6), normalised=True)
    batch = image_batch(spec, 12)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 5, 5, padding=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(180, 60), nn.ReLU(), nn.Linear(60, 5),
    )  # fmt: skip
    attack = trap_weights(scale=0.85, hidden=hidden, read="rows")
    result, played = attack_clients(attack, model, [batch], knowing(spec))
    expected = lonely(activations(played.exchanges[0].broadcast.model, "5", batch.inputs))
    assert int(expected.sum()) > 4
    assert result.space == "input" and result.values.shape[1:] == (3, 6, 6)
    assert torch.equal(found_examples(result.values, spec.to_raw(batch.inputs)), expected)
    plain, _ = attack_clients(
        trap_weights(scale=0.85, read="rows"), dense_net(spec, 60), [batch], knowing(spec)
    )
    caught = found_examples(plain.values, spec.to_raw(batch.inputs))
    assert hidden or torch.equal(caught, expected)  # the same seed draws the same rows


def test_the_input_is_forwarded_to_a_later_wider_layer() -> None:
    spec = image_spec((1, 5, 5))
    batch = image_batch(spec, 20)
    model = dense_net(spec, 30, 200, 20)
    attack = trap_weights(scale=0.65, layer="3", hidden=True, read="rows")
    result, played = attack_clients(attack, model, [batch], knowing(spec))
    expected = lonely(activations(played.exchanges[0].broadcast.model, "3", batch.inputs))
    assert 5 < int(expected.sum()) < 20
    assert torch.equal(found_examples(result.values, batch.inputs), expected)
    assert result.rows is not None and result.rows.total == 200


def test_text_comes_back_as_sequences() -> None:
    spec = InputSpec(modality=Modality.TEXT, shape=(6,), num_classes=2, vocabulary=30, value_range=None)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(30, 8), nn.Flatten(), nn.Linear(48, 150), nn.ReLU(), nn.Linear(150, 1))
    generator = torch.Generator().manual_seed(3)
    batch = Batch(
        torch.randint(30, (16, 6), generator=generator), torch.randint(2, (16,), generator=generator)
    )
    known = knowing(spec, loss="binary_cross_entropy")
    result, played = attack_clients(trap_weights(scale=0.85, read="rows"), model, [batch], known)
    crafted = played.exchanges[0].broadcast.model
    table = crafted[0].weight.detach()
    assert 0 <= float(table.min()) < 0.02 and 0.98 < float(table.max()) <= 1
    expected = lonely(activations(crafted, "2", batch.inputs))
    assert 4 < int(expected.sum()) < 16
    assert result.claimed is not None
    assert torch.equal(found_examples(result.values[result.claimed], batch.inputs, tolerance=0), expected)
    # A row that one example dominates still reads as its tokens, beyond what neurons of their own show.
    assert bool(found_examples(result.values, batch.inputs, tolerance=0)[expected].all())


def test_only_the_chosen_layer_changes_and_the_model_itself_does_not() -> None:
    spec = image_spec((1, 6, 6))
    model = dense_net(spec, 30, 20)
    before = {name: p.clone() for name, p in model.named_parameters()}
    crafted = trap_weights(scale=0.9, read="rows").craft(model, (), knowing(spec))
    assert crafted is not None
    changed = {n for n, p in crafted.model.named_parameters() if not torch.equal(p, before[n])}
    assert changed == {"1.weight", "1.bias"}
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert [type(m) for m in crafted.model] == [type(m) for m in model]


def test_the_scale_is_tuned_on_public_examples_only() -> None:
    spec = image_spec((1, 8, 8))
    model, batch = dense_net(spec, 100), image_batch(spec, 30, sparse=True)
    public = image_batch(spec, 30, seed=7, sparse=True)
    tuned, _ = attack_clients(trap_weights(read="rows"), model, [batch], knowing(spec, auxiliary=public))
    default, _ = attack_clients(trap_weights(scale=0.99, read="rows"), model, [batch], knowing(spec))
    recall = [int(found_examples(r.values, batch.inputs).sum()) for r in (tuned, default)]
    assert recall[0] > recall[1]
    assert "tuned on auxiliary examples" in " ".join(tuned.notes)


def test_the_scale_is_tuned_over_rounds_from_what_gradients_show() -> None:
    spec = image_spec((1, 8, 8))
    model, batch = dense_net(spec, 100), image_batch(spec, 30, sparse=True)
    attack = trap_weights(tuning_rounds=4, read="rows")
    assert Grant.SEVERAL_ROUNDS in attack.requires
    result, played = attack_clients(attack, model, [batch], knowing(spec))
    scales = [e.secret.scale for e in played.exchanges]
    assert played.rounds == 4 and len(set(scales)) == 4
    last: Secret = played.exchanges[-1].secret
    for trial, exchange in zip(last.tried, played.exchanges, strict=False):
        fired = activations(exchange.broadcast.model, "1", batch.inputs)
        assert trial.active == pytest.approx(float(fired.any(dim=0).float().mean()))
        alone = int(lonely(fired).sum())
        assert trial.found == alone or (trial.found == 0 and alone == 1)  # one of 64 values proves too little
    assert result.source is not None and set(result.source.tolist()) <= {0, 1, 2, 3}
    # The same batch in every round: what several rounds show is reported once.
    assert result.claimed is not None and result.label_counts is None
    claimed = result.values[result.claimed]
    assert int(found_examples(claimed, batch.inputs).sum()) == len(claimed) > trial.found


def test_some_rounds_and_some_clients_only() -> None:
    spec = image_spec((1, 6, 6))
    batches = [image_batch(spec, 8, seed=s) for s in range(3)]
    model = dense_net(spec, 60)
    attack = trap_weights(scale=0.8, rounds=(2,), clients=(1,), read="rows")
    assert {Grant.TARGET_CLIENT, Grant.SEVERAL_ROUNDS} <= attack.requires
    result, played = attack_clients(attack, model, batches, knowing(spec))
    crafted = [e for e in played.exchanges if e.secret is not None]
    assert [(e.broadcast.round, e.clients) for e in crafted] == [(2, (1,))]
    honest = next(e.broadcast.model for e in played.exchanges if e.broadcast.round == 1)
    assert not torch.equal(honest[1].weight, model[1].weight), "honest rounds train on"
    mine = found_examples(result.values, batches[1].inputs)
    others = found_examples(result.values, torch.cat([batches[0].inputs, batches[2].inputs]))
    assert int(mine.sum()) > 4 and not others.any()
    assert result.source is not None and set(result.source.tolist()) == {len(played.exchanges) - 1}


def test_averaging_over_clients_lowers_recall() -> None:
    """Table 9: what two clients' examples share cannot be read from the mean."""
    spec = image_spec((1, 8, 8))
    batches = [image_batch(spec, 12, seed=s) for s in range(6)]
    model, truth = dense_net(spec, 80), torch.cat([b.inputs for b in batches])
    attack = trap_weights(scale=0.65, read="rows")
    alone, _ = attack_clients(attack, model, batches, knowing(spec))
    mean, played = attack_clients(
        attack,
        model,
        batches,
        knowing(spec),
        threat="malicious_server_secure_aggregation",
        aggregation="secure_sum",
    )
    assert len(played.exchanges) == 1
    expected = lonely(activations(played.exchanges[0].broadcast.model, "1", truth))
    found = found_examples(mean.values, truth)
    assert torch.equal(found, expected)
    assert int(found.sum()) < int(found_examples(alone.values, truth).sum())


def test_a_batch_of_one_class_is_no_harder() -> None:
    """Section 8.3, impact of data labels."""
    spec = image_spec((1, 8, 8))
    batch = Batch(image_batch(spec, 24).inputs, torch.full((24,), 3))
    result, played = attack_clients(
        trap_weights(scale=0.65, read="rows"), dense_net(spec, 80), [batch], knowing(spec)
    )
    expected = lonely(activations(played.exchanges[0].broadcast.model, "1", batch.inputs))
    assert int(expected.sum()) > 8
    assert torch.equal(found_examples(result.values, batch.inputs), expected)


def test_a_noisy_update_is_not_claimed_to_be_exact() -> None:
    spec = image_spec((1, 8, 8))
    batch, model = image_batch(spec, 12), dense_net(spec, 80)
    attack = trap_weights(scale=0.65, read="rows")
    crafted = attack.craft(model, (), knowing(spec))
    assert crafted is not None
    sent = local_update(Broadcast(crafted.model), batch, LocalTraining())
    noisy = {n: t + 1e-3 * t.std() * torch.randn(t.shape) for n, t in sent.tensors.items()}
    seen = Exchange(
        broadcast=Broadcast(crafted.model),
        update=replace(sent, tensors=noisy),
        clients=(0,),
        secret=crafted.secret,
    )
    result = attack.run([seen], knowing(spec))
    assert result.claimed is not None
    claimed = result.values[result.claimed]
    assert bool(found_examples(batch.inputs, claimed, tolerance=0.02).all())
    assert len(claimed) < int(lonely(activations(crafted.model, "1", batch.inputs)).sum())


@pytest.mark.parametrize(
    "attack", [trap_weights(scale=0.85, hidden=True, read="rows"), quantile_traps(batch_size=12, read="rows")]
)
def test_double_precision_follows_the_model(attack: CraftedExtraction) -> None:
    spec = image_spec((1, 6, 6), normalised=True)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 60),
        nn.ReLU(),
        nn.Linear(60, 5),
    ).double()
    batch = image_batch(spec, 12)
    batch = Batch(batch.inputs.double(), batch.labels)
    result, played = attack_clients(attack, model, [batch], knowing(spec))
    expected = lonely(activations(played.exchanges[0].broadcast.model, "3", batch.inputs))
    assert result.values.dtype == torch.float64 and int(expected.sum()) > 3
    assert torch.equal(found_examples(result.values, spec.to_raw(batch.inputs), tolerance=1e-9), expected)


def test_one_local_step_of_fedavg_gives_the_same_away() -> None:
    spec = image_spec((1, 6, 6))
    batch, model = image_batch(spec, 10), dense_net(spec, 60)
    sgd, _ = attack_clients(trap_weights(scale=0.85, read="rows"), model, [batch], knowing(spec))
    one_step = LocalTraining(algorithm="fedavg", lr=0.5)
    avg, _ = attack_clients(
        trap_weights(scale=0.85, read="rows"), model, [batch], knowing(spec, local=one_step)
    )
    assert int(found_examples(sgd.values, batch.inputs).sum()) > 4
    assert torch.equal(
        found_examples(sgd.values, batch.inputs), found_examples(avg.values, batch.inputs, tolerance=1e-3)
    )


@pytest.mark.parametrize("hidden", [False, True])
def test_peeling_reads_what_the_pattern_allows_behind_a_pass_through(hidden: bool) -> None:
    spec = image_spec((1, 6, 6), normalised=True)
    batch = image_batch(spec, 12)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 60),
        nn.ReLU(),
        nn.Linear(60, 5),
    )
    attack = trap_weights(scale=0.9, read="peel", hidden=hidden)
    result, played = attack_clients(attack, model, [batch], knowing(spec))
    pattern = activations(played.exchanges[0].broadcast.model, "3", batch.inputs)
    assert int(peelable(pattern).sum()) > int(lonely(pattern).sum())
    assert result.claimed is not None
    found = found_examples(result.values[result.claimed], spec.to_raw(batch.inputs))
    assert bool(found[peelable(pattern)].all())


def test_columns_of_a_table_are_trapped_on_their_own_scale() -> None:
    """No value range is known, but each column's public mean and std are: millions beside fractions."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([1e6, 1e-3, 10.0, 1.0]).repeat(4)
    rows = torch.randn(200, 16, generator=generator) * scale + 3 * scale
    kind = torch.arange(200) % 2
    rows = torch.cat([rows, torch.stack([kind, 1 - kind], dim=1).float()], dim=1)
    public, mine = rows[:100].double(), rows[100:132]
    spec = InputSpec(
        modality=Modality.TABULAR,
        shape=(18,),
        num_classes=3,
        value_range=None,
        mean=(*public[:, :16].mean(0).tolist(), 0.0, 0.0),
        std=(*public[:, :16].std(0).tolist(), 1.0, 1.0),
        categories=((16, 17),),
    )
    batch = Batch(spec.to_model(mine), torch.arange(32) % 3)
    attack = trap_weights(read="rows")
    honest = dense_net(spec, 400)
    result, played = attack_clients(attack, honest, [batch], knowing(spec))
    expected = lonely(activations(played.exchanges[0].broadcast.model, "1", batch.inputs))
    apart = torch.cdist(spec.to_model(result.values).double(), batch.inputs.double()).min(0).values
    assert int(expected.sum()) > 4 * int(lonely(activations(honest, "1", batch.inputs)).sum()) + 4
    assert torch.equal(apart < 1e-3, expected)
    deeper = dense_net(spec, 40, 40)
    with pytest.raises(NotApplicable, match="range of the input values is unknown"):
        trap_weights(layer="3").check(deeper, knowing(spec))

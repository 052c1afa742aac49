"""Exact extraction on nets whose answer is known: which examples can be read, and which cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits
from tests.attacks.reading.peeling.builders import errors, patterned, sent
from torch import nn

from seepage.attacks.reading.exact_extraction import ExactExtraction, exact_extraction, peel
from seepage.attacks.traps.routes import Route
from seepage.core.errors import DataError, NotApplicable
from seepage.core.types import (
    INPUT_SPACE,
    Batch,
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Reconstruction,
)
from seepage.models.layers import trace_linear_layers
from seepage.protocol import aggregate, local_update

COMPLETE = "explained completely"
SUMMED = "cross_entropy_sum"
"""Nets that are blind to most columns do not show what one example counts; a sum does not leave it open."""


def told(result: Reconstruction, words: str) -> bool:
    return any(words in note for note in result.notes)


def recovered(result: Reconstruction, batch: Batch, tolerance: float = 1e-4) -> list[int]:
    """True examples among the claimed candidates."""
    distance = errors(result.values[result.claimed], batch.inputs)
    return (distance <= tolerance).any(0).nonzero().flatten().tolist()


def false_claims(result: Reconstruction, batch: Batch, tolerance: float = 1e-4) -> int:
    distance = errors(result.values[result.claimed], batch.inputs)
    return int((distance > tolerance).all(1).sum())


def test_an_example_that_is_never_alone_is_read_after_its_companion_was_taken_away() -> None:
    model, batch, spec = patterned([[0], [0], [0, 1], [0, 1]], 2)
    result = exact_extraction().run([(seen := sent(model, batch, spec, loss=SUMMED))[0]], seen[1])
    assert recovered(result, batch) == [0, 1]
    assert told(result, "1 example(s) had a neuron of their own; 1 more")
    assert told(result, COMPLETE)
    assert torch.equal(result.label_counts, torch.bincount(batch.labels, minlength=4))


def test_exactly_the_examples_that_peeling_can_reach_are_claimed() -> None:
    # 0 alone; 1 after 0; 2 after 1. 3 and 4 appear only together with different others: never alone.
    model, batch, spec = patterned([[0], [0], [0, 1], [0, 1], [1, 2], [1, 2], [2, 3, 4]], 5)
    exchange, known = sent(model, batch, spec, loss=SUMMED)
    result = exact_extraction().run([exchange], known)
    assert recovered(result, batch) == [0, 1, 2]
    assert false_claims(result, batch) == 0
    assert not told(result, COMPLETE)
    assert told(result, "1 row(s) still hold something") and told(result, "2 example(s) are missing")


def test_a_longer_chain_is_peeled_to_its_end() -> None:
    n = 12
    model, batch, spec = patterned([[0]] * 2 + [[j, j + 1] for j in range(n - 1) for _ in range(2)], n)
    exchange, known = sent(model, batch, spec, loss=SUMMED)
    result = exact_extraction().run([exchange], known)
    assert recovered(result, batch) == list(range(n))
    assert told(result, f"in {n} round(s)") and told(result, COMPLETE)


def test_an_example_that_fires_nowhere_is_said_to_leave_no_trace() -> None:
    model, batch, spec = patterned([[0], [0], [1], [1]], 3)
    exchange, known = sent(model, batch, spec, loss=SUMMED)
    result = exact_extraction().run([exchange], known)
    assert recovered(result, batch) == [0, 1]
    assert told(result, COMPLETE) and told(result, "1 further example(s) leave no trace")


@pytest.mark.parametrize("labels", [(2, 2), (2, 1), (1, 1)])
@pytest.mark.parametrize("eight_bit", [True, False])
def test_copies_of_one_example_are_counted_with_their_labels(
    labels: tuple[int, int], eight_bit: bool
) -> None:
    """On an alphabet, with other labels. Else two nearly alike examples look like copies of their mean."""
    model, batch, spec = patterned([[0], [0], [0, 1], [0, 1]], 2)
    three = torch.tensor([labels[0], int(batch.labels[1]), labels[1]])
    inputs = (batch.inputs * 255).round() / 255 if eight_bit else batch.inputs
    batch = Batch(torch.cat([inputs, inputs[:1]]), three)
    exchange, known = sent(model, batch, spec, loss=SUMMED)
    result = exact_extraction().run([exchange], known)
    assert false_claims(result, batch) == 0
    if eight_bit and labels[0] != labels[1]:
        assert len(result) == 3 and bool(result.claimed.all())
        assert torch.equal(result.label_counts, torch.bincount(batch.labels, minlength=4))
        assert told(result, COMPLETE)
    else:
        assert not told(result, COMPLETE)


def random_batch(
    n: int, *, width: int = 120, seed: int = 0, size: int = 36
) -> tuple[nn.Sequential, Batch, InputSpec]:
    """An honest random net and inputs from [0, 1] that lie on no grid."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, 40), nn.ReLU())
    model.append(nn.Linear(40, 4))
    batch = Batch(torch.rand(n, size, generator=generator), torch.randint(4, (n,), generator=generator))
    return model, batch, InputSpec(modality=Modality.TABULAR, shape=(size,), num_classes=4)


def test_an_honest_random_layer_gives_its_whole_batch_away() -> None:
    model, batch, spec = random_batch(8)
    exchange, known = sent(model, batch, spec)
    result = exact_extraction().run([exchange], known)
    assert recovered(result, batch, 1e-5) == list(range(8)) and len(result) == 8
    assert told(result, COMPLETE)


def test_the_batch_size_is_inferred_where_it_was_not_sent() -> None:
    model, batch, spec = random_batch(8)
    exchange, known = sent(model, batch, spec, tell_number=False)
    result = exact_extraction().run([exchange], known)
    assert recovered(result, batch) == list(range(8))
    assert told(result, "number of examples was inferred to be 8")


def test_a_clipped_update_still_gives_exact_data_and_the_factor() -> None:
    model, batch, spec = random_batch(8)
    exchange, known = sent(model, batch, spec, factor=0.0371)
    result = exact_extraction().run([exchange], known)
    assert bool((errors(result.values, batch.inputs) <= 1e-4).any(0).all())
    assert told(result, "by 0.0371 (clipping, class weights)")
    # By half as much if each were the mean of two, which lie on no grid: nobody can tell.
    assert recovered(result, batch) == [] and told(
        result, "may be the mean of examples that are nearly alike"
    )


@pytest.mark.parametrize("loss", ["cross_entropy", "cross_entropy_sum"])
def test_one_local_step_is_as_good_as_a_gradient(loss: str) -> None:
    model, batch, spec = random_batch(6)
    training = LocalTraining(algorithm="fedavg", lr=1.0, loss=loss)
    exchange, known = sent(model, batch, spec, training=training, loss=loss)
    result = exact_extraction().run([exchange], known)
    assert bool((errors(result.values, batch.inputs) <= 1e-3).any(0).all())
    # Of a mean, half as many that have a near copy each would lead to the same difference of weights.
    assert len(recovered(result, batch, 1e-3)) == (6 if loss.endswith("_sum") else 0)
    assert false_claims(result, batch, 1e-3) == 0


def test_several_local_steps_are_never_claimed() -> None:
    model, batch, spec = random_batch(8)
    training = LocalTraining(algorithm="fedavg", lr=0.1, batch_size=2)
    exchange, known = sent(model, batch, spec, training=training)
    result = exact_extraction().run([exchange], known)
    assert not result.claimed.any() and not told(result, COMPLETE)
    assert told(result, "4 local steps")


@pytest.mark.parametrize("sigma", [1e-1, 1e-3, 1e-5])
def test_nothing_false_is_claimed_on_noisy_gradients(sigma: float) -> None:
    for seed in range(3):
        model, batch, spec = random_batch(8, seed=seed)
        exchange, known = sent(model, batch, spec)
        generator = torch.Generator().manual_seed(seed)
        noisy = {
            name: t + sigma * torch.randn(t.shape, generator=generator)
            for name, t in exchange.update.tensors.items()
        }
        exchange = replace(exchange, update=replace(exchange.update, tensors=noisy))
        result = exact_extraction().run([exchange], known)
        assert false_claims(result, batch) == 0 and not told(result, COMPLETE)
        assert sigma < 1e-4 or not result.claimed.any()


def test_nothing_false_is_claimed_on_pruned_gradients() -> None:
    model, batch, spec = random_batch(8)
    exchange, known = sent(model, batch, spec)
    kept = {
        name: torch.where(t.abs() >= t.abs().quantile(0.6), t, 0.0)
        for name, t in exchange.update.tensors.items()
    }
    exchange = replace(exchange, update=replace(exchange.update, tensors=kept))
    result = exact_extraction().run([exchange], known)
    assert false_claims(result, batch) == 0 and not told(result, COMPLETE)


def test_the_average_over_several_clients_is_peeled_as_one_batch() -> None:
    model, batch, spec = random_batch(8)
    parts = [batch.select(slice(0, 5)), batch.select(slice(5, 8))]
    update = aggregate([local_update(Broadcast(model), p, LocalTraining()) for p in parts], "mean")
    exchange = Exchange(broadcast=Broadcast(model), update=update, clients=(0, 1))
    result = exact_extraction().run([exchange], Knowledge(input=spec))
    assert recovered(result, batch) == list(range(8)) and told(result, COMPLETE)


def test_digits_are_rounded_to_their_sixteen_levels_exactly() -> None:
    digits = load_digits()
    torch.manual_seed(1)
    inputs = torch.tensor(digits.images[:24], dtype=torch.float32).unsqueeze(1) / 16
    batch = Batch(inputs, torch.tensor(digits.target[:24]))
    spec = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=10)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
    model.append(nn.Linear(128, 10))
    exchange, known = sent(model, batch, spec)
    result = exact_extraction().run([exchange], known)
    assert false_claims(result, batch) == 0 and recovered(result, batch, 1e-5) == list(range(24))
    assert told(result, "grid of 16 levels")


def test_text_comes_back_as_token_sequences() -> None:
    torch.manual_seed(0)
    spec = InputSpec(modality=Modality.TEXT, shape=(12,), num_classes=2, vocabulary=50, value_range=None)
    embedding = nn.Embedding(50, 6)
    nn.init.uniform_(embedding.weight)
    model = nn.Sequential(embedding, nn.Flatten(), nn.Linear(72, 200), nn.ReLU(), nn.Linear(200, 1))
    batch = Batch(torch.randint(50, (10, 12)), torch.randint(2, (10,)))
    exchange, known = sent(model, batch, spec, loss="binary_cross_entropy")
    result = exact_extraction().run([exchange], known)
    claimed = {tuple(t) for t in result.values[result.claimed].tolist()}
    assert claimed == {tuple(t) for t in batch.inputs.tolist()} and len(result) == 10


def test_a_pass_through_before_the_layer_is_decoded() -> None:
    torch.manual_seed(0)
    _, batch, spec = random_batch(6)
    gains = torch.rand(36) + 0.5
    carry = nn.Linear(36, 36)
    with torch.no_grad():
        carry.weight.copy_(torch.diag(gains))
        carry.bias.zero_()
    model = nn.Sequential(carry, nn.ReLU(), nn.Linear(36, 120), nn.ReLU(), nn.Linear(120, 4))
    exchange, known = sent(model, batch, spec)
    layer = trace_linear_layers(model, spec)[1]
    result = peel(exchange, known, layer, decode=Route(torch.arange(36), gains, torch.zeros(36)))
    assert result.space == INPUT_SPACE and recovered(result, batch, 1e-5) == list(range(6))
    features = peel(exchange, known, layer)
    assert features.space == "2" and len(features) == 6
    assert float(errors(features.values, (batch.inputs * gains)).amin(0).max()) < 1e-5


def test_normalised_inputs_are_returned_in_raw_units() -> None:
    model, batch, spec = random_batch(6)
    spec = replace(spec, mean=(0.3,) * 36, std=(0.5,) * 36)
    exchange, known = sent(model, Batch(spec.to_model(batch.inputs), batch.labels), spec)
    result = exact_extraction().run([exchange], known)
    assert recovered(result, batch, 1e-5) == list(range(6))


def test_a_dead_layer_is_said_to_be_dead() -> None:
    model, batch, spec = random_batch(4)
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    exchange, known = sent(model, batch, spec)
    result = exact_extraction().run([exchange], known)
    assert len(result) == 0 and told(result, "zero everywhere") and not told(result, COMPLETE)


def test_an_update_with_nan_is_refused() -> None:
    model, batch, spec = random_batch(4)
    exchange, known = sent(model, batch, spec)
    exchange.update.tensors["0.weight"][3, 3] = torch.nan
    with pytest.raises(DataError, match="NaN"):
        exact_extraction().run([exchange], known)


def test_a_layer_without_bias_is_not_peeled_but_its_rows_are_read() -> None:
    _, batch, spec = random_batch(4)
    model = nn.Sequential(nn.Linear(36, 50, bias=False), nn.ReLU(), nn.Linear(50, 4))
    exchange, known = sent(model, batch, spec)
    with pytest.raises(NotApplicable, match="no bias"):
        peel(exchange, known, trace_linear_layers(model, spec)[0])
    ExactExtraction(layer="0").check(model, known)
    assert told(ExactExtraction().run([exchange], known), "has no bias")
    inner = nn.Sequential(nn.Linear(36, 50), nn.ReLU(), nn.Linear(50, 9, bias=False), nn.ReLU())
    inner.append(nn.Linear(9, 4))
    with pytest.raises(NotApplicable, match="no bias"):
        ExactExtraction(layer="2").check(inner, known)


def test_a_layer_narrower_than_the_batch_is_named_as_the_reason() -> None:
    model, batch, spec = random_batch(40, width=6)
    exchange, known = sent(model, batch, spec)
    result = exact_extraction().run([exchange], known)
    assert false_claims(result, batch) == 0 and not told(result, COMPLETE)
    assert told(result, "fewer neurons (6) than the batch has examples (40)")


def test_the_received_model_and_update_are_left_as_they_were() -> None:
    model, batch, spec = random_batch(8)
    exchange, known = sent(model, batch, spec)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    update = {name: t.clone() for name, t in exchange.update.tensors.items()}
    model.train()
    exact_extraction().run([exchange], known)
    assert model.training and all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    assert all(torch.equal(t, update[name]) for name, t in exchange.update.tensors.items())
    assert not model[0]._forward_hooks and not model[0]._forward_pre_hooks

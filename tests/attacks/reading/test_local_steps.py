"""Several local steps: whole batches where no neuron is alone, and the certificate of training again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.attacks.reading.peeling.builders import errors, sent
from torch import Tensor, nn

from seepage.attacks.reading.exact_extraction import exact_extraction
from seepage.attacks.reading.local_steps import halfway, replayed
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
from seepage.models.signals import ROUNDING
from seepage.protocol import local_update

SPEC = InputSpec(
    modality=Modality.IMAGE,
    shape=(1, 12, 12),
    num_classes=5,
    value_range=(0.0, 1.0),
    mean=(0.5,),
    std=(0.25,),
)
STEPS = LocalTraining(algorithm="fedavg", lr=0.1, epochs=5)


def pictures(count: int, seed: int) -> Batch:
    """Of 8 bits, normalised: about half of them switch any neuron on."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 1, 5, 5, generator=generator)
    smooth = nn.functional.interpolate(coarse, size=12, mode="bicubic").clamp(0, 1)
    grey = (smooth * 255).round() / 255
    return Batch(SPEC.to_model(grey), torch.randint(5, (count,), generator=generator))


def network(seed: int, activation: type[nn.Module] = nn.ReLU, *, depth: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(144, 120), activation()]
    for _ in range(depth - 1):
        layers += [nn.Linear(120, 120), activation()]
    return nn.Sequential(*layers, nn.Linear(120, 5))


def seen(model: nn.Module, batch: Batch, local: LocalTraining, declared: int | None = None) -> Exchange:
    sent = local_update(Broadcast(model), batch, local)
    sent = replace(sent, num_examples=declared or len(batch))
    return Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))


def read(model: nn.Module, batch: Batch, local: LocalTraining, declared: int | None = None) -> Reconstruction:
    return exact_extraction().run([seen(model, batch, local, declared)], Knowledge(input=SPEC, local=local))


def off(result: Reconstruction, batch: Batch) -> Tensor:
    return errors(result.values, SPEC.to_raw(batch.inputs))


@pytest.mark.parametrize(
    "local",
    [STEPS, replace(STEPS, epochs=2), replace(STEPS, epochs=2, batch_size=4, shuffle_seed=3)],
    ids=["five", "two", "mini-batches"],
)
def test_whole_batches_are_read_after_several_steps_where_no_neuron_is_alone(local: LocalTraining) -> None:
    batch = pictures(10, 3)
    result = read(network(3), batch, local)
    assert bool((off(result, batch) < 1e-4).any(0).all())
    assert result.claimed is not None and int(result.claimed.sum()) >= 9
    assert bool((off(result, batch)[result.claimed] < 1e-4).any(1).all())


def test_training_again_is_named_where_it_ends_where_the_client_ended() -> None:
    batch = pictures(10, 4)
    result = read(network(4), batch, STEPS)
    assert result.complete and any("ends where the client's training ended" in note for note in result.notes)


def test_a_smooth_network_is_read_by_correcting_what_the_later_steps_add() -> None:
    batch, local = pictures(6, 5), replace(STEPS, lr=0.02)
    result = read(network(5, nn.GELU), batch, local)
    assert result.complete and result.claimed is not None and int(result.claimed.sum()) == 6
    assert float(off(result, batch).amin(1).max()) < 1e-4


def test_the_update_of_one_step_that_is_left_is_that_of_the_model_halfway() -> None:
    """Against autograd at that model; with all examples known but one, it is nearer than with none."""
    batch, model = pictures(6, 6), network(6, nn.Tanh, depth=1)
    known, exchange = Knowledge(input=SPEC, local=STEPS), seen(network(6, nn.Tanh, depth=1), batch, STEPS)
    missed = []
    for guess in (None, batch.select(slice(0, 5)), batch):
        at, as_one = halfway(exchange, known, guess)
        middle = at.broadcast.model
        value = nn.functional.cross_entropy(middle(batch.inputs), batch.labels)
        (gradient,) = torch.autograd.grad(value, middle.get_parameter("1.weight"))
        assert as_one.local is not None
        one = -as_one.local.lr * gradient
        missed.append(float((at.update.tensors["1.weight"] - one).norm() / one.norm()))
        moved = model.get_parameter("1.weight") + 0.4 * exchange.update.tensors["1.weight"]
        assert torch.allclose(middle.get_parameter("1.weight"), moved)
    assert missed[0] > missed[1] and missed[2] < 1e-5


def test_training_again_tells_a_wrong_label_a_moved_picture_and_a_missing_one() -> None:
    batch, known = pictures(6, 7), Knowledge(input=SPEC, local=STEPS)
    exchange = seen(network(7), batch, STEPS)
    order = torch.tensor([3, 1, 0, 5, 4, 2])
    assert replayed(exchange, known, batch.select(order), ROUNDING) <= 1
    relabelled = Batch(batch.inputs, (batch.labels + torch.tensor([1, 0, 0, 0, 0, 0])) % 5)
    moved = batch.inputs.clone()
    moved[0] += 0.05
    for other in (relabelled, Batch(moved, batch.labels), batch.select(slice(0, 5))):
        assert replayed(exchange, known, other, ROUNDING) > 1


@pytest.mark.parametrize("declared", [12, 6])
@pytest.mark.parametrize("steps", [1, 2])
def test_means_of_pictures_that_are_nearly_alike_are_not_claimed(declared: int, steps: int) -> None:
    """An even number of grey steps apart, so that their mean lies on the grid."""
    half = pictures(6, 8)
    bright = SPEC.to_model((SPEC.to_raw(half.inputs) + steps / 255).clamp(max=1.0))
    batch = Batch.concat([half, Batch(bright, half.labels)])
    result = read(network(8), batch, STEPS, declared)
    assert result.claimed is not None
    false = (off(result, batch)[result.claimed] > 1e-4).all(1)
    # Where half is declared, nothing parts the pairs from their means: the claim states its condition.
    assert not bool(false.any()) or (declared == 6 and result.if_declared)


def test_rows_of_a_table_are_read_and_not_claimed() -> None:
    generator = torch.Generator().manual_seed(9)
    spec = InputSpec(modality=Modality.TABULAR, shape=(144,), num_classes=5, value_range=None)
    batch = Batch(torch.randn(8, 144, generator=generator), torch.arange(8) % 5)
    known = Knowledge(input=spec, local=STEPS)
    result = exact_extraction().run([seen(network(9), batch, STEPS)], known)
    assert bool((errors(result.values, batch.inputs) < 1e-2).any(0).all())
    assert result.claimed is not None and not bool(result.claimed.any()) and not result.complete


def test_rows_are_counted_once_where_all_examples_are_told_apart_at_once():
    """Three mini-batches of a batch of five: what is unmixed has a share in most rows."""
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.nn.functional.interpolate(
            torch.rand(5, 1, 2, 2, generator=generator), (8, 8), mode="bilinear"
        )
        inputs = (inputs * 255).round() / 255
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        spec = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=10, value_range=(0.0, 1.0))
        training = LocalTraining(algorithm="fedavg", batch_size=2, lr=0.01)
        batch = Batch(inputs, torch.randint(10, (5,), generator=generator))
        exchange, known = sent(model, batch, spec, training=training)
        found = exact_extraction().run([exchange], known)
        assert int(found.support.sum()) <= found.rows.active

"""A first layer without a bias: rows give directions, the grid of the values gives their length."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits, load_sample_image
from tests.attacks.reading.peeling.builders import errors, sent
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.attacks.reading.direction_grid import grey_levels
from seepage.core.types import INPUT_SPACE, Batch, Exchange, InputSpec, Knowledge, Modality, Reconstruction

SIZE, N, WIDTH = 12, 8, 400
SPEC = InputSpec(modality=Modality.IMAGE, shape=(3, SIZE, SIZE), num_classes=5)
NAMES = ("analytic_extraction", "exact_extraction")


def crops(n: int, seed: int) -> Tensor:
    photo = torch.from_numpy(load_sample_image("china.jpg").copy()).permute(2, 0, 1).float() / 255
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (torch.randint(s - SIZE, (n,), generator=generator).tolist() for s in photo.shape[1:])
    return torch.stack([photo[:, r : r + SIZE, c : c + SIZE] for r, c in zip(rows, columns, strict=True)])


def network(inputs: int, classes: int, seed: int, *, sharpness: float = 1.0) -> nn.Sequential:
    torch.manual_seed(seed)
    first = nn.Linear(inputs, WIDTH, bias=False)
    with torch.no_grad():
        first.weight -= first.weight.mean(1, keepdim=True)  # bright pictures must not fire every neuron
    head = nn.Linear(WIDTH, classes)
    with torch.no_grad():
        head.weight *= sharpness
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), head)


def lonely(model: nn.Sequential, batch: Batch) -> Tensor:
    """(n,) bool, by brute force: examples that some neuron fires for alone."""
    fires = model[1](batch.inputs.flatten(1)) > 0
    return (fires & (fires.sum(0) == 1)).any(1)


def drawn(x: Tensor, classes: int, seed: int) -> Batch:
    return Batch(x, torch.randint(classes, (len(x),), generator=torch.Generator().manual_seed(seed)))


def false_claims(result: Reconstruction, batch: Batch) -> int:
    assert result.claimed is not None
    return int((errors(result.values[result.claimed], batch.inputs) > 1e-3).all(1).sum())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_examples_with_a_neuron_of_their_own_are_read_from_photographs(name: str, seed: int) -> None:
    model, batch = network(3 * SIZE**2, 5, seed), drawn(crops(N, seed), 5, seed)
    exchange, known = sent(model, batch, SPEC)
    result = ATTACKS[name]().run([exchange], known)
    # A piece of sky with few different values lies on many grids: nothing tells its brightness.
    different = torch.tensor([len(x.unique()) for x in batch.inputs])
    alone = lonely(model, batch) & (different > 11)
    read = (errors(result.values, batch.inputs) <= 1e-5).any(0)
    assert result.space == INPUT_SPACE and bool(alone.any())
    # What rows of their own leave of other rows is read too, by exact_extraction alone.
    assert bool(read[alone].all()) and (name == "exact_extraction" or torch.equal(read, alone))
    # Of the third batch two pieces of sky differ so little that what other rows leave may be a mean of two.
    vouched = alone if seed == 2 else read
    assert result.claimed is not None and int(result.claimed.sum()) == int(vouched.sum())
    assert false_claims(result, batch) == 0
    assert any("has no bias" in note for note in result.notes)


def test_digits_are_read_on_their_sixteen_levels() -> None:
    spec = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=10)
    pictures = torch.from_numpy(load_digits().images[:12]).float().unsqueeze(1) / 16
    model, batch = network(64, 10, 0), drawn(pictures, 10, 0)
    exchange, known = sent(model, batch, spec)
    result = ATTACKS["analytic_extraction"]().run([exchange], known)
    read = (errors(result.values, batch.inputs) <= 1e-5).any(0)
    assert (
        int(read.sum()) >= int(lonely(model, batch).sum()) - 2 > 0
    )  # one with few different values has no grid
    assert false_claims(result, batch) == 0 and any("16 levels" in note for note in result.notes)


@pytest.mark.parametrize("case", ["twins", "copies", "certain", "too many declared", "too few declared"])
def test_nothing_false_is_claimed(case: str) -> None:
    for seed in range(4):
        batch = drawn(crops(N, seed), 5, seed)
        if case in ("twins", "copies"):
            other = batch.inputs.clone()
            other[:, 1, 5, 5] += 0.0 if case == "copies" else 1 / 255
            batch = Batch.concat([batch, Batch(other, batch.labels)])
        model = network(3 * SIZE**2, 5, seed, sharpness=1000.0 if case == "certain" else 1.0)
        exchange, known = sent(model, batch, SPEC)
        declared = {"too many declared": 3 * N, "too few declared": 2}.get(case)
        if declared is not None:
            exchange = replace(exchange, update=replace(exchange.update, num_examples=declared))
        assert false_claims(ATTACKS["analytic_extraction"]().run([exchange], known), batch) == 0


def setting(spec: InputSpec, batch: Batch) -> tuple[Exchange, Knowledge]:
    return sent(network(3 * SIZE**2, 5, 0), batch, spec)


def test_without_a_grid_directions_are_shown_and_not_claimed() -> None:
    noise = torch.rand(4, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    for spec in (SPEC, replace(SPEC, value_range=None), replace(SPEC, mean=(0.5,) * 3, std=(0.2,) * 3)):
        batch = drawn(spec.to_model(noise), 5, 0)
        exchange, known = setting(spec, batch)
        result = ATTACKS["analytic_extraction"]().run([exchange], known)
        assert result.claimed is not None and len(result) > 0 and not bool(result.claimed.any())
        assert any("has no bias" in note for note in result.notes)
    # The direction itself is right where an example has a neuron of its own.
    exchange, known = setting(SPEC, drawn(noise, 5, 0))
    values = ATTACKS["analytic_extraction"]().run([exchange], known).values.flatten(1)
    cosine = nn.functional.cosine_similarity(values.unsqueeze(1), noise.flatten(1).unsqueeze(0), dim=2)
    model = exchange.broadcast.model
    assert isinstance(model, nn.Sequential)
    assert torch.equal(cosine.amax(0) > 1 - 1e-6, lonely(model, drawn(noise, 5, 0)))


def test_the_grey_level_is_the_smallest_that_makes_all_values_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    picture = torch.randint(0, 120, (200,), generator=generator).float()
    between = picture.clone()
    between[picture.argsort()[100]] += (
        0.5  # a mean of two that differ by one step: doubled, it would be whole
    )
    other = torch.randint(0, 120, (200,), generator=generator).float()
    few = torch.tensor([0.0, 50.0, 120.0]).repeat(70)[:200]
    rows = torch.stack([3e-5 * picture, between, picture + 0.71 * other, picture + other * 2**-9, few])
    assert grey_levels(rows, 2**-24).tolist() == [int(picture.max()), 0, 0, 0, 0]
    assert grey_levels(rows, 2**-9).tolist() == [0] * 5  # rounded as bfloat16: nothing can be told


def test_a_layer_with_a_bias_is_read_where_there_is_one() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE**2, 50), nn.ReLU(), nn.Linear(50, 5, bias=False))
    exchange, known = sent(model, drawn(crops(1, 0), 5, 0), SPEC)
    result = ATTACKS["analytic_extraction"]().run([exchange], known)
    assert not any("has no bias" in note for note in result.notes) and len(result) == 1

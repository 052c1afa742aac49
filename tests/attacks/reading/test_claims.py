"""Claims and certificates where they are hard: near-copies, copies, 16-bit updates, wrong numbers, certainty.

Every population is tried on pictures of 8 bits and on the same pictures off any grid. Nothing false may be
claimed or certified; where the reading is not in doubt, it must still be claimed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_sample_image
from tests.attacks.reading.peeling.builders import errors
from torch import Tensor, nn

from seepage.attacks import ATTACKS
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
from seepage.metrics.exact import EXACT_TOLERANCE
from seepage.models.precision import EXACT, Precision, precision_of
from seepage.protocol import local_update

SIZE, WIDTH, N = 10, 300, 8
SPEC = InputSpec(modality=Modality.IMAGE, shape=(3, SIZE, SIZE), num_classes=5)
SEEDS = range(3)
NAMES = ("analytic_extraction", "exact_extraction")


def pictures(n: int, seed: int, *, on_grid: bool) -> Tensor:
    """Crops of a photograph; off the grid, noise of a third of a step is added."""
    photo = torch.from_numpy(load_sample_image("flower.jpg").copy()).permute(2, 0, 1).float() / 255
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (torch.randint(s - SIZE, (n,), generator=generator).tolist() for s in photo.shape[1:])
    crops = torch.stack([photo[:, r : r + SIZE, c : c + SIZE] for r, c in zip(rows, columns, strict=True)])
    if on_grid:
        return crops
    return (crops + torch.randn(crops.shape, generator=generator) / 765).clamp(0, 1)


def twins(x: Tensor, seed: int) -> Tensor:
    """The same pictures, each with one grey step in one value."""
    generator = torch.Generator().manual_seed(seed + 77)
    other = x.flatten(1).clone()
    places = torch.randint(other.shape[1], (len(x), 1), generator=generator)
    value = other.gather(1, places)
    other.scatter_(1, places, torch.where(value < 0.5, value + 1 / 255, value - 1 / 255))
    return other.reshape(x.shape)


def network(seed: int, *, sharpness: float = 1.0, classes: int = 5) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE**2, WIDTH), nn.ReLU(), nn.Linear(WIDTH, classes))
    with torch.no_grad():
        model[3].weight *= sharpness
    return model


def played(
    name: str,
    model: nn.Module,
    batch: Batch,
    *,
    change: Callable[[Tensor], Tensor] = lambda t: t,
    declared: int | None = None,
    spec: InputSpec = SPEC,
) -> Reconstruction:
    """declared: another number of examples than the true one; 0: none."""
    update = local_update(Broadcast(model), batch, LocalTraining())
    tensors = {key: change(t) for key, t in update.tensors.items()}
    number = update.num_examples if declared is None else declared or None
    update = replace(update, tensors=tensors, num_examples=number)
    seen = Exchange(broadcast=Broadcast(model), update=update, clients=(0,))
    return ATTACKS[name]().run([seen], Knowledge(input=spec))


def false_claims(result: Reconstruction, batch: Batch) -> int:
    assert result.claimed is not None
    distance = errors(result.values[result.claimed].float(), batch.inputs.float())
    return int((distance > EXACT_TOLERANCE).all(1).sum())


def claimed(result: Reconstruction, batch: Batch) -> int:
    """Distinct examples of the batch among the claims."""
    assert result.claimed is not None
    truth = batch.inputs.float().flatten(1).unique(dim=0)
    return int((errors(result.values[result.claimed].float(), truth) <= EXACT_TOLERANCE).any(0).sum())


def told(result: Reconstruction, words: str) -> bool:
    return any(words in note for note in result.notes)


def drawn(x: Tensor, seed: int, *, classes: int = 5) -> Batch:
    return Batch(x, torch.randint(classes, (len(x),), generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("on_grid", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_plain_batches_are_claimed(name: str, on_grid: bool) -> None:
    for seed in SEEDS:
        batch = drawn(pictures(N, seed, on_grid=on_grid), seed)
        model = network(seed)
        result = played(name, model, batch)
        assert false_claims(result, batch) == 0
        fires = model[1](batch.inputs.flatten(1)) > 0
        lonely = int((fires & (fires.sum(0) == 1)).any(1).sum())  # brute force: what single rows show
        assert claimed(result, batch) == (N if name == "exact_extraction" else lonely) > 0


@pytest.mark.parametrize("same_label", [True, False])
@pytest.mark.parametrize("on_grid", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_the_mean_of_two_that_are_nearly_alike_is_not_claimed(
    name: str, on_grid: bool, same_label: bool
) -> None:
    for seed in SEEDS:
        half = drawn(pictures(N, seed, on_grid=on_grid), seed)
        labels = half.labels if same_label else half.labels.roll(1)
        batch = Batch.concat([half, Batch(twins(half.inputs, seed), labels)])
        result = played(name, network(seed), batch)
        assert false_claims(result, batch) == 0
        assert not result.complete or claimed(result, batch) == 2 * N
        assert not told(result, "clipping") and not told(result, "leave no trace")


@pytest.mark.parametrize("declared", [0, N])
@pytest.mark.parametrize("name", NAMES)
def test_off_a_grid_an_example_is_known_from_the_mean_of_two_without_the_batch_size(
    name: str, declared: int
) -> None:
    """Half as many, each twice as large, or nothing is declared: only the rounding of products tells."""
    for seed in SEEDS:
        half = drawn(pictures(N, seed, on_grid=False), seed)
        batch = Batch.concat([half, Batch(twins(half.inputs, seed), half.labels)])
        means = played(name, network(seed), batch, declared=declared)
        assert means.claimed is not None and not bool(means.claimed.any()) and not means.complete
        assert false_claims(played(name, network(seed), half, declared=declared), half) == 0
        assert claimed(played(name, network(seed), half, declared=declared), half) >= N // 2


@pytest.mark.parametrize("name", NAMES)
def test_without_products_the_declared_number_is_needed_off_a_grid(name: str) -> None:
    """A gradient that was scaled on its way holds no products, and nobody says how many examples it is of."""
    batch = drawn(pictures(N, 0, on_grid=False), 0)
    result = played(name, network(0), batch, change=lambda t: t * 0.7, declared=0)
    assert result.claimed is not None and not bool(result.claimed.any())


@pytest.mark.parametrize("name", NAMES)
def test_a_few_near_copies_do_not_spoil_the_others(name: str) -> None:
    for seed in SEEDS:
        whole = drawn(pictures(N, seed, on_grid=True), seed)
        batch = Batch.concat([whole, Batch(twins(whole.inputs[:2], seed), whole.labels[:2])])
        result = played(name, network(seed), batch)
        assert false_claims(result, batch) == 0
        assert claimed(result, batch) >= (N - 2 if name == "exact_extraction" else 1)


@pytest.mark.parametrize("on_grid", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_copies_are_one_distinct_example_and_no_clipping_is_invented(name: str, on_grid: bool) -> None:
    for seed in SEEDS:
        half = drawn(pictures(N, seed, on_grid=on_grid), seed)
        batch = Batch.concat([half, half])
        result = played(name, network(seed), batch)
        assert result.claimed is not None and false_claims(result, batch) == 0
        assert claimed(result, batch) == int(result.claimed.sum())  # no example is claimed twice
        assert not told(result, "clipping") and not told(result, "leave no trace")
        if name == "exact_extraction":
            assert told(result, "copies in the batch, or fewer examples than were declared")
            assert claimed(result, batch) == N  # off a grid, their rows are products


@pytest.mark.parametrize("back", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_updates_of_16_bits_are_claimed_only_where_the_grid_settles_them(
    name: str, dtype: torch.dtype, back: bool
) -> None:
    right = 0
    for seed in SEEDS:
        for on_grid in (True, False):
            batch = drawn(pictures(N, seed, on_grid=on_grid), seed)
            cast = (lambda t: t.to(dtype).float()) if back else (lambda t: t.to(dtype))
            result = played(name, network(seed), batch, change=cast)
            assert false_claims(result, batch) == 0 and len(result) > 0
            right += claimed(result, batch) if on_grid else 0
    if dtype is torch.float16:
        assert right >= len(SEEDS) * N // 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_models_of_16_bits_lead_to_no_false_claim(name: str, dtype: torch.dtype) -> None:
    for seed in SEEDS:
        batch = drawn(pictures(N, seed, on_grid=True).to(dtype), seed)
        result = played(name, network(seed).to(dtype), batch)
        assert false_claims(result, batch) == 0


@pytest.mark.parametrize("declared", [1, N // 2, N - 1, N + 1, 2 * N])
@pytest.mark.parametrize("on_grid", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_number_of_examples_leads_to_no_false_claim(name: str, on_grid: bool, declared: int) -> None:
    for seed in SEEDS:
        batch = drawn(pictures(N, seed, on_grid=on_grid), seed)
        result = played(name, network(seed), batch, declared=declared)
        assert false_claims(result, batch) == 0
        assert not told(result, "leave no trace") and not told(result, "missing")
        if on_grid and name == "exact_extraction":
            assert claimed(result, batch) == N


@pytest.mark.parametrize("sharpness", [30.0, 1000.0])
@pytest.mark.parametrize("on_grid", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_certain_predictions_lead_to_no_false_claim(name: str, on_grid: bool, sharpness: float) -> None:
    """p is 0 or 1: sums of signals are signals again, and small ones are known with few digits."""
    for seed in range(6):
        batch = drawn(pictures(2 * N, seed, on_grid=on_grid), seed)
        result = played(name, network(seed, sharpness=sharpness), batch)
        assert false_claims(result, batch) == 0


@pytest.mark.parametrize("name", NAMES)
def test_an_example_with_a_trace_of_another_in_it_is_not_claimed_beside_it(name: str) -> None:
    """With two classes all signals are proportional: rows with the same two examples show the same mixture.

    In this one of 436 batches such a mixture also had the signal of an example, as far as rounding tells.
    """
    batch = drawn(pictures(12, 87, on_grid=False), 87, classes=2)
    model = network(87, sharpness=100.0, classes=2)
    result = played(name, model, batch, spec=replace(SPEC, num_classes=2))
    assert false_claims(result, batch) == 0 < claimed(result, batch)


def test_one_example_is_claimed_and_a_batch_that_is_declared_as_one_is_not() -> None:
    batch = drawn(pictures(1, 0, on_grid=False), 0)
    for name in NAMES:
        result = played(name, network(0), batch)
        assert result.claimed is not None and int(result.claimed.sum()) == 1 == claimed(result, batch)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE**2, 5))
    several = drawn(pictures(4, 1, on_grid=False), 1)
    assert false_claims(played("analytic_extraction", linear, several, declared=1), several) == 0


def test_the_precision_of_numbers_is_that_of_the_coarsest_format_they_fit() -> None:
    numbers = torch.rand(1000, generator=torch.Generator().manual_seed(0)) * 1e-3
    for dtype in (torch.bfloat16, torch.float16):
        cast = numbers.to(dtype)
        found = precision_of([cast.double()])
        assert found == precision_of([cast]) == Precision.of_type(dtype)
        assert bool(((cast.double() - numbers.double()).abs() <= found.of(cast)).all())
    assert precision_of([numbers.double()]) == Precision.of_type(torch.float32)
    assert EXACT == EXACT_TOLERANCE

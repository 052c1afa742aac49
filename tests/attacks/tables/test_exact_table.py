"""Rows of tables come back exactly, whatever the network, and nothing is claimed that is not there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from seepage.attacks.tables.exact_table import exact_table
from seepage.attacks.tables.front import front_of
from seepage.attacks.tables.proving import written
from seepage.core.errors import NotApplicable
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

SIZES = (9, 7, 6, 4)
GROUPS = tuple(tuple(range(sum(SIZES[:i]), sum(SIZES[: i + 1]))) for i in range(len(SIZES)))
WIDTH = sum(SIZES) + 3
SPEC = InputSpec(
    modality=Modality.TABULAR,
    shape=(WIDTH,),
    num_classes=2,
    value_range=None,
    categories=GROUPS,
    integer=(WIDTH - 3, WIDTH - 2),
    mean=(0.0,) * (WIDTH - 3) + (40.0, 5.0, 1.7),
    std=(1.0,) * (WIDTH - 3) + (12.0, 3.0, 0.1),
)


class Embedded(nn.Module):
    """Categories behind embeddings of three values each."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 3) for size in SIZES)
        self.dense = nn.Sequential(nn.Linear(3 * len(SIZES) + 3, 60), nn.ReLU(), nn.Linear(60, 2))

    def forward(self, x: Tensor) -> Tensor:
        words = [t(x[:, list(g)].argmax(1)) for t, g in zip(self.tables, GROUPS, strict=True)]
        out: Tensor = self.dense(torch.cat([*words, x[:, -3:]], dim=1))
        return out


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    first, last = nn.Linear(WIDTH, 60, bias=kind != "no bias"), nn.Linear(60, 2)
    parts: dict[str, list[nn.Module]] = {
        "relu": [first, nn.ReLU()],
        "no bias": [first, nn.ReLU()],
        "gelu": [first, nn.GELU()],
        "selu": [first, nn.SELU()],
        "batch norm": [first, nn.BatchNorm1d(60), nn.ReLU()],
        "norm first": [nn.BatchNorm1d(WIDTH), first, nn.ReLU()],
        "dropout": [first, nn.ReLU(), nn.Dropout(0.3)],
    }
    return Embedded() if kind == "embedding" else nn.Sequential(*parts[kind], last)


def rows(count: int, seed: int = 0) -> Tensor:
    """(count, WIDTH) raw."""
    g = torch.Generator().manual_seed(seed)
    one_hot = [torch.eye(size)[torch.randint(size, (count,), generator=g)] for size in SIZES]
    whole = torch.randint(18, 80, (count, 1), generator=g).float()
    few = torch.randint(0, 9, (count, 1), generator=g).float()
    height = 1.5 + torch.randint(0, 50, (count, 1), generator=g) / 100
    return torch.cat([*one_hot, whole, few, height], dim=1)


def answer(
    model: nn.Module, raw: Tensor, *, labels: Tensor | None = None, **training: object
) -> Reconstruction:
    local = LocalTraining(**training)  # type: ignore[arg-type]
    batch = Batch(SPEC.to_model(raw), torch.arange(len(raw)) % 2 if labels is None else labels)
    update = local_update(Broadcast(model), batch, local)
    exchange = Exchange(broadcast=Broadcast(model), update=update, clients=(0,))
    return exact_table().run([exchange], Knowledge(input=SPEC, local=local))


def found_of(found: Reconstruction, raw: Tensor, tolerance: float = 1e-3) -> int:
    near = (found.values.double()[:, None] - raw.double()[None]).abs().amax(2) < tolerance
    if found.claimed is not None:
        assert bool(near.any(1)[found.claimed].all()), "a false claim"
    return int(near.any(0).sum())


@pytest.mark.parametrize("kind", ["relu", "no bias", "gelu", "selu", "batch norm", "norm first", "embedding"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_whole_batch_is_read_and_proven(kind: str, seed: int) -> None:
    raw = rows(8, seed)
    found = answer(network(kind), raw)
    assert found_of(found, raw) == 8 and found.complete
    assert found.claimed is not None and bool(found.claimed.all())
    assert found.label_counts is not None and found.label_counts.tolist() == [4, 4]


@pytest.mark.parametrize("pairs", [8, 2])
def test_rows_that_are_nearly_alike_are_not_claimed_as_copies_of_their_mean(pairs: int) -> None:
    """A thousandth of a deviation apart: their update is that of copies of the mean, within rounding."""
    raw = rows(8, 1)
    near = raw[:pairs].clone()
    near[:, -1] += 0.002 * 0.1
    raw = torch.cat([raw, near])
    labels = torch.arange(8) % 2
    found = answer(network("relu"), raw, labels=torch.cat([labels, labels[:pairs]]))
    assert found_of(found, raw, tolerance=0.5e-4) >= 8 - pairs and not found.complete  # and no false claim
    assert found.claimed is not None and int(found.claimed.sum()) <= 8 - pairs


def test_rows_that_share_all_categories_are_told_apart_by_their_signals() -> None:
    raw = rows(8, 3)
    raw[1, :-3] = raw[0, :-3]
    found = answer(network("relu"), raw)
    assert found_of(found, raw) == 8 and found.complete


def test_dropout_and_several_local_steps_are_read_by_the_neurons_that_are_off() -> None:
    raw = rows(6, 4)
    torch.manual_seed(1)
    assert found_of(answer(network("dropout"), raw, batch_norm="train"), raw) == 6
    assert found_of(answer(network("relu"), raw, algorithm="fedavg", epochs=4, lr=0.05), raw) == 6


def test_what_cannot_be_read_says_why() -> None:
    with pytest.raises(NotApplicable, match="takes the mean over the batch away"):
        answer(network("batch norm"), rows(6), batch_norm="train")
    with pytest.raises(NotApplicable, match="no combination of categories lies"):
        answer(network("norm first"), rows(6), batch_norm="train")
    with pytest.raises(NotApplicable, match=r"no gap|too many|lie in the span of"):
        answer(network("relu"), rows(64))
    picture = InputSpec(modality=Modality.IMAGE, shape=(1, 2, 2), num_classes=2)
    with pytest.raises(NotApplicable, match="reads tables"):
        exact_table().check(network("relu"), Knowledge(input=picture))


def test_a_layer_that_reads_mixtures_of_columns_is_refused() -> None:
    mixing = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2)).double()
    mixing[0].requires_grad_(False)
    with pytest.raises(NotApplicable, match="reads mixtures of columns"):
        front_of(mixing, SPEC)


def test_decimals_are_seen_from_readings_and_not_from_noise() -> None:
    read = torch.tensor([1.52, 1.61, 1.73, 1.84, 1.95, 1.66, 1.78], dtype=torch.float64)
    assert written(read + 1e-5, torch.full((7,), 1e-5), whole=False) is not None
    assert written(read + torch.linspace(0, 0.01, 7), torch.full((7,), 0.01), whole=False) is None

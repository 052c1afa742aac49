"""What the tables on gradient inversion share: one update, what an attack makes of it, and its scores."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from seepage.attacks.base import Attack
from seepage.attacks.prior_only import prior_guesses
from seepage.errors import NotApplicable
from seepage.federation import LOSSES, draw_clients, local_update
from seepage.metrics import assign, exact_match, mse, psnr
from seepage.papers.extraction import Source
from seepage.papers.table import Column, Row
from seepage.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining
from seepage.workloads.data import Dataset
from seepage.workloads.models.loading import build_model

CIFAR10 = Source("CIFAR-10", "cifar10", ({"split": "test", "normalise": True},))

GREY = Column(
    "grey", "PSNR of a flat mid-range picture, which needs no update: what an attack has to beat", unit="dB"
)

ABOVE_GREY = Column("above grey", "share of the pictures at least 1 dB above grey", unit="share")
CLEARLY = 1.0
"""dB above grey from which on a picture counts as recovered in part: what is seen in it lies above."""

VICTIMS = 1000
"""The last pictures of a dataset are the clients'; networks are trained on others."""

NO_PUBLISHED_FIGURES = (
    "The paper's own figures are not at hand here: no paper column. What must show is its pattern."
)
SEEDS_ARE_DRAWS = "Each run draws its own pictures and, where the network is untrained, its own weights."
UNREADABLE_IS_GREY = (
    "Where an attack refuses (a gradient of zero, for instance), its answer counts as the grey picture."
)


@dataclass(frozen=True)
class Inverted:
    """The candidate of each true picture, raw and inside the value range, and the CPU seconds they took."""

    pictures: Tensor
    truth: Tensor
    spec: InputSpec
    seconds: float

    @property
    def psnr(self) -> Tensor:
        """(n,) dB."""
        low, high = self.spec.value_range or (0.0, 1.0)
        return psnr(self.pictures, self.truth, data_range=high - low)

    @property
    def mse(self) -> Tensor:
        return mse(self.pictures, self.truth)

    @property
    def exact(self) -> Tensor:
        low, high = self.spec.value_range or (0.0, 1.0)
        return exact_match(self.pictures, self.truth, data_range=high - low)


def grey(batch: Batch, spec: InputSpec) -> Inverted:
    """The guess without any update."""
    flat = prior_guesses(Knowledge(input=spec), copies=len(batch), samples=0)
    return Inverted(flat, spec.to_raw(batch.inputs), spec, 0.0)


def above_grey(found: Inverted, blank: Inverted) -> float:
    """The share of the pictures that lie clearly above grey."""
    return float((found.psnr >= blank.psnr + CLEARLY).double().mean())


def pattern(claims: Mapping[str, bool]) -> tuple[str, ...]:
    """The paper's findings as notes: those that our figures bear out, and those that they do not.

    >>> pattern({"more is better": True, "less is worse": False})
    ('Shows here: more is better.', 'Does not show here: less is worse.')
    """
    shown = [claim for claim, holds in claims.items() if holds]
    absent = [claim for claim, holds in claims.items() if not holds]
    headed = (("Shows here", shown), ("Does not show here", absent))
    return tuple(f"{heading}: {'; '.join(listed)}." for heading, listed in headed if listed)


def means(rows: Sequence[Row], column: str) -> dict[tuple[str, str], float]:
    """The means of one column by group and label."""
    return {(row.group, row.label): row.figures[column].mean for row in rows}


def invert(
    attack: Attack,
    model: nn.Module,
    batch: Batch,
    spec: InputSpec,
    *,
    seed: int,
    local: LocalTraining | None = None,
) -> Inverted:
    """Play one client's answer to `model`, attack it, and assign what was found to the truth."""
    local = local or LocalTraining()
    known = Knowledge(input=spec, local=local, seed=seed)
    crafted = attack.craft(model, (), known) if attack.active else None
    broadcast = Broadcast(model if crafted is None else crafted.model)
    update = local_update(broadcast, batch, local)
    secret = None if crafted is None else crafted.secret
    seen = Exchange(broadcast=broadcast, update=update, clients=(0,), secret=secret)
    start = time.process_time()
    try:
        values = attack.run([seen], known).values
    except NotApplicable:
        values = torch.zeros(0, *spec.shape)
    return _assigned(values, batch, spec, time.process_time() - start)


def _assigned(values: Tensor, batch: Batch, spec: InputSpec, seconds: float) -> Inverted:
    """Candidates beside the examples they fit best; an example without one gets the grey picture."""
    low, high = spec.value_range or (0.0, 1.0)
    blank = grey(batch, spec)
    values = values.clamp(low, high)
    found = assign(values, blank.truth)
    pictures = blank.pictures.clone()
    pictures[found.matched] = values[found.candidate[found.matched]].to(pictures)
    return Inverted(pictures, blank.truth, spec, seconds)


def draw_victims(dataset: Dataset, count: int, seed: int, *, one_each: bool = False) -> Batch:
    """Pictures that no network was trained on. `one_each`: all of different classes."""
    first = max(0, len(dataset) - VICTIMS)
    labels = dataset.labels[first:]
    (order,) = draw_clients(labels, clients=1, examples_each=len(labels), seed=seed)
    if one_each:
        seen: dict[int, int] = {}
        for index in order.tolist():
            seen.setdefault(int(labels[index]), index)
        order = torch.tensor(list(seen.values()))
    return dataset.batch(order[:count] + first)


@dataclass(frozen=True)
class Trained:
    """A network that was trained briefly, and its accuracy on pictures it was not trained on."""

    model: nn.Module
    accuracy: float


@cache
def _train(name: str, dataset: _Hashed, steps: int, seed: int) -> Trained:
    data = dataset.data
    members = max(1, len(data) - VICTIMS)
    model = build_model(name, data.spec, seed=seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(steps):
        batch = data.batch(torch.randint(members, (64,), generator=generator))
        loss = LOSSES["cross_entropy"](model(batch.inputs), batch.labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    unseen = data.batch(torch.arange(members, len(data)))
    with torch.no_grad():
        right = model(unseen.inputs).argmax(1) == unseen.labels
    return Trained(model.requires_grad_(), float(right.float().mean()))


class _Hashed:
    """A dataset as a key of a cache: the same object, the same training."""

    def __init__(self, data: Dataset) -> None:
        self.data = data

    def __hash__(self) -> int:
        return id(self.data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashed) and other.data is self.data


def trained_briefly(name: str, dataset: Dataset, *, steps: int, seed: int = 0) -> Trained:
    """A registered network after `steps` Adam steps on pictures that are no victim's; trained once."""
    return _train(name, _Hashed(dataset), steps, seed)

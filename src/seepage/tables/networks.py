"""Networks that are trained before they are attacked: models of an audit, and what their training costs."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

import torch
from torch import nn

from seepage.core.types import InputSpec, LocalTraining
from seepage.data import Dataset, load_data
from seepage.engine.probes import Seen
from seepage.metrics import extraction_scores
from seepage.models.loading import build_model
from seepage.protocol import LOSSES, local_batches
from seepage.tables.draws import training_set

VICTIMS = 1000
"""The last pictures of a dataset are the clients'; networks are trained on others."""


def small_transformer(spec: InputSpec) -> nn.Module:
    """One block on 16 patches, whatever the size of the pictures: a grid cannot say that."""
    return build_model(
        "vit", spec, seed=torch.initial_seed(), depth=1, patch_size=max(1, spec.shape[-1] // 4)
    )


def trained_briefly(spec: InputSpec, *, network: str, data: Mapping[str, Any], steps: int) -> nn.Module:
    """A registered network after `steps` Adam steps on pictures that are no victim's: the same for all seeds.

    network: its name. data: the name and the options of the whole dataset.
    """
    return copy.deepcopy(_trained_briefly(network, json.dumps(data, sort_keys=True), steps))


@lru_cache(maxsize=4)
def _trained_briefly(network: str, data: str, steps: int, seed: int = 0) -> nn.Module:
    dataset = _loaded(data)
    members = max(1, len(dataset) - VICTIMS)
    model = build_model(network, dataset.spec, seed=seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(steps):
        index = torch.randint(members, (64,), generator=generator)
        _step(model, dataset, index, optimiser)
    return model.eval()


def trained_by_epochs(
    spec: InputSpec,
    *,
    data: Mapping[str, Any],
    epochs: int,
    lr: float,
    width: int = 1000,
    hidden: Sequence[int] = (3000, 3000, 2000, 1000),
) -> nn.Module:
    """The FC-NN of Boenisch et al., Table 7, after some epochs of plain SGD on the seed's training set."""
    seed = torch.initial_seed()  # `build_model` has set it
    key = json.dumps(data, sort_keys=True)
    return copy.deepcopy(_trained_by_epochs(key, epochs, lr, width, tuple(hidden), seed))


@lru_cache(maxsize=4)
def _trained_by_epochs(
    data: str, epochs: int, lr: float, width: int, hidden: tuple[int, ...], seed: int
) -> nn.Module:
    dataset = _loaded(data)
    if epochs == 0:
        settings: dict[str, Any] = {"initialiser": "xavier_uniform", "width": width, "hidden": hidden}
        return build_model("fcnn", dataset.spec, seed=seed, **settings)
    model = copy.deepcopy(_trained_by_epochs(data, epochs - 1, lr, width, hidden, seed))
    train_epoch(model, dataset, epoch=epochs - 1, lr=lr, seed=seed)
    return model


def train_epoch(model: nn.Module, dataset: Dataset, *, epoch: int, lr: float, seed: int) -> float:
    """One pass over the seed's training set in batches of 100; the mean of the losses on the way."""
    members = training_set(dataset.labels, seed)
    order = LocalTraining(algorithm="fedavg", batch_size=100, shuffle_seed=1000 * seed + epoch)
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    batches = local_batches(len(members), order)
    return fmean(_step(model, dataset, members[index], optimiser) for index in batches)


def at_epoch(seen: Seen, *, epoch: int, lr: float) -> dict[str, float]:
    """A probe: the loss of the epoch that begins at the model, and Section 8.1's scores, a mean over the
    updates."""
    model = copy.deepcopy(seen.played.exchanges[0].broadcast.model)
    scores = []
    for exchange, rows in zip(seen.played.exchanges, seen.played.behind, strict=True):
        found = seen.attack.run([exchange], seen.known)
        truth = seen.data.spec.to_raw(seen.played.truth.inputs[rows])
        assert found.rows is not None
        scores.append(extraction_scores(found.values, found.support, found.rows, truth))
    return {
        "loss": train_epoch(model, seen.data, epoch=epoch, lr=lr, seed=seen.seed),
        "P": fmean(one.precision_active for one in scores),
        "R": fmean(one.recall for one in scores),
        "A": fmean(one.active for one in scores),
        "P all": fmean(one.precision_all for one in scores),
    }


def _step(model: nn.Module, dataset: Dataset, index: torch.Tensor, optimiser: torch.optim.Optimizer) -> float:
    batch = dataset.batch(index)
    loss = LOSSES["cross_entropy"](model(batch.inputs), batch.labels)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return float(loss.item())


@lru_cache(maxsize=2)
def _loaded(data: str) -> Dataset:
    options = json.loads(data)
    return load_data(options.pop("name"), **options)

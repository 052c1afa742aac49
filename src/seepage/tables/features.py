"""A network's features as data, and its classification layer alone as a model.

Fishing changes nothing but the classification layer, so an example's features are the same in every query.
They are computed once; a client that trains the classification layer on them sends exactly the gradient of
that layer which it would send with the whole network, and the attacks run on it as they are.
"""

from __future__ import annotations

import copy
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from seepage.attacks.fishing.head import find_head, head_features
from seepage.core.types import InputSpec, Modality
from seepage.data import Dataset, load_data
from seepage.engine.identity import state
from seepage.models.loading import build_model

_CHUNK = 100


@dataclass(frozen=True)
class Features:
    """What a network's classification layer is fed for every example, and that layer alone."""

    dataset: Dataset
    layer: nn.Sequential


def features_of(*, of: Mapping[str, Any], network: Mapping[str, Any]) -> Dataset:
    """The features of a dataset under a network: data of an audit. of, network: as an audit file has them."""
    return _read(json.dumps([of, network], sort_keys=True)).dataset


def classification_layer(spec: InputSpec, *, of: Mapping[str, Any], network: Mapping[str, Any]) -> nn.Module:
    """The layer that these features are fed to: a model of an audit."""
    return copy.deepcopy(_read(json.dumps([of, network], sort_keys=True)).layer)


@lru_cache(maxsize=1)
def _read(key: str) -> Features:
    of, network = json.loads(key)
    dataset = load_data(of.pop("name"), **of)
    return compute_features(dataset, build_model(network.pop("name"), dataset.spec, **network))


def compute_features(dataset: Dataset, model: nn.Module) -> Features:
    """Run every example through the network once."""
    head = find_head(model, dataset.spec)
    chunks = torch.arange(len(dataset)).split(_CHUNK)
    inputs = torch.cat([head_features(model, head, dataset.batch(c).inputs) for c in chunks]).float()
    alone = nn.Linear(head.features, head.classes, bias=head.bias is not None)
    alone.load_state_dict(model.get_submodule(head.name).state_dict())
    spec = InputSpec(
        modality=Modality.TABULAR, shape=(head.features,), num_classes=head.classes, value_range=None
    )
    name = f"{dataset.name}, features"
    return Features(
        Dataset(name, inputs, dataset.labels, spec, dataset.source),
        nn.Sequential(OrderedDict(classify=alone)),
    )


_LATEST: dict[tuple[bytes, str], Features] = {}


def features_under(model: nn.Module, dataset: Dataset) -> Features:
    """The same, kept for the next cell with this network and these data."""
    key = dataset.digest, state(model)
    if key not in _LATEST:
        _LATEST.clear()
        _LATEST[key] = compute_features(dataset, model)
    return _LATEST[key]

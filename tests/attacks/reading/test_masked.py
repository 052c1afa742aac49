"""Inputs that were taken out of an update as a whole are 0 in every reading: that is no example."""

from __future__ import annotations

from dataclasses import replace

import torch
from tests.attacks.reading.peeling.builders import sent
from torch import nn

from seepage.attacks.reading.exact_extraction import exact_extraction
from seepage.core.types import Batch, InputSpec, Modality

COLUMNS = 64
SPEC = InputSpec(modality=Modality.TABULAR, shape=(COLUMNS,), num_classes=10, value_range=(0.0, 1.0))


def update(seed, *, border, masked):
    """A batch of eight: all of them 0 in the border, and columns that the client sends as zeros."""
    generator = torch.Generator().manual_seed(seed)
    inputs = (torch.rand(8, COLUMNS, generator=generator) * 255).round() / 255
    inputs[:, :border] = 0.0
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(COLUMNS, 128), nn.ReLU(), nn.Linear(128, 10))
    exchange, known = sent(model, Batch(inputs, torch.randint(10, (8,), generator=generator)), SPEC)
    tensors = dict(exchange.update.tensors)
    tensors["0.weight"] = tensors["0.weight"].clone()
    tensors["0.weight"][:, border : border + masked] = 0.0
    return replace(exchange, update=replace(exchange.update, tensors=tensors)), known


def claims(**columns):
    found = 0
    for seed in range(4):
        exchange, known = update(seed, **columns)
        found += int(exact_extraction().run([exchange], known).claimed.sum())
    return found


def test_masked_columns_are_not_claimed_to_be_black():
    assert claims(border=0, masked=38) == 0


def test_black_borders_are():
    assert claims(border=20, masked=0) == 4 * 8

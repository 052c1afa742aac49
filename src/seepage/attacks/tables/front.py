"""How the first dense layer reads a row: which of its inputs belong to which column, and what they can be.

A category in one-hot code, or behind an embedding, is one of finitely many words at certain inputs of the
layer; numbers stand at others. Both are found by running the model, so that embeddings and a batch norm in
eval mode need no code of their own.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core.errors import NotApplicable
from seepage.core.types import InputSpec
from seepage.models.hooks import layer_input
from seepage.models.layers import LinearLayer, trace_linear_layers
from seepage.protocol.widening import model_placement

_SAME = 1e-4
"""Share of the largest value by which what a layer reads may differ from what its columns add up to. Derived:
float32 leaves 1e-6, and a column that another one depends on differs by its own size."""


@dataclass(frozen=True)
class Category:
    """One category: where the layer reads it, and its words."""

    columns: tuple[int, ...]
    """Of the table."""
    places: Tensor
    """(d,) inputs of the layer."""
    words: Tensor
    """(K, d) what stands there, for each category."""


@dataclass(frozen=True)
class Front:
    """What stands between a row and the first dense layer that reads all of it."""

    layer: LinearLayer
    categories: tuple[Category, ...]
    number_columns: Tensor
    """(J,) columns of the table that hold numbers."""
    number_places: Tensor
    """(P,) inputs of the layer that they move."""
    base: Tensor
    """(m,) what the layer reads of the first category of each group and numbers of 0, in model units."""
    slopes: Tensor
    """(P, J) what a number adds there."""

    def features(self, choices: Tensor, numbers: Tensor) -> Tensor:
        """(k, m) what the layer reads of rows with categories (k, groups) and numbers (k, J)."""
        read = self.base.expand(len(choices), -1).clone()
        for group, category in enumerate(self.categories):
            read[:, category.places] = category.words[choices[:, group]]
        read[:, self.number_places] += numbers @ self.slopes.T
        return read

    def numbers(self, features: Tensor) -> Tensor:
        """(k, J) the numbers in what the layer reads, (k, m)."""
        moved = features[:, self.number_places] - self.base[self.number_places]
        numbers: Tensor = moved @ torch.linalg.pinv(self.slopes).T
        return numbers

    def rows(self, choices: Tensor, numbers: Tensor, spec: InputSpec) -> Tensor:
        """(k, D) raw rows."""
        model = numbers.new_zeros(len(choices), spec.shape[0])
        model[:, self.number_columns] = numbers
        raw = spec.to_raw(model)
        for group, category in enumerate(self.categories):
            columns = torch.tensor(category.columns, device=raw.device)
            raw[:, columns] = torch.eye(len(columns)).to(raw)[choices[:, group]]
        return raw


def columns_of_numbers(spec: InputSpec) -> list[int]:
    """Those that are no category's."""
    return [c for c in range(spec.shape[0]) if not any(c in group for group in spec.categories)]


def precise(model: nn.Module) -> nn.Module:
    """A copy in float64, for the server's own reckoning: a number of six digits needs more than float32."""
    return copy.deepcopy(model).double()


def front_of(model: nn.Module, spec: InputSpec) -> Front:
    """The first dense layer whose inputs are each one column's, as `model`, in float64, reads them."""
    reasons = []
    for layer in trace_linear_layers(model, spec):
        if not (layer.per_example and model.get_parameter(layer.weight).requires_grad):
            reasons.append(f"'{layer.name}' is frozen or applied several times")
            continue
        found = _front(model, spec, layer)
        if isinstance(found, Front):
            return found
        reasons.append(f"'{layer.name}' {found}")
    listed = "; ".join(reasons[:2]) or "there is none"
    raise NotApplicable(
        f"no dense layer reads the table column by column ({listed}): 'inverting_gradients' searches instead."
    )


def _front(model: nn.Module, spec: InputSpec, layer: LinearLayer) -> Front | str:
    numbers = columns_of_numbers(spec)
    probes, meaning = _probes(model, spec, numbers)
    read = layer_input(model, layer.name, probes).double()
    base, change = read[0], read[1:-2] - read[0]  # (m,), (probes, m)
    free = torch.ones(len(base), dtype=torch.bool, device=base.device)
    categories: list[Category] = []
    for g, group in enumerate(spec.categories):
        mine = change[[i for i, (kind, at) in enumerate(meaning) if kind == g]]  # (K - 1, m)
        moved = (mine != 0).any(0)
        if not bool(moved.any()):
            return "does not read every column"
        if not bool((moved <= free).all()):
            return "reads mixtures of columns"
        free &= ~moved
        places = moved.nonzero().squeeze(1)
        words = torch.cat([base[None, places], base[places] + mine[:, places]])
        categories.append(Category(tuple(group), places, words))
    slopes = change[[i for i, (kind, _) in enumerate(meaning) if kind < 0]].T  # (m, J)
    moved = (slopes != 0).any(1)
    if not bool((moved <= free).all()):
        return "reads mixtures of columns"
    places = moved.nonzero().squeeze(1)
    front = Front(
        layer,
        tuple(categories),
        torch.tensor(numbers, dtype=torch.long, device=base.device),
        places,
        base,
        slopes[places],
    )
    if numbers and int(torch.linalg.matrix_rank(front.slopes)) < len(numbers):
        return "does not read every column"
    return front if _agrees(front, probes[-2:], read[-2:]) else "does not read its columns as they are"


def _probes(model: nn.Module, spec: InputSpec, numbers: list[int]) -> tuple[Tensor, list[tuple[int, int]]]:
    """Rows in model units: the base, one for each change of one column, and two with all changed."""
    device, _ = model_placement(model)
    raw = torch.zeros(spec.shape[0], dtype=torch.float64, device=device)
    raw[[group[0] for group in spec.categories]] = 1.0
    base = spec.to_model(raw[None])[0]
    base[numbers] = 0.0
    probes, meaning = [base], []
    for g, group in enumerate(spec.categories):
        for k, column in enumerate(group[1:], start=1):
            changed = raw.clone()
            changed[group[0]], changed[column] = 0.0, 1.0
            probe = spec.to_model(changed[None])[0]
            probe[numbers] = 0.0
            probes.append(probe)
            meaning.append((g, k))
    for column in numbers:
        probe = base.clone()
        probe[column] = 1.0
        probes.append(probe)
        meaning.append((-1, column))
    for seed in (0, 1):
        generator = torch.Generator().manual_seed(seed)
        changed = torch.zeros_like(raw)
        for group in spec.categories:
            changed[group[int(torch.randint(len(group), (), generator=generator))]] = 1.0
        probe = spec.to_model(changed[None])[0]
        probe[numbers] = torch.randn(len(numbers), generator=generator, dtype=torch.float64).to(device)
        probes.append(probe)
    return torch.stack(probes), meaning


def _agrees(front: Front, probes: Tensor, read: Tensor) -> bool:
    """Whether two rows at random are read as the sum of what their columns are."""
    groups = [list(category.columns) for category in front.categories]
    choices = (
        torch.stack([probes[:, group].argmax(1) for group in groups], dim=1)
        if groups
        else probes.new_zeros(len(probes), 0, dtype=torch.long)
    )
    again = front.features(choices, probes[:, front.number_columns])
    return float((again - read).abs().max()) <= _SAME * float(read.abs().max())

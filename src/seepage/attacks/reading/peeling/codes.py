"""Alphabets that inputs are written in: 8-bit pixels and tokens.

A reading carries the gradient's rounding error. If the example can only be one of finitely many points, the
nearest one is the example itself, and the error is gone before it can pile up. It is evidence as well: the
values of a mixture of two examples do not lie on the grid, so a reading that does is one example. Whether
the data are written that way is seen from the readings; nothing is assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn

from seepage.attacks.reading.direction_grid import LEVELS
from seepage.attacks.reading.peeling.grid import on_grid
from seepage.attacks.reading.peeling.tolerances import COARSE
from seepage.attacks.reading.rows import SKETCH
from seepage.core.types import InputSpec, Modality
from seepage.models.gradients import Decode
from seepage.models.hooks import layer_input
from seepage.models.layers import LinearLayer
from seepage.models.precision import EXACT
from seepage.models.signals import ROUNDING

_TOKEN_DISTANCE = 0.05
"""Relative distance within which a reading is a row of the embedding table. Tested:
test_constants_of_reading_lie_on_a_plateau."""


@dataclass(frozen=True)
class Snapped:
    """Readings after the nearest point of the alphabet took their place, where there is one."""

    features: Tensor
    """(k, m) what the layer reads."""
    exact: Tensor
    """(k,) bool: it lies on the alphabet, which a mixture does not."""
    possible: Tensor
    """(k,) bool: inside the value range, as far as it is known."""
    undecided: Tensor
    """(k,) bool: too few values to tell whether it lies on the alphabet."""
    spoiled: Tensor
    """(k,) bool: most values lie on the alphabet, but not all: a mean of examples that are nearly alike, or
    one example that noise has changed. Nobody can vouch for it."""
    accident: Tensor
    """(k,) how probably one that is spoiled would have looked exact by accident; 0 for the others."""


class Code(Protocol):
    """How a reading is turned into what it must be, and into a model input."""

    worst_reading: float
    """Relative error beyond which a reading is not looked at."""

    def bounds(self) -> tuple[Tensor, Tensor] | None:
        """Least and greatest value the layer can read, one for each group of columns; None: unknown."""

    def snap(self, readings: Tensor, bound: Tensor | None = None, noise: Tensor | None = None) -> Snapped:
        """Put each reading (k, m) on the alphabet.

        The update's rounding may have added `bound` (k,) to any value; computing, `noise` (k,) on average.
        """

    def inputs(self, features: Tensor) -> Tensor | None:
        """(k, *shape) model inputs; None where the layer reads inner features."""


class RealCode:
    """Features of which nothing is known."""

    worst_reading = COARSE

    def bounds(self) -> tuple[Tensor, Tensor] | None:
        return None

    def snap(self, readings: Tensor, bound: Tensor | None = None, noise: Tensor | None = None) -> Snapped:
        return _unknown(readings)

    def inputs(self, features: Tensor) -> Tensor | None:
        return None


class NumberCode:
    """Pixels or columns of a table, read directly or through a crafted pass-through (`decode`)."""

    worst_reading = COARSE

    def __init__(
        self,
        spec: InputSpec,
        *,
        decode: Decode | None = None,
        encode: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.spec = spec
        self.decode = decode
        self.encode = encode
        self.levels: tuple[int, ...] = LEVELS
        """Narrowed to one as soon as readings were seen to lie on it."""

    def bounds(self) -> tuple[Tensor, Tensor] | None:
        """Only without a pass-through, which may rescale what it carries."""
        if self.spec.value_range is None or self.decode is not None:
            return None
        low, high = (torch.tensor([v]) for v in self.spec.value_range)
        if self.spec.mean is None or self.spec.std is None:
            return low, high
        mean, std = torch.tensor(self.spec.mean), torch.tensor(self.spec.std)
        return (low - mean) / std, (high - mean) / std

    def inputs(self, features: Tensor) -> Tensor | None:
        inputs = features if self.decode is None else self.decode(features)
        return inputs.reshape(-1, *self.spec.shape)

    def snap(self, readings: Tensor, bound: Tensor | None = None, noise: Tensor | None = None) -> Snapped:
        if self.spec.value_range is None or not len(readings):
            return _unknown(readings)
        inputs = self.inputs(readings)
        assert inputs is not None
        low, high = self.spec.value_range
        unit = (self.spec.to_raw(inputs).flatten(1) - low) / (high - low)  # (k, values) in [0, 1]
        possible = (unit > -EXACT).all(1) & (unit < 1 + EXACT).all(1)
        gain = self.gain(readings)
        off = ROUNDING if bound is None else bound * gain
        tried = {n: on_grid(unit, n, off, 0.0 if noise is None else noise * gain) for n in self.levels}
        levels, best = max(tried.items(), key=lambda each: int(each[1].exact.sum()))
        exact = best.exact
        spoiled = torch.stack([each.spoiled for each in tried.values()]).any(0) & ~exact
        accident = torch.where(spoiled, best.chance.double(), 0.0)
        if exact.any():
            self.levels = (levels,)
        snapped = (unit * levels).round_().clamp_(0, levels).div_(levels)
        features = self._features(snapped.mul_(high - low).add_(low), readings, exact)
        return Snapped(features, exact, possible | exact, best.undecided, spoiled, accident * possible)

    def gain(self, like: Tensor) -> float:
        """By how much a change of what the layer reads changes a value, as a share of the range, at most."""
        assert self.spec.value_range is not None
        low, high = self.spec.value_range
        ends = self.inputs(torch.stack([torch.zeros_like(like[0]), torch.ones_like(like[0])]))
        assert ends is not None
        return float(self.spec.to_raw(ends).flatten(1).diff(dim=0).abs().max()) / (high - low)

    def _features(self, raw: Tensor, readings: Tensor, exact: Tensor) -> Tensor:
        """Exact readings written anew from their raw values, the others as they were."""
        inputs = self.spec.to_model(raw.reshape(-1, *self.spec.shape))
        if self.decode is None:
            features = inputs.flatten(1)
        elif self.encode is not None and bool(exact.any()):
            features = readings.clone()
            features[exact] = self.encode(inputs[exact])
        else:
            features = readings
        return torch.where(exact.unsqueeze(1), features, readings)


class TokenCode:
    """Flattened embeddings: the layer can read nothing but rows of the table."""

    worst_reading = 0.8 * _TOKEN_DISTANCE

    def __init__(self, spec: InputSpec, table: Tensor, *, seed: int = 0) -> None:
        self.spec = spec
        self.table = table
        generator = torch.Generator().manual_seed(seed)
        self.projection = torch.randn(table.shape[1], SKETCH, generator=generator).to(table)
        self.tree = cKDTree((table @ self.projection).double().cpu().numpy())
        self.norms = table.norm(dim=1).clamp_min(1e-12)

    def bounds(self) -> tuple[Tensor, Tensor] | None:
        low, high = torch.aminmax(self.table)
        return low.reshape(1), high.reshape(1)

    def tokens(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(k, length) nearest tokens by a hash of a few projections, and their relative distance."""
        dim = self.table.shape[1]
        parts = features.reshape(len(features), features.shape[1] // dim, dim)  # (k, length, dim)
        _, near = self.tree.query((parts @ self.projection).double().cpu().numpy().reshape(-1, SKETCH))
        ids = torch.from_numpy(near).to(features.device).reshape(parts.shape[:2])
        if not len(parts):
            return ids, parts.new_zeros(ids.shape)
        distance = torch.stack([(p - self.table[i]).norm(dim=1) for p, i in zip(parts, ids, strict=True)])
        return ids, distance / self.norms[ids]

    def inputs(self, features: Tensor) -> Tensor | None:
        return self.tokens(features)[0].reshape(-1, *self.spec.shape)

    def snap(self, readings: Tensor, bound: Tensor | None = None, noise: Tensor | None = None) -> Snapped:
        if not len(readings):
            return _unknown(readings)
        parts = readings.reshape(len(readings), -1, self.table.shape[1])
        # A few positions rule most mixtures out before all are looked up.
        _, probe = self.tokens(parts[:, :: max(1, parts.shape[1] // SKETCH)].flatten(1))
        likely = (probe <= _TOKEN_DISTANCE).all(1).nonzero().squeeze(1)
        exact = torch.zeros(len(readings), dtype=torch.bool, device=readings.device)
        features = readings
        if len(likely):
            ids, distance = self.tokens(readings[likely])
            sure = (distance <= _TOKEN_DISTANCE).all(1)
            exact[likely] = sure
            features = readings.clone()
            features[likely[sure]] = self.table[ids[sure]].flatten(1)
        no = torch.zeros_like(exact)
        return Snapped(features, exact, exact, no, no, no.double())


def _unknown(readings: Tensor) -> Snapped:
    """Nothing is known of an alphabet, so nothing is ruled out."""
    no = torch.zeros(len(readings), dtype=torch.bool, device=readings.device)
    return Snapped(readings, exact=no, possible=~no, undecided=~no, spoiled=no, accident=no.double())


def choose_code(
    model: nn.Module, layer: LinearLayer, spec: InputSpec, *, decode: Decode | None, seed: int
) -> Code:
    """The alphabet that fits what the layer reads."""
    if layer.reads == "embedding" and layer.embedding is not None:
        return TokenCode(spec, model.get_parameter(layer.embedding).detach(), seed=seed)
    if spec.modality is Modality.TEXT or (layer.reads != "input" and decode is None):
        return RealCode()
    if decode is None:
        return NumberCode(spec)
    return NumberCode(spec, decode=decode, encode=lambda inputs: layer_input(model, layer.name, inputs))

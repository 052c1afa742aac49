"""Private examples and candidates in one space: raw inputs, or the features that reach a layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core.errors import ModelError
from seepage.core.types import INPUT_SPACE, Batch, InputSpec, Modality, Reconstruction
from seepage.metrics import ExactRule, exact_rule
from seepage.models.hooks import watching
from seepage.protocol import Played, training_mode
from seepage.protocol.widening import wide


@dataclass(frozen=True)
class View:
    """Some private examples, as one model shows them."""

    rows: Tensor
    """(m,) rows of `Played.truth`, ascending."""
    values: Tensor
    """(m, ...)"""
    rule: ExactRule

    def at(self, rows: Tensor) -> Tensor:
        """The values of these rows of the truth."""
        return self.values[torch.searchsorted(self.rows, rows)]


class Views:
    """What a candidate of each exchange is compared with. Inputs look alike in all of them; the features of a
    layer are those of the model that was sent in that exchange."""

    def __init__(self, played: Played, spec: InputSpec, space: str, tolerance: float) -> None:
        self.played, self.spec, self.space, self.tolerance = played, spec, space, tolerance
        self._kept: dict[int, View] = {}
        self._sharing: dict[int, list[int]] = {}
        for i in range(len(played.behind)):
            self._sharing.setdefault(self._key(i), []).append(i)

    def of(self, exchange: int) -> View:
        """The view of this exchange, with the examples behind every exchange that shares it."""
        key = self._key(exchange)
        if key not in self._kept:
            rows = torch.cat([self.played.behind[i] for i in self._sharing[key]]).unique()
            inputs = self.played.truth.inputs
            values = self._shown(inputs if len(rows) == len(inputs) else inputs[rows], exchange)
            rule = exact_rule(self.spec, values, space=self.space, tolerance=self.tolerance)
            self._kept[key] = View(rows, values, rule)
        return self._kept[key]

    def shown(self, exchange: Tensor, rows: Tensor | None = None) -> Tensor:
        """(n, ...) every example as the exchange that is named for it (n,) shows it, behind it or not.

        rows: the n rows of the truth that are asked for; None: all of them.
        """
        if self.space == INPUT_SPACE:  # alike in all of them: no example is copied
            inputs = self.played.truth.inputs
            return self._shown(inputs if rows is None else inputs[rows], 0)

        def of(shown_in: int, mine: Tensor) -> Tensor:
            return self._shown(self.played.truth.inputs[mine if rows is None else rows[mine]], shown_in)

        return self._by_model(exchange, of)

    def mean_of(self, public: Batch, exchange: Tensor) -> Tensor:
        """(n, ...) the mean public example, as the exchange that is named for each private one shows it."""

        def repeated(shown_in: int, rows: Tensor) -> Tensor:
            mean = self._shown(public.inputs, shown_in).mean(dim=0, keepdim=True)
            return mean.expand(len(rows), *mean.shape[1:])

        return self._by_model(exchange, repeated)

    def _by_model(self, exchange: Tensor, values: Callable[[int, Tensor], Tensor]) -> Tensor:
        shown_in = exchange.tolist()
        rows: dict[int, list[int]] = {}
        for row, one in enumerate(shown_in):
            rows.setdefault(self._key(one), []).append(row)
        found = [values(shown_in[mine[0]], torch.tensor(mine)) for mine in rows.values()]
        order = torch.tensor([row for mine in rows.values() for row in mine])
        return torch.cat(found)[order.argsort()]

    def _key(self, exchange: int) -> int:
        return 0 if self.space == INPUT_SPACE else id(self.played.model(exchange))

    def _shown(self, inputs: Tensor, exchange: int) -> Tensor:
        if self.space != INPUT_SPACE:
            return layer_inputs(self.played.model(exchange), self.space, inputs)
        values = wide(inputs.detach().cpu())
        return values if self.spec.modality is Modality.TEXT else self.spec.to_raw(values)


def layer_inputs(model: nn.Module, layer: str, inputs: Tensor) -> Tensor:
    """(n, d): what reaches the named layer for each input, flattened."""
    with watching(model, layer) as seen, torch.no_grad(), training_mode(model, False):
        model(inputs)
    if not seen:
        raise ModelError(
            f"layer '{layer}' was not reached in a forward pass, so its features cannot be scored."
        )
    return wide(seen[0].flatten(1).cpu())


def raw_candidates(result: Reconstruction, spec: InputSpec, dtype: torch.dtype) -> Tensor:
    """On the CPU, in raw units, inside the value range, in the truth's `dtype` or in single precision."""
    values = wide(result.values.detach().cpu())
    if not values.is_floating_point():
        return values
    if result.space == INPUT_SPACE:
        if result.model_units:
            values = spec.to_raw(values)
        if spec.value_range is not None:
            values = values.clamp(*spec.value_range)
    # The same number is matched, scored and kept: a later cast could undo an exact pair.
    kept = torch.promote_types(dtype, torch.float32)
    largest = min(torch.finfo(kept).max, torch.finfo(values.dtype).max)
    return values.clamp(-largest, largest).to(kept)

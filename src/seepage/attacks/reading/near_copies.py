"""What would be seen in an update if an example were the mean of two that are nearly alike.

x + e and x - e add up to two copies of x and (d(x + e) - d(x - e)) ⊗ e. The difference of the signals is of
the order of e where both fire the same neurons, and as large as the signal at a neuron that only one of them
fires. The server knows the model, so it knows this trace for any e: here one value moved, as far as counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.span import SignalSpan
from seepage.core.types import InputSpec
from seepage.models.hooks import CHUNK
from seepage.models.signals import BackwardSignals

_EXAMPLES = 32
"""Examples looked at. Cost: passes in double precision; fewer see less, and then less is claimed."""
_PASSES = 1024
"""Passes that the columns share. Cost: time; at least `_COLUMNS` are looked at, the least of which counts."""
_COLUMNS = 8
"""Columns that are looked at, at least. Cost: a pass each."""
_DIGITS = 1.0
"""Last digits that two signals must be apart. Derived: copies whose signals are equal leave products."""


class NearCopies:
    """Examples (k, m) with labels (k,), read at rows (k,); step (k,): how far a value is moved either way.

    >>> from seepage.core.types import Modality
    >>> from seepage.models.layers import trace_linear_layers
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(9, 60), torch.nn.ReLU(), torch.nn.Linear(60, 3))
    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(9,), num_classes=3)
    >>> signals = BackwardSignals(model, trace_linear_layers(model, spec)[0], spec, loss="cross_entropy")
    >>> x, y = torch.rand(2, 9), torch.tensor([0, 2])
    >>> rows = signals.at_all_rows(x, y).abs().argmax(1)
    >>> NearCopies(signals, x, y, rows, torch.tensor([1e-3, 1e-9])).told(torch.float32).all(0).tolist()
    [True, False]
    """

    def __init__(
        self, signals: BackwardSignals, features: Tensor, labels: Tensor, row: Tensor, step: Tensor
    ) -> None:
        self.count = len(features)
        some = slice(min(self.count, _EXAMPLES))
        x, y, self.row = features[some].double(), labels[some], row[some]
        self.step = step[some].double()  # (s,)
        precise = signals.precisely()
        self.signal = precise.at_all_rows(x, y)  # (s, N)
        self.columns = _columns(signals.spec, x.shape[1], len(x), x.device)
        self.apart = self._apart(precise, x, y)  # (c, s, N)

    def _apart(self, precise: BackwardSignals, x: Tensor, y: Tensor) -> Tensor:
        """d(x + e) - d(x - e) for each column; many a pass, for small networks cost what passes cost."""
        shape = (len(self.columns), len(x))
        apart = torch.zeros(shape[0] * shape[1], self.signal.shape[1], dtype=torch.float64, device=x.device)
        for part in torch.arange(len(apart), device=x.device).split(CHUNK):
            column, example = self.columns[part // len(x)].unsqueeze(1), part % len(x)
            moved = torch.zeros_like(x[example]).scatter_(1, column, self.step[example].unsqueeze(1))
            ends = (precise.at_all_rows(x[example] + e, y[example]) for e in (moved, -moved))
            apart[part] = next(ends) - next(ends)
        return apart.reshape(*shape, -1)

    def told(self, dtype: torch.dtype) -> Tensor:
        """(c, k) bool: if they differ in column c, the two have other signals at its row in this type."""
        told = torch.zeros(len(self.columns), self.count, dtype=torch.bool, device=self.row.device)
        at = self.row.unsqueeze(1)
        own = self.signal.gather(1, at).squeeze(1).abs()
        apart = self.apart.gather(2, at.expand(len(self.columns), -1, 1)).squeeze(2).abs()  # (c, s)
        told[:, : len(own)] = (apart >= _DIGITS * torch.finfo(dtype).eps * own) & (own > 0)
        return told

    def shown(self, span: SignalSpan) -> bool:
        """Whether the rank of the gradient would be larger, if each of them were such a mean."""
        # Behind a pass-through what the layer reads has other columns than what was decoded.
        if span.basis is None or int(self.columns.max()) >= span.columns:
            return False
        d = self.apart[:, :, span.index]  # (c, s, r)
        beside = (d - (d @ span.basis) @ span.basis.T).norm(dim=2)  # of what the gradient holds anyway
        trace = beside * self.step * span.outside(self.columns).unsqueeze(1)
        # Twice what is no noise any more: noise may hide as much.
        return bool((trace.amax(1) >= 2 * span.noise).all())


def _columns(spec: InputSpec, total: int, examples: int, device: torch.device) -> Tensor:
    """Columns that are moved: of a table, none that holds a category, which is there or not."""
    categories = (
        {column for group in spec.categories for column in group} if spec.shape == (total,) else set()
    )
    open_ = torch.tensor([c for c in range(total) if c not in categories], dtype=torch.long, device=device)
    most = max(_COLUMNS, _PASSES // (2 * max(1, examples)))
    if len(open_) <= most:
        return open_
    return open_[torch.linspace(0, len(open_) - 1, min(most, 32), device=device).round().long()]

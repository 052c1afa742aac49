"""How near a reconstructed row of a table is, with every column in units of its own spread."""

from __future__ import annotations

from torch import Tensor

from seepage.metrics.exact import EXACT_TOLERANCE, check_unit, exact_match
from seepage.metrics.pairs import by_examples, wide


def rmse(recon: Tensor, truth: Tensor, *, scale: Tensor) -> Tensor:
    """(n,): root mean squared error of each row, each column's error divided by its `scale` first.

    With a column's standard deviation as scale, guessing every column's mean scores about 1.

    >>> import torch
    >>> guess, row = torch.tensor([[1.0, 300.0]]), torch.tensor([[0.0, 200.0]])
    >>> rmse(guess, row, scale=torch.tensor([1.0, 100.0])).tolist()
    [1.0]
    """
    check_unit(scale, "scale")
    unit = wide(scale.to(truth.device))
    return by_examples(lambda r, t: ((r - t) / unit).flatten(1).square().mean(1).sqrt(), recon, truth)


def exact_rate(recon: Tensor, truth: Tensor, *, scale: Tensor, tolerance: float = EXACT_TOLERANCE) -> float:
    """Fraction of rows with every column within `tolerance` of its `scale`; 0 when there are no rows.

    >>> import torch
    >>> exact_rate(torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [3.0]]), scale=torch.tensor([1.0]))
    0.5
    """
    exact = exact_match(recon, truth, tolerance=tolerance, data_range=scale)
    return float(wide(exact).mean()) if len(exact) else 0.0

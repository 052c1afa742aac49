"""How near a reconstructed row of a table is, with every column in units of its own spread."""

from __future__ import annotations

from torch import Tensor

from seepage.metrics.exact import check_unit
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

"""A server that knows a defense may also do without that knowledge: it holds both answers.

What a defense left cannot always be undone. Of an update with one entry in twenty, the rank leaves too much
open, and rows read as they came may be better than rows that were filled in. Nothing that a server can see
tells reliably which: what was sent is explained by the plain answer, whatever it is worth.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from seepage.core.types import Reconstruction


def with_plain(knowing: Reconstruction, plain: Reconstruction) -> Reconstruction:
    """The candidates of both. What is counted once for an update, labels and rows, is that of `knowing`.

    >>> one = Reconstruction(values=torch.zeros(2, 3))
    >>> len(with_plain(one, one)), len(with_plain(one, replace(one, space="features")))
    (4, 2)
    """
    alike = knowing.space == plain.space and knowing.model_units == plain.model_units
    if not alike or len(plain) == 0 or (knowing.source is None) != (plain.source is None):
        return knowing
    return replace(
        knowing,
        values=torch.cat([knowing.values, plain.values.to(knowing.values)]),
        claimed=_both(knowing.claimed, plain.claimed, knowing, plain),
        confidence=_both(knowing.confidence, plain.confidence, knowing, plain),
        # its rows are the same ones, read again
        support=_both(knowing.support, None, knowing, plain),
        source=_both(knowing.source, plain.source, knowing, plain),
        complete=True if plain.complete else knowing.complete,
        if_declared=knowing.if_declared or plain.if_declared,
    )


def _both(
    first: Tensor | None, second: Tensor | None, one: Reconstruction, other: Reconstruction
) -> Tensor | None:
    """Entries of both, zeros for those of which nothing is said."""
    some = first if first is not None else second
    if some is None:
        return None
    parts = [
        some.new_zeros(len(of)) if part is None else part.to(some)
        for part, of in ((first, one), (second, other))
    ]
    return torch.cat(parts)

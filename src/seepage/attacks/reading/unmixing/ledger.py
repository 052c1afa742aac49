"""The examples found so far, and what they say about those that are not.

The c of found examples are exact, so all a of unknown ones lie exactly in their null space. The a of found
examples are rough pictures, so the q of unknown ones lie nearly in the complement of a / S (about a tenth of
them is outside). Each find makes both smaller, and sharpens the pictures of all others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.reading.unmixing.mixture import Mixture
from seepage.attacks.reading.unmixing.pattern import GENUINE, rough
from seepage.attacks.reading.unmixing.polish import unit

_AT_ONCE = 16
"""Patterns with gates of their own at a time. Cost: memory."""


class Ledger:
    """q (k, u) of unit length, patterns `on` (k, r) and rough pictures a (k, u) of the k found examples."""

    def __init__(self, mixture: Mixture) -> None:
        self.mixture = mixture
        like = mixture.directions
        self.q = like.new_zeros(0, mixture.unknown)
        self.on = torch.zeros(0, mixture.rows, dtype=torch.bool, device=like.device)
        self.a = like.new_zeros(0, mixture.unknown)

    def __len__(self) -> int:
        return len(self.q)

    @property
    def left(self) -> int:
        return self.mixture.unknown - len(self)

    def add(self, q: Tensor, on: Tensor) -> None:
        """Keep those of q (t, u) that are no combination of the ones before; then draw all pictures anew."""
        for one, pattern in zip(q, on, strict=True):
            if self.left == 0:  # another one is a combination of u others, whatever it is
                break
            more = torch.cat([self._duals(), (one / self.mixture.sizes).unsqueeze(0)])
            if float(torch.linalg.svdvals(unit(more))[-1]) > 1e-6:
                self.q = torch.cat([self.q, one.unsqueeze(0)])
                self.on = torch.cat([self.on, pattern.unsqueeze(0)])
        self._redraw()

    def weed(self) -> int:
        """Where all are found, drop those whose pattern is not that of the a which all others leave them.

        A wrong q changes the a of others, and of itself it shows the one that is still missing.
        """
        a = torch.linalg.pinv(unit(self._duals())).T
        a = a * torch.sign(a @ self.mixture.ones).unsqueeze(1)
        right = self.mixture.agreement(self.on, a) >= GENUINE
        wrong = int((~right).sum())
        if wrong:
            self.q, self.on, self.a = self.q[right], self.on[right], self.a[right]
            if len(self):
                self._redraw()
        return wrong

    def span(self) -> Tensor:
        """(u, left) orthonormal: where the a of the unknown examples are, exactly."""
        return complement_of(unit(self._duals()))

    def reduced(self) -> Tensor:
        """(u, left) orthonormal: where their q are, nearly."""
        return complement_of(unit(self.a / self.mixture.sizes))

    def _duals(self) -> Tensor:
        return self.q / self.mixture.sizes  # c, up to its size

    def _redraw(self) -> None:
        """a_b c_b' = 0 for all other found b': a_b is the dual of c_b plus something in `span`."""
        gates, span = self.mixture.gates, self.span()
        duals = unit(torch.linalg.pinv(unit(self._duals())).T)  # (k, u)
        free = gates @ span  # (r, left)
        pictures = []
        for own, on in zip(duals.split(_AT_ONCE), self.on.split(_AT_ONCE), strict=True):
            along = (own @ gates.T).unsqueeze(2)  # (t, r, 1)
            found = rough(torch.cat([along, free.expand(len(own), -1, -1)], dim=2), on)
            pictures.append(found[:, :1] * own + found[:, 1:] @ span.T)
        self.a = torch.cat(pictures)


def complement_of(rows: Tensor) -> Tensor:
    """(u, u - k) orthonormal columns, orthogonal to the rows (k, u)."""
    if len(rows) == 0:
        return torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    complement: Tensor = torch.linalg.qr(rows.T, mode="complete").Q[:, len(rows) :]
    return complement

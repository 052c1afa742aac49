"""Taking apart what peeling leaves: from rows of a residual to the examples in them.

SPEAR (Dimitrov et al. 2024) finds backward signals by guessing rows in which an example is off, which takes
2^u guesses. Here a search starts from made-up inputs, and the network itself says which finds are real.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from seepage.attacks.reading.peeling.residual import Found, Residual
from seepage.attacks.reading.unmixing.assemble import Unmixed, assemble
from seepage.attacks.reading.unmixing.mixture import mixture_of
from seepage.attacks.reading.unmixing.search import Search
from seepage.core.progress import Clock


class Unmixer:
    """Unmixes residuals of one layer, and remembers how far the last search came.

    >>> import torch
    >>> from seepage.models.gradients import LayerGradient
    >>> _ = torch.manual_seed(0)
    >>> weight, bias, x = torch.randn(60, 20), torch.randn(60), torch.randn(3, 20)
    >>> d = torch.randn(3, 60) * (x @ weight.T + bias > 0)
    >>> residual = Residual(LayerGradient(d.T @ x, d.sum(0), scale=1.0, steps=1))
    >>> unmixer = Unmixer((weight, bias), lambda unknown: torch.randn(4 * unknown, 20))
    >>> found = unmixer.unmix(residual, torch.arange(60), Found.none(residual.weight), Clock(seconds=None))
    >>> bool(torch.cdist(found.features, x).amin(0).max() < 1e-4)
    True
    """

    def __init__(
        self,
        parameters: tuple[Tensor, Tensor],
        made_up: Callable[[int], Tensor],
        *,
        moves: bool = False,
        seed: int = 0,
    ) -> None:
        """`parameters`: the layer's weight (N, m) and bias (N,); made_up: for u unknown examples, so many
        inputs of the layer; moves: residuals are changes of the layer, whose parameters are those halfway."""
        self.parameters = parameters
        self.made_up = made_up
        self.moves = moves
        self.seed = seed
        self.tried = False
        self.search: Search | None = None
        """The last one; None where the rank said no."""
        self.followed = 0
        """Of all examples that were told apart, those that the others left no choice for."""

    def unmix(self, residual: Residual, index: Tensor, found: Found, clock: Clock) -> Unmixed | None:
        """The examples that the rows `index` (r,) of a residual are made of; None if not all can be told."""
        self.tried, self.search = True, None
        weight, bias = (p[index] for p in self.parameters)
        mixture = mixture_of(
            lambda: residual.columns(index, found),
            residual.biases(index, found),
            noise=residual.noise(index, found)[1],
            layer=(weight, bias),
            made_up=self.made_up,
            moved=1 / residual.factor if self.moves else 0.0,
        )
        if mixture is None:
            return None
        self.search = Search(mixture, clock=clock.share(1), seed=self.seed)
        if not self.search.run():
            return None
        self.followed += self.search.followed
        return assemble(mixture, self.search.ledger.q, residual.weight.dtype)

    def pictures(self) -> Tensor | None:
        """(k, m): of an incomplete search, what its finds look like up to the span of the others."""
        if self.search is None or len(self.search.ledger) == 0:
            return None
        mixture, a = self.search.mixture, self.search.ledger.a
        level = a @ mixture.ones
        kept = level > 0
        if not bool(kept.any()):
            return None
        return mixture.examples(a[kept] / level[kept].unsqueeze(1)).to(self.parameters[0].dtype)

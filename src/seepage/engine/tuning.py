"""How a training is tuned: a learning rate for each defense, and an end where it no longer pays.

A defense that shrinks updates needs larger steps, and noise smaller ones: at one rate for all, a study ranks
learning rates. Both choices go by examples that are neither a client's nor tested on.
"""

from __future__ import annotations

import math
from collections.abc import Callable

COARSE = (1.0, 0.1, 10.0, 100.0)
"""Times the protocol's rate, tried first: clipping to a tenth of a gradient's norm wants ten times more."""
FINE = (10**-0.5, 10**0.5)
"""Then around the best of them."""
TRIAL = 0.25
"""Of the rounds: what each rate is tried for."""
COST = 1 + TRIAL * (len(COARSE) + len(FINE))
"""Trainings that one tuned training takes."""
CHECKS, PATIENCE = 10, 3
"""Looks at the accuracy over all rounds, and how many of them in a row may bring nothing. The first half
of the rounds is always trained: a slow start looks flat as well."""


def best_rate(reached: Callable[[float], float], first: float) -> float:
    """The rate that reaches the highest accuracy; of equals the one that was tried first.

    >>> best_rate(lambda rate: -abs(math.log(rate / 1.2)), 0.1)
    1.0
    """
    tried = {first * factor: reached(first * factor) for factor in COARSE}
    best = max(tried, key=lambda rate: tried[rate])
    tried |= {best * factor: reached(best * factor) for factor in FINE}
    return max(tried, key=lambda rate: tried[rate])


class Plateau:
    """Says when to stop, by the accuracy on so many examples.

    >>> risen = iter([0.2, 0.5, 0.5, 0.5, 0.5])
    >>> plateau = Plateau(lambda model: next(risen), examples=100, rounds=50)
    >>> [plateau(None, number) for number in (5, 10, 15, 20, 25)]
    [False, False, False, False, True]
    """

    def __init__(self, accuracy: Callable[..., float], *, examples: int, rounds: int) -> None:
        self.reached = False
        self._accuracy, self._examples = accuracy, examples
        self._every, self._least = max(1, rounds // CHECKS), rounds / 2
        self._best, self._idle = 0.0, 0

    def __call__(self, model: object, number: int) -> bool:
        """After round `number`, counted from 1. A gain within one standard error is none."""
        if number % self._every:
            return False
        found = self._accuracy(model)
        error = math.sqrt(max(self._best * (1 - self._best), 1e-9) / self._examples)
        self._idle = 0 if found > self._best + error else self._idle + 1
        self._best = max(self._best, found)
        self.reached = self._idle >= PATIENCE and number >= self._least
        return self.reached

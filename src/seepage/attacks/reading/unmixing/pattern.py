"""Whether a set of neurons is what some input switches on: the network's own check of a find.

A sparse U q is the backward signal of an example only if its support is an activation pattern, that is, if a
linear classifier finds an a with P a > 0 exactly there. Sparse vectors that are no example's have supports
that no input has. No other example needs to be known for it, and the a that is found is a rough picture of
the example.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

GENUINE = 0.97
"""Share of the signs from which on a support is an activation pattern. Examples reach .98 to 1.00, others at
most .96 (CIFAR-10, 1000 neurons, 64 to 128 examples), but for one of .970 in 40 batches of 25 and 30 at 200
neurons: what was accepted wrongly is taken back when all seem to be found. Tested:
test_constants_of_unmixing_lie_on_a_plateau."""
_CHECKED, _ROUGH = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5), (1e-1, 1e-2)
"""Penalties on the size of a, one after the other: the smaller the sharper is the sigmoid. The last of a
check tells a feasible pattern; that of a picture leaves it in the middle of what the pattern allows. No
plateau test yet."""
_NEWTON = 4
"""Newton steps for each penalty, from the solution of the one before. Cost: time; four double the digits four
times."""


def fit(gates: Tensor, on: Tensor, penalties: Sequence[float] = _CHECKED) -> Tensor:
    """(t, d): a with gates a > 0 where `on` (t, r) says so, as far as there is one. Logistic regression.

    gates: (r, d), or (t, r, d) where each pattern has its own.
    """
    shared = gates.dim() == 2
    sides = on.to(gates) * 2 - 1
    # In coordinates in which activations have the same variance in all directions Newton's steps are safe.
    orthogonal, triangle = torch.linalg.qr(gates)
    features = orthogonal * gates.shape[-2] ** 0.5
    a = features.new_zeros(len(on), gates.shape[-1])
    eye = torch.eye(gates.shape[-1], dtype=gates.dtype, device=gates.device)
    for penalty in penalties:
        for _ in range(_NEWTON):
            wrong = torch.sigmoid(-sides * _apply(features, a))  # (t, r)
            slope, weight = sides * wrong, wrong * (1 - wrong)
            if shared:
                gradient = slope @ features
                curvature = (features.T.unsqueeze(0) * weight.unsqueeze(1)) @ features
            else:
                gradient = (slope.unsqueeze(1) @ features).squeeze(1)
                curvature = (features * weight.unsqueeze(2)).transpose(1, 2) @ features
            a = a + torch.linalg.solve(curvature + penalty * eye, gradient - penalty * a)
    triangle = triangle / gates.shape[-2] ** 0.5
    back: Tensor = torch.linalg.lstsq(
        triangle.expand(len(a), -1, -1), a.unsqueeze(2), driver="gels"
    ).solution.squeeze(2)
    return back


def rough(gates: Tensor, on: Tensor) -> Tensor:
    """As `fit`, in the middle of all that have the pattern."""
    return fit(gates, on, _ROUGH)


def _apply(gates: Tensor, a: Tensor) -> Tensor:
    if gates.dim() == 2:
        return a @ gates.T
    return (gates @ a.unsqueeze(2)).squeeze(2)

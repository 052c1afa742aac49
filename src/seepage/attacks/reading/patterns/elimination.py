"""Peeling without foretelling a signal: known examples leave a row by linear algebra, not by subtraction.

After several local steps, with dropout or behind batch statistics the server cannot compute what an example
sent, but the gradient is still D^T [X, 1] for *some* D. Rows that hold one unknown example besides known ones
are proportional to each other once the span of the known ones is taken out, which gives that example up to a
combination of the known ones, p + sum_j a_j [x_j, 1]. What a_j is follows from any of these rows in which
example j is off: there its share of the row is all a_j's. Which rows those are, the layer's own weights say.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.reading.patterns.open_rows import Split, Unknown, split, unknown_part
from seepage.attacks.reading.peeling.residual import Residual
from seepage.attacks.reading.peeling.tolerances import SURE
from seepage.attacks.reading.scale import TOGETHER

_CANDIDATES = 64
"""Groups of proportional rows looked at in a round, the largest first. Cost: two unknown examples make many
small ones by accident."""


@dataclass(frozen=True)
class Read:
    """Candidates that proportional rows show."""

    values: Tensor
    """(c, m) what the layer reads; up to a factor where it has no bias."""
    noise: Tensor
    """(c,) root mean square of the rounding in a value."""
    support: Tensor
    """(c,) rows."""
    unknown: int
    """How many unknown examples the rows hold together."""


def eliminate(residual: Residual, rows: Tensor, examples: Tensor, on: Tensor) -> Read | None:
    """Examples that some rows (r,) hold besides known ones (k, m); None where no two rows agree.

    on: (k, N) bool, the neurons that each known example switches on.
    """
    parts = split(residual, rows, examples)
    unknown = unknown_part(residual, parts, examples)
    if unknown is None:
        return None
    found = [
        one
        for group in _proportional(parts, unknown)
        if (one := _example(parts, unknown, group, examples, on, bias=bool(residual.bias.any()))) is not None
    ]
    if not found:
        return None
    values, noise, support = (list(each) for each in zip(*found, strict=True))
    device = values[0].device
    return Read(
        torch.stack(values).to(residual.weight.dtype),
        torch.tensor(noise, dtype=torch.float64, device=device),
        torch.tensor(support, device=device),
        unknown.coordinates.shape[1],
    )


def _proportional(parts: Split, unknown: Unknown) -> list[Tensor]:
    """Groups of positions in `unknown` whose coordinates are proportional within rounding."""
    size = unknown.coordinates.norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
    direction = unknown.coordinates / size.unsqueeze(1)
    u = direction.shape[1]
    blur = parts.noise[unknown.at] * max(u - 1, 1) ** 0.5 / size  # of the direction
    # |d - d'|^2 = 2 - 2 |cos|; products of unit vectors in double precision are good to 1e-15.
    apart = (2 - 2 * (direction @ direction.T).abs().clamp(max=1.0)).sqrt()
    limit = SURE * (blur.unsqueeze(1) + blur.unsqueeze(0)) + 1e-7
    near = (apart <= limit) & (limit < 0.1)
    groups: list[Tensor] = []
    free = torch.ones(len(near), dtype=torch.bool, device=near.device)
    for _ in range(_CANDIDATES):
        count = (near & free.unsqueeze(0)).sum(1) * free
        best = int(count.argmax())
        if int(count[best]) < TOGETHER:
            break
        group = (near[best] & free).nonzero().squeeze(1)
        groups.append(group)
        free[group] = False
    return groups


def _example(
    parts: Split, unknown: Unknown, group: Tensor, examples: Tensor, on: Tensor, *, bias: bool
) -> tuple[Tensor, float, int] | None:
    """(m,) values, their noise and the number of rows of the example that a group of rows shares.

    Without a bias nothing says how long it is, or which sign it has.
    """
    at = unknown.at[group]
    clear = unknown.coordinates[group] / parts.noise[at].unsqueeze(1)
    axis = torch.linalg.svd(clear, full_matrices=False).Vh[0]
    share = unknown.coordinates[group] @ axis  # (g,) r_i
    certainty = share / parts.noise[at]
    noise = (1 / certainty.norm()).square()  # of a value of p
    vector = axis @ unknown.basis  # p
    if len(examples):
        coefficients, error = _shares(parts, at, share, parts.rows[at], on)
        if coefficients is None or error is None:
            return None
        vector = vector.clone()
        vector[:-1] += coefficients @ examples.double()
        vector[-1] += coefficients.sum() * bias
        noise = noise + (error.square() * examples.double().square().mean(1)).sum()
    length = vector[-1] if bias else vector.new_ones(())
    if float(length.abs()) <= 0:
        return None
    return vector[:-1] / length, float(noise.sqrt() / length.abs()), len(group)


def _shares(
    parts: Split, at: Tensor, share: Tensor, rows: Tensor, on: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """(k,) a_j and their noise: L_ij / r_i over the rows in which example j is off."""
    off = ~on[:, rows].T  # (g, k)
    if not bool(off.any(0).all()):
        return None, None
    ratio = parts.known[at] / share.unsqueeze(1)  # (g, k)
    blur = (parts.noise[at] / share.abs()).unsqueeze(1) * parts.spread  # (g, k)
    middle = torch.where(off, ratio, torch.nan).nanmedian(0).values
    # A neuron near its threshold may have been on in a later step: what disagrees does not count.
    agrees = off & ((ratio - middle).abs() <= SURE * (blur + _best(blur, off)))
    weight = torch.where(agrees, blur.clamp_min(torch.finfo(blur.dtype).tiny) ** -2, 0.0)
    total = weight.sum(0)
    if not bool((total > 0).all()):
        return None, None
    return (weight * ratio.nan_to_num()).sum(0) / total, total.rsqrt()


def _best(blur: Tensor, off: Tensor) -> Tensor:
    """(1, k) noise of the median: about that of a typical row."""
    return torch.where(off, blur, torch.nan).nanmedian(0, keepdim=True).values

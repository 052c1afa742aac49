"""What every metric needs before it counts: checked pairs, wide arithmetic, bounded memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seepage.core.errors import DataError

BLOCK = 2**21
"""Most elements that are held in float64 at a time. Cost: 16 MiB, whatever the size of the inputs."""


def wide(values: Tensor) -> Tensor:
    """The values in float64, so that long sums keep their digits (float32 on MPS, which has no more).

    >>> wide(torch.ones(2, dtype=torch.float16)).dtype
    torch.float64
    """
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)


def are_tokens(values: Tensor) -> bool:
    """Whether the values are ids, whose differences mean nothing (any integer or bool dtype)."""
    return not values.is_floating_point()


def check_values(values: Tensor, role: str) -> None:
    """Refuse what no distance is defined on: complex numbers, NaN and infinity."""
    if values.is_complex():
        raise DataError(f"{role} is complex, which no metric here measures: give its real values.")
    if values.is_floating_point() and values.numel():
        # aminmax passes NaN on and needs no mask of the size of the data
        low, high = torch.aminmax(values.detach())
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            raise DataError(f"{role} holds NaN or infinite values: drop those examples before scoring.")


def check_comparable(candidates: Tensor, truth: Tensor) -> None:
    """Refuse candidates and truth that do not describe examples of one kind; their numbers may differ."""
    if candidates.ndim < 2 or truth.ndim < 2:
        raise DataError(
            f"metrics want a leading example dimension, got shapes {tuple(candidates.shape)} and "
            f"{tuple(truth.shape)}: add it with unsqueeze(0)."
        )
    if candidates.shape[1:] != truth.shape[1:]:
        raise DataError(
            f"one reconstruction has shape {tuple(candidates.shape[1:])} but one true example "
            f"{tuple(truth.shape[1:])}: compare them in the same space and layout."
        )
    if truth[:1].numel() == 0 and len(truth):
        raise DataError(
            f"examples of shape {tuple(truth.shape[1:])} hold no values: there is nothing to compare."
        )
    if are_tokens(candidates) != are_tokens(truth):
        raise DataError(
            f"reconstruction is {candidates.dtype} but truth is {truth.dtype}: "
            "token ids (integers) and measured values (floats) cannot be compared, convert one of them."
        )
    if candidates.device != truth.device:
        raise DataError(
            f"reconstruction is on {candidates.device} but truth on {truth.device}: move one of them."
        )
    check_values(candidates, "the reconstruction")
    check_values(truth, "the truth")


def check_pair(recon: Tensor, truth: Tensor) -> None:
    """Refuse anything but as many reconstructions as true examples, alike in shape, kind and device."""
    check_comparable(recon, truth)
    if len(recon) != len(truth):
        raise DataError(
            f"{len(recon)} reconstructions stand against {len(truth)} true examples: "
            "match them with `assign` first."
        )


def by_examples(
    score: Callable[[Tensor, Tensor], Tensor], recon: Tensor, truth: Tensor, *, copies: int = 1
) -> Tensor:
    """Apply a per-example score to checked pairs, a bounded number of examples at a time -> (n,).

    copies: how many tensors of an example's size the score holds at a time, for that bound.

    >>> by_examples(lambda r, t: (r - t).flatten(1).sum(1), torch.ones(3, 2), torch.zeros(3, 2))
    tensor([2., 2., 2.], dtype=torch.float64)
    """
    check_pair(recon, truth)
    if len(truth) == 0:
        return wide(truth.new_zeros(0))
    rows = max(1, BLOCK // (copies * truth[0].numel()))
    parts = zip(recon.detach().split(rows), truth.detach().split(rows), strict=True)
    return torch.cat([wide(score(wide(r), wide(t))) for r, t in parts])

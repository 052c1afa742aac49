"""What theory allows at most: reconstruction robustness of the Gaussian mechanism."""

from __future__ import annotations

import math

from scipy.special import ndtr, ndtri


def reconstruction_bound(*, sigma: float, steps: int = 1, prior_success: float = 0.01) -> float:
    """The highest chance of any attacker to rebuild an example, whatever it knows about all the others.

    Balle et al. 2022 (reconstruction robustness) with the blow-up function of Hayes et al. 2023: the chance
    is at most the largest probability that an event of probability kappa under N(0, 1) has under N(mu, 1).
    By Neyman and Pearson that event is a half-line, hence gamma = Phi(Phi^-1(kappa) + mu), with
    mu = sqrt(T) / sigma for T releases at sampling rate 1 (noise sigma C, sensitivity C).

    prior_success: kappa, the chance of the same success without any release.

    >>> round(reconstruction_bound(sigma=1.0, prior_success=0.5), 4)  # Phi(1)
    0.8413
    >>> reconstruction_bound(sigma=0.0)
    1.0
    """
    if not 0 < prior_success < 1:
        raise ValueError(f"prior_success must lie between 0 and 1, not {prior_success}")
    if sigma < 0 or steps < 0:
        raise ValueError(f"sigma and steps must not be negative: {sigma}, {steps}")
    if steps == 0:
        return prior_success
    if sigma == 0:
        return 1.0
    return float(ndtr(ndtri(prior_success) + math.sqrt(steps) / sigma))

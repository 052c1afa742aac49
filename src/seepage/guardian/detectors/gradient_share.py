"""D-SNR: does one example own the gradient? (Garov et al. 2024, "Hiding in Plain Sight")

Per layer, the largest gradient norm over the sum of the others'. Of single *inputs* one owns a layer's
gradient in honest models as well, wherever the ReLUs that lead there are silent for all others; no threshold
tells that from a trap. Which *label* an input has should matter little, however: a fishing head lets examples
of one class through and no others (Wen et al. 2022, Section 3.1). So the same inputs are given every label in
turn, and the gradients of the labels are compared.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.core.errors import NotApplicable
from seepage.core.types import Detector, InputSpec
from seepage.guardian.detectors.calibrated import Reading, most_striking
from seepage.guardian.detectors.harmless import Probe, behaviour_detector, run
from seepage.guardian.detectors.layers import fresh_generator

_CLASSES = 10
"""Labels that are compared. Cost: each takes one gradient of the model."""
_BATCH = 16
"""Harmless inputs. Cost: gradients take time with their number; the thresholds were calibrated with it."""
_MOST = 4.0
"""Largest score. Derived: decimal logarithms; a label with 10,000 times the gradient of all others owns
it."""


def gradient_share(*, spec: InputSpec | None = None, sample: Tensor | None = None) -> Detector:
    """Behaviour: D-SNR, the gradient of one label over those of all others, for the same harmless inputs."""
    return behaviour_detector("gradient_share", measure, spec, sample)


def measure(model: nn.Module, probe: Probe) -> Reading:
    weights = {n: p for n, p in model.named_parameters() if p.requires_grad and p.dim() >= 2}
    if not weights:
        raise NotApplicable("the model has no trainable weights, so gradients could not be compared.")
    classes = min(_CLASSES, probe.spec.num_classes)
    if classes < 3:
        raise NotApplicable("the data have two classes only, and of two labels one always stands out.")
    inputs = probe.inputs(_BATCH, like=model)
    # Drawn anew: a server that knew the labels would fish for others.
    labels = torch.randperm(probe.spec.num_classes, generator=fresh_generator())[:classes].tolist()
    norms = torch.stack([_norms(model, weights, inputs, label) for label in labels])
    readings = []
    for name, column in zip(weights, norms.T, strict=True):
        score = min(_MOST, math.log10(max(d_snr(column), 1e-6)))
        words = (
            f"D-SNR {10**score:.3g} at '{name}': of {classes} labels for the same harmless inputs, one has "
            "so many times the gradient of all others together"
        )
        readings.append(Reading(score=score, layer=name, evidence=words))
    return most_striking(readings, needs="trainable weights")


def d_snr(norms: Tensor) -> float:
    """Largest over the sum of the others; 0 where there is no gradient.

    >>> d_snr(torch.tensor([6.0, 1.0, 2.0]))
    2.0
    """
    largest, total = float(norms.max()), float(norms.sum())
    if largest == 0:
        return 0.0
    return largest / max(total - largest, 1e-9 * largest)


def _norms(model: nn.Module, weights: dict[str, nn.Parameter], inputs: Tensor, label: int) -> Tensor:
    """(layers,) norms of the gradient of a batch that all has one label."""
    with torch.enable_grad():
        logits = run(model, inputs)
        if logits.shape[1] <= label:
            raise NotApplicable("the model has fewer outputs than the data have classes.")
        loss = F.cross_entropy(logits, torch.full_like(logits[:, 0], label, dtype=torch.long))
        grads = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    return torch.stack([_norm(grad, like=loss) for grad in grads])


def _norm(grad: Tensor | None, *, like: Tensor) -> Tensor:
    if grad is None:
        return like.new_zeros((), dtype=torch.float64)
    norm: Tensor = torch.linalg.vector_norm(grad).double()
    # Activations of deep untrained nets grow to 1e20 and more, whose squares are no float32.
    if not bool(norm.isfinite()):
        norm = torch.linalg.vector_norm(grad.double())
    return norm

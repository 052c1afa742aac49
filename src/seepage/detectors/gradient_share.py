"""D-SNR: does one example own the gradient? (Garov et al. 2024, "Hiding in Plain Sight")

Per layer, the largest per-example gradient norm over the sum of the others'. Crafted models that isolate an
example must let its gradient stand out, wherever their weights hide it.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.detectors.calibrated import Reading, most_striking
from seepage.detectors.harmless import Probe, behaviour_detector, one_of_each_class, run
from seepage.errors import NotApplicable
from seepage.types import Detector, InputSpec

_CLASSES = 10
_MOST = 4.0


def gradient_share(*, spec: InputSpec | None = None, sample: Tensor | None = None) -> Detector:
    """Behaviour: D-SNR, the largest example's gradient over the others', one harmless input a class."""
    return behaviour_detector("gradient_share", measure, spec, sample)


def measure(model: nn.Module, probe: Probe) -> Reading:
    weights = {n: p for n, p in model.named_parameters() if p.requires_grad and p.dim() >= 2}
    if not weights:
        raise NotApplicable("the model has no trainable weights, so gradients could not be compared.")
    batch = one_of_each_class(probe, model, _CLASSES)
    if len(batch) < 3:
        raise NotApplicable("the data have two classes only, and of two examples one always stands out.")
    norms = torch.stack(
        [
            torch.stack(
                [_norms(model, weights, x.unsqueeze(0), y) for x, y in zip(batch.inputs, labels, strict=True)]
            )
            for labels in (batch.labels, batch.labels.roll(1))
        ]
    )  # (labellings, examples, layers)
    readings = []
    for name, columns in zip(weights, norms.permute(2, 0, 1), strict=True):
        # One example may stand out in an honest model as well, but hardly whatever its label is.
        column = min(columns, key=d_snr)
        score = min(_MOST, math.log10(max(d_snr(column), 1e-6)))
        words = (
            f"D-SNR {10**score:.3g} at '{name}': of {len(batch)} harmless inputs, one for each class, one "
            "has so many times the gradient of all others together"
        )
        readings.append(Reading(score=score, layer=name, evidence=words))
    return most_striking(readings, needs="trainable weights")


def d_snr(norms: Tensor) -> float:
    """Largest over the sum of the others; 0 where no example has a gradient.

    >>> d_snr(torch.tensor([6.0, 1.0, 2.0]))
    2.0
    """
    largest, total = float(norms.max()), float(norms.sum())
    if largest == 0:
        return 0.0
    return largest / max(total - largest, 1e-9 * largest)


def _norms(model: nn.Module, weights: dict[str, nn.Parameter], x: Tensor, label: Tensor) -> Tensor:
    with torch.enable_grad():
        logits = run(model, x)
        if logits.shape[1] <= int(label):
            raise NotApplicable("the model has fewer outputs than the data have classes.")
        loss = F.cross_entropy(logits, label.unsqueeze(0))
        grads = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    zero = loss.new_zeros(())
    return torch.stack([zero if g is None else g.norm() for g in grads]).detach()

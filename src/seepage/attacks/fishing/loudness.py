"""How loud a caught example has to be, so that a client's weight delta does not round its gradient away.

After one step of FedAvg a server has w - lr * g / n minus w, both rounded: of a gradient whose step is below
the last digit of w nothing is left. At a rate of .001 and 256 examples that is most of an ordinary gradient.
The crafted row is the server's to choose: a row that is `loud` times as large makes every gradient behind
the layer as much larger.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seepage.attacks.fishing.head import Head, class_head, head_features
from seepage.core.types import Knowledge
from seepage.models.probes import dummy_inputs, run_model
from seepage.protocol import trainable, training_mode

USUAL_ALPHA = 1000.0
"""Paper: Wen et al. 2022, Section 3.1."""
_STEP = 10.0
"""Length of a lone example's step over that of the weights it is added to. Derived: of n examples' mean it is
10 / n, and 1 / n > eps / 1e-3 in single precision up to n = 8000. Tested:
test_the_loudness_lies_on_a_plateau."""
_ROOM = 100.0
"""Times the largest logit of made-up inputs that alpha exceeds the target class's. Derived: a softmax at 100
is 0 or 1 in float32; nothing is lost by a larger one, see `head.class_head`."""
_PROBES = 4
"""Made-up inputs. Cost: one pass forward for all of them."""


def loudness(model: nn.Module, head: Head, target: int, known: Knowledge) -> tuple[float, float]:
    """(alpha, loud) of a class head under this protocol: the paper's where clients send gradients.

    >>> from seepage.core.types import InputSpec, LocalTraining
    >>> from seepage.attacks.fishing.head import find_head
    >>> spec = InputSpec(modality="tabular", shape=(4,), num_classes=3)
    >>> net = nn.Sequential(nn.Linear(4, 5), nn.Sigmoid(), nn.Linear(5, 3))
    >>> loudness(net, find_head(net, spec), 0, Knowledge(input=spec, local=LocalTraining()))
    (1000.0, 1.0)
    """
    local = known.local
    if local is None or local.algorithm == "fedsgd":
        return USUAL_ALPHA, 1.0
    inputs = dummy_inputs(known.input, _PROBES, like=model, seed=known.seed, model_units=known.normalised)
    alone = class_head(model, head, target, alpha=USUAL_ALPHA)
    weights, gradients = _lengths(alone, head, target, inputs)
    if gradients == 0:
        return USUAL_ALPHA, 1.0
    loud = _STEP * weights / (local.lr * gradients)
    if head.bias is None:  # what stands for alpha is itself what makes the gradient
        return max(USUAL_ALPHA, USUAL_ALPHA * loud), 1.0
    row = model.get_parameter(head.weight).detach()[target].double().cpu()
    logits = loud * (head_features(model, head, inputs) @ row)
    return USUAL_ALPHA + _ROOM * float(logits.abs().max()), loud


def _lengths(model: nn.Module, head: Head, target: int, inputs: Tensor) -> tuple[float, float]:
    """Of all weights behind the classification layer, and of a made-up example's gradient in them."""
    body = [p for name, p in trainable(model).items() if name not in (head.weight, head.bias)]
    if not body:
        return 0.0, 0.0
    with training_mode(model, False):
        caught = -run_model(model, inputs)[:, target].mean()
    found = torch.autograd.grad(caught, body, allow_unused=True)
    gradients = torch.stack(
        [g.double().norm() for g in found if g is not None] or [torch.zeros(1).double()[0]]
    )
    weights = torch.stack([p.detach().double().norm() for p in body])
    return float(weights.norm()), float(gradients.norm())

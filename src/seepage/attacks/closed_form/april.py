"""APRIL (Lu et al. 2021; Wen et al. 2022, Section 4.4): one picture out of a vision transformer, closed form.

In a first block without layer norm and residual, the gradient reaches the embedded tokens z through query,
key and value alone: (dL/dz)^T z = Wq^T dWq + Wk^T dWk + Wv^T dWv. The position embedding is added to z, so
its gradient is dL/dz, and z solves linear equations; the patch embedding's weights then give pixels. The loss
does not enter: the equations hold for a gradient that fishing has isolated as well. For several examples sums
of products stand where the equations have products of sums, and the patches of all pictures mix.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from seepage.attacks.base import PerUpdateAttack
from seepage.attacks.closed_form.alone import uncounted
from seepage.attacks.closed_form.transformer.solve import Estimate, solve_bilinear
from seepage.attacks.closed_form.transformer.tokens import TokenLayout, trace_tokens
from seepage.attacks.closed_form.transformer.trust import SURE, natural_patches, raw_picture, unsure
from seepage.attacks.inversion.problem import SPREAD_OF_A_RANGE
from seepage.core.errors import NotApplicable
from seepage.core.types import Exchange, Knowledge, Reconstruction
from seepage.models.gradients import one_step_gradient
from seepage.protocol.widening import model_placement


class April(PerUpdateAttack):
    """Tokens from the first attention's gradients, then pixels from the patch embedding.

    >>> from seepage.protocol import local_update
    >>> from seepage.core.types import Batch, Broadcast, InputSpec, LocalTraining, Modality
    >>> class Tiny(nn.Module):  # two patches of 1x2 pixels, one attention
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.cut, self.position = nn.Conv2d(1, 4, (1, 2), (1, 2)), nn.Parameter(torch.randn(2, 4))
    ...         self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
    ...     def forward(self, x):
    ...         z = self.cut(x).flatten(2).transpose(1, 2) + self.position
    ...         return ((self.q(z) @ self.k(z).mT).softmax(-1) @ self.v(z))[:, 0]
    >>> _ = torch.manual_seed(0)
    >>> model, secret = Tiny().double(), Batch(torch.rand(1, 1, 1, 4).double(), torch.tensor([2]))
    >>> sent = local_update(Broadcast(model), secret, LocalTraining())
    >>> seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(1, 1, 4), num_classes=3)
    >>> found = April().run([seen], Knowledge(input=spec))
    >>> torch.allclose(found.values, secret.inputs), found.claimed.tolist()
    (True, [True])
    """

    def check(self, model: nn.Module, known: Knowledge) -> None:
        trace_tokens(model, known.input, train=_train_mode(known))

    def invert(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        model = exchange.broadcast.model
        layout = trace_tokens(model, known.input, train=_train_mode(known))
        gradients = _needed_gradients(exchange, known, layout)
        middle, spread = natural_patches(layout, known)
        rounding = max(torch.finfo(t.dtype).eps for t in exchange.update.tensors.values())
        found = solve(layout, gradients, middle, spread, rounding=rounding)

        like = torch.empty(0).to(*model_placement(model))
        values = raw_picture(layout, middle + spread * found.values, known, like)
        error = float(found.deviation.max())
        doubt = _mixed(exchange) or unsure(found, rounding=rounding)
        return Reconstruction(
            values=values,
            model_units=known.normalised,
            claimed=torch.tensor([not doubt]),
            if_declared=not doubt,
            confidence=torch.tensor([1.0 / (1.0 + error / SURE)]),
            notes=(_system_note(layout, found, error), *_loss_notes(layout), *doubt),
        )


def april() -> April:
    """Passive, closed form: one picture from the gradients of a vision transformer's first attention."""
    return April()


def solve(
    layout: TokenLayout, gradients: dict[str, Tensor], middle: Tensor, spread: Tensor, *, rounding: float
) -> Estimate:
    """The patches as (patch - middle) / spread, both (values of a patch,), from gradients in float64."""
    at_tokens = gradients[layout.position].reshape(layout.constant.shape)  # (T, dim): dL/dz
    right = torch.zeros(at_tokens.shape[1], at_tokens.shape[1], dtype=at_tokens.dtype)
    for name, weight in zip(layout.projections, layout.weights, strict=True):
        right += weight.T @ gradients[name]
    own = at_tokens[layout.first : layout.first + layout.num_patches]
    if not bool(own.any()):
        raise NotApplicable(
            "the position embedding's gradient is zero at every patch: the model is certain of the example, "
            "so there is nothing to solve; attack an earlier round."
        )
    # what is known already goes to the right side: class token, positions, bias, the prior's middle
    expected = layout.constant.clone()
    expected[layout.first : layout.first + layout.num_patches] += layout.kernel @ middle
    return solve_bilinear(own, layout.kernel * spread, right - at_tokens.T @ expected, rounding=rounding)


def _needed_gradients(exchange: Exchange, known: Knowledge, layout: TokenLayout) -> dict[str, Tensor]:
    """In float64 on the CPU; of the few parameters that are read, for the others may be large."""
    update = exchange.update
    few = {name: update.tensors[name] for name in (layout.position, *layout.projections)}
    gradients = one_step_gradient(replace(exchange, update=replace(update, tensors=few)), known)
    return {name: gradient.cpu() for name, gradient in gradients.items()}


def _train_mode(known: Knowledge) -> bool:
    return known.local is not None and known.local.batch_norm == "train"


def _mixed(exchange: Exchange) -> tuple[str, ...]:
    """Why nothing could be claimed, however well the equations are solved."""
    count = exchange.update.num_examples
    if len(exchange.clients) > 1 or (count is not None and count > 1):
        return (
            f"The update was made from {count or 'several'} examples, whose patches mix in APRIL's "
            "equations: the one candidate is a blur of them and is not claimed; fish for one example first.",
        )
    return uncounted(exchange)


def _system_note(layout: TokenLayout, found: Estimate, error: float) -> str:
    dim = layout.kernel.shape[0]
    redundancy = f"relative residual {found.residual:.1e}" if found.redundant else "no redundancy"
    return (
        f"APRIL solved {dim}x{dim} equations from {', '.join(repr(n) for n in layout.projections)} and "
        f"'{layout.position}' for {layout.num_patches} patches of {layout.kernel.shape[1]} values: "
        f"{redundancy}, condition number {found.token_condition:.1e} (tokens) and "
        f"{found.embedding_condition:.1e} (patch embedding), standard error of the least certain pixel "
        f"{SPREAD_OF_A_RANGE * error:.1e} of the value range."
    )


def _loss_notes(layout: TokenLayout) -> tuple[str, ...]:
    dim, values = layout.kernel.shape
    notes = []
    if values > dim:
        notes.append(
            f"A patch has {values} values but its embedding only {dim}: {values - dim} dimensions of each "
            "patch are lost, and mid-range was taken there."
        )
    if layout.num_patches > dim:
        notes.append(
            f"{layout.num_patches} patches stand against {dim} equations for each dimension: they cannot all "
            "be told apart, and the solution nearest to mid-range was taken."
        )
    return tuple(notes)

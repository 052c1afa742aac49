"""One picture from a vision transformer's patch embedding, in closed form, whatever its blocks are made of.

Token t is z_t = E p_t + bias + position_t. So the position embedding's gradient is dL/dz_t row by row, and
the gradient of E is the sum over t of dL/dz_t p_t^T: with as many dimensions as patches or more, linear
equations that the patches solve. APRIL (Lu et al. 2021) reads the same gradient dL/dz but goes through the
first attention, which layer norm and residual connections break; nothing behind z enters here, so that a
ViT as it is published is inverted. Only trained absolute positions are needed.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from seepage.attacks.base import PerUpdateAttack
from seepage.attacks.closed_form.alone import uncounted
from seepage.attacks.closed_form.transformer.solve import Estimate, solve_bilinear
from seepage.attacks.closed_form.transformer.trust import SURE, natural_patches, raw_picture, unsure
from seepage.attacks.inversion.problem import SPREAD_OF_A_RANGE
from seepage.core.errors import NotApplicable
from seepage.core.types import Exchange, Knowledge, Reconstruction
from seepage.models.gradients import one_step_gradient
from seepage.models.patch_positions import EmbeddingLayout, trace_embedding
from seepage.protocol.widening import model_placement


class PatchEmbedding(PerUpdateAttack):
    """Least squares for the patches, checked by the equations that are left over.

    >>> from seepage.protocol import local_update
    >>> from seepage.core.types import Batch, Broadcast, InputSpec, LocalTraining, Modality
    >>> from seepage.models.loading import build_model
    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=3)
    >>> model = build_model("vit", spec, patch_size=4, dim=16).double()
    >>> secret = Batch(torch.rand(1, 1, 8, 8).double(), torch.tensor([2]))
    >>> sent = local_update(Broadcast(model), secret, LocalTraining())
    >>> seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    >>> found = PatchEmbedding().run([seen], Knowledge(input=spec))
    >>> torch.allclose(found.values, secret.inputs), found.claimed.tolist()
    (True, [True])
    """

    def check(self, model: nn.Module, known: Knowledge) -> None:
        trace_embedding(model, known.input, train=_train_mode(known))

    def invert(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        _check_one_example(exchange)
        model, update = exchange.broadcast.model, exchange.update
        layout = trace_embedding(model, known.input, train=_train_mode(known))
        few = {name: update.tensors[name] for name in (layout.weight, layout.position)}
        gradients = one_step_gradient(replace(exchange, update=replace(update, tensors=few)), known)
        middle, spread = natural_patches(layout, known)
        rounding = max(torch.finfo(t.dtype).eps for t in few.values())
        found = solve(layout, gradients, middle, spread, rounding=rounding)
        like = torch.empty(0).to(*model_placement(model))
        error = float(found.deviation.max())
        doubt = (*uncounted(exchange), *unsure(found, rounding=rounding))
        return Reconstruction(
            values=raw_picture(layout, middle + spread * found.values, known, like),
            model_units=known.normalised,
            claimed=torch.tensor([not doubt]),
            if_declared=not doubt,
            confidence=torch.tensor([1.0 / (1.0 + error / SURE)]),
            notes=(_system_note(layout, found, error), *doubt),
        )


def patch_embedding() -> PatchEmbedding:
    """Passive, closed form: one picture from the patch embedding and trained positions of any vision
    transformer."""
    return PatchEmbedding()


def solve(
    layout: EmbeddingLayout, gradients: dict[str, Tensor], middle: Tensor, spread: Tensor, *, rounding: float
) -> Estimate:
    """The patches as (patch - middle) / spread, both (values of a patch,), from gradients in float64."""
    rows = gradients[layout.position].cpu().reshape(-1, layout.dim)  # (T, dim): dL/dz
    own = rows[layout.first : layout.first + layout.num_patches]
    if not bool(own.any()):
        raise NotApplicable(
            "the position embedding's gradient is zero at every patch: the model is certain of the example, "
            "so there is nothing to solve; attack an earlier round."
        )
    right = gradients[layout.weight].cpu().flatten(1)  # (dim, values of a patch)
    expected = torch.outer(own.sum(dim=0), middle)  # the prior's middle is known already
    return solve_bilinear(own, torch.diag(spread), right - expected, rounding=rounding)


def _train_mode(known: Knowledge) -> bool:
    return known.local is not None and known.local.batch_norm == "train"


def _check_one_example(exchange: Exchange) -> None:
    count = exchange.update.num_examples
    if len(exchange.clients) > 1 or (count is not None and count > 1):
        raise NotApplicable(
            f"the update was made from {count or 'several'} examples, whose patches mix in the equations: "
            "attack a client with a single example, or fish for one first (class_fishing or binary_fishing "
            "with inner = 'patch_embedding')."
        )


def _system_note(layout: EmbeddingLayout, found: Estimate, error: float) -> str:
    redundancy = f"relative residual {found.residual:.1e}" if found.redundant else "no redundancy"
    return (
        f"{layout.num_patches} patches were solved for from '{layout.weight}' and '{layout.position}', with "
        f"{layout.dim} equations for each of their values: {redundancy}, condition number "
        f"{found.token_condition:.1e}, standard error of the least certain pixel "
        f"{SPREAD_OF_A_RANGE * error:.1e} of the value range."
    )

"""One picture from a vision transformer's patch embedding, in closed form, whatever its blocks are made of.

Token t is z_t = E p_t + bias + position_t. So the position embedding's gradient is dL/dz_t row by row, and
the gradient of E is the sum over t of dL/dz_t p_t^T: with as many dimensions as patches or more, linear
equations that the patches solve. APRIL (Lu et al. 2021) reads the same gradient dL/dz but goes through the
first attention, which layer norm and residual connections break; nothing behind z enters here, so that a
ViT as it is published is inverted. Only trained absolute positions are needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.attacks.base import PerUpdateAttack
from seepage.attacks.closed_form.alone import uncounted
from seepage.attacks.closed_form.transformer.patches import Pass, PatchGrid, close, probe_of, run_probe
from seepage.attacks.closed_form.transformer.solve import Estimate, solve_bilinear
from seepage.attacks.closed_form.transformer.trust import SURE, natural_patches, raw_picture, unsure
from seepage.attacks.inversion.problem import SPREAD_OF_A_RANGE
from seepage.core.errors import NotApplicable
from seepage.core.types import Exchange, InputSpec, Knowledge, Reconstruction
from seepage.models.gradients import one_step_gradient
from seepage.protocol import trainable, training_mode
from seepage.protocol.widening import model_placement

_ELSE = "use 'inverting_gradients'."


@dataclass(frozen=True, kw_only=True)
class EmbeddingLayout(PatchGrid):
    """Where the two gradients of the equation are found in an update."""

    weight: str
    """The patch embedding's weight."""
    position: str
    """The parameter whose gradient is that of the tokens."""
    first: int
    """Index of the first patch's row; a class token comes before it."""
    dim: int


class PatchEmbedding(PerUpdateAttack):
    """Least squares for the patches, checked by the equations that are left over.

    >>> from seepage.protocol import local_update
    >>> from seepage.core.types import Batch, Broadcast, LocalTraining, Modality
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


def trace_embedding(model: nn.Module, spec: InputSpec, *, train: bool = False) -> EmbeddingLayout:
    """Find both parameters by running the model, or say why the equation does not hold (NotApplicable).

    train: whether clients run the model in train mode (dropout before the positions breaks the equation).
    """
    probe = probe_of(model, spec)
    names = {id(parameter): name for name, parameter in trainable(probe).items()}
    with torch.enable_grad(), training_mode(probe, train):
        seen = run_probe(probe, spec)
        embedding, patches = seen.patch_embedding()
        if id(embedding.weight) not in names:
            raise NotApplicable(f"the patch embedding is frozen, so its gradient is not sent: {_ELSE}")
        count, dim = patches.shape[-2] * patches.shape[-1], embedding.out_channels
        if count > dim:
            raise NotApplicable(
                f"a picture has {count} patches, but each of their values stands in {dim} equations only, "
                f"one for each dimension, so that they cannot be told apart: {_ELSE}"
            )
        position, first = _position(probe, seen, patches)
    return EmbeddingLayout(
        patch=(embedding.kernel_size[0], embedding.kernel_size[1]),
        grid=(patches.shape[-2], patches.shape[-1]),
        weight=names[id(embedding.weight)],
        position=position,
        first=first,
        dim=dim,
    )


def _position(model: nn.Module, seen: Pass, patches: Tensor) -> tuple[str, int]:
    """The parameter with a row for each token whose gradient is that of the embedded patches."""
    count, dim = patches[0, 0].numel(), patches.shape[1]
    rows = {
        name: p
        for name, p in trainable(model).items()
        if p.dim() >= 2 and p.shape[-1] == dim and p.numel() // dim >= count and p.shape[:-2].numel() == 1
    }
    at_patches, *at_rows = torch.autograd.grad(
        seen.random_loss(), [patches, *rows.values()], allow_unused=True, materialize_grads=True
    )
    wanted = at_patches.sum(dim=0).flatten(1).T  # (patches, dim)
    if not bool(wanted.any()):
        raise NotApplicable(
            "the model's output does not depend on its patches (a layer of zeros?), so no update shows "
            "anything of them: attack a later round."
        )
    for name, gradient in zip(rows, at_rows, strict=True):
        each = gradient.reshape(-1, dim)
        for first in range(len(each) - count + 1):
            if close(each[first : first + count], wanted):
                return name, first
    raise NotApplicable(
        "the model trains no position embedding that is added to the embedded patches as they are (fixed or "
        "relative positions, none, or a layer in between), so the gradient at the patches is not sent: "
        f"{_ELSE}"
    )


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

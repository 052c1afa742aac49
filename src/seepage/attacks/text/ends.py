"""What block gradients do not show: the last token of a language model's text, and the class of a text.

No later token attends to the last one and nothing is predicted from it, so it is only a target. With all
other tokens known, so is every activation, and what these leave of a layer's gradient, sum_i a_i x delta_i
over the last tokens, gives each delta_i by least squares: what its own target sent back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.text.far_ends import by_all_layers, left_by_known_targets
from seepage.core.types import PADDING
from seepage.models.blocks import blocks_of, matrices
from seepage.models.hooks import hooked
from seepage.models.hugging_face import is_adapted
from seepage.protocol import training_mode

SHORTLIST = 64
"""Tokens, the nearest by angle, that are compared in full. Cost: time."""


def last_tokens(model: nn.Module, ids: Tensor, gradients: Mapping[str, Tensor]) -> Tensor | None:
    """(n,) the token behind each of n texts (n, length) of a language model; None where it cannot be told.

    A head with a weight of its own is sent softmax - e_y by a token's target y. Else the last block ends in
    `h + linear(a)`, then come the final norm and the head W. A target y at a token sends back
    delta = J^T W^T (softmax - e_y) / tokens, J the norm's Jacobian there, and y is what fits.
    """
    prefix, blocks = blocks_of(model)
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is None:
        return None
    if is_adapted(model) and not head.weight.requires_grad:
        return by_all_layers(model, ids, gradients)
    seen = _Seen(model, ids, f"{prefix}.{len(blocks) - 1}", blocks[-1], head)
    own = seen.head in gradients and seen.uses == 1
    name, read, linear = (seen.head, seen.read, head) if own else (seen.weight, seen.activations, seen.linear)
    if name not in gradients or (seen.norm is None and not own):
        return None
    there = ids != PADDING
    tokens, ends = int(there.sum()), there.sum(dim=1) - 1
    rows = torch.arange(len(ids), device=ids.device)
    # (texts, features); OPT has put all tokens into one row
    activations = read.reshape(*ids.shape, -1)[rows, ends].double()
    gradient = left_by_known_targets(model, ids, {name: gradients[name]})[0].double()
    gradient = gradient.T if isinstance(linear, nn.Linear) else gradient  # (features, width)
    fits = own or gradient.shape[1] == seen.hidden.shape[-1]  # of a mixture of experts no layer does
    if not fits or len(gradient) != activations.shape[1] or len(activations) > len(gradient):
        return None
    sent: Tensor = torch.linalg.lstsq(activations.T, gradient).solution  # (texts, width)
    if own:  # softmax - e_y is negative at y alone
        return sent.argmin(dim=1)
    return torch.stack(
        [
            _target(seen, head.weight.detach(), row, end, tokens * sent[row])
            for row, end in enumerate(ends.tolist())
        ]
    )


def _target(seen: _Seen, weight: Tensor, row: int, end: int, sent: Tensor) -> Tensor:
    """() the token whose target at this place sends back (width,)."""
    hidden = seen.hidden[row, end].detach()
    with torch.enable_grad():
        entry = hidden.clone().requires_grad_()
        normed = seen.norm(entry)
        mean = seen.logits[row, end].softmax(dim=-1).to(weight.dtype) @ weight
        (base,) = torch.autograd.grad(normed, entry, mean, retain_graph=True)
        wanted = base - sent.to(base)  # J^T W[y]
        # |J^T w - wanted| is least where w . J wanted is large; J wanted by the derivative of a derivative
        probe = torch.zeros_like(normed, requires_grad=True)
        (pulled,) = torch.autograd.grad(seen.norm(entry), entry, probe, create_graph=True)
        (pushed,) = torch.autograd.grad(pulled, probe, wanted)
    likely = (weight @ pushed).topk(min(SHORTLIST, len(weight))).indices
    several = hidden.expand(len(likely), -1).clone().requires_grad_()
    with torch.enable_grad():
        (pulled,) = torch.autograd.grad(seen.norm(several), several, weight[likely])
    return likely[(pulled - wanted).norm(dim=1).argmin()]


class _Seen:
    """One run of the model on texts: what its last parts read and give."""

    def __init__(self, model: nn.Module, ids: Tensor, name: str, block: nn.Module, head: nn.Module) -> None:
        names = {id(parameter): key for key, parameter in model.named_parameters()}
        calls: list[tuple[nn.Module, Tensor]] = []
        outputs: dict[str, Tensor] = {}
        small: list[tuple[nn.Module, Tensor, Tensor]] = []

        def linear(_name: str, module: nn.Module, args: tuple[Tensor, ...]) -> None:
            calls.append((module, args[0]))

        def ended(_name: str, _module: nn.Module, _args: Any, output: Any) -> None:
            outputs["block"] = output if isinstance(output, Tensor) else output[0]

        def leaf(_name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
                small.append((module, args[0], output))

        def fed(_name: str, _module: nn.Module, args: tuple[Tensor, ...]) -> None:
            outputs["head"] = args[0]

        linears = matrices(block)
        outside = {
            key: m for key, m in model.named_modules() if not list(m.children()) and not key.startswith(name)
        }
        with (
            torch.no_grad(),
            training_mode(model, False),
            hooked(linears, before=linear),
            hooked({name: block}, after=ended),
            hooked(outside, after=leaf),
            hooked({"head": head}, before=fed),
        ):
            self.logits: Tensor = model(ids)
        self.linear, self.activations = calls[-1]
        self.weight = names.get(id(self.linear.weight), "")
        self.hidden, self.read = outputs["block"], outputs["head"]
        self.head = names[id(head.weight)]
        self.uses = sum(p is head.weight for m in model.modules() for p in m._parameters.values())
        self.norm: Any = next(
            (m for m, given, made in small if _same(given, self.hidden) and _same(made, outputs.get("head"))),
            None,
        )


def _same(one: Tensor, other: Tensor | None) -> bool:
    return one is other or (other is not None and one.shape == other.shape and torch.equal(one, other))


def classes(model: nn.Module, ids: Tensor, gradients: Mapping[str, Tensor]) -> Tensor | None:
    """(n,) the class of each of n texts; None where the last layer's gradient does not tell.

    That gradient is sum_i d_i x h_i with known features h_i, and d_i = softmax - e_y is negative at y alone.
    """
    heads = [(name, p) for name, p in model.named_parameters() if name in gradients and p.ndim == 2]
    with torch.enable_grad(), training_mode(model, False):
        logits = model(ids)
        outputs = logits.shape[-1]
        name, weight = next(((n, p) for n, p in reversed(heads) if len(p) == outputs), (None, None))
        if name is None or weight is None or len(ids) > weight.shape[1]:
            return None
        features = torch.stack(
            [torch.autograd.grad(one[0], weight, retain_graph=True)[0][0] for one in logits]
        ).double()
    found = torch.linalg.lstsq(features.T, gradients[name].detach().double().T).solution  # (n, outputs)
    right: Tensor = (found[:, 0] < 0).long() if outputs == 1 else found.argmin(dim=1)
    return right

"""A user's module as the rest can work with it: unwrapped, initialised, from one input to a tensor of logits.

Wrappers and odd outputs are dealt with here once, on the audit's own copy, so that no attack, defense or
metric needs to know of them. What cannot be audited is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from seepage.core.errors import ModelError
from seepage.core.user_code import USER_CODE_ERRORS, reason
from seepage.protocol import training_mode
from seepage.protocol.copies import computed

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel, torch.optim.swa_utils.AveragedModel)


def unwrap(model: nn.Module) -> nn.Module:
    """The module that a wrapper is wrapped round: parameters get their own names back.

    >>> network = nn.Linear(2, 2)
    >>> unwrap(nn.DataParallel(network)) is network
    True
    """
    while (inner := _inside(model)) is not None:
        model = inner
    return model


def unwrap_children(model: nn.Module) -> None:
    """Wrapped modules anywhere inside the model give way to what they hold. In place."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if _inside(child) is not None:
                setattr(parent, name, unwrap(child))


def _inside(model: nn.Module) -> nn.Module | None:
    if isinstance(model, _WRAPPERS):
        inner: nn.Module = model.module
        return inner
    # torch.compile keeps the module under this name; TorchScript has no plain dict of modules
    return None if isinstance(model, torch.jit.ScriptModule) else model._modules.get("_orig_mod")


def settle(model: nn.Module, examples: Tensor) -> None:
    """Run the model once on two made-up examples, and mend on it what the rest could not work with.

    Lazy layers get their sizes. A model that writes into its input gets a copy of it, logits are taken out
    of an output that holds them among others, one number an example becomes a column, embeddings give dense
    gradients (with the same numbers), and tensors that it keeps of a run are cut off from it. A run that
    fails is left to `check_forward`, which says why.
    """
    lazy = any(map(is_lazy, (*model.parameters(), *model.buffers())))
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = False
    given = examples.clone()
    try:
        with training_mode(model, False):
            output = model(given)
    except USER_CODE_ERRORS as error:
        if not lazy:
            return
        raise ModelError(
            f"the model's lazy layers cannot be initialised with a batch of shape {tuple(examples.shape)} "
            f"({type(error).__name__}: {reason(error)}): give a model that takes the data."
        ) from error
    if not torch.equal(given, examples):
        model.register_forward_pre_hook(_with_a_copy)
    if not isinstance(output, Tensor) and logits_in(output) is not None:
        model.register_forward_hook(_logits_only)
    if isinstance(output, Tensor) and tuple(output.shape) == (len(examples),):
        model.register_forward_hook(_as_a_column)
    if any(computed(module) for module in model.modules()):
        model.register_forward_hook(_let_go)
        _let_go(model)


def logits_in(output: object) -> Tensor | None:
    """The logits of an output that holds them among other things, as Hugging Face's models return it.

    >>> logits_in({"loss": None, "logits": torch.zeros(2, 3)}).shape, logits_in("nothing")
    (torch.Size([2, 3]), None)
    """
    found: Any = getattr(output, "logits", None)
    if isinstance(output, Mapping):
        found = output.get("logits", found)
    elif found is None and isinstance(output, tuple | list) and output:
        found = output[0]
    return found if isinstance(found, Tensor) else None


def _logits_only(_module: nn.Module, _args: object, output: object) -> Tensor | None:
    return logits_in(output)


def _as_a_column(_module: nn.Module, _args: object, output: Tensor) -> Tensor:
    """One logit an example, as `squeeze` leaves it: of a lone example too, where it leaves no dimension."""
    return output.reshape(-1, 1)


def _with_a_copy(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.clone() if isinstance(value, Tensor) else value for value in args)


def _let_go(model: nn.Module, _args: object = (), _output: object = None) -> None:
    """What pruning and the older weight norm leave on a module is part of a graph and cannot be copied."""
    for module in model.modules():
        for name, value in computed(module).items():
            module.__dict__[name] = value.detach()


def refuse_unusable(model: nn.Module) -> None:
    """Modules and weights that no client can train, or no server can look into."""
    for name, module in model.named_modules():
        where = f"layer '{name}'" if name else "the model"
        if isinstance(module, torch.jit.ScriptModule):
            raise ModelError(
                f"{where} is a TorchScript module, which cannot be looked into: give the Python module that "
                "it was made from, and the saved file as its weights."
            )
        if ".quantized" in type(module).__module__:
            raise ModelError(
                f"{where} is quantised ({type(module).__name__}), so that clients cannot train it: give the "
                "model as it is before it is quantised."
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            continue
        if tensor.is_meta:
            raise ModelError(
                f"'{name}' is on the meta device and holds no values: build the model on a real device, or "
                "load its weights."
            )
        if tensor.requires_grad and tensor.is_complex():
            raise ModelError(
                f"'{name}' is complex ({str(tensor.dtype).removeprefix('torch.')}), and attacks reckon with "
                "real gradients only: hold real and imaginary parts in two parameters."
            )
        if tensor.is_inference():
            raise ModelError(
                f"'{name}' was made in torch.inference_mode and cannot be trained: build it outside."
            )
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise ModelError(
                f"'{name}' is not a plain dense tensor: give a model whose weights are dense (`to_dense()`)."
            )

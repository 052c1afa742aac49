"""Seeing and changing what passes through a model's modules while it runs.

Every look into a running model goes through `hooked`: however the block ends, no hook is left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from seepage.core.errors import NotApplicable
from seepage.models.probes import run_model
from seepage.protocol import training_mode

CHUNK = 64
"""Examples a pass. Cost: the activations that are held at a time; results do not depend on it."""


def modules_of(model: nn.Module, *kinds: type[nn.Module]) -> dict[str, nn.Module]:
    """The model's modules of these kinds, by name.

    >>> list(modules_of(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), nn.Linear))
    ['0', '2']
    """
    return {name: module for name, module in model.named_modules() if isinstance(module, kinds)}


@contextmanager
def hooked(
    modules: Mapping[str, nn.Module],
    *,
    before: Callable[..., Any] | None = None,
    after: Callable[..., Any] | None = None,
) -> Iterator[None]:
    """Calls `before` and `after` around every run of these modules inside the block.

    Args:
        modules: by the name that the functions are told.
        before: gets (name, module, arguments); what it returns, if anything, is fed to the module instead.
        after: gets (name, module, arguments, output); what it returns, if anything, replaces the output.
    """
    with ExitStack() as stack:
        for name, module in modules.items():
            if before is not None:
                stack.callback(module.register_forward_pre_hook(partial(before, name)).remove)
            if after is not None:
                stack.callback(module.register_forward_hook(partial(after, name)).remove)
        yield


@contextmanager
def leaves_run(model: nn.Module) -> Iterator[list[tuple[str, nn.Module]]]:
    """Names and modules without children that run inside the block, in the order in which they end.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> with leaves_run(model) as ran:
    ...     _ = model(torch.zeros(3, 2, 2))
    >>> [name for name, _ in ran]
    ['0', '1']
    """
    ran: list[tuple[str, nn.Module]] = []
    leaves = {name: one for name, one in model.named_modules() if name and not list(one.children())}

    def remember(name: str, module: nn.Module, _args: object, _output: object) -> None:
        ran.append((name, module))

    with hooked(leaves, after=remember):
        yield ran


@contextmanager
def watching(model: nn.Module, layer: str) -> Iterator[list[Tensor]]:
    """What enters the named layer, one tensor for each time it runs inside the block.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> with watching(model, "1") as seen:
    ...     _ = model(torch.zeros(3, 2, 2))
    >>> [tuple(tensor.shape) for tensor in seen]
    [(3, 4)]
    """
    seen: list[Tensor] = []

    def remember(_name: str, _module: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen.append(args[0].clone())  # before an in-place module changes it

    with hooked({layer: model.get_submodule(layer)}, before=remember):
        yield seen


def layer_input(model: nn.Module, layer: str, inputs: Tensor) -> Tensor:
    """(n, m): what reaches the named layer in eval mode when the model is fed `inputs`, flattened."""
    with torch.no_grad(), training_mode(model, False), watching(model, layer) as seen:
        for chunk in inputs.split(CHUNK):
            run_model(model, chunk)
    return torch.cat(_reached(layer, seen)).flatten(1)


def _reached(layer: str, seen: list[Tensor]) -> list[Tensor]:
    if not seen:
        raise NotApplicable(
            f"the model's forward takes a way past layer '{layer}' for some inputs: name another layer, or "
            "use an attack that optimises."
        )
    return seen


class _Reached(BaseException):
    """Ends a pass at a layer. No Exception: nobody in between shall take it for a failure."""


def front_of(model: nn.Module, layer: str) -> Callable[[Tensor], Tensor]:
    """What the named layer reads, flattened, as a function of the model's inputs that can be differentiated.

    Nothing behind the layer is run.

    >>> front = front_of(nn.Sequential(nn.ReLU(), nn.Linear(2, 3)), "1")
    >>> front(torch.tensor([[1.0, -1.0]]))
    tensor([[1., 0.]])
    """
    module = model.get_submodule(layer)

    def front(inputs: Tensor) -> Tensor:
        seen: list[Tensor] = []

        def stop(_name: str, _module: nn.Module, args: tuple[Tensor, ...]) -> None:
            seen.append(args[0])
            raise _Reached

        with hooked({layer: module}, before=stop), suppress(_Reached):
            run_model(model, inputs)
        return _reached(layer, seen)[0].flatten(1)

    return front


@contextmanager
def fed(layer: nn.Module, features: Tensor) -> Iterator[None]:
    """Lets the layer read `features`, whatever the model was given."""
    with hooked({"": layer}, before=lambda _name, _module, _args: (features,)):
        yield


@contextmanager
def tapped(layer: nn.Module) -> Iterator[list[Tensor]]:
    """The layer's outputs, cut off from what comes before it, so that gradients can be taken at them."""
    outputs: list[Tensor] = []

    def tap(_name: str, _module: nn.Module, _args: object, output: Tensor) -> Tensor:
        outputs.append(output.detach().requires_grad_())
        return outputs[-1].clone()  # an in-place activation may follow, which a leaf does not allow

    with hooked({"": layer}, after=tap):
        yield outputs

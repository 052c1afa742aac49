"""Networks that are known to be linear in pieces from how they are built, without a test on numbers."""

from __future__ import annotations

from torch import nn

_LINEAR_IN_PIECES: tuple[type[nn.Module], ...] = (
    nn.Flatten,
    nn.Identity,
    nn.Dropout,
    nn.Dropout2d,
    nn.ReLU,
    nn.LeakyReLU,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Linear,
    nn.Conv2d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
)
"""In eval mode, which the caller sees to."""


def is_known_chain(model: nn.Module) -> bool:
    """Nested nn.Sequential of torch's own piecewise-linear layers, each used once, with weights of its own.

    Exact types only: a subclass, as parametrisations make one, may compute anything. So may a hook.

    >>> is_known_chain(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)))
    True
    >>> is_known_chain(nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 2)))
    False
    """
    links = _links(model)
    if links is None or len({id(link) for link in links}) < len(links):
        return False
    if any(_tampered(module) for module in model.modules()):
        return False
    weights = [id(p) for link in links for p in link.parameters(recurse=False)]
    return len(set(weights)) == len(weights) and all(_plain(link) for link in links)


def _links(model: nn.Module) -> list[nn.Module] | None:
    """Layers in the order of the chain; None where the model is not one."""
    if type(model) is not nn.Sequential:
        return [model] if type(model) in _LINEAR_IN_PIECES else None
    found: list[nn.Module] = []
    for child in model:
        links = _links(child)
        if links is None:
            return None
        found += links
    return found


def _tampered(module: nn.Module) -> bool:
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return any(hooks) or "forward" in vars(module)


def _plain(link: nn.Module) -> bool:
    """The layer's settings are ones that it is linear in pieces with, for each example by itself."""
    if isinstance(link, nn.Conv2d):
        symmetric = link.padding != "same" or all(
            d * (k - 1) % 2 == 0 for d, k in zip(link.dilation, link.kernel_size, strict=True)
        )
        return link.padding_mode == "zeros" and symmetric
    if isinstance(link, nn.BatchNorm1d | nn.BatchNorm2d):
        return link.running_mean is not None
    return not isinstance(link, nn.Flatten) or link.start_dim == 1

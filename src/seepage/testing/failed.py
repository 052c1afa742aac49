"""What a failed check says, and the checks that several kinds share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from seepage.core.errors import SeepageError


class CheckFailed(AssertionError):  # noqa: N818 - it reads as what happened
    """One sentence: what is wrong, and how to mend it."""


def must(holds: bool, sentence: str) -> None:
    """Fail with this sentence unless it holds."""
    if not holds:
        raise CheckFailed(sentence)


@contextmanager
def in_words(what: str) -> Iterator[None]:
    """Whatever is raised inside fails the check, in words."""
    try:
        yield
    except CheckFailed:
        raise
    except SeepageError as error:
        raise CheckFailed(f"{what}: {error}") from error
    except Exception as error:  # code from outside may raise anything
        raise CheckFailed(
            f"{what} raised {type(error).__name__} ({error}): raise an error of seepage.core.errors with one "
            "sentence where something cannot be done."
        ) from error


def check_settings(build: Callable[..., Any], what: str) -> None:
    """Settings are keywords with a type, so that a wrong one in a spec is refused in one sentence."""
    must(callable(build), f"{what} is a {type(build).__name__}: give a class, or a function that builds it.")
    function = vars(build).get("__init__") if isinstance(build, type) else build
    try:
        parameters = inspect.signature(build).parameters
    except ValueError:  # some built-in types do not tell
        return
    for name, one in parameters.items():
        must(
            one.kind is not one.POSITIONAL_ONLY and one.kind is not one.VAR_POSITIONAL,
            f"{what} takes '{name}' by position only: make it a keyword, for a spec gives settings by name.",
        )
        must(
            one.annotation is not one.empty or one.kind is one.VAR_KEYWORD or function is None,
            f"the setting '{name}' of {what} has no type: annotate it, so that a wrong value is refused in "
            "one sentence before anything runs.",
        )


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As they are now."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def same(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> bool:
    """The same names, types, shapes and bits."""
    return before.keys() == after.keys() and all(
        before[name].dtype is after[name].dtype and torch.equal(before[name], after[name]) for name in before
    )

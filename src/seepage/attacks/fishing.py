"""What the fishing attacks share (Wen et al. 2022): the crafted layer, whom they ask, and the inner attack.

An attack of this family crafts the classification layer, isolates gradients of single examples (`fish`), and
hands them to any attack on a single example.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.base import Attack
from seepage.attacks.parts.fishing.catch import REQUIRED, Catch, inner_attack, invert_catch
from seepage.attacks.parts.fishing.head import (
    Head,
    check_batch_independence,
    check_makes_logits,
    check_single_step,
    class_head,
    dense_direction,
    find_head,
    needs_bias,
)
from seepage.attacks.parts.fishing.replay import State
from seepage.errors import NotApplicable, SpecError
from seepage.types import Crafted, Exchange, Grant, Knowledge, Reconstruction


@dataclass(frozen=True, kw_only=True)
class Hook:
    """What the server remembers of a crafted model."""

    target: int
    theta: float | None = None
    """Where the cut was; None: the whole class was fished."""
    direction: Tensor | None = None
    """(m,) w; None for class fishing."""
    progress: State | None = None
    """Binary search: what the answers before this query amounted to."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tackle:
    """What every fishing attack is given besides its own settings."""

    layer: str | None
    """The classification layer; found by itself if not given."""
    client: int | None = None
    """The one client to send crafted models to; None: everybody who is selected."""
    inner: str
    inner_options: Mapping[str, Any] | None

    def __post_init__(self) -> None:
        if self.client is not None and self.client < 0:
            raise SpecError(
                f"client = {self.client} names nobody: give a client number from 0 on, or leave it out."
            )


class Fishing(Attack):
    """Crafts the classification layer only."""

    def __init__(self, tackle: Tackle, *, requires: frozenset[Grant] = frozenset()) -> None:
        self.layer, self.client = tackle.layer, tackle.client
        self.inner = inner_attack(tackle.inner, tackle.inner_options)
        self.requires = REQUIRED | requires | self.inner.requires
        if self.client is not None:
            self.requires |= {Grant.TARGET_CLIENT}

    @abstractmethod
    def fish(self, exchanges: Sequence[Exchange], known: Knowledge) -> Catch:
        """The gradients of single examples that these exchanges give away."""

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        return invert_catch(self.fish(exchanges, known), self.inner, exchanges, known)

    def check(self, model: nn.Module, known: Knowledge) -> None:
        check_batch_independence(model, known, several_queries=Grant.SEVERAL_ROUNDS in self.requires)
        if known.loss not in ("cross_entropy", "cross_entropy_sum"):
            raise NotApplicable(
                f"fishing needs the cross-entropy of a softmax as loss, not '{known.loss}': give the model "
                "one output for each class, or use another attack."
            )
        if known.local is not None and known.local.batch_size is None:
            check_single_step(known, 1)
        head = find_head(model, known.input, self.layer)
        check_makes_logits(model, known.input, head)
        self.inner.check(class_head(model, head, 0, alpha=1.0), known)

    def send(self, model: nn.Module, hook: Hook) -> Crafted:
        return Crafted(model, hook, None if self.client is None else (self.client,))


def hooked(exchanges: Sequence[Exchange]) -> list[int]:
    """Indices of the answers to crafted models."""
    found = [i for i, e in enumerate(exchanges) if isinstance(e.secret, Hook)]
    if not found:
        raise NotApplicable("no crafted model was ever sent: play at least one round with this attack.")
    return found


def one_party(exchanges: Sequence[Exchange]) -> list[int]:
    """Answers of the party that answered first: one client, or one aggregate. Cuts follow its answers."""
    index = hooked(exchanges)
    return [i for i in index if exchanges[i].clients == exchanges[index[0]].clients]


def examples_behind(exchange: Exchange) -> int:
    count = exchange.update.num_examples
    if count is None:
        raise NotApplicable(
            "the number of examples behind an update was not sent, so those caught cannot be counted: "
            "grant = ['batch_size']."
        )
    return count


def chosen_direction(head: Head, feature: int | None, *, seed: int) -> Tensor:
    """One coordinate of the features, or a dense random direction."""
    if feature is None:
        return dense_direction(head.features, seed=seed)
    if not 0 <= feature < head.features:
        raise SpecError(f"feature = {feature} does not exist: the layer '{head.name}' reads {head.features}.")
    return torch.nn.functional.one_hot(torch.tensor(feature), head.features).double()


def check_target(target: int, head: Head) -> int:
    if not 0 <= target < head.classes:
        raise SpecError(f"target_class = {target} does not exist: the model has {head.classes} classes.")
    return target


def biased_head(model: nn.Module, known: Knowledge, layer: str | None, target: int) -> Head:
    """The last layer, checked for what a cut needs: a bias to place it, and the class that is fished."""
    head = find_head(model, known.input, layer)
    needs_bias(head)
    check_target(target, head)
    return head


def aggregate_note(exchange: Exchange) -> tuple[str, ...]:
    """Secure aggregation does not help: an aggregate is fished like one large batch."""
    if len(exchange.clients) < 2:
        return ()
    return (
        f"The server saw only the aggregate of {len(exchange.clients)} clients and fished it like one large "
        f"batch of {exchange.update.num_examples} examples: aggregation, secure or not, did not protect "
        "single examples; it only hid which client each one belongs to.",
    )


def checked_beta(beta: float) -> float:
    if not (beta > 0 and math.isfinite(beta)):
        raise SpecError(f"beta must be positive, not {beta}: 1e6 cuts sharply in single precision.")
    return beta

"""What the fishing attacks share (Wen et al. 2022): the crafted layer, whom they ask, and the inner attack.

An attack of this family crafts the classification layer, isolates gradients of single examples (`fish`), and
hands them to any attack on a single example.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.base import Around, Attack
from seepage.attacks.fishing.bisection import State
from seepage.attacks.fishing.catch import REQUIRED, Catch, invert_catch
from seepage.attacks.fishing.dying import Dying, takes_several_epochs
from seepage.attacks.fishing.head import (
    Head,
    check_batch_independence,
    check_makes_logits,
    check_single_step,
    class_head,
    cut_head,
    dense_direction,
    find_head,
    needs_bias,
)
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import Crafted, Exchange, Grant, Knowledge, Reconstruction

_GATED, _DYING = "seepage.attacks.fishing.gated_cuts", "seepage.attacks.fishing.dying_cuts"
"""Loaded where clients take several local steps and an attack cuts."""


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
    loud: float = 1.0
    """Class fishing: times the model's own row."""
    dying: Any = None
    """In several local steps: how the answer is read (`dying.Dying`, `gated_cuts.Gate`)."""
    mean_of_steps: bool = False
    """Moderate fishing in several local steps: their mean is read as if it were the first one's gradient."""
    notes: tuple[str, ...] = ()


@dataclass(kw_only=True, eq=False)
class Fishing(Attack):
    """Crafts the classification layer only."""

    layer: str | None
    """The classification layer; found by itself if not given."""
    client: int | None = None
    """The one client to send crafted models to; None: everybody who is selected."""
    inner: Attack
    """Inverts each fished gradient."""

    def __post_init__(self) -> None:
        self.requires = REQUIRED | self.needs | self.inner.requires
        if self.client is not None:
            if self.client < 0:
                raise SpecError(
                    f"client = {self.client} names nobody: give a client number from 0 on, or leave it out."
                )
            self.requires |= {Grant.TARGET_CLIENT}

    @property
    def needs(self) -> frozenset[Grant]:
        """What this attack requires besides what every fishing attack does."""
        return frozenset({Grant.SEVERAL_ROUNDS})

    def matching_by(self, around: Around) -> Attack:
        self.inner = self.inner.matching_by(around)
        return self

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
        head = find_head(model, known.input, self.layer)
        self.check_steps(model, known, head)
        check_makes_logits(model, known.input, head)
        self.inner.check(class_head(model, head, 0, alpha=1.0), known)

    def check_steps(self, model: nn.Module, known: Knowledge, head: Head) -> None:
        """NotApplicable where clients take more local steps than this attack can read."""
        if known.local is not None and known.local.batch_size is None:
            check_single_step(known, 1)

    def send(self, model: nn.Module, hook: Hook) -> Crafted:
        return Crafted(model, hook, None if self.client is None else (self.client,))


@dataclass(kw_only=True, eq=False)
class Cutting(Fishing):
    """Places a cut along one direction of the features, which needs a bias in the crafted layer."""

    target_class: int
    """The row of the layer that carries the cut."""
    beta: float
    """Sharpness of the cut."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.beta > 0 and math.isfinite(self.beta)):
            raise SpecError(f"beta must be positive, not {self.beta}: 1e6 cuts sharply in single precision.")

    def check(self, model: nn.Module, known: Knowledge) -> None:
        super().check(model, known)
        self.head(model, known)

    def head(self, model: nn.Module, known: Knowledge) -> Head:
        """The last layer, checked for what a cut needs: a bias to place it, and the class that is fished."""
        head = find_head(model, known.input, self.layer)
        needs_bias(head)
        check_target(self.target_class, head)
        return head

    def check_steps(self, model: nn.Module, known: Knowledge, head: Head) -> None:
        if takes_several_epochs(known.local):
            if getattr(self, "theta", None) is not None or getattr(self, "feature", None) is not None:
                raise NotApplicable(
                    "clients take several local steps, where a cut lies along a direction of the crafted "
                    "network's own: leave theta and feature out (queries = 20 searches for the cut)."
                )
            self.everyone(model, (), known, head, self.target_class)
        else:
            super().check_steps(model, known, head)

    def everyone(
        self, model: nn.Module, history: Sequence[Exchange], known: Knowledge, head: Head, row: int
    ) -> tuple[nn.Module, Any]:
        """In several local steps: the network that dies, the same in every query.

        A dense layer before the last one cuts by itself, whatever classes are in the batch (`gated_cuts`);
        otherwise the head must, and needs a class that is not there (`dying_cuts`).
        """
        if history:
            return history[0].broadcast.model, history[0].secret.dying
        try:
            return self._found(f"{_GATED}:gated_everyone", model, head, row, known)
        except NotApplicable:
            return self._found(f"{_DYING}:dying_everyone", model, head, row, known)

    def _found(
        self, name: str, model: nn.Module, head: Head, row: int, known: Knowledge
    ) -> tuple[nn.Module, Any]:
        found: tuple[nn.Module, Any] = resolve_name(name)(model, head, row, known)
        return found

    def send_dying(
        self,
        everyone: nn.Module,
        head: Head,
        dying: Any,
        row: int,
        theta: float,
        notes: tuple[str, ...] = (),
    ) -> Crafted:
        """A cut along -w (or -u), below which everybody is caught whom `row`'s class does not hold."""
        gated = not isinstance(dying, Dying)
        cut = resolve_name(f"{_GATED}:gated_cut" if gated else f"{_DYING}:dying_cut")
        crafted, direction = cut(everyone, head, row, dying, -theta), -(dying.w if gated else dying.u)
        hook = Hook(target=row, theta=theta, direction=direction, dying=dying, notes=notes)
        return self.send(crafted, hook)

    def send_cut(
        self,
        model: nn.Module,
        head: Head,
        *,
        direction: Tensor,
        theta: float,
        target: int | None = None,
        progress: State | None = None,
    ) -> Crafted:
        """The model with a cut at theta; `target`: the row that carries it, where it is not the usual one."""
        row = self.target_class if target is None else target
        crafted = cut_head(model, head, row, direction=direction, beta=self.beta, theta=theta)
        return self.send(crafted, Hook(target=row, theta=theta, direction=direction, progress=progress))


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


def aggregate_note(exchange: Exchange) -> tuple[str, ...]:
    """Secure aggregation does not help: an aggregate is fished like one large batch."""
    if len(exchange.clients) < 2:
        return ()
    return (
        f"The server saw only the aggregate of {len(exchange.clients)} clients and fished it like one large "
        f"batch of {exchange.update.num_examples} examples: aggregation, secure or not, did not protect "
        "single examples; it only hid which client each one belongs to.",
    )

"""Feature fishing (Wen et al. 2022, Section 3.2): examples of one class below a cut, one answer at a time.

Either the server knows where to cut (Proposition 3.2: from a feature's distribution), or it asks again and
again, lower each time, until one example is alone. Each answer is read by itself, so that the client may
train on another batch in each round; where it does not, `one_shot_binary_fishing` needs fewer queries and
takes any mixture of classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.fishing.catch import Catch, Fished, inner_attack
from seepage.attacks.fishing.dying import takes_several_epochs
from seepage.attacks.fishing.gated_cuts import SHARP, Gate
from seepage.attacks.fishing.head import Head, find_head, head_features
from seepage.attacks.fishing.shared import Cutting, aggregate_note, chosen_direction, hooked
from seepage.attacks.fishing.tail import Tail, fished_tail, next_tail_cut, read_tail
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import Crafted, Exchange, Grant, Knowledge


@dataclass(kw_only=True, eq=False)
class FeatureFishing(Cutting):
    """Cuts one class at one place, or further down with every query."""

    theta: float | None
    images: int
    queries: int
    feature: int | None

    @property
    def searching(self) -> bool:
        """The cut is looked for, over several rounds."""
        return self.theta is None and self.queries > 1

    @property
    def needs(self) -> frozenset[Grant]:
        if self.searching:
            return super().needs
        return frozenset({Grant.AUXILIARY}) if self.theta is None else frozenset()

    def query_bound(self, examples: int) -> int:
        """Most queries, known before the first."""
        return self.queries if self.searching else 1

    def check(self, model: nn.Module, known: Knowledge) -> None:
        super().check(model, known)
        head, direction = self._aim(model, known)
        if not self.searching:
            self._known_cut(model, known, head, direction)

    def _aim(self, model: nn.Module, known: Knowledge) -> tuple[Head, Tensor]:
        head = self.head(model, known)
        return head, chosen_direction(head, self.feature, seed=known.seed)

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Crafted | None:
        if len({e.broadcast.round for e in history}) >= self.query_bound(0):
            return None
        head, direction = self._aim(model, known)
        several, beta = takes_several_epochs(known.local), self.beta
        if several:  # along -u, whatever the class (`dying_cuts`)
            row = (self.target_class + 1) % head.classes
            model, dying = self.everyone(model, history, known, head, row)
            gated = isinstance(dying, Gate)
            direction, beta = (-dying.w, SHARP) if isinstance(dying, Gate) else (-dying.u, dying.gamma)
        if self.searching:
            tails = [read_tail(e, known, head, beta=beta) for e in history if e.clients == history[0].clients]
            if several and not gated and tails and tails[0].others:
                return None  # one of the row's class would raise the layer, and training diverge
            theta = next_tail_cut(tails, beta=beta)
        else:
            theta = self._known_cut(model, known, head, direction)
        if theta is None:
            return None
        if several:
            return self.send_dying(model, head, dying, row, theta)
        return self.send_cut(model, head, direction=direction, theta=theta)

    def _known_cut(self, model: nn.Module, known: Knowledge, head: Head, direction: Tensor) -> float:
        """Proposition 3.2: below the cut lies a share of 1/M of the class."""
        if self.theta is not None:
            return self.theta
        public = known.auxiliary
        mine = None if public is None else public.inputs[public.labels == self.target_class]
        if mine is None or len(mine) < 2:
            raise NotApplicable(
                f"where to cut class {self.target_class} is not known, and fewer than two auxiliary examples "
                "of it are there: give theta, or queries = 20 to search for it."
            )
        scores = head_features(model, head, mine) @ direction
        return math.inf if self.images == 1 else float(torch.quantile(scores, 1 / self.images))

    def fish(self, exchanges: Sequence[Exchange], known: Knowledge) -> Catch:
        index = hooked(exchanges)
        head = find_head(exchanges[index[0]].broadcast.model, known.input, self.layer)
        return catch_of_tails(index, index, exchanges, known, head, beta=self.beta)


def catch_of_tails(
    asked: Sequence[int],
    cuts: Sequence[int],
    exchanges: Sequence[Exchange],
    known: Knowledge,
    head: Head,
    *,
    beta: float,
) -> Catch:
    """What the exchanges `cuts` caught, of all those that were `asked`."""
    tails = {i: read_tail(exchanges[i], known, head, beta=beta) for i in cuts}
    fished = tuple(
        fished_tail(tail, exchanges[i], known, head, beta=beta, source=i)
        for i, tail in tails.items()
        if tail.looks_single
    )
    first = exchanges[cuts[0]]
    several = first.secret.dying is not None
    return Catch(
        fished=fished,
        queries=len({exchanges[i].broadcast.round for i in asked}),
        mixed=tuple(round(t.size) for t in tails.values() if round(t.size) > 1),
        notes=(
            *aggregate_note(first),
            *first.secret.notes,
            *_notes(fished, list(tails.values()), several=several),
        ),
    )


def _notes(fished: Sequence[Fished], tails: Sequence[Tail], *, several: bool) -> list[str]:
    """What is to be said about cuts that caught more or less than one example."""
    sure = sum(f.isolated for f in fished)
    notes = [f"{len(tails)} cut(s) were answered; {sure} caught exactly one example."]
    if len(fished) > sure:
        notes.append(
            f"{len(fished) - sure} cut(s) count one example, but other classes are in the batch and may hide "
            "a mixture (Remark 3.3: all must lie below the cut, which one answer cannot show): not claimed."
        )
    blurred = sum(tail.others and not tail.looks_single for tail in tails)
    if blurred and several:
        notes.append(
            f"In {blurred} cut(s) of several local steps an example lies on the cut, or one is of the class "
            "whose row carries it (the one after target_class), and nothing is returned."
        )
    elif blurred:
        notes.append(
            f"In {blurred} cut(s) other classes lie above the cut and blur what was caught: the condition of "
            "Remark 3.3 does not hold and nothing is returned; binary_fishing takes mixed batches."
        )
    if all(math.isinf(t.theta) and t.size < 0.5 for t in tails):
        notes.append("No example of the target class is in the batch.")
    return notes


def feature_fishing(
    *,
    target_class: int = 0,
    theta: float | None = None,
    images: int = 8,
    queries: int = 1,
    feature: int | None = None,
    beta: float = 1e6,
    layer: str | None = None,
    client: int | None = None,
    inner: str = "analytic_extraction",
    inner_options: Mapping[str, Any] | None = None,
) -> FeatureFishing:
    """Dishonest server, one query: the example of a class with the lowest feature, where the cut leaves just
    one below (Wen et al. 2022). In several local steps: of any class but the one after target_class.

    theta: where to cut; by default at mass 1/`images` of the auxiliary examples of the class.
    images: examples of the target class expected in a batch.
    queries: with more than one (and no theta), the cut is searched for, lower with each query.
    feature: cut along this feature instead of along a random dense direction.
    beta: sharpness of the cut.
    layer, client, inner, inner_options: as in class_fishing.
    """
    if images < 1 or queries < 1:
        raise SpecError(f"images = {images} and queries = {queries} must both be at least 1.")
    return FeatureFishing(
        layer=layer,
        client=client,
        inner=inner_attack(inner, inner_options),
        target_class=target_class,
        theta=theta,
        images=images,
        queries=queries,
        feature=feature,
        beta=beta,
    )

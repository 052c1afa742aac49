"""Binary fishing across silos (Wen et al. 2022, Section 3.4): the same client is asked again and again.

Every query cuts the batch at one value of w.f. What lies between two cuts is the difference of two answers:
G(theta2) - G(theta1) = -beta * sum of grad(w.f) over examples with theta1 < w.f <= theta2, whatever their
class. The labels cancel, so batches of mixed classes are fished exactly, which the paper cannot do
(Remark 3.3). This needs the client's batch to be the same in each query.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.fishing.bisection import State, advance, begin, begin_below, prepared
from seepage.attacks.fishing.catch import Catch, Fished, head_gradient, inner_attack
from seepage.attacks.fishing.cuts import (
    Interval,
    Sharpness,
    full_bound,
    is_isolated,
    next_cut,
    one_shot_bound,
)
from seepage.attacks.fishing.dying import takes_several_epochs
from seepage.attacks.fishing.dying_cuts import (
    dying_cut,
    read_dying_cut,
)
from seepage.attacks.fishing.gated_cuts import Gate, alone_under, gated_cut
from seepage.attacks.fishing.gated_search import (
    Search,
    added,
    fished_between,
    main_searches,
    next_query,
    searches,
)
from seepage.attacks.fishing.head import (
    Head,
    read_head,
    sent_gradient,
    single_example_model,
)
from seepage.attacks.fishing.shared import (
    Cutting,
    Hook,
    aggregate_note,
    chosen_direction,
    examples_behind,
    one_party,
)
from seepage.core.types import Crafted, Exchange, Knowledge


@dataclass(kw_only=True, eq=False)
class BinaryFishing(Cutting):
    """Cuts until every example is alone (Algorithm 1), or until one is."""

    query_bound: Callable[[int], int]
    """Most queries for a batch of this size, known before the first."""
    all_of_them: bool
    feature: int | None

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Crafted | None:
        head = self.head(model, known)
        if takes_several_epochs(known.local):
            return self._craft_dying(model, history, known, head)
        direction = chosen_direction(head, self.feature, seed=known.seed)
        theta, target, state = math.inf, self.target_class, None
        if history:
            last = next(e for e in reversed(history) if e.clients == history[0].clients)
            state = self._after(last, known, head, direction, last.secret.progress)
            wanted = self._next(state)
            if wanted is None:
                return None
            theta, target = wanted, state.next_row
        return self.send_cut(model, head, direction=direction, theta=theta, target=target, progress=state)

    def _craft_dying(
        self, model: nn.Module, history: Sequence[Exchange], known: Knowledge, head: Head
    ) -> Crafted | None:
        """In several local steps: below everybody first, then cuts (`dying_cuts`)."""
        everyone, dying = self.everyone(model, history, known, head, self.target_class)
        if isinstance(dying, Gate):
            wish = next_query(self._searches(history, known, head), self._next, self.all_of_them)
            row, theta = (self.target_class, -math.inf) if not history else wish or (0, math.inf)
            if theta == math.inf:
                return None
            hook = Hook(target=row, theta=theta, direction=dying.w, dying=dying)
            return self.send(gated_cut(everyone, head, row, dying, theta), hook)
        theta, row, state = -math.inf, self.target_class, None
        if history:
            last = next(e for e in reversed(history) if e.clients == history[0].clients)
            state = self._after_dying(last, known, head, last.secret.progress)
            wanted = self._next(state)
            if wanted is None:
                return None
            theta, row = wanted, state.next_row
        hook = Hook(target=row, theta=theta, direction=dying.u, progress=state, dying=dying)
        return self.send(dying_cut(everyone, head, row, dying, theta), hook)

    def _searches(self, history: Sequence[Exchange], known: Knowledge, head: Head) -> list[Search]:
        return searches([e for e in history if e.clients == history[0].clients], known, head)

    def _after_dying(self, exchange: Exchange, known: Knowledge, head: Head, before: State | None) -> State:
        hook: Hook = exchange.secret
        assert hook.theta is not None
        found = read_dying_cut(exchange, known, head)
        reading = found.head
        epsilon = torch.finfo(exchange.update.tensors[head.weight].dtype).eps
        sharp = {"direction": hook.dying.u, "beta": hook.dying.gamma, "epsilon": epsilon}
        if math.isfinite(hook.theta):
            assert before is not None
            if not found.lacks(hook.target):  # part of one caught, a defense, or another batch
                reading = replace(reading, weight=math.nan)
            return advance(before, reading, theta=hook.theta, **sharp)
        return begin_below(
            reading, hook.target, before, counts=found.counts, examples=examples_behind(exchange), **sharp
        )

    def _next(self, state: State) -> float | None:
        """Where to cut next; None: no more."""
        if state.trouble or len(state.asked) >= self.query_bound(state.examples):
            return None
        if state.tree is None or state.sharp is None:
            return -math.inf
        sharp, parts = state.sharp, state.tree.intervals
        if not self.all_of_them and any(is_isolated(part, sharp) for part in parts):
            return None
        # The interval with fewest examples first: the smaller side of a cut is at most half of what was
        # cut, so the first example is alone after log2 n cuts, in the worst case too.
        cuts = (next_cut(part, sharp) for part in sorted(parts, key=lambda part: part.count))
        return next((theta for theta in cuts if theta is not None), None)

    def _after(
        self, exchange: Exchange, known: Knowledge, head: Head, direction: Tensor, before: State | None
    ) -> State:
        """One more answer."""
        hook: Hook = exchange.secret
        if hook.dying is not None:
            return self._after_dying(exchange, known, head, before)
        assert hook.theta is not None
        reading = read_head(exchange, known, head, hook.target)
        epsilon = torch.finfo(exchange.update.tensors[head.weight].dtype).eps
        if before is None:
            first = begin(reading, hook.target, examples=examples_behind(exchange))
            return prepared(first, direction=direction, beta=self.beta, epsilon=epsilon)
        return advance(
            before, reading, theta=hook.theta, direction=direction, beta=self.beta, epsilon=epsilon
        )

    def fish(self, exchanges: Sequence[Exchange], known: Knowledge) -> Catch:
        index = one_party(exchanges)
        party = [exchanges[i] for i in index]
        model = party[0].broadcast.model
        head = self.head(model, known)
        dying = party[0].secret.dying
        if isinstance(dying, Gate):
            return self._fish_gated(exchanges, index, known, head, dying)
        direction = chosen_direction(head, self.feature, seed=known.seed) if dying is None else dying.u
        state: State | None = None
        for exchange in party:
            state = self._after(exchange, known, head, direction, state)
        assert state is not None
        notes = [*aggregate_note(party[0]), *_party_note(exchanges, party[0])]
        if state.trouble or state.tree is None or state.sharp is None:
            why = state.trouble or "The rounds ended before both ends of the batch were known."
            return Catch(fished=(), queries=len(party), class_counts=state.counts, notes=(*notes, why))
        single = [part for part in state.tree.intervals if is_isolated(part, state.sharp)]
        groups = [part for part in state.tree.intervals if part not in single]
        single = single if self.all_of_them else single[:1]
        alone = single_example_model(model, head, self.target_class, direction)
        fished = [self._between(part, party, state, known, head, alone) for part in single]
        return Catch(
            fished=tuple(replace(f, source=index[f.source]) for f in fished),
            queries=len(party),
            class_counts=state.counts,
            mixed=tuple(part.count for part in groups) if self.all_of_them else (),
            notes=(*notes, *self._result_notes(state, state.sharp, len(single), groups)),
        )

    def _fish_gated(
        self,
        exchanges: Sequence[Exchange],
        index: Sequence[int],
        known: Knowledge,
        head: Head,
        gate: Gate,
    ) -> Catch:
        """One search, or two under different rows, of which the second adds the first row's class."""
        party = [exchanges[i] for i in index]
        found = searches(party, known, head)
        notes = [*aggregate_note(party[0]), *_party_note(exchanges, party[0])]
        counts = found[0].reading.counts
        if any(one.state.trouble for one in found) or found[-1].state.sharp is None:
            why = next((s.state.trouble for s in found if s.state.trouble), "The rounds ended too early.")
            return Catch(fished=(), queries=len(party), class_counts=counts, notes=(*notes, why))
        alone = alone_under(party[0].broadcast.model, head, self.target_class, gate, 1.0)
        told_of: dict[str, Any] = {"alone": alone, "label": self.target_class}
        fished: list[Fished] = []
        groups = 0
        for search in main_searches(found):
            assert search.state.tree is not None and search.state.sharp is not None
            single = [p for p in search.state.tree.intervals if is_isolated(p, search.state.sharp)]
            groups += sum(p.count for p in search.state.tree.intervals if p not in single)
            more = [fished_between(p, search, party, known, head, gate, **told_of) for p in single]
            fished = added(fished, more, gate)
        fished = fished if self.all_of_them else fished[:1]
        told = (
            f"{len(party)} queries, {len(fished)} example(s) alone between two cuts, whatever their class: a "
            "row shows all classes but its own."
        )
        rest = f"{groups} example(s) of a search were not isolated before it ended, or are tied."
        return Catch(
            fished=tuple(replace(f, source=index[f.source]) for f in fished),
            queries=len(party),
            class_counts=counts,
            notes=(*notes, told, *([rest] if groups and self.all_of_them else [])),
        )

    def _between(
        self,
        part: Interval,
        party: Sequence[Exchange],
        state: State,
        known: Knowledge,
        head: Head,
        alone: nn.Module,
    ) -> Fished:
        """The difference of the answers at an interval's two cuts."""
        high, low = state.caught(part.high.theta), state.caught(part.low.theta)
        terms = (*high, *((-sign, place) for sign, place in low))
        beta = self.beta if state.sharp is None else state.sharp.beta
        names = [n for n in party[0].update.tensors if n not in (head.weight, head.bias)]
        sums = [(sign, sent_gradient(party[place], known, names)) for sign, place in terms]
        tensors = {
            name: torch.stack([sign * s[name] for sign, s in sums]).sum(dim=0) / beta for name in names
        }
        feature = -state.features(terms)
        latest = max(place for _, place in terms)
        return Fished(
            tensors={**tensors, **head_gradient(feature, head, self.target_class, alone)},
            model=alone,
            label=self.target_class,
            count=1,
            isolated=True,
            feature=feature,
            score=part.mean,
            source=latest,
            queries=sum(math.isinf(query.theta) for query in state.asked) + len(part.tried),
        )

    def _result_notes(
        self, state: State, sharp: Sharpness, single: int, groups: Sequence[Interval]
    ) -> list[str]:
        bound = self.query_bound(state.examples)
        notes = [
            f"{len(state.asked)} queries of at most {bound} that were stated for {state.examples} examples; "
            f"{single} example(s) alone between two cuts, whatever their class."
        ]
        tied = [p for p in groups if p.count > 1 and next_cut(p, sharp) is None]
        if tied:
            sizes = ", ".join(str(p.count) for p in tied)
            notes.append(
                f"Tied: {sizes} examples lie within {2 * sharp.nudge:.2g} of each other and cannot be "
                "cut apart in this direction (identical examples never can); their mixture is not inverted."
            )
        open_groups = [p for p in groups if p not in tied]
        if self.all_of_them and open_groups:
            notes.append(
                f"{sum(p.count for p in open_groups)} example(s) were not isolated before the rounds or "
                "the bound on queries ended."
            )
        return notes


def _party_note(exchanges: Sequence[Exchange], first: Exchange) -> list[str]:
    others = {e.clients for e in exchanges} - {first.clients}
    if not others:
        return []
    return [
        f"Cuts followed the answers of client {first.clients[0]}; the other {len(others)} can be fished in "
        "the same way with client = 1, 2, ..."
    ]


def binary_fishing(
    *,
    target_class: int = 0,
    feature: int | None = None,
    beta: float = 1e6,
    layer: str | None = None,
    client: int | None = None,
    inner: str = "analytic_extraction",
    inner_options: Mapping[str, Any] | None = None,
) -> BinaryFishing:
    """Dishonest server, about one query an example: every example's own gradient out of any batch, whatever
    the classes (Wen et al. 2022, Algorithm 1).

    target_class: the row of the layer that carries the cut; which class is chosen hardly matters.
    feature: cut along this feature instead of along a random dense direction.
    beta: sharpness of the cut; the paper's 1000 leaves examples near a cut half caught.
    layer: the classification layer, by default the last one with an output for each class.
    client: send crafted models to this client only.
    inner, inner_options: the attack that inverts each fished gradient, and its settings.
    """
    return BinaryFishing(
        layer=layer,
        client=client,
        inner=inner_attack(inner, inner_options),
        query_bound=full_bound,
        all_of_them=True,
        target_class=target_class,
        feature=feature,
        beta=beta,
    )


def one_shot_binary_fishing(
    *,
    target_class: int = 0,
    feature: int | None = None,
    beta: float = 1e6,
    layer: str | None = None,
    client: int | None = None,
    inner: str = "analytic_extraction",
    inner_options: Mapping[str, Any] | None = None,
) -> BinaryFishing:
    """Dishonest server, about log2(n) queries: one example's gradient out of any batch (Wen et al. 2022,
    Section 3.4).

    Settings as in binary_fishing. Of the two sides of a cut the smaller is cut on, so the number of queries
    is logarithmic even in the worst case.
    """
    return BinaryFishing(
        layer=layer,
        client=client,
        inner=inner_attack(inner, inner_options),
        query_bound=one_shot_bound,
        all_of_them=False,
        target_class=target_class,
        feature=feature,
        beta=beta,
    )

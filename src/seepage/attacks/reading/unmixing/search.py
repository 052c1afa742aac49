"""The search: starts, their polish, the network's check, and again in what is left, until all are found.

It ends when all are found, when many rounds in a row found nothing, or when its time is up. Nothing here sees
the truth.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.tolerances import FEW, SPARE
from seepage.attacks.reading.unmixing.few import along_the_line
from seepage.attacks.reading.unmixing.ledger import Ledger
from seepage.attacks.reading.unmixing.mixture import Mixture
from seepage.attacks.reading.unmixing.pattern import GENUINE, fit
from seepage.attacks.reading.unmixing.polish import (
    coarse,
    distinct,
    fine,
    fires,
    from_patterns,
    tightened,
    unit,
)
from seepage.attacks.reading.unmixing.starts import starts_in
from seepage.core.checkpoint import Checkpoint, Identity, State, sketch
from seepage.core.progress import Clock

_STARTS, _MOST_STARTS = 48, 512
"""Starts in a round while all are unknown, and at most. Cost: a round of few finds the same examples less
often, one of many uses each product of matrices better."""
_FROM_ROWS = 4
"""Every so manyth start is a row of U instead of a made-up input: with few neurons it leads elsewhere.
No plateau test yet."""
_ALIKE_ROUGH, _ALIKE = 0.9, 0.999
"""Cosine from which on two q are the same example, before and after the fine polish. No plateau test yet."""
_LINE = 64
"""Patterns of the line that are looked at together, and that are polished: those that leave the least of U q
in their rows. Cost: time and memory."""
_WEEDED = 4
"""Times that wrong finds are taken back once all seem to be found. Cost: each leaves a few to find anew."""
_DRY = 12
"""Rounds in vain after which the search ends. Cost: a batch that cannot be unmixed takes about as long as one
that can, of which most rounds find something."""

_ALIKE_DRY = 4
"""The same where two examples seem to switch the same neurons. Cost: two rounds of either kind. Tested:
test_constants_of_unmixing_lie_on_a_plateau."""


@dataclass
class Search:
    """Finds the q of a mixture; `ledger` has them."""

    mixture: Mixture
    clock: Clock
    seed: int = 0
    ledger: Ledger = field(init=False)
    rounds: int = 0
    followed: int = 0
    """Finds that follow from all others by linear algebra: the last one, or two on a line."""
    rejected: int = 0
    """Sparse vectors that are no activation pattern."""
    weeded: int = 0
    """Times that all seemed to be found and some were wrong."""
    alike: bool = False
    """Since the last find, patterns of more than one vector came up: two examples may switch the same
    neurons, and only their span can be told."""
    expired: bool = False

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.mixture)
        self._generator = torch.Generator().manual_seed(self.seed)
        self._dry = 0

    def run(self) -> bool:
        """Whether all were found."""
        clock = self.clock
        kept = Checkpoint(self._identity)
        if (state := kept.restore({"seed": self.seed})) is not None:
            self._restore(state[0])
            clock.advance(state[1])
        while self._unfinished() and self._dry < self._patience():
            if clock.expired:
                self.expired = True
                break
            new = self._round()
            self.rounds += 1
            self._dry, self.alike = (0, False) if new else (self._dry + 1, self.alike)
            kept.offer(self._state)
            clock.report(
                step=self.rounds,
                steps=self.rounds + self._patience(),
                objective=float(self.ledger.left),
                inputs=torch.empty(0),
            )
        kept.finish(self._state)
        return self.ledger.left == 0

    def _unfinished(self) -> bool:
        """Whether something is left, or turns out to be wrong once nothing is."""
        if self.ledger.left == 0 and self.weeded < _WEEDED and (wrong := self.ledger.weed()):
            self.weeded += 1
            self.rejected += wrong
            self._dry = 0
        return self.ledger.left > 0

    def _patience(self) -> int:
        if self.ledger.left <= 1:  # of a last one nothing is drawn: again is the same
            return 1
        return _ALIKE_DRY if self.alike else _DRY

    def _count(self) -> int:
        smaller = self.mixture.unknown / max(1, self.ledger.left)
        return int(min(_MOST_STARTS, max(_STARTS, _STARTS * smaller**2 / 2)))

    def _round(self) -> int:
        """How many new ones a round found."""
        mixture, ledger = self.mixture, self.ledger
        before, follows = len(ledger), not self._draws()
        span = ledger.span()
        q, off = self._candidates(span)
        q = unit(q)
        q = q[distinct(q, ledger.q, alike=_ALIKE_ROUGH)] if ledger.left > 2 else q
        if len(q) == 0:
            return 0
        polished = fine(mixture.directions, q, mixture.floor(q), off)
        if ledger.left <= 2:  # from exact patterns: where few rows are off, the polish may lead away
            polished = torch.cat([tightened(mixture.directions, q, mixture.floor(q)), polished])
        q = unit(polished)
        on = fires(mixture.directions, q, mixture.floor(q))
        # Any vector can be made zero in u - 1 rows; a sparse one is in more.
        least = mixture.unknown - 1 + max(SPARE, int(FEW / 2 * mixture.rows))
        sparse = ((~on).sum(1) >= least).nonzero().squeeze(1)
        q, on = q[sparse], on[sparse]
        new = distinct(q, ledger.q, alike=_ALIKE)
        q, on = q[new], on[new]
        if len(q) == 0:
            return 0
        a = fit(mixture.gates @ span, on) @ span.T
        genuine = (mixture.agreement(on, a) >= GENUINE) & (a @ mixture.ones > 0)
        self.rejected += int((~genuine).sum())
        if bool(genuine.any()):
            several = self._several(q[genuine], on[genuine])
            self.alike = self.alike or bool(several.any())
            ledger.add(q[genuine][~several], on[genuine][~several])
        added = len(ledger) - before
        self.followed += added * follows
        return added

    def _draws(self) -> bool:
        """Whether starts are drawn: not for the last one, and for the last two only if their line failed."""
        return self.ledger.left > 2 or (self.ledger.left == 2 and self._dry > 0)

    def _candidates(self, span: Tensor) -> tuple[Tensor, Tensor]:
        """(t, u): q that may be those of unknown examples, whose a lie in the span (u, left).

        And (r,) how probably each row is off in one of them.
        """
        mixture, left = self.mixture, self.ledger.left
        any_row = torch.ones_like(mixture.noise)
        if left == 1:
            only = span.T * torch.sign(mixture.ones @ span).unsqueeze(1)
            on = torch.cat([only @ mixture.gates.T > 0, mixture.patterns(only)])
            return from_patterns(mixture.directions, on), any_row
        if not self._draws():
            on = mixture.patterns(along_the_line(mixture.gates, mixture.ones, span))
            q = torch.cat([from_patterns(mixture.directions, part) for part in on.split(_LINE)])
            remains = ((q @ mixture.directions.T).square() * ~on).sum(1)
            return q[remains.argsort()[:_LINE]], any_row
        # What the rough pictures leave out is most of a faint example's q: after a round in vain, all of it.
        whole = self._dry % 2 == 1
        reduced = torch.eye(mixture.unknown).to(span) if whole else self.ledger.reduced()
        basis = mixture.directions @ reduced  # (r, left) or (r, u)
        on = starts_in(mixture, span, self._count(), self._generator) @ mixture.gates.T > 0
        off = (1 + (~on).sum(0)) / (2 + len(on))  # Laplace's rule of succession
        small = basis.float()
        q = from_patterns(small, on)
        rows = torch.randint(len(basis), (len(q[::_FROM_ROWS]),), generator=self._generator).to(q.device)
        q[::_FROM_ROWS] = unit(small[rows])
        return coarse(small, q, off.to(small)).double() @ reduced.T, off.to(basis)

    def _several(self, q: Tensor, on: Tensor) -> Tensor:
        """(t,) whether the rows off in a pattern have more than one null vector, as far as noise lets see.

        It may be a vector that noise alone makes sparse, or one of two examples that switch the same neurons:
        nothing is found by it either way.
        """
        off = (~on).to(q)
        moments = (self.mixture.directions.T.unsqueeze(0) * off.unsqueeze(1)) @ self.mixture.directions
        second = torch.linalg.eigvalsh(moments)[:, min(1, q.shape[1] - 1)].clamp_min(0).sqrt()
        hidden: Tensor = second <= (self.mixture.floor(q) * off).norm(dim=1)
        return hidden & (q.shape[1] > 1)

    def _identity(self) -> Identity:
        exact = {"unknown": self.mixture.unknown, "rows": self.mixture.rows}
        return Identity(exact, sketch((self.mixture.sizes, self.mixture.ones.abs())))

    def _state(self) -> State:
        """The signals, not q: those of another run's U differ by its signs."""
        return {
            "signals": self.ledger.q @ self.mixture.directions.T,
            "rounds": self.rounds,
            "dry": self._dry,
            "rejected": self.rejected,
            "followed": self.followed,
            "weeded": self.weeded,
            "generator": self._generator.get_state(),
        }

    def _restore(self, state: State) -> None:
        self.rounds, self._dry = int(state["rounds"]), int(state["dry"])
        self.rejected, self.weeded = int(state["rejected"]), int(state["weeded"])
        self.followed = int(state["followed"])
        self._generator.set_state(state["generator"])
        if len(state["signals"]):
            q = unit(state["signals"].to(self.mixture.directions) @ self.mixture.directions)
            self.ledger.add(q, fires(self.mixture.directions, q, self.mixture.floor(q)))

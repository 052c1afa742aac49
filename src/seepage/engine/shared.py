"""What the cells of one point and seed have in common, computed when the first of them asks for it.

Every passive attack looks at the same honest exchanges, and beside every attack stands the same guess without
any update. A crafted model changes the exchanges, so an active attack has rounds of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from seepage.attacks.prior_only import PriorOnly
from seepage.core.types import Grant, Knowledge, Reconstruction
from seepage.engine.prepared import Prepared
from seepage.engine.recording import Recording
from seepage.engine.scoring import Beside
from seepage.engine.source import Simulation, Source
from seepage.protocol import Played, knowledge
from seepage.protocol.played import PlayedAgain
from seepage.protocol.threat import effective_grants
from seepage.protocol.widening import wide_batch


@dataclass(frozen=True)
class Shared:
    """Belongs to one point and one seed. Nothing in it comes from an attack."""

    prepared: Prepared
    seed: int

    @cached_property
    def source(self) -> Source:
        recorded = self.prepared.recorded
        if recorded is not None:
            return Recording(self.prepared, recorded, self.seed)
        return Simulation(self.prepared, self.seed)

    @cached_property
    def honest(self) -> Played:
        """The rounds with an honest server."""
        return self.source.play(None)

    @property
    def kept_bytes(self) -> int:
        """What the next cell finds in memory already: the truth, and updates that are kept."""
        if "honest" not in vars(self):
            return 0
        played = self.honest
        kept = () if isinstance(played.exchanges, PlayedAgain) else played.exchanges
        return played.truth.inputs.nbytes + sum(
            tensor.nbytes for exchange in kept for tensor in exchange.update.tensors.values()
        )

    @cached_property
    def beside(self) -> Beside:
        """What stands beside the scores of every attack on the honest rounds."""
        return Beside()

    @cached_property
    def guesses(self) -> Reconstruction:
        """The baseline's, on the honest rounds."""
        return self.guesses_about(self.honest)

    def guesses_about(self, played: Played) -> Reconstruction:
        known = self.known_to_baseline
        if not isinstance(played.exchanges, PlayedAgain):
            return PriorOnly().run(played.exchanges, known)
        # Nobody trains for a guess that looks at no update.
        spec = self.prepared.spec
        told = Grant.BATCH_SIZE in effective_grants(self.prepared.threat, spec.protocol.aggregation)
        return PriorOnly().guess([len(rows) if told else 1 for rows in played.behind], known)

    def known_to_server(self) -> Knowledge:
        """By the threat model, for one attack: it may write to the public examples."""
        public = self.source.public
        auxiliary = None if public is None else public.clone()
        return knowledge(
            self.prepared.threat,
            self.prepared.spec.protocol.aggregation,
            spec=self.source.data.spec,
            loss=self.prepared.loss,
            local=self.source.local,
            auxiliary=None if auxiliary is None else wide_batch(auxiliary),
            seed=self.prepared.server_seed(self.seed),
        )

    @cached_property
    def known_to_baseline(self) -> Knowledge:
        """It may use public examples under every threat model: it measures, it does not attack."""
        public = self.source.public
        return Knowledge(
            input=replace(self.source.data.spec, spread=None),
            loss=self.prepared.loss,
            auxiliary=None if public is None else wide_batch(public),
            seed=self.seed,
        )


@dataclass
class LastShared:
    """The shared work of the last cell, and no other: the next one is most often of the same seed."""

    _key: tuple[int, int] | None = None
    _kept: Shared | None = field(default=None, repr=False)

    def of(self, point: int, prepared: Prepared, seed: int) -> Shared:
        """That of this point and seed. What was kept for another is dropped first."""
        if self._kept is None or self._key != (point, seed):
            self.drop()
            self._key, self._kept = (point, seed), Shared(prepared, seed)
        return self._kept

    def drop(self) -> None:
        self._kept = None

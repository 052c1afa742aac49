"""The attacks of this package on one's own update, matched and scored as an audit does it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.attacks.base import Attack
from seepage.core.errors import DataError, ModelError, NotApplicable
from seepage.core.types import (
    INPUT_SPACE,
    Batch,
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Reconstruction,
    Update,
)
from seepage.engine.rating import Rated, rated
from seepage.engine.views import Views
from seepage.gating.features import inputs_from
from seepage.gating.sent import foreign
from seepage.models.choice import unreadable
from seepage.models.layers import trace_linear_layers
from seepage.protocol import Played

PICTURE = 25.0
"""dB from which on a picture counts as recovered. Tested: test_pictures_are_judged_by_a_plateau."""
CLOSED_FORMS: dict[Modality, tuple[str, ...]] = {
    Modality.IMAGE: ("recursive_inversion", "april", "patch_embedding"),
    Modality.TABULAR: ("exact_table", "recursive_inversion"),
    Modality.TEXT: ("embedding_rows", "exact_text"),
}
SEARCHES: dict[Modality, str] = {Modality.IMAGE: "inverting_gradients", Modality.TABULAR: "tableak"}
_STEPS = 300
"""Of a search. Cost: as many steps of the client; `budget` ends it before. Where it recovers anybody the
others are named as well, for a server goes on for longer."""
_SEARCHED = 32
"""Examples that are searched for together, at most. Cost: time; of 64 pictures a search of so few steps had
none in any trial, and who is alone in a larger batch is told by what it has of the update for itself."""
WORDS = 0.9
"""Share of a text's tokens in their places, from which on it counts as recovered. Derived: one of ten words
that is wrong does not hide what a sentence says."""
_TOLERANCE = 1e-3
"""Of the value range, within which a value is exact. Paper: that of an audit (`exact_tolerance`)."""


@dataclass(frozen=True)
class Found:
    """What one attack has of the examples."""

    attack: str
    layer: str | None
    space: str
    exact: Tensor
    """(n,) bool."""
    psnr: Tensor | None
    """(n,) dB of pictures."""
    labels: Tensor | None
    """(classes,) inferred counts."""
    read: Tensor | None = None
    """(n,) share of a text's tokens that stand in their places."""
    words: Tensor | None = None
    """(vocabulary,) bool: tokens that are known to be in the batch."""

    @property
    def pictured(self) -> Tensor:
        """(n,) bool: good enough to be recognised."""
        return torch.zeros_like(self.exact) if self.psnr is None else self.psnr >= PICTURE

    @property
    def worded(self) -> Tensor:
        """(n,) bool: a text that can be understood."""
        return torch.zeros_like(self.exact) if self.read is None else self.read >= WORDS

    @property
    def reachable(self) -> Tensor:
        """(n,) bool: whom a search that recovered somebody else has not reached yet."""
        recovered = self.exact | self.pictured
        searched = self.attack in SEARCHES.values() and bool(recovered.any())
        return ~recovered if searched else torch.zeros_like(self.exact)


@dataclass(frozen=True)
class Tried:
    """All that came out, and what could not be run."""

    found: tuple[Found, ...]
    not_run: dict[str, str]
    failed: bool = False
    """An attack broke off, or read others than the batch. A server can send a model that breaks one, so that
    nothing is said to be safe."""

    @property
    def measured(self) -> bool:
        return bool(self.found) and not self.failed

    def recovered(self) -> Tensor:
        """(n,) bool: some attack has the example exactly, as a picture or as a text."""
        return torch.stack([one.exact | one.pictured | one.worded for one in self.found]).any(dim=0)


@dataclass(frozen=True)
class Site:
    """The client's side of one exchange: what it received, what it holds, and how it trains."""

    model: nn.Module
    batch: Batch
    spec: InputSpec
    local: LocalTraining
    loss: str
    budget: float

    def attacked(self, update: Update) -> Tried:
        """Every direct attack on this update. The truth enters where candidates are matched, nowhere else."""
        found: list[Found] = []
        not_run: dict[str, str] = {}
        failed = False
        seen = Exchange(broadcast=Broadcast(self.model), update=update, clients=(0,))
        played = Played(
            exchanges=(seen,),
            truth=self.batch,
            truth_clients=torch.zeros(len(self.batch), dtype=torch.long),
            behind=(torch.arange(len(self.batch)),),
            rounds=1,
        )
        known = Knowledge(input=replace(self.spec, spread=None), loss=self.loss, local=self.local)
        for name, layer, attack in self._attacks(update):
            where = name if layer is None else f"{name} at '{layer}'"
            try:
                attack.check(self.model, known)
                result = attack.run([seen], known)
            except (NotApplicable, ModelError, DataError) as reason:
                not_run[where] = str(reason)
                continue
            except (ArithmeticError, IndexError, RuntimeError, ValueError) as error:
                failed = True
                not_run[where] = f"it broke off ({type(error).__name__})."
                continue
            found.append(self._compared(name, layer, result, played))
            if result.space == INPUT_SPACE and (why := foreign(result.claimed, found[-1].exact)):
                failed, not_run[where] = True, why
            if result.space != INPUT_SPACE and len(result) and self.spec.modality is not Modality.TEXT:
                # A crafted model carries inputs to the layer, and whoever knows it takes them back.
                back = inputs_from(self.model, result, self.spec)
                found.append(self._compared(f"{name}, then a search", layer, back, played))
            if self._all_inputs(found):
                break  # nothing is left to be found
        return Tried(tuple(found), not_run, failed)

    def _attacks(self, update: Update) -> Iterator[tuple[str, str | None, Attack]]:
        """The cheapest first: what is read, closed forms, then a search."""
        layers = trace_linear_layers(self.model, self.spec)
        readable = [layer for layer in layers if not unreadable(layer)]
        readable.sort(key=lambda layer: (layer.reads == "features", layer.index))
        if self.spec.modality is Modality.IMAGE or not readable:
            # single rows as they are: mixed or noisy ones are no example, and may be a picture all the same
            yield "analytic_extraction", None, ATTACKS["analytic_extraction"](bare=bool(readable))
        for layer in readable:
            yield (
                "exact_extraction",
                layer.name,
                ATTACKS["exact_extraction"](layer=layer.name, budget=self.budget),
            )
        for name in CLOSED_FORMS[self.spec.modality]:
            yield name, None, ATTACKS[name]()
        sent = sum(tensor.numel() for tensor in update.tensors.values())
        search = SEARCHES.get(self.spec.modality)
        # with more values to find than numbers to go by a search has nothing to hold on to
        few = len(self.batch) <= _SEARCHED and self.batch.inputs.numel() <= sent
        if search is not None and few:
            yield search, None, ATTACKS[search](steps=_STEPS, budget=2 * self.budget)

    def _compared(self, name: str, layer: str | None, result: Reconstruction, played: Played) -> Found:
        views = Views(played, self.spec, result.space, _TOLERANCE)
        scored: Rated = rated(result, views, ())
        pictures = result.space == INPUT_SPACE and self.spec.modality is Modality.IMAGE
        psnr = scored.scores["psnr"] if pictures and "psnr" in scored.scores else None
        if psnr is not None:
            psnr = psnr.masked_fill(~scored.pairing.recovered, -torch.inf)
        read = scored.scores.get("token_accuracy") if result.space == INPUT_SPACE and len(result) else None
        return Found(
            name, layer, result.space, scored.pairing.exact, psnr, result.label_counts, read, result.words
        )

    def _all_inputs(self, found: list[Found]) -> bool:
        exact = [one.exact for one in found if one.space == INPUT_SPACE]
        return bool(exact) and bool(torch.stack(exact).any(dim=0).all())

"""Scale-MIA (Shi et al. 2024, "Scale-MIA: A Scalable Model Inversion Attack against Secure Federated Learning
via Latent Space Reconstruction"): features out of a secure sum, then pictures out of features.

Every client gets the same model. Its first layers stay as they are; the first dense layer behind them is
crafted so that each of its rows fires for few examples, judged by the features of public ones. From the sum
over all clients the features of single examples come out exactly, and a decoder trained on the public
examples makes pictures of them. The paper ends there; here the decoded picture is where a search begins for
the one that has these features (`features.gauss_newton`), since the server knows the first layers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name

import torch
from torch import Tensor, nn

from seepage.attacks.base import Attack, pool
from seepage.attacks.traps.crafted_extraction import READERS, Reader, expected_batch, find_reader
from seepage.attacks.traps.quantile_traps import FIRING, response_quantile
from seepage.attacks.traps.traps import draw_gaussian_rows, draw_shares, size_of_weights
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.registry import lookup
from seepage.core.types import INPUT_SPACE, Crafted, Exchange, Grant, Knowledge, Modality, Reconstruction
from seepage.models.choice import choose_layer
from seepage.models.hooks import layer_input
from seepage.models.layers import LinearLayer

_PICTURES = "seepage.attacks.sums.decoder:pictures_of"
"""Loaded once features were read."""
_LEAST_PUBLIC = 8
"""Public examples without which there is no decoder to speak of. No plateau test yet."""
_USUAL_SUM = 100
"""Examples behind a sum, where nothing says. Paper: Boenisch et al. 2021, Tables 3 and 5."""


@dataclass(frozen=True)
class Latent:
    """What the server remembers."""

    layer: str
    note: str


@dataclass(kw_only=True, eq=False)
class ScaleMIA(Attack):
    """Traps for features, a decoder, and a search from where it ends."""

    read: Reader
    firing: tuple[float, float]
    steps: int
    layer: str | None
    batch_size: int | None

    def __post_init__(self) -> None:
        self.requires = frozenset({Grant.CRAFT_WEIGHTS, Grant.AUXILIARY})

    def check(self, model: nn.Module, known: Knowledge) -> None:
        self._choose(model, known)

    def _choose(self, model: nn.Module, known: Knowledge) -> LinearLayer:
        if known.input.modality is not Modality.IMAGE or len(known.input.shape) != 3:
            raise NotApplicable("its decoder makes pictures, and the inputs are none: use quantile_traps.")
        if known.auxiliary is None or len(known.auxiliary) < _LEAST_PUBLIC:
            raise NotApplicable(
                f"its decoder is trained on public examples, {_LEAST_PUBLIC} at least: grant = "
                "['auxiliary_data']."
            )
        layer = choose_layer(model, known.input, self.layer)
        if layer.reads != "features":
            raise NotApplicable(
                f"layer '{layer.name}' reads the model's input itself, so no features are to be decoded: "
                "use quantile_traps."
            )
        if not layer.followed_by_relu:
            raise NotApplicable(
                f"layer '{layer.name}' is not followed by a ReLU, so no row can be made to fire for few "
                "examples: use 'feature_inversion', which crafts nothing."
            )
        return layer

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Crafted | None:
        if history:
            return None
        layer = self._choose(model, known)
        assert known.auxiliary is not None and layer.bias is not None
        generator = torch.Generator().manual_seed(known.seed)
        latent = _features(model, layer, known)
        size = expected_batch(history, known, self.batch_size, _USUAL_SUM)
        spread = latent.std(dim=0).mean().clamp_min(torch.finfo(latent.dtype).tiny)
        rows = draw_gaussian_rows(
            layer.out_features,
            layer.in_features,
            sigma=size_of_weights(known) / float(spread) / layer.in_features**0.5,
            generator=generator,
        )
        share = draw_shares(layer.out_features, self.firing, size, generator)
        crafted = copy.deepcopy(model)
        with torch.no_grad():
            crafted.get_parameter(layer.weight).copy_(rows.weight)
            crafted.get_parameter(layer.bias).copy_(-response_quantile(rows, latent, share))
        note = (
            f"Each neuron of layer '{layer.name}' fires for a few of about {size} examples of a sum, judged "
            f"by the features of {len(latent)} public ones. The layers before it are as they were."
        )
        return Crafted(crafted, Latent(layer.name, note))

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        index = [i for i, e in enumerate(exchanges) if isinstance(e.secret, Latent)]
        if not index:
            raise NotApplicable("the crafted model was never sent: play a round with this attack.")
        pooled = pool([self._pictures(exchanges[i], known) for i in index])
        assert pooled.source is not None
        return replace(pooled, source=torch.tensor(index)[pooled.source])

    def _pictures(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        model, secret = exchange.broadcast.model, exchange.secret
        layer = choose_layer(model, known.input, secret.layer)
        read = self.read(exchange, known, layer).with_notes(secret.note)
        if read.space == INPUT_SPACE or not len(read):
            return read  # the first layers can be undone by themselves, or there is nothing to decode
        latent = _features(model, layer, known)
        found: Reconstruction = resolve_name(_PICTURES)(
            read, exchange, known, layer, latent, steps=self.steps
        )
        return found


def _features(model: nn.Module, layer: LinearLayer, known: Knowledge) -> Tensor:
    """(n, m) of the public examples."""
    assert known.auxiliary is not None
    weight = model.get_parameter(layer.weight)
    return layer_input(model, layer.name, known.auxiliary.inputs.to(weight.device))


def scale_mia(
    *, steps: int = 20, layer: str | None = None, batch_size: int | None = None, read: str = "peel"
) -> ScaleMIA:
    """Dishonest server, secure sums, no architecture change: features of single examples out of the sum, and
    pictures out of features by a decoder trained on public examples (Scale-MIA, Shi et al. 2024).

    For networks that begin with convolutions. steps: of the search behind the decoder; 0: the paper's attack.
    layer: dense layer to craft, by default the first.
    batch_size: examples of all clients of a sum; by default what the server knows of it, else 100.
    read: "peel" takes found examples away and reads what they hid; "rows" reads each row by itself.
    """
    lookup(READERS, read, "reader")
    if steps < 0:
        raise SpecError(f"steps must be 0 or more, not {steps}: 0 leaves the decoder's pictures as they are.")
    if batch_size is not None and batch_size < 2:
        raise SpecError(f"batch_size must be at least 2, not {batch_size}: one example needs no trap.")
    return ScaleMIA(
        read=find_reader(read), firing=FIRING[read], steps=steps, layer=layer, batch_size=batch_size
    )

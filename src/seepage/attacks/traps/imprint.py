"""Imprint (Fowl et al. 2021, "Robbing the Fed: Directly Obtaining Private Data in Federated Learning").

The server *changes the architecture*: it puts an inserted dense layer before the model. All its rows measure
the same thing, the mean value of an input; its biases form a ladder of quantiles. An example fires every rung
below its brightness, with the same backward signal on each, so the difference of neighbouring gradient rows
holds exactly the examples between two rungs.

Two examples between the same two rungs share all that a ladder shows of them. Peeling wants rows that measure
different things: by default the inserted layer has the rows of `quantile_traps`, and what is alone in one of
them is taken out of the others.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.attacks.traps.crafted_extraction import READERS, Bait, CraftedExtraction, Secret
from seepage.attacks.traps.quantile_traps import FIRING, QuantileCrafter
from seepage.attacks.traps.routes import Ladder
from seepage.attacks.traps.traps import size_of_weights
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.registry import lookup
from seepage.core.types import Exchange, InputSpec, Knowledge, Modality
from seepage.protocol.widening import model_placement

LAYER = "inserted_imprint"
ASSUMED_STD = 0.12
"""Spread of the mean brightness of natural pictures, as a share of the value range, where no data says.
Tested: test_constants_of_traps_lie_on_a_plateau."""
_BELOW_ALL = 1e-3
"""An entirely dark example must still lie above the lowest rung. Derived: a quarter of a grey step."""
_STRENGTH = 1e-2
"""How strongly the inserted layer acts on the model's input: enough for a gradient, little for the output.
Tested: test_constants_of_traps_lie_on_a_plateau."""


class ImprintedModel(nn.Module):
    """The user's model behind an inserted layer. NOT the architecture that clients agreed to train.

    >>> wrapped = ImprintedModel(nn.Linear(4, 2), size=4, bins=3)
    >>> [name for name, _ in wrapped.named_children()]
    ['inserted_imprint', 'inserted_return', 'model']
    """

    def __init__(
        self, model: nn.Module, *, size: int, bins: int, channels: int = 1, kernels: int = 0
    ) -> None:
        """size: values of an input. kernels: of a convolution before the inserted layer; 0: there is none.
        channels: of an input, where there is one."""
        super().__init__()
        self.size, self.bins, self.channels, self.kernels = size, bins, channels, kernels
        device, dtype = model_placement(model)
        self.inserted_kernels: nn.Conv2d | None = None
        seen = size
        if kernels:
            self.inserted_kernels = nn.Conv2d(channels, kernels, 1, device=device, dtype=dtype)
            seen = kernels * (size // channels)
        self.inserted_imprint = nn.Linear(seen, bins, device=device, dtype=dtype)
        self.inserted_return = nn.Linear(bins, size, bias=False, device=device, dtype=dtype)
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        seen = x if self.inserted_kernels is None else torch.relu(self.inserted_kernels(x))
        rungs = torch.relu(self.inserted_imprint(seen.flatten(1)))  # (n, bins)
        back = self.inserted_return(rungs).reshape(x.shape)
        logits: Tensor = self.model(x + back)
        return logits


@dataclass(frozen=True, kw_only=True)
class ImprintCrafter:
    """Wraps the model and sets the rows of the inserted layer: a ladder, or those that peeling reads."""

    bins: int
    read: str

    def check(self, model: nn.Module, known: Knowledge) -> None:
        if known.input.modality is Modality.TEXT:
            raise NotApplicable(
                "imprint measures input values, and token ids are no measure: use trap_weights, which "
                "redraws the embedding."
            )
        if known.auxiliary is None and known.input.value_range is None:
            raise NotApplicable(
                "neither the value range nor auxiliary data is known, so the ladder of brightness has no "
                "ends: grant 'value_range' or 'auxiliary_data'."
            )

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge, *, seed: int) -> Bait:
        self.check(model, known)
        wrapped = ImprintedModel(copy.deepcopy(model), size=math.prod(known.input.shape), bins=self.bins)
        generator = torch.Generator().manual_seed(seed)
        rungs, source = self._rungs(known)
        set_ladder(wrapped, known.input, rungs, generator=generator, size=size_of_weights(known))
        changed = f"The architecture was changed: a dense layer '{LAYER}' was put before the model."
        if self.read == "peel":
            # As small as the ladder's: what is sent of a small weight is rounded less.
            sigma = size_of_weights(known) / wrapped.size
            rows = QuantileCrafter(
                sigma=sigma, layer=LAYER, hidden=False, batch_size=None, firing=FIRING["peel"]
            )
            bait = rows.craft(wrapped, history, known, seed=seed)
            return replace(bait, secret=replace(bait.secret, notes=(changed, *bait.secret.notes)))
        notes = (changed, f"Its {self.bins} rungs are quantiles of the mean value, judged by {source}.")
        return Bait(wrapped, Secret(layer=LAYER, decode=Ladder(), notes=notes))

    def _rungs(self, known: Knowledge) -> tuple[Tensor, str]:
        """(bins,) mean raw values (model values, if that is all the server knows), rising."""
        share = torch.arange(self.bins, dtype=torch.float64) / self.bins
        if known.auxiliary is not None and len(known.auxiliary) > 1:
            means = known.input.to_raw(known.auxiliary.inputs).flatten(1).mean(dim=1).double().cpu()
            return spread_quantiles(means, share), "auxiliary examples"
        assert known.input.value_range is not None
        low, high = known.input.value_range
        if known.input.mean is None:  # nothing says how bright examples are
            return low + (high - low) * share - _BELOW_ALL, "the value range alone, evenly spaced"
        mean = sum(known.input.mean) / len(known.input.mean)
        # The lowest rung must lie below every example; ndtri(0) is minus infinity.
        z = torch.special.ndtri(share.clamp_min(1e-9))
        return mean + ASSUMED_STD * (high - low) * z, "an assumed normal distribution"


def spread_quantiles(means: Tensor, share: Tensor) -> Tensor:
    """Quantiles of a sample, with room below and above it, for victims beyond its extremes.

    >>> spread_quantiles(torch.tensor([0.0, 1.0]).double(), torch.tensor([0.0, 0.5]).double()).tolist()
    [-1.0, 0.5]
    """
    spread = means.max() - means.min()
    rungs = torch.quantile(means, share)
    rungs[0] = means.min() - spread
    return rungs


@torch.no_grad()
def set_ladder(
    wrapped: ImprintedModel,
    spec: InputSpec,
    rungs: Tensor,
    *,
    generator: torch.Generator,
    size: float = 1.0,
) -> None:
    """Row k fires for a mean raw value above rungs[k]; normalisation is folded into weight and bias.

    size: multiplies the layer's weights and biases; the way back is made stronger by as much, so that the
    model computes the same, and the layer's gradient grows.
    """
    layer = wrapped.inserted_imprint
    values, bins = layer.in_features, layer.out_features
    zero = torch.zeros(1, *spec.shape, dtype=torch.float64)
    offset = spec.to_raw(zero).flatten()  # raw = slope * model + offset
    slope = spec.to_raw(zero + 1).flatten() - offset
    layer.weight.copy_((size * slope / values).expand(bins, values))
    layer.bias.copy_(size * (offset.mean() - rungs))
    # Equal columns: an example's backward signal is the same on every rung (Fowl et al., Section 3).
    set_return(wrapped, size, generator=generator)


@torch.no_grad()
def set_return(wrapped: ImprintedModel, size: float, *, generator: torch.Generator) -> None:
    """The way back from a layer whose weights were multiplied by `size`."""
    weight = wrapped.inserted_return.weight
    direction = torch.randn(len(weight), 1, generator=generator) * _STRENGTH / (size * wrapped.bins)
    weight.copy_(direction.expand_as(weight))


def imprint(
    *,
    bins: int = 1000,
    rounds: Sequence[int] = (0,),
    clients: Sequence[int] | None = None,
    read: str = "peel",
) -> CraftedExtraction:
    """Dishonest server that CHANGES THE ARCHITECTURE: an inserted layer bins examples by brightness
    (Robbing the Fed, Fowl et al. 2021).

    bins: neurons of the inserted layer; on a ladder, an example is isolated when no other falls between the
    same two.
    rounds, clients: when and to whom the crafted model is sent.
    read: "peel" gives each neuron a measure of its own, takes found examples away and reads what they hid;
    "rows" and "bare" build the paper's ladder of brightness and read the differences of its rows.
    """
    lookup(READERS, read, "reader")
    if bins < 2:
        raise SpecError(f"bins must be at least 2, not {bins}: an example is isolated between two rungs.")
    return CraftedExtraction(ImprintCrafter(bins=bins, read=read), read=read, rounds=rounds, clients=clients)

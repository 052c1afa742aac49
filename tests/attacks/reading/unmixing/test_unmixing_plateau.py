"""Constants of the search for sparse signals that no derivation gives: around them, nothing changes.

Each is moved as far as the search allows without becoming another one: a share of .97 cannot be tripled, and
half of the reweightings reach half of the examples from the same starts.
"""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_sample_images
from tests.attacks.reading.unmixing.test_unmix import known
from tests.plateaus import scaled
from torch import Tensor, nn

from seepage.attacks.reading.unmixing.mixture import mixture_of
from seepage.attacks.reading.unmixing.search import Search
from seepage.attacks.reading.unmixing.starts import made_up_inputs
from seepage.core.progress import Clock
from seepage.core.types import InputSpec, Modality
from seepage.models.layers import trace_linear_layers

UNMIXING = "seepage.attacks.reading.unmixing"
CONSTANTS = {
    f"{UNMIXING}.pattern:GENUINE": (0.985, 1.015),
    f"{UNMIXING}.polish:_COARSE_STEPS": (2 / 3, 2.0),
    f"{UNMIXING}.polish:_FINE_STEPS": (3 / 4, 2.0),
    f"{UNMIXING}.search:_ALIKE_DRY": (1 / 2, 3.0),
}


@pytest.mark.parametrize("constant", CONSTANTS)
def test_constants_of_unmixing_lie_on_a_plateau(constant: str) -> None:
    for factor in CONSTANTS[constant]:
        for seed in (40, 41):
            layer = known(seed)
            with scaled(constant, factor):
                search = Search(layer.mixture, Clock(seconds=None), seed=seed)
                assert search.run(), (factor, seed)
            assert float((search.ledger.q @ layer.q.T).abs().amax(0).min()) > 0.9999


def photographs(count: int, seed: int) -> Tensor:
    """(count, 3, 16, 16) pieces of scikit-learn's two photographs, of 8 bits."""
    generator, side, pieces = torch.Generator().manual_seed(seed), 64, []
    for which in range(count):
        photo = torch.tensor(load_sample_images().images[which % 2].copy()).permute(2, 0, 1) / 255
        top, left = (int(torch.randint(size - side, (1,), generator=generator)) for size in photo.shape[1:])
        pieces.append(nn.functional.avg_pool2d(photo[:, top : top + side, left : left + side], 4))
    return (torch.stack(pieces) * 255).round() / 255


def found_at_first(factor: float) -> int:
    """Examples that the first round finds in four layers with fourteen photographs each."""
    spec = InputSpec(
        modality=Modality.IMAGE, shape=(3, 16, 16), num_classes=2, mean=(0.5,) * 3, std=(0.25,) * 3
    )
    found = 0
    for seed in range(4):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(768, 160), nn.ReLU(), nn.Linear(160, 2))
        weight, bias = model[1].weight.detach(), model[1].bias.detach()
        x = spec.to_model(photographs(14, seed)).flatten(1)
        signals = torch.randn(14, 160) * (x @ weight.T + bias > 0)
        rows = signals.T @ x
        layer = trace_linear_layers(model, spec)[0]
        with scaled(f"{UNMIXING}.starts:_CHROMA", factor):
            mixture = mixture_of(
                lambda rows=rows: [rows],
                signals.sum(0),
                noise=rows.norm(dim=1) * 1e-7,
                layer=(weight, bias),
                made_up=made_up_inputs(model, layer, spec, model_units=False, seed=seed),
            )
        assert mixture is not None and mixture.unknown == 14
        found += Search(mixture, Clock(seconds=None), seed=seed)._round()
    return found


def test_the_colour_of_made_up_pictures_lies_on_a_plateau() -> None:
    """Starts lead to as many pieces of photographs where the channels differ by a third or thrice as much."""
    usual = found_at_first(1.0)
    assert usual >= 10  # of 56, without a search in what is left
    assert all(0.75 * usual <= found_at_first(factor) <= usual / 0.75 for factor in (1 / 3, 3.0))

"""Constants of the search for sparse signals that no derivation gives: around them, nothing changes.

Each is moved as far as the search allows without becoming another one: a share of .97 cannot be tripled, and
half of the reweightings reach half of the examples from the same starts.
"""

from __future__ import annotations

import pytest
import torch
from tests.attacks.reading.unmixing.test_unmix import known
from tests.plateaus import scaled

from seepage.attacks.reading.unmixing.search import Search
from seepage.attacks.reading.unmixing.starts import smooth_fields
from seepage.core.progress import Clock

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


def test_the_colour_of_made_up_pictures_lies_on_a_plateau() -> None:
    """What is shared by the channels stays most of a picture, as it is in photographs."""
    for factor in (1 / 3, 1.0, 2.0):
        with scaled(f"{UNMIXING}.starts:_CHROMA", factor):
            fields = smooth_fields(400, (3, 8, 8), torch.Generator().manual_seed(0))
        red, green = fields[:, 0].flatten(), fields[:, 1].flatten()
        assert float(torch.corrcoef(torch.stack([red, green]))[0, 1]) > 0.7

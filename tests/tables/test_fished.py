"""What was fished beside the examples' own: scores of pictures made by hand."""

from functools import partial

import pytest

from seepage.data import load_data
from seepage.metrics import psnr, registered_psnr, registered_psnr_available
from seepage.tables import fished

pytestmark = pytest.mark.skipif(
    not registered_psnr_available()[0], reason="registered PSNR needs kornia, which is not installed"
)


@pytest.fixture(autouse=True)
def short_registration(monkeypatch):
    """Two steps a level instead of a hundred: how well pictures are registered is tested elsewhere."""
    monkeypatch.setattr(fished, "registered_psnr", partial(registered_psnr, iterations=2))


def test_pairs_are_scored_beside_flat_pictures():
    truth = load_data("photos").inputs[:12].double()
    values = truth.clone()
    values[1:] = truth[1:].mean(dim=(2, 3), keepdim=True)
    scores = fished.paired_scores(values, truth)
    flat = psnr(truth.mean(dim=(2, 3), keepdim=True).expand_as(truth), truth, data_range=1.0)
    some = fished.REGISTERED
    assert scores["max"] == 100.0  # the one exact copy, at PSNR's cap
    assert scores["mean"] == pytest.approx((100.0 + float(flat[1:some].sum())) / some, abs=1e-3)
    assert scores["flat max"] == pytest.approx(float(flat.max()))
    assert scores["flat mean"] == pytest.approx(float(flat.mean()))
    assert scores["above flat"] == pytest.approx((100.0 - float(flat[0])) / some, abs=1e-3)


def test_one_picture_against_a_batch_finds_its_own():
    truth = load_data("photos").inputs[:12].double()
    plain, best, nearest = fished.one_against_batch(truth[7:8], truth)
    assert (nearest, best) == (7, 100.0) and int(plain.argmax()) == 7

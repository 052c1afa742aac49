"""The core types and the look-up in registries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seepage.core.errors import SpecError
from seepage.core.registry import lookup, unknown
from seepage.core.types import Batch, InputSpec, Modality, Reconstruction, RowCount

statistics = st.lists(st.tuples(st.floats(-3, 3), st.floats(0.01, 5)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(stats=statistics, image=st.booleans(), n=st.integers(1, 4), seed=st.integers(0, 99))
def test_normalisation_goes_there_and_back(stats, image, n, seed) -> None:
    mean, std = zip(*stats, strict=True)
    shape = (len(mean), 3, 2) if image else (len(mean),)
    spec = InputSpec(
        modality=Modality.IMAGE if image else Modality.TABULAR, shape=shape, num_classes=2, mean=mean, std=std
    )
    raw = torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    fed = spec.to_model(raw)
    for c in range(len(mean)):  # channel by channel with numpy
        expected = (raw[:, c].numpy() - mean[c]) / std[c]
        assert np.allclose(fed[:, c].numpy(), expected, rtol=1e-13, atol=1e-13)
    assert fed.dtype is torch.float64
    assert torch.allclose(spec.to_raw(fed), raw, rtol=0, atol=1e-13)
    assert torch.equal(spec.to_model(raw[0]), fed[0])  # one example without a batch dimension


def test_without_statistics_values_pass_unchanged() -> None:
    spec = InputSpec(modality=Modality.TEXT, shape=(4,), num_classes=2, value_range=None, vocabulary=9)
    ids = torch.tensor([[1, 2, 3, 4]])
    assert spec.to_model(ids) is ids
    assert spec.to_raw(ids) is ids


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_batches_concatenate_and_select(sizes) -> None:
    total = sum(sizes)
    inputs, labels = torch.arange(2 * total).reshape(total, 2), torch.arange(total)
    parts = [Batch(x, y) for x, y in zip(inputs.split(sizes), labels.split(sizes), strict=True)]
    whole = Batch.concat(parts)
    assert len(whole) == total
    assert torch.equal(whole.inputs, inputs)
    assert torch.equal(whole.labels, labels)
    picked = whole.select(labels.flip(0)[:2])
    assert picked.labels.tolist() == list(range(total))[::-1][:2]
    assert torch.equal(picked.inputs[:, 0], 2 * picked.labels)
    assert len(whole.select(slice(1, None))) == max(0, total - 1)
    assert whole.to("cpu").labels.device.type == "cpu"


def test_row_counts_add_and_notes_collect() -> None:
    assert RowCount(total=3, active=1) + RowCount(total=4, active=2) == RowCount(total=7, active=3)
    found = Reconstruction(values=torch.zeros(2, 3)).with_notes("a").with_notes("b", "c")
    assert found.notes == ("a", "b", "c")
    assert len(found) == 2


def test_lookup_answers_with_the_nearest_name_and_all_of_them() -> None:
    registry = {"mean": 1, "median": 2, "secure_sum": 3}
    assert lookup(registry, "mean", "rule") == 1
    with pytest.raises(SpecError) as error:
        lookup(registry, "medain", "rule")
    assert (
        str(error.value) == "unknown rule 'medain': did you mean 'median'? Valid: mean, median, secure_sum."
    )
    assert unknown("rule", "zzz", registry) == "unknown rule 'zzz': Valid: mean, median, secure_sum."
    assert unknown("rule", "x", []) == "unknown rule 'x': Valid: none."

"""From exact features to pictures."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.reading.patterns.test_by_alphabet import pictures
from tests.attacks.reading.peeling.builders import errors, sent
from torch import nn

from seepage.attacks.features.feature_inversion import feature_inversion
from seepage.core.errors import NotApplicable
from seepage.core.progress import listening
from seepage.core.types import InputSpec, Knowledge, Modality

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 12, 12), num_classes=5, value_range=(0.0, 1.0))


def network(*front: nn.Module, features: int) -> nn.Sequential:
    torch.manual_seed(3)
    dense = (nn.Flatten(), nn.Linear(features, 200), nn.ReLU(), nn.Linear(200, 5))
    return nn.Sequential(*front, *dense)


def pooled() -> nn.Sequential:
    torch.manual_seed(0)
    front = (nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    return network(*front, features=288)


def test_pictures_come_back_each_by_itself_and_none_is_claimed() -> None:
    batch, steps = pictures(5), []
    exchange, known = sent(pooled(), batch, SPEC)
    with listening(lambda progress: steps.append(progress.step)):
        found = feature_inversion().run([exchange], known)
    assert len(found) == 5 and found.claimed is None and steps[-1] == 40
    assert float((found.values - 0.5).square().mean()) > 0  # not grey
    near = errors(found.values, batch.inputs).amin(0)
    rough = errors(feature_inversion(steps=1).run([exchange], known).values, batch.inputs).amin(0)
    assert float(near.median()) < 0.5 * float(rough.median())
    assert torch.equal(found.label_counts, torch.bincount(batch.labels, minlength=5))
    assert "5 feature vectors that were read" in found.notes[-1]


def test_a_budget_takes_fewer_steps() -> None:
    exchange, known = sent(pooled(), pictures(2), SPEC)
    found = feature_inversion(steps=10_000, budget=0.5).run([exchange], known)
    assert len(found) == 2 and "in 10000 steps" not in found.notes[-1]


def test_a_model_that_reads_the_input_itself_is_left_to_exact_extraction() -> None:
    exchange, known = sent(network(features=144), pictures(2), SPEC)
    with pytest.raises(NotApplicable, match="exact_extraction"):
        feature_inversion().check(exchange.broadcast.model, known)


def test_where_no_features_are_certain_the_batch_search_is_named() -> None:
    """More examples than neurons: nothing can be read."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(576, 3),
        nn.Sigmoid(),
        nn.Linear(3, 5),
    )
    exchange, known = sent(model, pictures(8), SPEC)
    with pytest.raises(NotApplicable, match="inverting_gradients"):
        feature_inversion(steps=2).run([exchange], known)


def test_settings_and_data_that_cannot_work_get_a_sentence() -> None:
    with pytest.raises(ValueError, match="steps"):
        feature_inversion(steps=0)
    table = InputSpec(modality=Modality.TABULAR, shape=(4,), num_classes=2)
    with pytest.raises(NotApplicable, match="pictures"):
        feature_inversion().check(nn.Linear(4, 2), Knowledge(input=table))

"""FLARE's own filters as defenses: what comes out is what the real class makes of a real DXO."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import Batch, Broadcast, LocalTraining, Update
from seepage.defenses import DEFENSES, Deployment
from seepage.protocol import client

pytest.importorskip("nvflare")
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.filters import PercentilePrivacy, SVTPrivacy

ONE_STEP = LocalTraining(algorithm="fedavg", lr=0.5)


class Doubled(DXOFilter):
    """A filter of somebody's own."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__(supported_data_kinds=[DataKind.WEIGHT_DIFF], data_kinds_to_filter=None)
        self.factor = factor

    def process_dxo(self, dxo, shareable, fl_ctx):
        dxo.data = {name: self.factor * value for name, value in dxo.data.items()}
        return dxo


class Zeroed(DXOFilter):
    """For what is received: weights as they must not be."""

    def __init__(self) -> None:
        super().__init__(supported_data_kinds=[DataKind.WEIGHTS], data_kinds_to_filter=None)

    def process_dxo(self, dxo, shareable, fl_ctx):
        dxo.data = {name: 0 * value for name, value in dxo.data.items()}
        return dxo


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


def _batch() -> Batch:
    return Batch(torch.rand(4, 12, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0]))


def _sent(name: str, training: LocalTraining = ONE_STEP, **settings: object) -> Update:
    defense = DEFENSES.find(name).build(deployment=Deployment(training=training), **settings)
    return client(training, [defense])(Broadcast(_model()), _batch())


def _plain(training: LocalTraining = ONE_STEP) -> dict[str, torch.Tensor]:
    return dict(client(training)(Broadcast(_model()), _batch()).tensors)


def test_percentile_privacy_is_what_the_filter_makes_of_the_delta() -> None:
    arrays = {name: t.numpy().copy() for name, t in _plain().items()}
    filtered = PercentilePrivacy(percentile=40, gamma=0.01).process(
        DXO(data_kind=DataKind.WEIGHT_DIFF, data=arrays).to_shareable(), FLContext()
    )
    sent = _sent("nvflare:PercentilePrivacy", percentile=40, gamma=0.01)
    for name, array in from_shareable(filtered).data.items():
        assert np.array_equal(sent.tensors[name].numpy(), array)
    assert max(float(t.abs().max()) for t in sent.tensors.values()) == pytest.approx(0.01)


def test_the_number_of_local_steps_reaches_the_filter() -> None:
    three = LocalTraining(algorithm="fedavg", lr=0.5, epochs=3)
    sent = _sent("nvflare:PercentilePrivacy", three, percentile=0, gamma=0.001)
    # gamma is meant for one step, so three may move three times as far
    assert max(float(t.abs().max()) for t in sent.tensors.values()) == pytest.approx(0.003)


def test_noise_comes_from_the_seed_and_leaves_the_global_generator_alone() -> None:
    np.random.seed(7)
    expected = np.random.random()
    np.random.seed(7)
    first, again = (_sent("nvflare:SVTPrivacy", seed=3) for _ in range(2))
    other = _sent("nvflare:SVTPrivacy", seed=4)
    assert np.random.random() == expected
    assert all(torch.equal(first.tensors[n], again.tensors[n]) for n in first.tensors)
    assert any(not torch.equal(first.tensors[n], other.tensors[n]) for n in first.tensors)


def test_settings_and_defaults_are_those_of_the_class() -> None:
    settings = DEFENSES.find("nvflare:SVTPrivacy").settings
    made = SVTPrivacy()
    assert settings["fraction"] == made.fraction
    assert settings["gamma"] == made.gamma


def test_excluded_variables_are_sent_as_zeros() -> None:
    sent = _sent("nvflare:ExcludeVars", exclude_vars=["1.weight"])
    assert not sent.tensors["1.weight"].any()
    assert torch.equal(sent.tensors["3.weight"], _plain()["3.weight"])


def test_a_filter_of_ones_own_is_named_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "site_filters", __import__("sys").modules[__name__])
    sent = _sent("nvflare:site_filters.Doubled", factor=3.0)
    assert torch.allclose(sent.tensors["1.weight"], 3 * _plain()["1.weight"])


def test_a_task_data_filter_changes_what_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "site_filters", __import__("sys").modules[__name__])
    sent = _sent("nvflare:site_filters.Zeroed", chain="task_data")
    assert not sent.tensors["1.weight"].any()  # all-zero weights let nothing through to the first layer
    assert sent.tensors["3.bias"].any()


def test_weights_sent_whole_are_cut_off_themselves() -> None:
    sent = _sent("nvflare:PercentilePrivacy", percentile=0, gamma=0.01, sends="weights")
    new = _model()[1].weight.detach() + sent.tensors["1.weight"]
    assert float(new.abs().max()) == pytest.approx(0.01, abs=1e-6)


def test_what_is_blocked_is_said() -> None:
    with pytest.raises(NotApplicable, match="lets nothing be sent"):
        _sent("nvflare:DXOBlocker", data_kinds=["WEIGHT_DIFF"])


@pytest.mark.parametrize(
    ("name", "settings", "training", "said"),
    [
        ("nvflare:PercentilePrivacy", {}, LocalTraining(), "algorithm = 'fedavg'"),
        ("nvflare:PercentilPrivacy", {}, ONE_STEP, "did you mean 'nvflare:PercentilePrivacy'"),
        ("nvflare:json.JSONDecoder", {}, ONE_STEP, "no filter of NVIDIA FLARE"),
        ("nvflare:no_such_package.Filter", {}, ONE_STEP, "cannot be imported"),
    ],
)
def test_mistakes_are_one_sentence(name: str, settings: dict, training: LocalTraining, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        _sent(name, training, **settings)


def test_a_filter_that_breaks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="'nvflare:SVTPrivacy' broke on this update"):
        _sent("nvflare:SVTPrivacy", epsilon=-1.0)


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seepage.core.registry.find_spec", lambda package: None)
    with pytest.raises(SpecError, match=r"needs NVIDIA FLARE: pip install 'seepage\[nvflare\]'\."):
        DEFENSES.find("nvflare:PercentilePrivacy")
    assert DEFENSES.find("nvflare:HEModelEncryptor").runs_at == "protocol"  # a view needs no package

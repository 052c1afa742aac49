"""What the guard cannot look at is never called clean: weights stored flat, transposed, packed, renamed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from seepage.attacks.traps.trap_weights import trap_weights
from seepage.cli import main
from seepage.core.types import Finding, InputSpec, Knowledge, Modality, Verdict
from seepage.guardian import guard
from seepage.guardian.detectors import as_module
from seepage.guardian.detectors.coverage import coverage
from seepage.guardian.detectors.layers import same_draws, weight_layers
from seepage.models import MODELS
from seepage.models.loading import build_model

State = dict[str, Tensor]
SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=5)


def net(*, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    first, second, third = nn.Linear(64, 96, bias), nn.Linear(96, 48, bias), nn.Linear(48, 5, bias)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), third)


def flat(state: State) -> State:
    return {name: tensor.flatten() for name, tensor in state.items()}


def one_vector(state: State) -> State:
    return {"params": torch.cat([t.flatten() for t in state.values()])}


def transposed(state: State) -> State:
    return {name: tensor.mT.contiguous() if tensor.dim() == 2 else tensor for name, tensor in state.items()}


def int8(state: State) -> State:
    packed = {n: (t * 100).to(torch.int8) if t.dim() == 2 else t for n, t in state.items()}
    return packed | {n.replace("weight", "scale"): torch.ones(1) for n in state if n.endswith("weight")}


def kernels(state: State) -> State:
    return {name.replace("weight", "kernel"): tensor for name, tensor in state.items()}


def weight_norm(state: State) -> State:
    return {n.replace("weight", "parametrizations.weight.original1"): t for n, t in state.items()}


def only_first(change: Callable[[State], State]) -> Callable[[State], State]:
    """A file in which the other layers are as they should be."""

    def changed(state: State) -> State:
        first = {n: t for n, t in state.items() if n.startswith("1.")}
        return {**change(first), **{n: t for n, t in state.items() if n not in first}}

    return changed


CHANGES = [flat, int8, kernels, weight_norm]
HIDDEN = [*CHANGES, one_vector, *(only_first(change) for change in CHANGES)]


@pytest.mark.parametrize("change", HIDDEN)
@pytest.mark.parametrize("trap", [False, True])
def test_what_cannot_be_read_was_not_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[State], State], trap: bool
) -> None:
    model: nn.Module = net()
    if trap:
        crafted = trap_weights().craft(model, [], Knowledge(input=SPEC))
        assert crafted is not None
        model = crafted.model
    state = change(dict(model.state_dict()))
    assert guard(as_module(state)).verdict is Verdict.NOT_CHECKED
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / "w.safetensors")
    with pytest.raises(SystemExit) as ended:
        main(["guard", str(tmp_path / "w.safetensors"), "--json"])
    assert ended.value.code == 2
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "not_checked"
    assert report["layers_not_checked"] or "there is no dense layer" in report["evidence"]
    with pytest.raises(SystemExit):
        main(["guard", str(tmp_path / "w.safetensors")])
    shown = capsys.readouterr().out
    assert "not checked" in shown and "Verdict: clean" not in shown


def _rounded(findings: Mapping[str, Finding]) -> dict[str, Finding]:
    """But for the last bits of a sum, whose order depends on where in memory the weights lie."""
    return {name: replace(found, score=round(found.score, 9)) for name, found in findings.items()}


@pytest.mark.parametrize("change", [transposed, only_first(transposed)])
def test_what_is_stored_transposed_is_judged_as_what_it_is(change: Callable[[State], State]) -> None:
    """Known answer: the verdict, score and layer of the same model in torch's layout."""
    honest = net()
    crafted = trap_weights().craft(net(), [], Knowledge(input=SPEC))
    assert crafted is not None
    for model, verdict in ((honest, Verdict.CLEAN), (crafted.model, Verdict.TRAP)):
        with same_draws(3):
            there = guard(as_module(change(dict(model.state_dict()))))
            here = guard(model)
        assert there.verdict is here.verdict is verdict
        assert there.layers == here.layers and _rounded(there.findings) == _rounded(here.findings)


def test_square_layers_among_transposed_ones_are_read_as_those_or_not_at_all() -> None:
    torch.manual_seed(0)
    gpt2 = {"c_attn": (16, 48), "mlp.c_proj": (64, 16), "attn.c_proj": (16, 16), "other": (16, 16)}
    state = {f"h.{n}.weight": torch.randn(shape) for n, shape in gpt2.items()}
    state |= {f"h.{n}.bias": torch.randn(shape[1]) for n, shape in gpt2.items()}
    layers = {layer.name: layer.rows for layer in weight_layers(as_module(state))}
    assert coverage(as_module(state)).enough
    for name in gpt2:
        assert torch.equal(layers[f"h.{name}"], state[f"h.{name}.weight"].mT)
    # a layer in torch's own layout beside them: only a name tells how a square one is stored
    state |= {"head.weight": torch.randn(3, 16), "head.bias": torch.randn(3)}
    assert coverage(as_module(state)).unread == {"h.other.weight": "may be stored transposed, as others are"}
    assert guard(as_module(state)).verdict is Verdict.NOT_CHECKED
    layers = {layer.name: layer.rows for layer in weight_layers(as_module(state))}
    assert torch.equal(layers["h.attn.c_proj"], state["h.attn.c_proj.weight"].mT)
    assert torch.equal(layers["head"], state["head.weight"])


@pytest.mark.parametrize(("shape", "told"), [((500, 16), True), ((64, 16), False), ((16, 500), False)])
def test_without_a_bias_a_layer_among_transposed_ones_is_told_by_what_it_reads(
    shape: tuple[int, int], told: bool
) -> None:
    state = {"a.weight": torch.randn(16, 64), "a.bias": torch.randn(64), "c.weight": torch.randn(shape)}
    state |= {"b.weight": torch.randn(64, 16), "b.bias": torch.randn(16)}
    assert coverage(as_module(state)).enough is told


def test_layers_without_biases_fit_together_one_way_only() -> None:
    state = dict(net(bias=False).state_dict())
    assert coverage(as_module(state)).enough
    assert set(coverage(as_module(transposed(state))).unread.values()) == {"is stored transposed"}


def test_an_alarm_in_what_was_read_stands() -> None:
    crafted = trap_weights().craft(net(), [], Knowledge(input=SPEC))
    assert crafted is not None
    state = dict(crafted.model.state_dict())
    state["5.weight"] = state["5.weight"].flatten()
    report = guard(as_module(state))
    assert report.verdict is Verdict.TRAP
    assert report.layers.unread == {"5.weight": "is stored flat"}
    assert "Layer not checked: '5.weight' is stored flat." in report.text()


def test_everything_in_honest_models_is_read() -> None:
    """Also normalisations, tokens, positions, embeddings and counters, which are no layers."""
    image = InputSpec(modality=Modality.IMAGE, shape=(3, 32, 32), num_classes=10)
    text = InputSpec(modality=Modality.TEXT, shape=(16,), num_classes=2, vocabulary=500, value_range=None)
    texts = {"imdb_net", "text_classifier"}
    for name in MODELS:
        found = coverage(build_model(name, text if name in texts else image))
        assert found.enough, (name, found.unread)
    others = [
        nn.TransformerEncoderLayer(32, 2, 64),
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.PReLU(8), nn.Flatten(), nn.Linear(8, 3)),
        nn.Sequential(nn.ConvTranspose2d(16, 3, 3), nn.Flatten(), nn.Linear(48, 3)),
        nn.Sequential(nn.Linear(20, 8), nn.LayerNorm(8), nn.Linear(8, 1)),
        nn.DataParallel(net()),
    ]
    for model in others:
        assert coverage(model).enough, (model, coverage(model).unread)


def test_recurrent_layers_are_read() -> None:
    report = guard(nn.LSTM(10, 20, 2, bidirectional=True))
    assert report.verdict is Verdict.CLEAN
    assert {"weight_ih_l0", "weight_hh_l1_reverse"} <= set(report.layers.read)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
def test_shorter_and_longer_floats_are_read(kind: torch.dtype) -> None:
    state = {name: tensor.to(kind) for name, tensor in net().state_dict().items()}
    assert coverage(as_module(state)).enough
    assert guard(as_module(state)).verdict is not Verdict.NOT_CHECKED
    crafted = trap_weights().craft(net(), [], Knowledge(input=SPEC))
    assert crafted is not None
    short = {name: tensor.to(kind) for name, tensor in crafted.model.state_dict().items()}
    # eight bits leave three digits of a weight's size, and no copies that are exact
    told = Verdict.SUSPICIOUS if kind is torch.float8_e4m3fn else Verdict.TRAP
    assert guard(as_module(short)).verdict is told

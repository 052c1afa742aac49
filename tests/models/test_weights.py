"""Weights files: every format round-trips, and nothing bad gets in or is executed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from seepage.core.errors import ModelError
from seepage.models.loading import load_weights
from seepage.models.torchscript import read_torchscript


def small_net(outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, outputs)
    )


def trained(seed: int = 5) -> nn.Sequential:
    torch.manual_seed(seed)
    net = small_net()
    net(torch.rand(4, 1, 8, 8))  # moves batch norm's running statistics
    return net


def save_state_dict(net: nn.Module, path: Path) -> None:
    torch.save(net.state_dict(), path)


def save_wrapped(net: nn.Module, path: Path) -> None:
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in net.state_dict().items()}}, path)


def save_legacy(net: nn.Module, path: Path) -> None:
    torch.save(net.state_dict(), path, _use_new_zipfile_serialization=False)


def save_scripted(net: nn.Module, path: Path) -> None:
    torch.jit.script(net).save(str(path))


def save_traced(net: nn.Module, path: Path) -> None:
    torch.jit.trace(net.eval(), torch.rand(1, 1, 8, 8)).save(str(path))


def save_safetensors(net: nn.Module, path: Path) -> None:
    save_file(net.state_dict(), path)


@pytest.mark.parametrize(
    ("save", "name"),
    [
        (save_state_dict, "w.pt"),
        (save_wrapped, "w.pth"),
        (save_legacy, "w.pt"),
        (save_scripted, "w.pt"),
        (save_traced, "w.pt"),
        (save_safetensors, "w.safetensors"),
    ],
)
@pytest.mark.filterwarnings("error:.*torch.load.*")
def test_every_format_round_trips(save: Callable[[nn.Module, Path], None], name: str, tmp_path: Path) -> None:
    source, target = trained(), small_net()
    save(source, tmp_path / name)
    load_weights(target, tmp_path / name)
    for key, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[key], value), key


def test_the_inert_reader_agrees_with_torch_jit(tmp_path: Path) -> None:
    net = trained().half()
    save_scripted(net, tmp_path / "w.pt")
    ours, theirs = read_torchscript(tmp_path / "w.pt"), torch.jit.load(str(tmp_path / "w.pt")).state_dict()
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[k], theirs[k]) and ours[k].dtype == theirs[k].dtype for k in theirs)


def test_step_counters_may_be_missing(tmp_path: Path) -> None:
    state = {k: v for k, v in trained().state_dict().items() if "num_batches_tracked" not in k}
    torch.save(state, tmp_path / "w.pt")
    target = load_weights(small_net(), tmp_path / "w.pt")
    assert torch.equal(target.state_dict()["0.weight"], state["0.weight"])


class Hostile:
    """A pickle of this makes the folder `path` when it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("writer", ["pickle", "torch.save", "torch.save legacy"])
def test_a_hostile_pickle_is_refused_and_not_executed(writer: str, tmp_path: Path) -> None:
    trap, file = tmp_path / "made_by_the_pickle", tmp_path / "w.pt"
    payload = {**trained().state_dict(), "extra": Hostile(str(trap))}
    if writer == "pickle":
        file.write_bytes(pickle.dumps(payload))
    else:
        torch.save(payload, file, _use_new_zipfile_serialization=writer == "torch.save")
    with pytest.raises(ModelError, match="holds Python objects, of which none was executed"):
        load_weights(small_net(), file)
    assert not trap.exists()
    pickle.loads(pickle.dumps(Hostile(str(trap))))  # the trap is live: a careless reader would have sprung it
    assert trap.exists()


class HostileScript(nn.Module):
    """TorchScript runs `__setstate__` on loading, and from there `torch.save` writes a file."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight

    @torch.jit.export
    def __getstate__(self):  # type: ignore[no-untyped-def]
        return (self.weight, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]) -> None:
        self.weight = state[0]
        self.training = state[1]
        torch.save(state[0], "written_by_the_archive")


def test_a_hostile_torchscript_archive_is_refused_and_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.jit.script(HostileScript()).save("w.pt")
    with pytest.raises(ModelError, match="none was executed"):
        load_weights(nn.Linear(2, 2, bias=False), "w.pt")
    assert not Path("written_by_the_archive").exists()
    torch.jit.load("w.pt")  # the trap is live
    assert Path("written_by_the_archive").exists()


@pytest.mark.parametrize("save", [save_state_dict, save_legacy, save_scripted, save_safetensors])
def test_a_cut_or_flipped_file_never_gets_past(
    save: Callable[[nn.Module, Path], None], tmp_path: Path
) -> None:
    suffix = ".safetensors" if save is save_safetensors else ".pt"
    whole, damaged = tmp_path / f"whole{suffix}", tmp_path / f"damaged{suffix}"
    save(trained(), whole)
    content = whole.read_bytes()
    for cut in (0, 1, 7, 60, len(content) // 3, len(content) // 2, len(content) - 1):
        damaged.write_bytes(content[:cut])
        with pytest.raises(ModelError, match=r"damaged\."):
            load_weights(small_net(), damaged)
    for position in range(0, min(len(content), 3000), 37):  # a flip may also hit a weight, which then loads
        damaged.write_bytes(content[:position] + bytes([content[position] ^ 0x55]) + content[position + 1 :])
        try:
            load_weights(small_net(), damaged)
        except ModelError:
            continue


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_are_refused_by_name(value: float, tmp_path: Path) -> None:
    state = trained().state_dict()
    state["4.weight"][1, 2] = value
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(ModelError, match=r"NaN or infinite values \(4.weight\)"):
        load_weights(small_net(), tmp_path / "w.pt")


def test_other_shapes_are_named_with_both(tmp_path: Path) -> None:
    save_state_dict(trained(), tmp_path / "w.pt")
    target = small_net(outputs=7)
    before = target[0].weight.detach().clone()
    with pytest.raises(ModelError, match=r"4.weight is \(3, 144\) in the file and \(7, 144\) in the model"):
        load_weights(target, tmp_path / "w.pt")
    assert torch.equal(target[0].weight, before)  # nothing was loaded by half


def test_other_names_are_listed(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1), "b": torch.zeros(1)}, tmp_path / "w.pt")
    with pytest.raises(
        ModelError, match=r"missing: 0.weight, 0.bias, 1.weight and 5 more; not in the model: a, b"
    ):
        load_weights(small_net(), tmp_path / "w.pt")


@pytest.mark.parametrize("content", [[1, 2], {"a": "text"}, torch.zeros(3), {"a": torch.eye(2).to_sparse()}])
def test_what_is_no_state_dict_is_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(ModelError, match="does not hold a state dict"):
        load_weights(small_net(), tmp_path / "w.pt")


def test_missing_file_and_unknown_suffix(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no weights file at"):
        load_weights(small_net(), tmp_path / "absent.pt")
    (tmp_path / "w.h5").write_bytes(b"hdf")
    with pytest.raises(ModelError, match="does not look like a weights file"):
        load_weights(small_net(), tmp_path / "w.h5")

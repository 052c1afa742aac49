from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from seepage.core.errors import LogError, SeepageError
from seepage.record.exchanges import RecordedFolder, import_update, read_tensors


def trained(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: t + 0.25 if t.is_floating_point() else t for name, t in model.state_dict().items()}


def imported(folder: Path) -> dict[str, torch.Tensor]:
    return dict(RecordedFolder.open(folder)[0].exchange(nn.Linear(3, 2)).update.tensors)


def test_a_state_dict_saved_with_torch(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    torch.save(model.state_dict(), tmp_path / "sent.pt")
    torch.save(trained(model), tmp_path / "update.pt")
    import_update(tmp_path / "update.pt", sent=tmp_path / "sent.pt", into=tmp_path / "in", kind="weights")
    assert torch.allclose(imported(tmp_path / "in")["weight"], torch.full((2, 3), 0.25), atol=1e-6)


def test_named_arrays_of_numpy(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    np.savez(tmp_path / "update.npz", **{n: t.numpy() for n, t in trained(model).items()})
    import_update(
        tmp_path / "update.npz", sent=model.state_dict(), into=tmp_path / "in", kind="weights", client=4
    )
    assert torch.allclose(imported(tmp_path / "in")["bias"], torch.full((2,), 0.25), atol=1e-6)


def test_arrays_without_names_get_those_of_the_model(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    np.savez(tmp_path / "update.npz", *(t.numpy() for t in trained(model).values()))
    np.savez(tmp_path / "sent.npz", *(t.numpy() for t in model.state_dict().values()))
    given = {"into": tmp_path / "in", "kind": "weights"}
    with pytest.raises(LogError, match="arrays without names"):
        import_update(tmp_path / "update.npz", sent=tmp_path / "sent.npz", **given)
    import_update(
        tmp_path / "update.npz", sent=tmp_path / "sent.npz", names=list(model.state_dict()), **given
    )
    assert torch.allclose(imported(tmp_path / "in")["bias"], torch.full((2,), 0.25), atol=1e-6)


def test_a_safetensors_file_has_no_order_to_name_arrays_by(tmp_path: Path) -> None:
    """Its names come sorted, whatever the model's order is."""
    model = nn.Linear(2, 2)
    save_file(model.state_dict(), tmp_path / "sent.safetensors")
    np.savez(tmp_path / "update.npz", *(t.numpy() for t in trained(model).values()))
    with pytest.raises(LogError, match="arrays without names"):
        import_update(
            tmp_path / "update.npz", sent=tmp_path / "sent.safetensors", into=tmp_path / "in", kind="weights"
        )


def test_an_array_record_of_flower(tmp_path: Path) -> None:
    flwr = pytest.importorskip("flwr.app")
    model = nn.Linear(3, 2)
    record = flwr.ArrayRecord(trained(model))
    import_update(record, sent=flwr.ArrayRecord(model.state_dict()), into=tmp_path / "in", kind="weights")
    assert torch.allclose(imported(tmp_path / "in")["bias"], torch.full((2,), 0.25), atol=1e-6)


def test_what_flower_s_quickstart_saves_at_the_end(tmp_path: Path) -> None:
    """`torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")`"""
    flwr = pytest.importorskip("flwr.app")
    model = nn.Linear(3, 2)
    torch.save(flwr.ArrayRecord(trained(model)).to_torch_state_dict(), tmp_path / "final_model.pt")
    import_update(tmp_path / "final_model.pt", sent=model.state_dict(), into=tmp_path / "in", kind="weights")
    assert torch.allclose(imported(tmp_path / "in")["bias"], torch.full((2,), 0.25), atol=1e-6)


def test_a_dxo_of_nvflare(tmp_path: Path) -> None:
    dxo = pytest.importorskip("nvflare.apis.dxo")
    model = nn.Linear(3, 2)
    difference = {n: np.full(t.shape, 0.25, dtype=np.float32) for n, t in model.state_dict().items()}
    sent = dxo.DXO(dxo.DataKind.WEIGHT_DIFF, difference, {dxo.MetaKey.NUM_STEPS_CURRENT_ROUND: 3})
    sent.add_filter_history("PercentilePrivacy")
    pytest.importorskip("nvflare.app_common.decomposers.numpy_decomposers").register()  # as its runtime does
    sent.to_file(str(tmp_path / "update.dxo"))
    import_update(tmp_path / "update.dxo", sent=model.state_dict(), into=tmp_path / "in", round=3)
    (found,) = RecordedFolder.open(tmp_path / "in")
    assert found.info.kind == "delta" and found.info.filters == ("PercentilePrivacy",)
    assert found.info.local.steps == 3
    assert torch.equal(imported(tmp_path / "in")["weight"], torch.full((2, 3), 0.25))


def test_weights_of_nvflare(tmp_path: Path) -> None:
    dxo = pytest.importorskip("nvflare.apis.dxo")
    model = nn.Linear(3, 2)
    arrays = {n: t.numpy() for n, t in trained(model).items()}
    import_update(dxo.DXO(dxo.DataKind.WEIGHTS, arrays), sent=model.state_dict(), into=tmp_path / "in")
    assert RecordedFolder.open(tmp_path / "in")[0].info.kind == "weights"
    with pytest.raises(LogError, match="holds METRICS, not weights"):
        import_update(dxo.DXO(dxo.DataKind.METRICS, {"a": 1}), sent=model.state_dict(), into=tmp_path / "in")


def test_what_the_update_is_must_be_said(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="give its kind"):
        import_update({"weight": torch.zeros(2)}, sent={"weight": torch.zeros(2)}, into=tmp_path)


class _Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("executed"),))


@pytest.mark.parametrize(
    "name", ["update.pt", "update.npz", "update.dxo", "update.safetensors", "update.csv"]
)
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04broken", b"\x80\x04\x95", b"\x00" * 200])
def test_damaged_files_get_one_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SeepageError) as found:
        read_tensors(tmp_path / name)
    assert "\n" not in str(found.value)


def test_a_pickle_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": _Evil()}, "update.pt")
    np.savez("update.npz", weight=np.array([_Evil()], dtype=object))
    for name in ("update.pt", "update.npz"):
        with pytest.raises(SeepageError):
            read_tensors(name)
    assert not Path("executed").exists()

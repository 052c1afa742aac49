"""Kept states: what is written comes back bit for bit, and what is not this search's is refused."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save

from seepage.core.checkpoint import Checkpoint, Identity, keeping, pack, sketch, unpack


class Memory(dict[str, bytes]):
    """A store without a disk."""

    def read(self, key: str) -> bytes | None:
        return self.get(key)

    def write(self, key: str, content: bytes) -> None:
        self[key] = content


def identity(seed: int = 0) -> Identity:
    return Identity({"seed": seed}, sketch((torch.arange(6.0),)))


def test_every_kind_of_leaf_comes_back_bit_for_bit() -> None:
    shared = torch.randn(4, dtype=torch.float64)
    state = {
        "numbers": [1, 0.1 + 0.2, float("inf"), True, None, "plateau"],
        "tensors": [shared, shared[1:3], torch.arange(3), torch.tensor([True]), torch.get_rng_state()],
        "expanded": torch.zeros(1, 2).expand(3, 2),
        "scalar": torch.tensor(0.7),
        "nested": {"empty": {}, "list": []},
    }
    found = unpack(pack(state))
    assert found["numbers"] == state["numbers"] and found["nested"] == state["nested"]
    for one, other in zip(found["tensors"], state["tensors"], strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)
    assert torch.equal(found["expanded"], state["expanded"]) and torch.equal(found["scalar"], state["scalar"])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"seven..",
        b"\x00" * 64,
        pack({"x": torch.ones(100)})[:-1],
        pack({"x": torch.ones(100)})[:50],
        save({"x": torch.ones(2)}),
        save({"x": torch.ones(2)}, metadata={"state": "not json"}),
        save({"x": torch.ones(2)}, metadata={"state": "[" * 100_000}),
        save({"x": torch.ones(2)}, metadata={"state": json.dumps({"$tensor": "y"})}),
    ],
    ids=[
        "empty",
        "short",
        "zeros",
        "cut",
        "half",
        "plain",
        "no json",
        "deep",
        "absent",
    ],  # the order of metadata varies
)
def test_damaged_files_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="it is damaged"):
        unpack(content)


def kept_by(checkpoint: Checkpoint, step: int = 7) -> None:
    assert checkpoint.restore({"steps": 9}) is None
    checkpoint.offer(lambda: {"step": step})


def test_a_state_is_found_again_by_the_same_search() -> None:
    store = Memory()
    with keeping(store, every=0):
        kept_by(Checkpoint(identity))
        kept_by(Checkpoint(identity), step=8)  # a second search of the same run
    with keeping(store, every=0) as kept:
        first, second = Checkpoint(identity), Checkpoint(identity)
        for checkpoint, step in ((first, 7), (second, 8)):
            found = checkpoint.restore({"steps": 9})
            assert found is not None and found[0] == {"step": step} and found[1] >= 0
            assert checkpoint.notes[0].startswith("Resumed")
        assert kept.seconds_resumed >= 0 and sorted(store) == ["0", "1"]


@pytest.mark.parametrize(
    ("other", "settings", "reason"),
    [
        (identity(seed=1), {"steps": 9}, "another 'seed'"),
        (identity(), {"steps": 10}, "another 'steps'"),
        (Identity({"seed": 0}, sketch((torch.arange(6.0).flip(0),))), {"steps": 9}, "another update"),
        (Identity({"seed": 0}, torch.zeros(7)), {"steps": 9}, "another update"),
    ],
)
def test_another_searchs_state_is_not_used(other: Identity, settings: dict[str, int], reason: str) -> None:
    store = Memory()
    with keeping(store, every=0):
        kept_by(Checkpoint(identity))
    with keeping(store, every=0):
        checkpoint = Checkpoint(lambda: other)
        assert checkpoint.restore(settings) is None
    assert len(checkpoint.notes) == 1 and reason in checkpoint.notes[0]


@pytest.mark.parametrize(
    "content", [b"", pack({"step": 1}), pack([1, 2]), pack({"identity": {}, "state": 0})]
)
def test_foreign_files_are_ignored_with_one_sentence(content: bytes) -> None:
    with keeping(Memory({"0": content}), every=0):
        checkpoint = Checkpoint(identity)
        assert checkpoint.restore({}) is None
    assert len(checkpoint.notes) == 1 and "began anew" in checkpoint.notes[0]


def test_rounding_of_the_update_is_forgiven() -> None:
    """The same audit on a GPU computes its update in another order."""
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    one = Identity({}, sketch((values,)))
    assert one.differs_from(Identity({}, sketch((values * (1 + 1e-7),))).state()) == ""
    assert one.differs_from(Identity({}, sketch((values * 1.001,))).state()) != ""


def test_a_sketch_of_many_values_tells_them_apart() -> None:
    one = torch.randn(3 * 2**20, generator=torch.Generator().manual_seed(0))
    found = [Identity({}, sketch((values,))) for values in (one, one.clone(), one.flip(0), -one)]
    assert [found[0].differs_from(other.state()) == "" for other in found] == [True, True, False, False]


def test_nothing_is_written_before_it_is_time_nor_without_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = Memory(), [100.0]
    monkeypatch.setattr("seepage.core.checkpoint.time.monotonic", lambda: now[0])
    kept_by(Checkpoint(identity))
    with keeping(store, every=30):
        checkpoint = Checkpoint(identity)
        for second, steps in ((29.0, None), (30.0, 1), (59.0, 1), (60.0, 3)):
            now[0] = 100 + second
            checkpoint.offer(lambda second=second: int(second // 15) - 1)  # type: ignore[misc]
            assert (unpack(store["0"])["state"] if store else None) == steps


def test_a_full_disk_does_not_end_the_search() -> None:
    class Full(Memory):
        def write(self, key: str, content: bytes) -> None:
            raise OSError(28, "No space left on device")

    with keeping(Full(), every=0):
        checkpoint = Checkpoint(identity)
        checkpoint.offer(dict)
        checkpoint.offer(dict)
    assert len(checkpoint.notes) == 1 and "No space left" in checkpoint.notes[0]


def test_a_search_is_not_identified_before_there_is_a_need() -> None:
    def costly() -> Identity:
        raise AssertionError

    with keeping(Memory(), every=1e9):
        checkpoint = Checkpoint(costly)
        assert checkpoint.restore({}) is None
        checkpoint.offer(dict)
        checkpoint.finish(dict)


def test_identifying_a_search_leaves_random_numbers_as_they_were() -> None:
    def random() -> Identity:
        return Identity({}, torch.rand(2))

    store = Memory()
    with keeping(store, every=0):
        torch.manual_seed(1)
        Checkpoint(random).offer(dict)
        drawn = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(3))
    with keeping(store, every=0):
        assert Checkpoint(random).restore({}) is not None  # and it is the same at another time

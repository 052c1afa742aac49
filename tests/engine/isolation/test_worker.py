"""What the process of an isolated attack tells on the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from seepage.core.progress import Progress, tell
from seepage.core.types import InputSpec, Knowledge, Modality, Reconstruction
from seepage.engine.isolation import worker


class Told:
    """In the place of a channel: what was said on it."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def answer(self, what: Any) -> None:
        self.said.append(what)


class Searching:
    """An attack that tells one step, with these candidates."""

    def __init__(self, inputs: torch.Tensor) -> None:
        self.inputs = inputs

    def run(self, exchanges: list[Any], known: Knowledge) -> Reconstruction:
        tell(Progress(step=1, steps=2, objective=0.5, seconds_left=1.0, inputs=self.inputs))
        return Reconstruction(values=torch.zeros(1, 3))


@pytest.mark.parametrize(
    ("inputs", "shown"), [(torch.empty(0), (0,)), (torch.zeros(4, 40, 3), (1, worker._SHOWN, 3))]
)
def test_searches_with_and_without_candidates_tell_their_steps(
    inputs: torch.Tensor, shown: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_EVERY", 0.0)
    channel: Any = Told()
    session = worker.Session(channel)
    session.attack, session.known = (
        Searching(inputs),
        Knowledge(  # type: ignore[assignment]
            input=InputSpec(modality=Modality.TABULAR, shape=(3,), num_classes=2)
        ),
    )
    session.reconstruct(exchanges=[], seed=0)
    (report,) = channel.said
    assert tuple(report["progress"]["inputs"].shape) == shown and report["progress"]["step"] == 1

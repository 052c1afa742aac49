"""A filter of NVIDIA FLARE round a client's step: its own `process`, on a real DXO in a real Shareable."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal

from numpy.typing import NDArray
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_context import FLContext

from seepage.core.errors import NotApplicable, SpecError, in_words
from seepage.core.types import Batch, Broadcast, Defense, LocalStep, Update
from seepage.defenses.entry import Deployment
from seepage.defenses.frameworks import running

Sends = Literal["weight_diff", "weights"]
Chain = Literal["task_result", "task_data"]
_KINDS = {"weight_diff": DataKind.WEIGHT_DIFF, "weights": DataKind.WEIGHTS}


def builder(name: str, thing: Any, config: None) -> Callable[..., Defense]:
    """From the filter's class to what builds a defense from the filter's own settings and ours.

    sends: what clients put into the DXO, the change of the weights or the new ones.
    chain: task_result filters what a client sends, task_data what it receives.
    """
    if not (isinstance(thing, type) and issubclass(thing, Filter)):
        raise SpecError(f"defense '{name}' is no filter of NVIDIA FLARE: name a class made from Filter.")

    def build(
        *,
        sends: Sends = "weight_diff",
        chain: Chain = "task_result",
        seed: int = 0,
        deployment: Deployment | None = None,
        **options: Any,
    ) -> Defense:
        if sends not in _KINDS:
            raise ValueError(f"sends must be 'weight_diff' or 'weights', not '{sends}'")
        if chain not in ("task_result", "task_data"):
            raise ValueError(f"chain must be 'task_result' or 'task_data', not '{chain}'")
        around = deployment or Deployment()
        running.check_protocol(name, around.training)
        stage = _Result(sends, around) if chain == "task_result" else _Data(around)
        return stage.defense(name, thing(**options), random.Random(seed))

    return running.with_settings(build, running.constructor_settings(thing))


class _Stage:
    """Where in a task the filter stands."""

    def __init__(self, around: Deployment) -> None:
        self.training = around.training

    def defense(self, name: str, filter_: Filter, seeds: random.Random) -> Defense:
        raise NotImplementedError

    def filtered(self, filter_: Filter, kind: str, arrays: running.Arrays, *, steps: int, number: int) -> DXO:
        meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: steps, MetaKey.CURRENT_ROUND: number}
        shareable = DXO(data_kind=kind, data=arrays, meta=meta).to_shareable()
        try:
            return from_shareable(filter_.process(shareable, FLContext()))
        except ContentBlockedException as reason:
            raise NotApplicable(
                f"{type(filter_).__name__} lets nothing be sent: {in_words(reason)}"
            ) from None


class _Result(_Stage):
    """On what the client sends."""

    def __init__(self, sends: Sends, around: Deployment) -> None:
        super().__init__(around)
        self.kind = _KINDS[sends]

    def defense(self, name: str, filter_: Filter, seeds: random.Random) -> Defense:
        def filter_result(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
            update = next_step(broadcast, batch)
            received = running.received_tensors(broadcast.model, buffers=update.buffers is not None)
            delta = running.change(update, received)
            whole = self.kind == DataKind.WEIGHTS
            sent = running.to_arrays({n: received[n] + d for n, d in delta.items()} if whole else delta)
            steps = self.training.num_steps(len(batch))
            with running.as_it_runs(seeds, name):
                found = self.filtered(filter_, self.kind, sent, steps=steps, number=broadcast.round)
            return running.changed_update(update, self._delta(found, received), received)

        return filter_result

    def _delta(self, found: DXO, received: dict[str, Any]) -> dict[str, NDArray[Any]]:
        if found.data_kind == DataKind.WEIGHT_DIFF:
            return dict(found.data)
        if found.data_kind != DataKind.WEIGHTS:
            raise NotApplicable(f"the filter sends a DXO of kind {found.data_kind}, which is no update.")
        before = running.to_arrays({name: received[name] for name in found.data})
        return {name: value - before[name] for name, value in found.data.items()}


class _Data(_Stage):
    """On what the client receives: it trains on what the filter leaves of the model."""

    def defense(self, name: str, filter_: Filter, seeds: random.Random) -> Defense:
        def filter_data(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
            state = running.received_tensors(broadcast.model, buffers=True)
            with running.as_it_runs(seeds, name):
                found = self.filtered(
                    filter_, DataKind.WEIGHTS, running.to_arrays(state), steps=1, number=broadcast.round
                )
            return next_step(running.with_weights(broadcast, found.data), batch)

        return filter_data

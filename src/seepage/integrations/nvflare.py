"""Recording what a client of NVIDIA FLARE receives and sends, as a filter: needs the extra `nvflare`.

    recipe.add_client_output_filter(RecordExchanges(folder="/tmp/recorded"), tasks=["train"])

Listed last among the task result filters it records what the others leave; the server sees no more than that.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from torch import Tensor, nn

from seepage.core.errors import SeepageError
from seepage.core.types import Batch
from seepage.gating.middle import Action, Gatekeeper
from seepage.record.exchanges import Recorder, from_dxo

_KINDS = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]


class RecordExchanges(DXOFilter):  # type: ignore[misc]  # nvflare has no types
    """Writes every exchange into `folder`, in the format of docs/recorded.md, and changes nothing.

    folder: where; a relative path is inside the site's run folder in the simulator.
    client: this site's number; by default the one at the end of its name ("site-3"), else one made from it.
    A job's recorder hears of the received model by itself. In a site's privacy.json it stands in
    task_data_filters too, for there filters hear of no events.
    """

    _received: ClassVar[dict[str, dict[str, Tensor]]] = {}
    """By site: a simulator has several in one process, and privacy.json makes two filters of one entry."""

    def __init__(self, folder: str, client: int | None = None) -> None:
        super().__init__(supported_data_kinds=_KINDS, data_kinds_to_filter=_KINDS)
        self.folder = folder
        self.client = client

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Before a task is executed: keep the model that it came with."""
        if event_type == EventType.BEFORE_TASK_EXECUTION:
            keep_received(fl_ctx.get_prop(FLContextKey.TASK_DATA), fl_ctx)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> None:
        """None: FLARE's word for a DXO that was not filtered."""
        if self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN:
            keep_received(shareable, fl_ctx)
            return
        model = self._received.get(fl_ctx.get_identity_name())
        if model is None:
            self.log_error(
                fl_ctx,
                "nothing was recorded, for the received model was not seen: list this filter among the "
                "task_data_filters too.",
            )
            return
        try:
            self._write(model, dxo, shareable, fl_ctx)
        except SeepageError as error:  # a recorder must not stop a training; it says what is missing
            self.log_error(fl_ctx, f"this exchange was not recorded: {error}")

    def _write(self, model: dict[str, Tensor], dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> None:
        update, facts = from_dxo(dxo)
        number = shareable.get_header(AppConstants.CURRENT_ROUND)
        if number is None:
            number = dxo.get_meta_prop(
                AppConstants.CURRENT_ROUND, fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
            )
        Recorder(Path(self.folder), replace=True).write(
            model,
            update,
            round=0 if number is None else int(number),
            client=site_number(fl_ctx.get_identity_name()) if self.client is None else self.client,
            source=f"FLARE site {fl_ctx.get_identity_name()}"[:200],
            **facts,
        )


class GateUpdates(DXOFilter):  # type: ignore[misc]  # nvflare has no types
    """Measures what a site sends before it leaves; what is above the threshold is altered or withheld.

    A withheld result holds the received weights, or no change at all. The received model is kept as
    `RecordExchanges` keeps it. model: the network. batch: a function that returns this site's private
    examples. action, options: as `seepage.gating.Gatekeeper` and `seepage.gate` take them.
    """

    def __init__(
        self, model: nn.Module, batch: Callable[[], Batch], action: Action = "withhold", **options: Any
    ) -> None:
        super().__init__(supported_data_kinds=_KINDS, data_kinds_to_filter=_KINDS)
        self.model, self.batch, self.keeper = model, batch, Gatekeeper(action, options)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Before a task is executed: keep the model that it came with."""
        if event_type == EventType.BEFORE_TASK_EXECUTION:
            keep_received(fl_ctx.get_prop(FLContextKey.TASK_DATA), fl_ctx)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """The DXO to send; None where it passes as it is."""
        if self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN:
            keep_received(shareable, fl_ctx)
            return None
        received = RecordExchanges._received.get(fl_ctx.get_identity_name())
        sent, _ = from_dxo(dxo)
        if received is None:
            self.log_error(fl_ctx, "withheld, for the received model was not seen")
            return self._of(dxo, sent, {name: torch.zeros_like(t) for name, t in sent.items()})
        differs = dxo.data_kind == DataKind.WEIGHT_DIFF
        trained = {n: received[n] + t for n, t in sent.items()} if differs else sent
        allowed = self.keeper.weights(self.model, received, trained, self.batch())
        self.log_info(fl_ctx, self.keeper.log[-1])
        allowed = {n: received[n] for n in sent} if allowed is None else allowed
        return self._of(dxo, sent, {n: allowed[n] - received[n] for n in sent} if differs else allowed)

    def _of(self, dxo: DXO, sent: dict[str, Tensor], tensors: dict[str, Tensor]) -> DXO:
        arrays = {n: tensors[n].to(sent[n]).cpu().numpy() for n in sent}
        dxo.data = {**dxo.data, **arrays}
        return dxo


def keep_received(shareable: Any, fl_ctx: FLContext) -> None:
    """Remember the model that a task came with."""
    try:
        dxo = from_shareable(shareable)
    except (TypeError, ValueError, AttributeError):  # a task without weights
        return
    if dxo.data_kind == DataKind.WEIGHTS:
        tensors, _ = from_dxo(dxo)
        RecordExchanges._received[fl_ctx.get_identity_name()] = {n: t.clone() for n, t in tensors.items()}


def site_number(name: str) -> int:
    """The number at the end of a site's name; of other names one that is made from the name.

    >>> site_number("site-12"), site_number("london") == site_number("london")
    (12, True)
    """
    found = re.search(r"(\d{1,4})$", name)
    return int(found.group(1)) if found else 10_000 + zlib.crc32(name.encode()) % 10_000

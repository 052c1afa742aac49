"""The process of one attack: locked in first, then it answers what the audit asks.

It holds what a server would hold: the models it was shown and the updates that came back. It keeps by itself
what the attack wants to remember between crafting and reading (`Crafted.secret`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from seepage.core.progress import Progress
    from seepage.core.types import Exchange, Knowledge
    from seepage.engine.isolation.channel import Channel

_EVERY = 0.5
"""Seconds between two reports of progress."""
_SHOWN = 16
"""Candidates in a report."""


class Session:
    """One attack with the models and exchanges of one cell."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.models: dict[int, nn.Module] = {}
        self.secrets: dict[int, Any] = {}
        self.exchanges: list[Exchange] = []
        self.known: Knowledge | None = None

    def begin(
        self, *, named: Mapping[str, str], settings: Mapping[str, Any], threads: int, held: bytes
    ) -> Any:
        """A new attack, which has seen nothing. held: attacks that were given as objects."""
        import pickle

        import torch

        from seepage.attacks import ATTACKS
        from seepage.attacks.outside import build_attack

        torch.set_num_threads(threads)
        ATTACKS.hold(pickle.loads(held) if held else {})
        self.attack = build_attack(settings=settings, **named)
        self.models, self.secrets, self.exchanges, self.known = {}, {}, [], None
        return {"requires": sorted(str(grant) for grant in self.attack.requires)}

    def show(self, *, number: int, model: bytes | Mapping[str, Any], base: int | None) -> None:
        """A model: pickled before any client used it, or the weights of one like `base`."""
        import copy
        import pickle

        if isinstance(model, bytes):
            self.models[number] = pickle.loads(model)
            return
        assert base is not None
        self.models[number] = copy.deepcopy(self.models[base])
        self.models[number].load_state_dict(model)

    def add(self, *, exchange: Exchange, model: int, secret: int | None) -> None:
        """What came back in one round."""
        broadcast = replace(exchange.broadcast, model=self.models[model])
        kept = None if secret is None else self.secrets[secret]
        self.exchanges.append(replace(exchange, broadcast=broadcast, secret=kept))

    def know(self, *, known: Knowledge) -> None:
        self.known = known

    def check(self, *, model: int) -> None:
        assert self.known is not None
        self.attack.check(self.models[model], self.known)

    def craft(self, *, model: int, history: list[int], number: int, seed: int) -> Any:
        """The weights to send next; `number` names them and the secret that goes with them."""
        import torch

        from seepage.engine.isolation.models import described

        assert self.known is not None
        torch.manual_seed(seed)
        crafted = self.attack.craft(self.models[model], [self.exchanges[i] for i in history], self.known)
        if crafted is None:
            return None
        self.models[number] = crafted.model
        self.secrets[number] = crafted.secret
        clients = None if crafted.clients is None else [int(client) for client in crafted.clients]
        honest = self.models[model]
        others = None if crafted.others is None else described(crafted.others, honest)
        turns = [described(one, honest) for one in crafted.turns]
        return {**described(crafted.model, honest), "clients": clients, "others": others, "turns": turns}

    def reconstruct(self, *, exchanges: list[int], seed: int) -> Any:
        import time

        import torch

        from seepage.core.progress import listening

        assert self.known is not None
        told = time.monotonic()

        def tell(progress: Progress) -> None:
            nonlocal told
            if time.monotonic() - told >= _EVERY:
                told = time.monotonic()
                shown = {name: value for name, value in vars(progress).items() if name != "inputs"}
                # a search without candidates to show has none to cut
                seen = progress.inputs[:1, :_SHOWN] if progress.inputs.ndim > 1 else progress.inputs
                self.channel.answer({"progress": {**shown, "inputs": seen}})

        torch.manual_seed(seed)
        with listening(tell):
            found = self.attack.run([self.exchanges[i] for i in exchanges], self.known)
        rows = None if found.rows is None else vars(found.rows)
        return {**vars(found), "rows": rows, "notes": list(found.notes)}


def serve(channel: Channel) -> None:
    """Answer until the audit hangs up."""
    from seepage.engine.isolation.channel import Ended

    session = Session(channel)
    while True:
        try:
            request = channel.asked()
            try:
                answer = {"answer": getattr(session, request.pop("do"))(**request)}
            except Exception as error:  # whatever an attack raises fails its cell, and nothing else
                answer = {"error": _explained(error)}
            channel.answer(answer)
        except Ended:
            return


def _explained(error: Exception) -> dict[str, str]:
    """The kind of error, what it says, and the innermost line of the attack's own code."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return {
        "kind": type(error).__name__,
        "text": str(error),
        "place": place,
        "traceback": "".join(traceback.format_exception(error)),
    }


def main() -> None:
    """Started by `attack.IsolatedAttack` with two pipes and what this process may read, as JSON."""
    wanted = json.loads(sys.argv[1])
    os.dup2(2, 1)  # what an attack prints must not get between the messages of a pipeline
    sys.path[:] = wanted["path"]

    from seepage.engine.isolation.confine import confine

    by_kernel = confine(wanted["path"], wanted["may_read"], wanted["scratch"])

    from seepage.engine.isolation.channel import Channel
    from seepage.engine.parent import end_with_parent

    end_with_parent(wanted["parent"])  # a search would otherwise go on for an audit that was killed
    channel = Channel(wanted["incoming"], wanted["outgoing"])
    channel.answer({"answer": {"by_kernel": by_kernel}})
    serve(channel)


if __name__ == "__main__":
    main()

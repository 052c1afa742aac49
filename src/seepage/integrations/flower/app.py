"""Running a Flower app as it is, and recording what its clients send."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.common.config import fuse_dicts, get_project_config
from flwr.serverapp import ServerApp

from seepage.core.errors import SeepageError, SpecError, in_words
from seepage.core.registry import import_thing
from seepage.integrations.flower.grid import InProcessGrid, task
from seepage.integrations.flower.messages import is_training, round_of
from seepage.integrations.flower.mod import client_of, record
from seepage.record.exchanges import ExchangeKind, RecordedFolder

Backend = Literal["here", "ray"]
_NODES = 10
"""SuperNodes, as in Flower's own simulation, where nobody says how many."""


@dataclass(frozen=True)
class FlowerApp:
    """An app's two parts and its settings."""

    name: str
    server: ServerApp
    client: ClientApp
    config: Mapping[str, Any]

    @classmethod
    def load(cls, folder: Path | str) -> FlowerApp:
        """Read pyproject.toml as `flwr run` does, and import what it names."""
        place = Path(folder).resolve()
        try:
            project = get_project_config(place)
            parts = project["tool"]["flwr"]["app"]["components"]
            server, client = str(parts["serverapp"]), str(parts["clientapp"])
        except (FileNotFoundError, KeyError, TypeError, ValueError) as error:
            raise SpecError(
                f"'{folder}' is no Flower app ({in_words(error)}) Give the folder whose pyproject.toml has "
                "[tool.flwr.app.components] with serverapp and clientapp."
            ) from None
        _importable(place)
        apps = [import_thing(where, SpecError) for where in (server, client)]
        if not isinstance(apps[0], ServerApp) or not isinstance(apps[1], ClientApp):
            raise SpecError(
                f"'{server}' and '{client}' are not a ServerApp and a ClientApp: check both names."
            )
        config = fuse_dicts(project["tool"]["flwr"]["app"].get("config", {}), {})
        return cls(str(project.get("project", {}).get("name", place.name)), apps[0], apps[1], config)


def record_app(
    app: Path | str,
    folder: Path | str,
    *,
    nodes: int = _NODES,
    backend: Backend = "here",
    kind: ExchangeKind = "weights",
    rounds: Collection[int] | None = None,
    clients: Collection[int] | None = None,
    config: Mapping[str, Any] | None = None,
    **known: Any,
) -> RecordedFolder:
    """Run an unchanged app in simulation and record what leaves its clients, after all their mods.

    nodes: SuperNodes. backend: "here" is this process, one client after another; "ray" is Flower's own.
    kind: what the app's clients send back. rounds, clients (by partition): only these.
    config: replaces settings of the app. known: other fields of an exchange's JSON.
    """
    place = Path(folder).resolve()
    if place.exists() and any(place.iterdir()):
        raise SpecError(
            f"'{folder}' is not empty: audit what it holds with seepage audit {folder}, or give "
            "another folder."
        )
    loaded = FlowerApp.load(app)
    settings = {**loaded.config, **(config or {})}
    known = {"source": f"Flower app {loaded.name}"[:200], **known}
    recorder = record(place, kind=kind, rounds=rounds, **known)
    watched = _Watched(loaded.client, recorder, clients, settings)
    failures = simulate(loaded.server, watched, nodes=nodes, backend=backend, settings=settings)
    try:
        return RecordedFolder.open(place)
    except SeepageError:
        why = f" The first failure of a client: {failures[0]}" if failures else ""
        if not any(_wanted(one, rounds, clients) for one in watched.asked):
            why = _others(watched.asked)
        why = " Flower's log names the failures of its clients." if backend == "ray" else why
        raise SpecError(
            f"no client of '{app}' sent an update in these rounds: check rounds, clients and nodes.{why}"
        ) from None


def _wanted(asked: tuple[int, int], rounds: Collection[int] | None, clients: Collection[int] | None) -> bool:
    return (rounds is None or asked[0] in rounds) and (clients is None or asked[1] in clients)


def _others(asked: Collection[tuple[int, int]]) -> str:
    """Whom the strategy drew in place of those that were chosen.

    >>> _others({(1, 7), (1, 3), (2, 5)})
    " The app's strategy had others train: in round 1 clients 3 and 7; in round 2 clients 5."
    """
    rounds: dict[int, list[str]] = {}
    for number, one in sorted(asked):
        rounds.setdefault(number, []).append(str(one))
    said = [f"in round {number} clients {' and '.join(found[:8])}" for number, found in rounds.items()]
    return f" The app's strategy had others train: {'; '.join(said[:3])}." if said else ""


class _Watched(ClientApp):
    """The app's own ClientApp with a recorder around everything, its own mods too."""

    def __init__(
        self, app: ClientApp, recorder: Mod, clients: Collection[int] | None, settings: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self._app, self._recorder, self._clients, self._settings = app, recorder, clients, dict(settings)
        self.asked: set[tuple[int, int]] = set()
        """Rounds and clients that were to train, where they run in this process."""

    def __call__(self, message: Message, context: Context) -> Message:
        told = context.run_config
        context.run_config = dict(self._settings)  # Flower's simulation of objects tells its clients none
        if is_training(message):
            self.asked.add((round_of(message), client_of(context)))
        try:
            if self._clients is not None and client_of(context) not in self._clients:
                return self._app(message, context)
            return self._recorder(message, context, self._app)
        finally:
            context.run_config = told  # with Ray, Flower throws away replies of clients that changed theirs


def simulate(
    server: ServerApp,
    client: ClientApp,
    *,
    nodes: int,
    backend: Backend = "here",
    settings: Mapping[str, Any] | None = None,
) -> list[str]:
    """Run both parts of an app; what its clients raised, as far as the backend tells."""
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(settings or {})
    )
    if backend == "ray":
        return _run_ray(server, client, nodes, context)
    grid = InProcessGrid(client, nodes=nodes, run_config=settings)
    with task():
        try:
            server(grid, context)
        except Exception as error:
            first = f" The first failure of a client: {grid.failures[0]}" if grid.failures else ""
            raise SpecError(f"the app did not finish: {in_words(error)}{first}") from error
    return grid.failures


def _run_ray(server: ServerApp, client: ClientApp, nodes: int, context: Context) -> list[str]:
    try:
        import ray  # noqa: F401
        from flwr.simulation.run_simulation import _run_simulation
        from flwr.supercore.telemetry import EventType
    except ImportError:
        raise SpecError("Flower's Ray backend needs Ray: run pip install 'seepage[flower,ray]'.") from None
    _run_simulation(
        num_supernodes=nodes,
        exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
        client_app=client,
        server_app=server,
        server_app_context=context,
        backend_name="ray",
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    return []


def _importable(place: Path) -> None:
    """Here and in worker processes: the audit imports the app's model and data by name."""
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(place) not in inherited:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(place), *filter(None, inherited)])

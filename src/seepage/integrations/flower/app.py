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
from flwr.common.config import fuse_dicts, get_project_config
from flwr.serverapp import ServerApp

from seepage.core.errors import SeepageError, SpecError, in_words
from seepage.core.registry import import_thing
from seepage.integrations.flower.grid import InProcessGrid, task
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
    watched = _Watched(loaded.client, place, kind, rounds, clients, known)
    failures = (
        _run_here(loaded, watched, nodes, settings)
        if backend == "here"
        else _run_ray(loaded, watched, nodes, settings)
    )
    try:
        return RecordedFolder.open(place)
    except SeepageError:
        why = f" The first failure of a client: {failures[0]}" if failures else ""
        raise SpecError(
            f"no client of '{app}' sent an update in these rounds: check rounds, clients and nodes.{why}"
        ) from None


class _Watched(ClientApp):
    """The app's own ClientApp with a recorder around everything, its own mods too."""

    def __init__(
        self,
        app: ClientApp,
        folder: Path,
        kind: ExchangeKind,
        rounds: Collection[int] | None,
        clients: Collection[int] | None,
        known: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self._app, self._clients = app, clients
        self._settings = {"folder": folder, "kind": kind, "rounds": rounds, **known}
        self._mod: Any = None

    def __call__(self, message: Message, context: Context) -> Message:
        if self._clients is not None and client_of(context) not in self._clients:
            return self._app(message, context)
        if self._mod is None:
            self._mod = record(**self._settings)
        reply: Message = self._mod(message, context, self._app)
        return reply

    def __getstate__(self) -> dict[str, Any]:
        """A recorder holds a lock, and every process makes its own."""
        return {**self.__dict__, "_mod": None}


def _run_here(app: FlowerApp, client: ClientApp, nodes: int, settings: Mapping[str, Any]) -> list[str]:
    grid = InProcessGrid(client, nodes=nodes, run_config=settings)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(settings))
    with task():
        try:
            app.server(grid, context)
        except Exception as error:
            why = grid.failures[0] if grid.failures else in_words(error)
            raise SpecError(f"the app did not finish: {why}") from error
    return grid.failures


def _run_ray(app: FlowerApp, client: ClientApp, nodes: int, settings: Mapping[str, Any]) -> list[str]:
    try:
        import ray  # noqa: F401
        from flwr.simulation.run_simulation import _run_simulation
        from flwr.supercore.telemetry import EventType
    except ImportError:
        raise SpecError("Flower's Ray backend needs Ray: run pip install 'seepage[flower,ray]'.") from None
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(settings))
    _run_simulation(
        num_supernodes=nodes,
        exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
        client_app=client,
        server_app=app.server,
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

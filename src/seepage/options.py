"""The options of commands that run a grid, in bundles: each is defined once, and read where it is defined."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seepage.core import amounts
from seepage.core.errors import SpecError

if TYPE_CHECKING:
    from seepage.engine.spec import AuditSpec

Formats = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        help="Also write, beside the page: junit, sarif, markdown, json, csv or annex (to a data-protection "
        "impact assessment). May be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON instead of tables.")]


@dataclass(frozen=True)
class Run:
    """How a grid is run, for how long and where it is kept."""

    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Cells at the same time, one thread each (default: every core, where it pays)."
        ),
    ] = None
    engine: Annotated[
        str,
        typer.Option(
            help="Where cells run: auto (a pool of processes where that pays), here (this process), pool, "
            "ray (cluster of $RAY_ADDRESS, else this machine) or dask. Every engine gives the same figures."
        ),
    ] = "auto"
    scheduler: Annotated[
        str | None, typer.Option(help="Of --engine dask: the scheduler's address, as in tcp://host:8786.")
    ] = None
    budget: Annotated[
        str | None,
        typer.Option(
            help="Time for the whole run, e.g. 60s, 5m or 2h. An audit's attacks share it (default with "
            "attacks = auto: 3m): auto leaves out what does not fit, and what is named all runs. A study or "
            "a table begins no cell after it, and the same command goes on."
        ),
    ] = None
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto; replaces the file's.")] = None
    seeds: Annotated[
        str | None,
        typer.Option(
            help="How many seeds (5 is 0 to 4) or which ones (0,1,7; one alone: 7,); replaces the file's."
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run, new or to go on with; the default is named after what is run."),
    ] = None
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew: what the folder holds of an earlier run is removed.")
    ] = False

    def settings(self) -> dict[str, Any]:
        """What was given of the settings that a file has too, read and checked.

        >>> Run(budget="5m", seeds="2").settings()
        {'budget': 300.0, 'seeds': (0, 1)}
        """
        found = {
            "budget": None if self.budget is None else _read("--budget", amounts.seconds, self.budget),
            "device": self.device,
            "seeds": None if self.seeds is None else _read("--seeds", amounts.seeds, self.seeds),
        }
        return {name: value for name, value in found.items() if value is not None}

    def where(self) -> dict[str, Any]:
        """Where the run is computed and kept, as `run_grid` takes it."""
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise SpecError(f"--out names a file, '{self.out}': give a folder, new or of the same run.")
        return {name: getattr(self, name) for name in ("out", "engine", "jobs", "scheduler", "fresh")}


@dataclass(frozen=True)
class Changes:
    """What an audit changes of the deployment that its file describes."""

    privacy_json: Annotated[
        Path | None,
        typer.Option(
            help="A FLARE site's privacy.json: its filters join the defenses, as the site runs them."
        ),
    ] = None
    privacy_scope: Annotated[
        str | None, typer.Option(help="Which scope of it; the default is the file's.")
    ] = None
    added: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            help="Audit the deployment with this change: a defense with its settings, as in "
            "secure_sum:clients=8; may be repeated, the outermost first.",
        ),
    ] = None

    def made_to(self, spec: AuditSpec) -> AuditSpec:
        """The specification with them."""
        from seepage.engine.site import with_changes, with_site_filters

        if self.privacy_json is not None:
            spec = with_site_filters(spec, self.privacy_json, scope=self.privacy_scope)
        return with_changes(spec, changes(self.added))


@dataclass(frozen=True)
class Recorded:
    """What recorded exchanges do not say themselves."""

    model: Annotated[
        str | None,
        typer.Option(help="Of recorded exchanges: the model, a name or package.module:function."),
    ] = None
    truth: Annotated[
        str | None,
        typer.Option(
            help="Of recorded exchanges: what the clients trained on, as data of an audit file; a function "
            "with an argument `client` returns that client's (inputs, labels)."
        ),
    ] = None
    input_: Annotated[
        str | None,
        typer.Option(
            "--input",
            help="Of recorded exchanges without --truth, where the model does not tell: 3x32x32 (channels, "
            "height, width of images), 64 (columns of a table) or 128 (tokens of a text).",
        ),
    ] = None
    known: Annotated[
        str | None,
        typer.Option(
            help="Of recorded exchanges: what a server knows of the clients besides what was recorded, as in "
            "lr=0.1,steps=1,optimizer=sgd,examples=32.",
        ),
    ] = None

    def keys(self, folder: Path, *, seeds: str | None) -> dict[str, Any]:
        """A folder of recorded exchanges as keys of an audit file."""
        if self.model is None:
            raise SpecError(
                f"'{folder}' is a folder: with recorded exchanges, say what model they are of (--model "
                "package.module:function); to rebuild a report, use seepage report."
            )
        if seeds is not None:
            raise SpecError("--seeds does not go with recorded exchanges: each of them is looked at once.")
        described = None if self.input_ is None else _read("--input", _shape, self.input_)
        return {
            "model": self.model,
            "recorded": {"folder": str(folder)}
            | ({} if described is None else {"shape": described})
            | ({} if self.known is None else _known(self.known)),
            **({} if self.truth is None else {"data": self.truth}),
        }

    def refuse_without(self, folder: Path | None) -> None:
        """These options say nothing about an audit file."""
        if self.model or self.truth or self.input_ or self.known:
            wrong = "" if folder is None else f"'{folder}' is no folder that exists; "
            raise SpecError(
                f"{wrong}--model, --truth, --input and --known go with a folder of recorded exchanges: "
                "give one."
            )


@dataclass(frozen=True)
class FlowerRun:
    """A Flower app that is run and recorded before the audit."""

    flower: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a Flower app: run it in simulation, record it, and audit the recording."
        ),
    ] = None
    nodes: Annotated[int, typer.Option(min=1, help="Of --flower: how many clients there are.")] = 10
    backend: Annotated[str, typer.Option(help="Of --flower: here (this process) or ray (Flower's own).")] = (
        "here"
    )
    rounds: Annotated[str | None, typer.Option(help="Of --flower: record these rounds only, as in 1,2.")] = (
        None
    )
    clients: Annotated[
        str | None, typer.Option(help="Of --flower: record these clients only, as in 0,5.")
    ] = None

    def recorded(self, into: Path | None) -> tuple[Path | None, str]:
        """Where the exchanges are, and a sentence; `into` itself where there is no app to run."""
        if self.flower is None:
            return into, ""
        from seepage.integrations.flower import record_app

        if self.backend not in ("here", "ray"):
            raise SpecError(f"--backend is '{self.backend}': give here or ray.")
        place = Path(f"recorded-{self.flower.resolve().name}") if into is None else into
        recorded = record_app(
            self.flower,
            place,
            nodes=self.nodes,
            backend="ray" if self.backend == "ray" else "here",
            rounds=numbers("--rounds", self.rounds),
            clients=numbers("--clients", self.clients),
        )
        return place, f"recorded {len(recorded)} exchanges of the Flower app in {place}."


def _known(text: str) -> dict[str, Any]:
    """
    >>> _known("lr=0.1,steps=1,examples=32")
    {'examples': 32, 'local': {'lr': 0.1, 'steps': 1}}
    """
    said = _pairs(text)
    if said is None:
        raise SpecError(f"--known: '{text}' says nothing: write lr=0.1,steps=1,examples=32.")
    whole = {"examples": said.pop("examples")} if "examples" in said else {}
    return {**whole, "local": said}


def numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    """
    >>> numbers("--rounds", "1,2"), numbers("--rounds", None)
    ((1, 2), None)
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise SpecError(f"{option}: '{text}' is no list of numbers: write 1,2.")
    return tuple(int(part) for part in parts)


def _shape(text: str) -> tuple[int, ...]:
    """
    >>> _shape("3x32x32"), _shape("64")
    ((3, 32, 32), (64,))
    """
    parts = text.lower().split("x")
    if len(parts) not in (1, 3) or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"'{text}' is no shape: write 3x32x32 for images, 64 for rows of a table")
    return tuple(int(part) for part in parts)


def names_of(model: str) -> list[str]:
    """The names of a model's tensors, in the order of its state dict."""
    from seepage.core.errors import ModelError
    from seepage.core.registry import import_thing

    built = import_thing(model, ModelError, function=True)()
    return list(built.state_dict())


def _read(option: str, reader: Callable[[str], Any], text: str) -> Any:
    try:
        return reader(text)
    except ValueError as error:
        raise SpecError(f"{option}: {error}.") from None


def changes(texts: list[str] | None) -> list[dict[str, Any]]:
    """Defenses as `--with` names them.

    >>> changes(["dp_sgd:clip=1.0,sigma=2", "hide_bias"])
    [{'name': 'dp_sgd', 'clip': 1.0, 'sigma': 2}, {'name': 'hide_bias'}]
    """
    found = []
    for text in texts or ():
        # "package.module:thing" has a colon of its own, and no equals sign before the next one
        name, colon, settings = text.rpartition(":") if "=" in text.rpartition(":")[2] else (text, "", "")
        chosen = _pairs(settings) if colon else {}
        if not name or chosen is None:
            raise SpecError(f"--with: '{text}' is no change: write name:setting=value,setting=value.")
        found.append({"name": name, **chosen})
    return found


def _pairs(text: str) -> dict[str, Any] | None:
    """setting=value,setting=value; None where that is not what it says."""
    pairs = [part.partition("=") for part in text.split(",")]
    if any(not key.strip() or not value.strip() for key, _, value in pairs):
        return None
    return {key.strip(): _value(value.strip()) for key, _, value in pairs}


def _value(text: str) -> Any:
    """A number, a switch or a list as TOML has it; any other text is itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def command(name: str, spec: Path | None, **given: Any) -> str:
    """The command line that was typed, as far as it says what is audited.

    >>> command("audit", Path("my audit.toml"), seeds="5", budget=None)
    "seepage audit 'my audit.toml' --seeds 5"
    """
    words = ["seepage", name, *([] if spec is None else [str(spec)])]
    for option, value in given.items():
        for one in value if isinstance(value, list) else [] if value is None else [value]:
            words += [f"--{option}", str(one)]
    return shlex.join(words)

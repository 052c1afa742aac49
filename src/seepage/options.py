"""The options that every command with a grid to run has in common, each defined once."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from seepage.core import amounts
from seepage.core.errors import SpecError

Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Cells at the same time, one thread each (default: every core, where it pays)."),
]
Engine = Annotated[
    str,
    typer.Option(
        help="Where cells run: auto (a pool of processes where that pays), here (this process), pool, ray "
        "(cluster of $RAY_ADDRESS, else this machine) or dask. Every engine gives the same figures."
    ),
]
Scheduler = Annotated[
    str | None, typer.Option(help="Of --engine dask: the scheduler's address, as in tcp://host:8786.")
]
Budget = Annotated[
    str | None,
    typer.Option(
        help="Time for the whole run, e.g. 60s, 5m or 2h. An audit's attacks share it (default with attacks "
        "= auto: 3m): auto leaves out what does not fit, and what is named all runs. A study or a table "
        "begins no cell after it, and the same command goes on."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or auto; replaces the file's.")]
Seeds = Annotated[
    str | None,
    typer.Option(
        help="How many seeds (5 is 0 to 4) or which ones (0,1,7; one alone: 7,); replaces the file's."
    ),
]
With = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        help="Audit the deployment with this change: a defense with its settings, as in "
        "secure_sum:clients=8; may be repeated, the outermost first.",
    ),
]
NoAdvice = Annotated[
    bool,
    typer.Option("--no-advice", help="Do not measure what could be changed; attacks get the whole budget."),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder of the run, new or to go on with; the default is named after what is run."),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start anew: what the folder holds of an earlier run is removed.")
]
PrivacyJson = Annotated[
    Path | None,
    typer.Option(
        "--privacy-json",
        help="A FLARE site's privacy.json: its filters join the defenses, as the site runs them.",
    ),
]
PrivacyScope = Annotated[
    str | None, typer.Option("--privacy-scope", help="Which scope of it; the default is the file's.")
]
RecordedModel = Annotated[
    str | None,
    typer.Option("--model", help="Of recorded exchanges: the model, a name or package.module:function."),
]
Truth = Annotated[
    str | None,
    typer.Option(
        help="Of recorded exchanges: what the clients trained on, as data of an audit file; a function with "
        "an argument `client` returns that client's (inputs, labels)."
    ),
]
Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        help="Of recorded exchanges without --truth, where the model does not tell: 3x32x32 (channels, "
        "height, width of images) or 64 (columns of a table).",
    ),
]
Known = Annotated[
    str | None,
    typer.Option(
        "--known",
        help="Of recorded exchanges: what a server knows of the clients besides what was recorded, as in "
        "lr=0.1,steps=1,optimizer=sgd,examples=32.",
    ),
]
FlowerApp = Annotated[
    Path | None,
    typer.Option(
        "--flower", help="Folder of a Flower app: run it in simulation, record it, and audit the recording."
    ),
]
Nodes = Annotated[int, typer.Option(min=1, help="Of --flower: how many clients there are.")]
Backend = Annotated[str, typer.Option(help="Of --flower: here (this process) or ray (Flower's own).")]
Rounds = Annotated[str | None, typer.Option(help="Of --flower: record these rounds only, as in 1,2.")]
Clients = Annotated[str | None, typer.Option(help="Of --flower: record these clients only, as in 0,5.")]
Formats = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        help="Also write, beside the page: junit, sarif, markdown, json, csv or annex (to a data-protection "
        "impact assessment). May be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON instead of tables.")]


def settings(*, budget: str | None, device: str | None, seeds: str | None) -> dict[str, Any]:
    """What was given of the settings that a file has too, read and checked.

    >>> settings(budget="5m", device=None, seeds="2")
    {'budget': 300.0, 'seeds': (0, 1)}
    """
    found = {
        "budget": None if budget is None else _read("--budget", amounts.seconds, budget),
        "device": device,
        "seeds": None if seeds is None else _read("--seeds", amounts.seeds, seeds),
    }
    return {name: value for name, value in found.items() if value is not None}


def where(
    *, out: Path | None, engine: str, jobs: int | None, scheduler: str | None, fresh: bool
) -> dict[str, Any]:
    """Where a run is computed and kept, as `run_grid` takes it."""
    if out is not None and out.exists() and not out.is_dir():
        raise SpecError(f"--out names a file, '{out}': give a folder, new or of the same run.")
    return {"out": out, "engine": engine, "jobs": jobs, "scheduler": scheduler, "fresh": fresh}


def recorded(
    folder: Path,
    *,
    model: str | None,
    truth: str | None,
    input_: str | None,
    known: str | None,
    seeds: str | None,
) -> dict[str, Any]:
    """A folder of recorded exchanges as keys of an audit file."""
    if model is None:
        raise SpecError(
            f"'{folder}' is a folder: with recorded exchanges, say what model they are of (--model "
            "package.module:function); to rebuild a report, use seepage report."
        )
    if seeds is not None:
        raise SpecError("--seeds does not go with recorded exchanges: each of them is looked at once.")
    described = None if input_ is None else _read("--input", _shape, input_)
    return {
        "model": model,
        "recorded": {"folder": str(folder)}
        | ({} if described is None else {"shape": described})
        | ({} if known is None else _known(known)),
        **({} if truth is None else {"data": truth}),
    }


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

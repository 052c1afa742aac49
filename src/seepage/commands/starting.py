"""Commands to begin with: init, import, doctor."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from seepage import options
from seepage.commands.app import app
from seepage.core.errors import SpecError
from seepage.endings import Code, ends_well
from seepage.options import Json


@app.command()
@ends_well
def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("audit.toml"),
    force: Annotated[bool, typer.Option(help="Overwrite an existing file.")] = False,
    study: Annotated[bool, typer.Option("--study", help="A file for seepage tradeoff instead.")] = False,
    example: Annotated[
        str | None, typer.Option(help="text or table: a small deployment that runs as it is.")
    ] = None,
) -> None:
    """Write a commented audit file to fill in; with --study one that compares defenses."""
    from seepage.starter import starting_files

    files = {path.parent / name: text for name, text in starting_files(path.name, study, example).items()}
    if (there := next((file for file in files if file.exists()), None)) is not None and not force:
        raise SpecError(f"'{there}' exists already: choose another name, or add --force to overwrite it.")
    for file, text in files.items():
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise SpecError(f"'{file}' cannot be written: {error.strerror}.") from None
    command = "tradeoff" if study else "audit"
    if example is None and sys.stdin.isatty() and sys.stdout.isatty():
        from seepage.asking import fill_in

        if fill_in(path, study=study):
            print(f"Wrote {path}, which was tried and runs: seepage {command} {path}")
            return
    what = "R" if example else "Fill in model and data, then r"
    print(f"Wrote {', '.join(map(str, files))}. {what}un: seepage {command} {path}")


@app.command("import")
@ends_well
def import_(
    update: Annotated[
        Path, typer.Argument(help="What a client sent: .npz, .safetensors, .pt, or an NVFlare DXO (.dxo).")
    ],
    sent: Annotated[Path, typer.Option(help="The weights that it had received, in a file of any such kind.")],
    into: Annotated[Path, typer.Option(help="Folder of recorded exchanges, new or to add to.")],
    kind: Annotated[
        Literal["gradient", "delta", "weights"] | None,
        typer.Option(help="gradient, delta (new weights minus received ones) or weights. A DXO says it."),
    ] = None,
    round_: Annotated[int, typer.Option("--round", min=0)] = 1,
    client: Annotated[int, typer.Option(min=0)] = 0,
    examples: Annotated[
        int | None, typer.Option(min=1, help="How many the client trained on, if known.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="package.module:function, for the names of arrays without names.")
    ] = None,
) -> None:
    """Make a recorded exchange of an update file, to be audited with seepage audit FOLDER."""
    from seepage.record.exchanges import import_update

    known = {} if examples is None else {"examples": examples}
    names = None if model is None else options.names_of(model)
    made = import_update(
        update, sent=sent, into=into, kind=kind, round=round_, client=client, names=names, **known
    )
    print(f"Wrote {made}. Audit it with: seepage audit {into} --model package.module:function")


@app.command()
@ends_well
def doctor(as_json: Json = False) -> None:
    """Check versions, extras, device and data folder, and whether an audit runs here.

    Exit code 0: a small audit ran and found what it must find. 2: it did not.
    """
    from seepage.doctoring import examine, print_examined

    found = examine()
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        print_examined(found)
    if not found.well:
        raise typer.Exit(Code.COULD_NOT_RUN)

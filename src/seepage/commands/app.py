"""The program that commands join."""

from __future__ import annotations

from typing import Annotated

import typer

from seepage.endings import CODES

app = typer.Typer(
    name="seepage",
    help=f"Measures what a federated-learning deployment gives away.\n\n{CODES}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _say_version(asked: bool) -> None:
    if asked:
        from seepage import __version__

        print(f"seepage {__version__}")
        raise typer.Exit


@app.callback()
def _seepage(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and end."),
    ] = False,
) -> None:
    pass

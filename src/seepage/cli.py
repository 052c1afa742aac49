"""The command line: the program with all of its commands."""

from __future__ import annotations

import os
from typing import Any

from seepage.commands import checking, running, showing, starting
from seepage.commands.app import app

__all__ = ["app", "main"]

ROOMS = [room.__name__ for room in (running, showing, checking, starting)]
"""In this order `seepage --help` lists the commands."""
app.registered_commands.sort(key=lambda command: ROOMS.index(getattr(command.callback, "__module__", "")))


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; a user's mistake is one sentence and exit code 2, never a traceback."""
    # Before torch is loaded: on a busy machine threads that wait by spinning take many times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    app(args=arguments)


if __name__ == "__main__":
    main()

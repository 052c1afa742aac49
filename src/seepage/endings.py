"""How a command ends: exit codes that a script can trust, and one sentence for whatever went wrong.

A tool that ends with 1 for a leak must end with 1 for nothing else: a traceback, a full disk or a closed pipe
say nothing about the deployment.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import ParamSpec

import typer
from rich.console import Console

from seepage.core.errors import SeepageError, in_words, out_of_memory

P = ParamSpec("P")

errors = Console(stderr=True, soft_wrap=True)
"""Where everything goes that is no result."""


class Code(IntEnum):
    """What the command's exit code says."""

    BELOW = 0
    """Measured, and below every threshold."""
    ABOVE = 1
    """Measured, and a threshold was reached; a trap or a suspicious model for `guard`."""
    COULD_NOT_RUN = 2
    NOT_MEASURED = 3
    """It ran, but what was asked for was not measured."""
    INTERRUPTED = 130


CODES = (
    "Exit codes: 0 measured and below every threshold; 1 measured, and a threshold was reached; 2 could not "
    "run, with one sentence that says why; 3 ran, but what was asked for was not measured."
)


_RESUMED = {"audit", "tradeoff", "reproduce"}
"""Commands that begin where they were stopped."""


def ends_well(command: Callable[P, None]) -> Callable[P, None]:
    """The command, ending with one sentence and the code for "could not run" whatever goes wrong in it."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()  # a full disk or a closed pipe shows here at the latest
        except typer.Exit:
            raise
        except KeyboardInterrupt:
            say(interrupted(command.__name__, sys.argv[1:]))
            raise typer.Exit(Code.INTERRUPTED) from None
        except (Exception, SystemExit) as error:
            say(explained(error))
            _silence_stdout()
            raise typer.Exit(Code.COULD_NOT_RUN) from None

    return guarded


def interrupted(command: str, arguments: Sequence[str]) -> str:
    """How to go on after Ctrl-C.

    >>> interrupted("audit", ["audit", "my audit.toml", "--fresh"])
    "stopped. What is finished is kept. To go on: seepage audit 'my audit.toml'"
    >>> interrupted("guard", ["guard", "w.pt"])
    'stopped. Nothing was kept: run the same command again.'
    """
    if command not in _RESUMED:
        return "stopped. Nothing was kept: run the same command again."
    again = shlex.join(["seepage", *(word for word in arguments if word != "--fresh")])
    return f"stopped. What is finished is kept. To go on: {again}"


def say(sentence: str) -> None:
    """One line on stderr, if there is still anybody to read it."""
    with contextlib.suppress(OSError):
        errors.print(f"seepage: {sentence}", markup=False, highlight=False)


def explained(error: BaseException) -> str:
    """One sentence; the traceback of what nobody foresaw goes to a file that the sentence names.

    >>> explained(OSError(28, "No space left on device", "runs/log.json"))
    "'runs/log.json' cannot be read or written (No space left on device): check the path, its permissions \
and the free space."
    """
    if isinstance(error, SeepageError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        what = f"'{error.filename}'" if error.filename is not None else "a file or the output"
        return (
            f"{what} cannot be read or written ({error.strerror}): check the path, its permissions and the "
            "free space."
        )
    if out_of_memory(error):
        return (
            "there was not enough memory: lower protocol.batch_size or protocol.clients, or use fewer --jobs."
        )
    if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):
        return "the output was closed before everything was written."  # rich makes an exit of a closed pipe
    if isinstance(error, SystemExit):
        return f"the code that was to be audited ended the program by itself (exit code {error.code})."
    return f"this should not have happened: {in_words(error)} {_keep_traceback(error)}"


def _keep_traceback(error: BaseException) -> str:
    """Where the traceback is: in a file, or on stderr where none can be written."""
    text = "".join(traceback.format_exception(error))
    try:
        handle, name = tempfile.mkstemp(prefix="seepage-error-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return f"No file could be written for the traceback:\n{text}"
    return f"The traceback is in '{name}': please report it."


def _silence_stdout() -> None:
    """Python flushes stdout once more when it ends, and a failure there changes the exit code."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

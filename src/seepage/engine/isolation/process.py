"""The audit's hold on the process of an attack: starting it, asking it, ending it."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seepage.core import errors
from seepage.core.errors import AttackError, SeepageError
from seepage.core.progress import Progress, tell
from seepage.engine.isolation.channel import Channel, Ended

_ENVIRONMENT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_",
    "LD_LIBRARY_PATH",
    "OMP_",
    "MKL_",
    "KMP_",
    "CUDA_",
    "SYSTEMROOT",
)
"""Beginnings of the variables that a process needs to run; others may name private files."""
_PATIENCE = 5.0
"""Seconds for a killed process to be gone."""


class AttackProcess:
    """A process that holds one attack, locked in before it loads any code from outside."""

    def __init__(self, may_read: Sequence[str] = ()) -> None:
        here_in, there_out = os.pipe()
        there_in, here_out = os.pipe()
        path = list(dict.fromkeys(str(Path(entry or ".").resolve()) for entry in [*sys.path, "."]))
        granted = [str(Path(entry).resolve()) for entry in may_read]
        self._scratch = tempfile.mkdtemp(prefix="seepage-attack-")
        wanted = {
            "path": path,
            "may_read": granted,
            "scratch": self._scratch,
            "incoming": there_in,
            "outgoing": there_out,
            "parent": os.getpid(),
        }
        environment = {name: value for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "seepage.engine.isolation.worker", json.dumps(wanted)],
            pass_fds=(there_in, there_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**environment, "PYTHONPATH": os.pathsep.join(path), "TMPDIR": self._scratch},
            start_new_session=True,  # Ctrl-C is for the audit, which then ends this process
        )
        os.close(there_in)
        os.close(there_out)
        self._channel = Channel(here_in, here_out)
        atexit.register(self.stop)
        self.locked_by_kernel = bool(self._waited()["by_kernel"])

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def ask(self, what: str, **content: Any) -> Any:
        """The attack's answer; what it raised, raised again; AttackError where it is gone."""
        try:
            self._channel.ask({"do": what, **content})
        except Ended as reason:
            raise self._gone(reason) from None
        return self._waited()

    def stop(self) -> None:
        """End it at once: there is nothing in it that is worth keeping."""
        atexit.unregister(self.stop)
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_PATIENCE)
        self._channel.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _waited(self) -> Any:
        try:
            while True:
                message = self._channel.answered()
                if "progress" not in message:
                    break
                tell(Progress(**message["progress"]))
            answer, error = message.get("answer"), message.get("error")
        except Ended as reason:
            raise self._gone(reason) from None
        except (AttributeError, TypeError) as reason:
            self.stop()
            raise AttackError(
                f"the attack's answer makes no sense ({reason}): it must not write to its pipe."
            ) from None
        except BaseException:
            self.stop()  # an interrupted question leaves an answer behind, which must not meet the next one
            raise
        if error is not None:
            raise _raised(error)
        return answer

    def _gone(self, reason: Ended) -> AttackError:
        self.stop()
        return AttackError(
            f"the process of the attack is gone ({reason}, exit code {self._process.returncode}): it ended "
            "itself, or the machine ran out of memory."
        )


def _raised(error: Mapping[str, str]) -> SeepageError:
    """Our own errors by name; anything else is the attack's fault, with the place where it happened."""
    kind = getattr(errors, error["kind"], None)
    if isinstance(kind, type) and issubclass(kind, SeepageError):
        return kind(error["text"])
    text = error["text"].splitlines()[0] if error["text"].strip() else "no message"
    return AttackError(f"the attack raised {error['kind']}: {text} ({error['place']}).")

"""For pre-commit, which hands over all files at once: one command for each, and the first failure's code.

python -m seepage.hooks audit --no-advice -- a/audit.toml b/audit.toml
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from seepage.cli import main
from seepage.endings import Code


def run_each(arguments: Sequence[str]) -> int:
    """What stands before "--" is the command with its options, what follows are files."""
    if "--" not in arguments:
        print("seepage.hooks: write COMMAND OPTIONS -- FILES", file=sys.stderr)
        return Code.COULD_NOT_RUN
    cut = list(arguments).index("--")
    command, files = list(arguments[:cut]), list(arguments[cut + 1 :])
    codes = [_code([*command, file]) for file in files]
    return next((code for code in codes if code), 0)


def _code(arguments: list[str]) -> int:
    try:
        main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


if __name__ == "__main__":
    sys.exit(run_each(sys.argv[1:]))

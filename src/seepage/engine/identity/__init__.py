"""What a kept result depends on: data, the model as it behaves, and the code and packages that computed it.

Audits, studies and the papers' tables take a kept result only where all of this is as it was.
docs/run-folder.md says what it cannot see.
"""

from seepage.engine.identity.code import CodeReader
from seepage.engine.identity.hashing import digest
from seepage.engine.identity.model import behaviour, state
from seepage.engine.identity.packages import PACKAGES, version, versions

__all__ = ["PACKAGES", "CodeReader", "behaviour", "digest", "state", "version", "versions"]

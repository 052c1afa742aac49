"""The client's guard: is a received model a trap? (`seepage.guard` is the function `guard` here.)"""

from seepage.guardian.check import CAVEAT, GuardReport, guard
from seepage.guardian.files import guard_file
from seepage.guardian.fingerprints import fingerprint
from seepage.guardian.refuse import refuse_traps

__all__ = ["CAVEAT", "GuardReport", "fingerprint", "guard", "guard_file", "refuse_traps"]

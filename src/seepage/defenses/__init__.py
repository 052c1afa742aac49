"""Defenses, one file each: wrappers round a client's local step. The first one listed is outermost.

What an operator changes in the protocol instead (larger batches, local averaging, secure sums, the median) is
no wrapper: see `measures`.
"""

from seepage.defenses.accounting import epsilon, uses_per_round
from seepage.defenses.catalogue import DEFENSES
from seepage.defenses.entry import DefenseEntry, Deployment, Described, MeasureEntry
from seepage.defenses.measures import MEASURES

__all__ = [
    "DEFENSES",
    "MEASURES",
    "DefenseEntry",
    "Deployment",
    "Described",
    "MeasureEntry",
    "epsilon",
    "uses_per_round",
]

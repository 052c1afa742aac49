"""Defenses, one file each: wrappers round a client's local step. The first one listed is outermost.

What an operator changes in the protocol instead (larger batches, local averaging, secure sums, the median) is
no wrapper: see `measures`. DEFENSES holds both kinds, by the name that an audit file uses.
"""

from seepage.core.registry import Registry
from seepage.defenses.accounting import epsilon, uses_per_round
from seepage.defenses.calibration import noise_multiplier
from seepage.defenses.empirical import Empirical, empirical_epsilon
from seepage.defenses.entry import DefenseEntry, Deployment, Described, MeasureEntry, described
from seepage.names import defenses as names
from seepage.names.frameworks import FAMILIES

__all__ = [
    "DEFENSES",
    "DefenseEntry",
    "Deployment",
    "Described",
    "Empirical",
    "MeasureEntry",
    "empirical_epsilon",
    "epsilon",
    "noise_multiplier",
    "uses_per_round",
]

DEFENSES: Registry[Described] = Registry(
    "defense", group=names.GROUP, entries=names.DEFENSES, make=described, families=FAMILIES
)

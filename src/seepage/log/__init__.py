"""The versioned record of a run: written by the auditor as results come, read by reports and nothing else."""

from seepage.log.impact import Association, ClassLeakage, associations, by_class
from seepage.log.intervals import Interval, bootstrap
from seepage.log.record import (
    BASELINE,
    SCHEMA_VERSION,
    AttackRef,
    Cell,
    Cost,
    Example,
    Header,
    InputRecord,
    ThreatRecord,
    cell_id,
)
from seepage.log.store import AuditLog, RunFolder, write_atomically
from seepage.log.summary import AttackSummary, summarise

__all__ = [
    "BASELINE",
    "SCHEMA_VERSION",
    "Association",
    "AttackRef",
    "AttackSummary",
    "AuditLog",
    "Cell",
    "ClassLeakage",
    "Cost",
    "Example",
    "Header",
    "InputRecord",
    "Interval",
    "RunFolder",
    "ThreatRecord",
    "associations",
    "bootstrap",
    "by_class",
    "cell_id",
    "summarise",
    "write_atomically",
]

"""The versioned record of a run: written by the auditor as results come, read by reports and nothing else."""

from seepage.log.estimate import RANGES, SHARE, UNITS, Estimate
from seepage.log.files import refuse_foreign, remove_written, write_atomically
from seepage.log.impact import Association, ClassLeakage, associations, by_class
from seepage.log.record import (
    ADAPTIVE,
    BASELINE,
    SCHEMA_VERSION,
    AttackRef,
    Cell,
    ColumnRecord,
    Cost,
    DefenseRecord,
    Example,
    Header,
    InputRecord,
    NotTried,
    ThreatRecord,
    cell_id,
    epsilon_text,
    origin_key,
)
from seepage.log.seal import seal, unseal
from seepage.log.store import AuditLog, RunFolder, read_record, write_record
from seepage.log.summary import AttackSummary, summarise

__all__ = [
    "ADAPTIVE",
    "BASELINE",
    "RANGES",
    "SCHEMA_VERSION",
    "SHARE",
    "UNITS",
    "Association",
    "AttackRef",
    "AttackSummary",
    "AuditLog",
    "Cell",
    "ClassLeakage",
    "ColumnRecord",
    "Cost",
    "DefenseRecord",
    "Estimate",
    "Example",
    "Header",
    "InputRecord",
    "NotTried",
    "RunFolder",
    "ThreatRecord",
    "associations",
    "by_class",
    "cell_id",
    "epsilon_text",
    "origin_key",
    "read_record",
    "refuse_foreign",
    "remove_written",
    "seal",
    "summarise",
    "unseal",
    "write_atomically",
    "write_record",
]

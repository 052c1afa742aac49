"""The versioned record of a run: written by the engine as results come, read by reports and nothing else."""

from seepage.core.metric import RANGES, SHARE
from seepage.record.cell import Cell, ColumnRecord, Cost, Example
from seepage.record.estimate import Estimate
from seepage.record.files import refuse_foreign, remove_written, write_atomically
from seepage.record.header import (
    SCHEMA_VERSION,
    DefenseRecord,
    Header,
    InputRecord,
    Kind,
    NotTried,
    RunHeader,
    ThreatRecord,
    epsilon_text,
)
from seepage.record.impact import Association, ClassLeakage, associations, by_class
from seepage.record.layout import Column, Finding, Layout, LayoutRow
from seepage.record.logs import AuditLog, RunLog
from seepage.record.refs import (
    ADAPTIVE,
    BASELINE,
    INSIDE,
    TRAINING,
    AttackRef,
    DefenseRef,
    NamedSettings,
    Record,
    cell_id,
    origin_key,
    plain,
)
from seepage.record.sealing import seal, unseal
from seepage.record.store import RunFolder, read_record, write_record
from seepage.record.summary import AttackSummary, summarise

__all__ = [
    "ADAPTIVE",
    "BASELINE",
    "INSIDE",
    "RANGES",
    "SCHEMA_VERSION",
    "SHARE",
    "TRAINING",
    "Association",
    "AttackRef",
    "AttackSummary",
    "AuditLog",
    "Cell",
    "ClassLeakage",
    "Column",
    "ColumnRecord",
    "Cost",
    "DefenseRecord",
    "DefenseRef",
    "Estimate",
    "Example",
    "Finding",
    "Header",
    "InputRecord",
    "Kind",
    "Layout",
    "LayoutRow",
    "NamedSettings",
    "NotTried",
    "Record",
    "RunFolder",
    "RunHeader",
    "RunLog",
    "ThreatRecord",
    "associations",
    "by_class",
    "cell_id",
    "epsilon_text",
    "origin_key",
    "plain",
    "read_record",
    "refuse_foreign",
    "remove_written",
    "seal",
    "summarise",
    "unseal",
    "write_atomically",
    "write_record",
]

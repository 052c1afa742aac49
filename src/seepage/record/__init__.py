"""The versioned record of a run: written by the engine as results come, read by reports and nothing else."""

from seepage.core.metric import RANGES, SHARE
from seepage.record.cell import TIME_UP, Cell, ColumnRecord, Cost, Example
from seepage.record.estimate import Estimate
from seepage.record.files import write_atomically
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
from seepage.record.impact import Association, associations, by_class
from seepage.record.layout import Column, Finding, Layout, LayoutRow
from seepage.record.logs import AuditLog, RunLog
from seepage.record.refs import (
    ADAPTIVE,
    BASELINE,
    INSIDE,
    TRAINING,
    AttackRef,
    DefenseRef,
    Record,
    cell_id,
    origin_key,
    plain,
)
from seepage.record.sealing import seal
from seepage.record.store import RunFolder, write_record
from seepage.record.summary import AttackSummary, summarise

__all__ = [
    "ADAPTIVE",
    "BASELINE",
    "INSIDE",
    "RANGES",
    "SCHEMA_VERSION",
    "SHARE",
    "TIME_UP",
    "TRAINING",
    "Association",
    "AttackRef",
    "AttackSummary",
    "AuditLog",
    "Cell",
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
    "seal",
    "summarise",
    "write_atomically",
    "write_record",
]

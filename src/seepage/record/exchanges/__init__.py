"""Recorded exchanges: a folder of what a server sent and what its clients answered, with what is known of it.

docs/recorded.md describes the format. Everything that records or imports exchanges writes this, and an audit
reads it.
"""

from seepage.record.exchanges.importing import from_array_record, from_dxo, import_update, read_tensors
from seepage.record.exchanges.info import (
    ExchangeInfo,
    ExchangeKind,
    InputInfo,
    LocalTrainingInfo,
)
from seepage.record.exchanges.reading import Known, RecordedExchange, RecordedFolder
from seepage.record.exchanges.writing import Recorder

__all__ = [
    "ExchangeInfo",
    "ExchangeKind",
    "InputInfo",
    "Known",
    "LocalTrainingInfo",
    "RecordedExchange",
    "RecordedFolder",
    "Recorder",
    "from_array_record",
    "from_dxo",
    "import_update",
    "read_tensors",
]

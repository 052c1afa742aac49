"""Five lines of Python: `seepage.audit(...)` runs an audit and returns its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seepage.auditor import parse_spec, run_audit
from seepage.auditor.run import OnCell
from seepage.auditor.spec import ProtocolSpec
from seepage.errors import SpecError
from seepage.log import AuditLog, summarise
from seepage.registry import unknown
from seepage.report import print_summary, to_json, write_html


class AuditResult(AuditLog):
    """The log of a run, with the reports that can be made of it."""

    def summary(self) -> None:
        """Print the verdict and a table, every score beside its baseline."""
        print_summary(self)

    def to_html(self, path: Path | str | None = None) -> Path:
        """Write the report and return its path (in the run's folder unless another is given)."""
        return write_html(self, None if path is None else Path(path))

    def to_json(self) -> dict[str, Any]:
        """Verdict and figures for machines."""
        return to_json(self)

    def scores(self, attack: str) -> dict[str, float]:
        """Mean of every metric of one attack."""
        found = {s.attack.name: s for s in summarise(self)}
        if attack not in found:
            raise SpecError(unknown("attack in this log", attack, found))
        return {name: interval.mean for name, interval in found[attack].scores.items()}


def open_log(path: Path | str) -> AuditResult:
    """Read the folder of a run, finished or not."""
    log = AuditLog.read(path)
    return AuditResult(log.folder, log.header, log.cells)


def audit(
    *,
    model: Any,
    data: Any,
    attacks: Sequence[str | Mapping[str, Any]] = ("analytic_extraction",),
    data_options: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    on_cell: OnCell | None = None,
    **settings: Any,
) -> AuditResult:
    """Audit a model on data, in simulation, and return the log.

    model: an nn.Module, a function that builds one, a registry name or "package.module:function".
    data: (x, y), a torch dataset, a registry name, a path or "package.module:function".
    data_options: mean, std, value_range, num_classes, modality, or what the dataset's loader takes.
    settings: any key of an audit file, or of its [protocol] table: batch_size, clients, aggregation,
    algorithm, lr, threat, seeds, defenses, device, ...

    >>> import tempfile, torch
    >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 50), torch.nn.ReLU(),
    ...                           torch.nn.Linear(50, 10))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = audit(model=net, data="digits", batch_size=1, seeds=[0], out=folder)
    ...     log.scores("analytic_extraction")["exact"]
    1.0
    """
    protocol = dict(settings.pop("protocol", {}))
    for key in list(settings):
        if key in ProtocolSpec.model_fields:
            protocol[key] = settings.pop(key)
    named_model = model if isinstance(model, str | Mapping) else {"name": _name(model)}
    named_data = {"name": data if isinstance(data, str) else _name(data), **(data_options or {})}
    spec = parse_spec(
        {
            "model": named_model,
            "data": named_data,
            "attacks": list(attacks),
            "protocol": protocol,
            **settings,
        },
        source="seepage.audit()",
    )
    log = run_audit(
        spec,
        model=None if isinstance(model, str | Mapping) else model,
        data=None if isinstance(data, str) else data,
        out=out,
        on_cell=on_cell,
    )
    return AuditResult(log.folder, log.header, log.cells)


def _name(given: Any) -> str:
    """What to call an object that was passed in Python."""
    if isinstance(given, tuple | list):
        return "arrays"
    return str(getattr(given, "__name__", type(given).__name__))

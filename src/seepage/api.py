"""Five lines of Python: `seepage.audit(...)` runs an audit and returns its log."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seepage.auditor import parse_spec, run_audit
from seepage.auditor.run import OnCell, OnPlan
from seepage.auditor.spec import ProtocolSpec
from seepage.errors import SpecError
from seepage.log import AuditLog, summarise
from seepage.registry import unknown
from seepage.report import plan_text, print_summary, to_json, write_html


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
        return {name: estimate.value for name, estimate in found[attack].scores.items()}


def open_log(path: Path | str) -> AuditResult:
    """Read the folder of a run, finished or not."""
    log = AuditLog.read(path)
    return AuditResult(log.folder, log.header, log.cells)


def audit(
    *,
    model: Any,
    data: Any,
    attacks: str | Sequence[str | Mapping[str, Any]] = "auto",
    budget: str | float | None = None,
    data_options: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    on_plan: OnPlan | None = None,
    on_cell: OnCell | None = None,
    fresh: bool = False,
    **settings: Any,
) -> AuditResult:
    """Audit a model on data, in simulation, and return the log.

    model: an nn.Module, a function that builds one, a registry name or "package.module:function".
    data: (x, y), a torch dataset, a registry name, a path or "package.module:function".
    attacks: "auto" for all that fit the model, the data and the threat model; or names, or tables with their
    settings.
    budget: time for the whole audit, in seconds or as "5m"; auto takes up to 3 minutes unless told otherwise.
    on_plan: called before the attacks start, with the log's header; by default what will run, and for how
    long, is printed on stderr.
    data_options: mean, std, value_range, num_classes, modality, or what the dataset's loader takes.
    out: the run's folder. What it holds of the same audit by the same code is not run again.
    fresh: start anew, whatever the folder holds of a run.
    settings: any key of an audit file, or of its [protocol] table: batch_size, clients, aggregation,
    algorithm, lr, threat, seeds, defenses, device, ...

    >>> import tempfile, torch
    >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 50), torch.nn.ReLU(),
    ...                           torch.nn.Linear(50, 10))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = audit(model=net, data="digits", attacks=["analytic_extraction"], batch_size=1, seeds=[0],
    ...                 out=folder, on_plan=lambda header: None)
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
            "attacks": attacks if isinstance(attacks, str) else list(attacks),
            "budget": budget,
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
        on_plan=on_plan or (lambda header: print(plan_text(header), file=sys.stderr)),
        on_cell=on_cell,
        on_note=lambda note: print(f"seepage: {note}", file=sys.stderr),
        fresh=fresh,
    )
    return AuditResult(log.folder, log.header, log.cells)


def _name(given: Any) -> str:
    """What to call an object that was passed in Python."""
    if isinstance(given, tuple | list):
        return "arrays"
    return str(getattr(given, "__name__", type(given).__name__))

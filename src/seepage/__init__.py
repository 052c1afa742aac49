"""seepage measures what a federated-learning deployment gives away.

    import seepage
    log = seepage.audit(model=net, data=(x, y), batch_size=32)
    log.summary()
    log.to_html("report.html")

    print(seepage.guard(received_model).text())     # on the client's side: is this model a trap?
    print(seepage.gate(received_model, update, (x, y)).text())  # and what would my update give away?

Names are imported when they are first used, so that `seepage --help` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seepage.api import AuditResult, audit, compare, open_log, reproduce, study
    from seepage.attacks import Attack
    from seepage.core.metric import Metric
    from seepage.core.types import Defense
    from seepage.engine.gate import rule
    from seepage.gating import GateReport, gate, gate_file
    from seepage.guardian import GuardReport, guard, guard_file
    from seepage.report.showing import show
    from seepage.report.study import StudyResult

__version__ = "0.1.0"
_PLACES = {
    "Attack": "seepage.attacks:Attack",
    "AuditResult": "seepage.api:AuditResult",
    "Defense": "seepage.core.types:Defense",
    "GuardReport": "seepage.guardian:GuardReport",
    "Metric": "seepage.core.metric:Metric",
    "StudyResult": "seepage.report.study:StudyResult",
    "audit": "seepage.api:audit",
    "compare": "seepage.api:compare",
    "GateReport": "seepage.gating:GateReport",
    "gate": "seepage.gating:gate",
    "gate_file": "seepage.gating:gate_file",
    "guard": "seepage.guardian:guard",
    "guard_file": "seepage.guardian:guard_file",
    "open_log": "seepage.api:open_log",
    "reproduce": "seepage.api:reproduce",
    "rule": "seepage.engine.gate:rule",
    "show": "seepage.report.showing:show",
    "study": "seepage.api:study",
}
"""The public names, each with its module and its name there."""
__all__ = [
    "Attack",
    "AuditResult",
    "Defense",
    "GateReport",
    "GuardReport",
    "Metric",
    "StudyResult",
    "__version__",
    "audit",
    "compare",
    "gate",
    "gate_file",
    "guard",
    "guard_file",
    "open_log",
    "reproduce",
    "rule",
    "show",
    "study",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'seepage' has no attribute '{name}'")
    module, _, attribute = _PLACES[name].partition(":")
    return getattr(import_module(module), attribute)

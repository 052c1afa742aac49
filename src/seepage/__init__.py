"""seepage measures what a federated-learning deployment gives away.

    import seepage
    log = seepage.audit(model=net, data=(x, y), batch_size=32)
    log.summary()
    log.to_html("report.html")

    print(seepage.guard(received_model).text())     # on the client's side: is this model a trap?

Names are imported when they are first used, so that `seepage --help` need not wait for torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seepage.api import AuditResult, audit, open_log
    from seepage.guardian import GuardReport, guard, guard_file

__version__ = "0.1.0"
__all__ = ["AuditResult", "GuardReport", "__version__", "audit", "guard", "guard_file", "open_log"]


def __getattr__(name: str) -> Any:
    if name in {"AuditResult", "audit", "open_log"}:
        from seepage import api

        return getattr(api, name)
    if name in {"GuardReport", "guard", "guard_file"}:
        from seepage import guardian

        return getattr(guardian, name)
    raise AttributeError(f"module 'seepage' has no attribute '{name}'")

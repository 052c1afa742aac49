"""seepage measures what a federated-learning deployment gives away.

    import seepage
    log = seepage.audit(model=net, data=(x, y), batch_size=32, attacks=["analytic_extraction"])
    log.summary()
    log.to_html("report.html")

Names are imported when they are first used, so that `seepage --help` need not wait for torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seepage.api import AuditResult, audit, open_log

__version__ = "0.1.0"
__all__ = ["AuditResult", "__version__", "audit", "open_log"]


def __getattr__(name: str) -> Any:
    if name in {"AuditResult", "audit", "open_log"}:
        from seepage import api

        return getattr(api, name)
    raise AttributeError(f"module 'seepage' has no attribute '{name}'")

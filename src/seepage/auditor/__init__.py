"""The auditor: specification in, log out."""

from seepage.auditor.gate import exceeded
from seepage.auditor.prepare import with_budget
from seepage.auditor.run import run_audit
from seepage.auditor.spec import AuditSpec, parse_spec, read_spec

__all__ = ["AuditSpec", "exceeded", "parse_spec", "read_spec", "run_audit", "with_budget"]

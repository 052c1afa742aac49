"""The auditor: specification in, log out."""

from seepage.auditor.gate import rule
from seepage.auditor.run import run_audit
from seepage.auditor.spec import AuditSpec, parse_spec, read_spec, seconds

__all__ = ["AuditSpec", "parse_spec", "read_spec", "rule", "run_audit", "seconds"]

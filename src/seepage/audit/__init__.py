"""The auditor: specification in, log out."""

from seepage.audit.demo import DEMO, TEMPLATE
from seepage.audit.gate import exceeded
from seepage.audit.run import run_audit
from seepage.audit.spec import AuditSpec, parse_spec, read_spec

__all__ = ["DEMO", "TEMPLATE", "AuditSpec", "exceeded", "parse_spec", "read_spec", "run_audit"]

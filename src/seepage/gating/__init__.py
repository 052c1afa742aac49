"""The gate: a client attacks its own update before it leaves. (`seepage.gate` is its function `gate`.)"""

from seepage.gating.files import gate_file
from seepage.gating.measuring import gate
from seepage.gating.middle import Gatekeeper
from seepage.gating.report import Exposure, GateReport

__all__ = ["Exposure", "GateReport", "Gatekeeper", "gate", "gate_file"]

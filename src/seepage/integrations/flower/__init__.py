"""Flower: recording what clients send, auditing an app as it is, and a dishonest server inside of one.

    @app.train(mods=[record("recorded/")])              # at a client
    strategy = RecordingStrategy(FedAvg(), "recorded/")  # at the server
    strategy = Curious(FedAvg(), attack="trap_weights", model=Net, input=...)

docs/flower.md says more.
"""

import os

from seepage.core.errors import SpecError

# Said before flwr is imported: whoever audits an app has not agreed to telemetry.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

try:
    import flwr  # noqa: F401
except ImportError:
    raise SpecError("Flower is not installed here: run pip install 'seepage[flower]'.") from None

from seepage.integrations.flower.app import record_app
from seepage.integrations.flower.curious import Curious
from seepage.integrations.flower.grid import InProcessGrid
from seepage.integrations.flower.mod import gatekeeper, record
from seepage.integrations.flower.strategy import RecordingStrategy

__all__ = ["Curious", "InProcessGrid", "RecordingStrategy", "gatekeeper", "record", "record_app"]

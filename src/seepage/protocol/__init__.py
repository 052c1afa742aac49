"""The protocol: local training, partitions, aggregation, threat models and rounds."""

from seepage.protocol.aggregation import aggregate
from seepage.protocol.local import client, local_batches, local_update, trainable, training_mode
from seepage.protocol.losses import LOSSES, loss_name
from seepage.protocol.partition import draw_clients
from seepage.protocol.played import Played, longest
from seepage.protocol.rounds import apply_update, play
from seepage.protocol.threat import (
    THREATS,
    ThreatModel,
    custom_threat,
    describe_knowledge,
    effective_grants,
    knowledge,
    missing_grants,
    server_sees,
)

__all__ = [
    "LOSSES",
    "THREATS",
    "Played",
    "ThreatModel",
    "aggregate",
    "apply_update",
    "client",
    "custom_threat",
    "describe_knowledge",
    "draw_clients",
    "effective_grants",
    "knowledge",
    "local_batches",
    "local_update",
    "longest",
    "loss_name",
    "missing_grants",
    "play",
    "server_sees",
    "trainable",
    "training_mode",
]

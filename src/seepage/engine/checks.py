"""What cannot go together in one audit: refused with one sentence before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from seepage.core.errors import SpecError
from seepage.core.types import Grant
from seepage.defenses import DefenseEntry
from seepage.engine.protocol_spec import ProtocolSpec
from seepage.engine.spec import DefenseSpec
from seepage.protocol import ThreatModel
from seepage.protocol.threat import sees_each_update


def check_view(threat: ThreatModel, protocol: ProtocolSpec) -> None:
    """Somebody must aggregate where the server sees only aggregates."""
    if (
        protocol.aggregation == "per_client"
        and protocol.clients > 1
        and Grant.INDIVIDUAL_UPDATES not in threat.grants
    ):
        raise SpecError(
            f"under the threat model '{threat.name}' the server sees only aggregates, but aggregation = "
            "'per_client' makes none: set aggregation to mean, secure_sum or median."
        )
    if protocol.audited is not None and not sees_each_update(threat, protocol.aggregation):
        raise SpecError(
            "protocol.audited draws some clients, but this server sees only an aggregate that all clients "
            "are behind: leave it out, or let the server see each update."
        )


def check_fakes(threat: ThreatModel, protocol: ProtocolSpec) -> None:
    """Fakes are a dishonest server's, and clients cannot demand more of each other than there are."""
    if protocol.fakes and Grant.CRAFT_WEIGHTS not in threat.grants:
        raise SpecError(
            f"under the threat model '{threat.name}' the server follows the protocol and adds no fakes: use "
            "threat = 'malicious_server_secure_aggregation', or remove protocol.fakes."
        )
    if protocol.minimum_honest > protocol.clients:
        raise SpecError(
            f"clients demand {protocol.minimum_honest} honest contributors, but only {protocol.clients} take "
            "part, so nobody would ever send anything: raise protocol.clients or lower "
            "protocol.minimum_honest."
        )


def check_order(wanted: Sequence[tuple[DefenseSpec, DefenseEntry]]) -> None:
    """A defense that trains by itself comes last, and nothing outside of it may use the data."""
    for outer, entry in wanted[:-1]:
        last, innermost = wanted[-1]
        if entry.replaces_training:
            raise SpecError(
                f"defense '{outer.name}' does the local training itself, so whatever is listed after it "
                "would be skipped: list it last."
            )
        if entry.reads_data and innermost.replaces_training:
            raise SpecError(
                f"defense '{outer.name}' uses the private examples outside of '{last.name}', whose "
                "epsilon would no longer hold: keep one of the two."
            )

"""The threat models: who the server is, and what it may know, see and do."""

from __future__ import annotations

from seepage.core.registry import Entry

GROUP = "seepage.threats"
"""Entry points under which a package offers more."""
MANY_ROUNDS = 1000
"""Bound for a server that may query a client again and again."""
GRANTS: dict[str, str] = {
    "labels": "the labels of a client's examples (labels)",
    "batch_size": "how many examples are behind an update (batch_size)",
    "local_training": "how clients train: steps, learning rate, order (local_training)",
    "buffers": "the buffers of batch norm that clients send (buffers)",
    "value_range": "the range of raw values (value_range)",
    "normalisation": "how values are scaled before the model (normalisation)",
    "auxiliary_data": "public examples of the same kind (auxiliary_data)",
    "craft_weights": "to choose the weights that it sends (craft_weights)",
    "individual_updates": "to see each client's update by itself (individual_updates)",
    "target_client": "to send a client what others do not get (target_client)",
    "several_rounds": "to ask the same client again (several_rounds)",
    "choose_clients": "to say which clients take part in a round (choose_clients)",
    "different_models": "to send the clients of one round different models (different_models)",
}
"""What a threat model may let the server know or do, in words."""
_TOLD = ("batch_size", "local_training", "buffers", "value_range", "normalisation")
"""What a server that runs the protocol knows anyway: it wrote the training configuration."""


def _threat(description: str, *grants: str, rounds: int = 1) -> Entry:
    facts = {"grants": grants, "rounds": rounds}
    return Entry(where="seepage.protocol.threat:ThreatModel", description=description, facts=facts)


THREATS: dict[str, Entry] = {
    "honest_but_curious": _threat(
        "The server follows the protocol and studies every update that it receives.",
        *_TOLD,
        "individual_updates",
    ),
    "honest_but_curious_aggregate": _threat(
        "Somebody who follows the protocol and sees only the aggregate of each round.", *_TOLD
    ),
    "outsider": _threat(
        "Somebody who taps the clients' connections and knows the model, nothing else.", "individual_updates"
    ),
    "malicious_server": _threat(
        "The server chooses the weights it sends, to whom it likes, round after round.",
        *_TOLD,
        "individual_updates",
        "craft_weights",
        "target_client",
        "several_rounds",
        "choose_clients",
        "different_models",
        rounds=MANY_ROUNDS,
    ),
    "malicious_server_secure_aggregation": _threat(
        "The server chooses the weights, the same for all, and sees only the secure sum.",
        *_TOLD,
        "craft_weights",
        "several_rounds",
        rounds=MANY_ROUNDS,
    ),
}

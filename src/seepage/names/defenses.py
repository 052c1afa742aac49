"""The defenses: those that wrap the client's step, then what an operator changes in the protocol.

Of each: where it runs, whom a client must trust for it to hold, what its promise is worth, and what an
attacker who knows of it does.
"""

from __future__ import annotations

from typing import Any

from seepage.core.registry import Entry

GROUP = "seepage.defenses"
"""Entry points under which a package offers more."""


def _client(where: str, description: str, adaptive: str, **facts: Any) -> Entry:
    """Runs at the client, trusts nobody and is a heuristic, unless `facts` say otherwise."""
    return Entry(where=where, description=description, facts={"adaptive": adaptive, **facts})


def _protocol(where: str, description: str, trusts: str, adaptive: str, **facts: Any) -> Entry:
    facts = {"runs_at": "protocol", "trusts": trusts, "adaptive": adaptive, **facts}
    return Entry(where=where, description=description, facts=facts)


DEFENSES: dict[str, Entry] = {
    "dp_sgd": _client(
        "seepage.defenses.dp_sgd:dp_sgd",
        "DP-SGD on the client: clip every example's gradient, add noise, then send.",
        "The bound holds against every attacker; knowing sigma helps to average over rounds, which the "
        "accountant counts (sampling rate 1, one composition a local epoch and round).",
        guarantee="formal (DP)",
        replaces_training=True,
    ),
    "user_dp": _client(
        "seepage.defenses.user_dp:user_dp",
        "DP for a whole client, on the client: clip the update it sends, add noise, then send.",
        "The bound holds against every attacker; knowing sigma helps to average over rounds, which the "
        "accountant counts (every client in every round).",
        guarantee="formal (DP)",
    ),
    "central_dp": _client(
        "seepage.defenses.central_dp:central_dp",
        "Clients clip, the server adds the noise to the aggregate, or leaves it out.",
        "A dishonest server leaves the noise out, and only clipping is left.",
        runs_at="server",
        trusts="the server: to add the noise, and to look at no single update",
        guarantee="formal (DP)",
    ),
    "clipping": _client(
        "seepage.defenses.clipping:clipping",
        "Scale the whole update down to a bounded norm.",
        "None needed: one factor cancels in every quotient of two entries.",
    ),
    "gaussian_noise": _client(
        "seepage.defenses.gaussian_noise:gaussian_noise",
        "Add Gaussian noise to every entry of the update; without clipping it bounds nothing.",
        "Read sigma off entries that must be zero (dead neurons); average over rows and rounds.",
    ),
    "pruning": _client(
        "seepage.defenses.pruning:pruning",
        "Send only the largest entries of every tensor, zeros for the rest.",
        "Match or divide on the entries that are not zero, and pool them over rows.",
    ),
    "quantisation": _client(
        "seepage.defenses.quantisation:quantisation",
        "Round every entry to one of 2^bits - 1 levels.",
        "Read the rows with large entries, where rounding is relatively small, and average them.",
    ),
    "sign": _client(
        "seepage.defenses.sign:sign",
        "Send the signs only, with one magnitude a tensor.",
        "Match signs instead of values.",
    ),
    "soteria": _client(
        "seepage.defenses.soteria:soteria",
        "Zero the columns of a dense layer's gradient that reveal most about the input.",
        "Leave the defended layer's zero columns out of the matching (Balunovic et al. 2022).",
        reads_data=True,
    ),
    "oasis": _client(
        "seepage.defenses.oasis:oasis",
        "Train on every image together with rotated, flipped or sheared copies of it.",
        "Solve for the original under the known transforms; crafted rows can tell the copies apart.",
        reads_data=True,
    ),
    "share_layers": _client(
        "seepage.defenses.share_layers:share_layers",
        "Send some layers only; by default all but the first.",
        "Match the shared layers only; features read there can be inverted.",
    ),
    "hide_bias": _client(
        "seepage.defenses.hide_bias:hide_bias",
        "Send zeros or noise for the bias gradient of the first dense layer.",
        "Rows are still multiples of inputs: scale them by the known value range.",
    ),
    "larger_batches": _protocol(
        "seepage.defenses.measures:larger_batches",
        "More examples behind every update.",
        "the server: to leave the batch size alone",
        "The attacks here know the batch size; crafted weights undo it (Boenisch et al., Section 9.3).",
    ),
    "local_averaging": _protocol(
        "seepage.defenses.measures:local_averaging",
        "Several local mini-batches and epochs before anything is sent (FedAvg).",
        "the server: to leave the local training alone",
        "The attacks here know the local training and simulate it; rows of crafted weights become averages "
        "(Boenisch et al., Table 9).",
    ),
    "secure_sum": _protocol(
        "seepage.defenses.measures:secure_sum",
        "Secure aggregation: only the sum over the clients can be seen.",
        "that the other contributors are real: a server may fill the sum up with fakes",
        "The sum is one large batch to the attacks here; all-zero fakes single a victim out "
        "(Boenisch et al., Section 10.4: fakes = 3), and minimum_honest is the answer to that.",
    ),
    "median": _protocol(
        "seepage.defenses.measures:median",
        "Only the coordinate-wise median over the clients reaches the server.",
        "whoever takes the median: to keep single updates from the server",
        "Weights may be crafted so that the target is the median (Wen et al., Section 5); the attacks here "
        "read the median as if it were a mean.",
        hides=("individual_updates", "target_client"),
    ),
    "same_model": _protocol(
        "seepage.defenses.measures:same_model",
        "Clients compare the fingerprints of the models that they received, and train only if all agree.",
        "the way on which clients talk to each other: the server must not forge their fingerprints",
        "Send everybody the same crafted model: fishing and traps work under a secure sum too.",
        hides=("different_models",),
    ),
    "refuse_traps": _client(
        "seepage.guardian.refuse:refuse_in_audit",
        "Refuse to train on a received model that the guard calls a trap.",
        "Hide the trap better, or do without: honest weights leak too.",
    ),
    "gate": _client(
        "seepage.gating.middle:gate_in_audit",
        "Measure each update before it leaves, and leave out the examples that it would give away.",
        "Read what the gate's measures do not see, over several rounds in particular.",
        reads_data=True,
    ),
}

"""The registry of defenses, each with its place, its trust, its guarantee and the answer to it."""

from __future__ import annotations

from seepage.defenses.central_dp import central_dp
from seepage.defenses.clipping import clipping
from seepage.defenses.dp_sgd import dp_sgd
from seepage.defenses.entry import DefenseEntry
from seepage.defenses.gaussian_noise import gaussian_noise
from seepage.defenses.hide_bias import hide_bias
from seepage.defenses.oasis import oasis
from seepage.defenses.pruning import pruning
from seepage.defenses.quantisation import quantisation
from seepage.defenses.share_layers import share_layers
from seepage.defenses.sign import sign
from seepage.defenses.soteria import soteria

NOBODY = "nobody"

DEFENSES: dict[str, DefenseEntry] = {
    "dp_sgd": DefenseEntry(
        build=dp_sgd,
        description="DP-SGD on the client: clip every example's gradient, add noise, then send.",
        runs_at="client",
        trusts=NOBODY,
        guarantee="formal (DP)",
        adaptive="The bound holds against every attacker; knowing sigma helps to average over rounds, which "
        "the accountant counts (sampling rate 1, one composition a local epoch and round).",
        replaces_training=True,
    ),
    "central_dp": DefenseEntry(
        build=central_dp,
        description="Clients clip, the server adds the noise to the aggregate, or leaves it out.",
        runs_at="server",
        trusts="the server: to add the noise, and to look at no single update",
        guarantee="formal (DP)",
        adaptive="A dishonest server leaves the noise out, and only clipping is left.",
    ),
    "clipping": DefenseEntry(
        build=clipping,
        description="Scale the whole update down to a bounded norm.",
        runs_at="client",
        trusts=NOBODY,
        guarantee="heuristic",
        adaptive="None needed: one factor cancels in every quotient of two entries.",
    ),
    "gaussian_noise": DefenseEntry(
        build=gaussian_noise,
        description="Add Gaussian noise to every entry of the update; without clipping it bounds nothing.",
        runs_at="client",
        trusts=NOBODY,
        guarantee="heuristic",
        adaptive="Read sigma off entries that must be zero (dead neurons); average over rows and rounds.",
    ),
    "pruning": DefenseEntry(
        build=pruning,
        description="Send only the largest entries of every tensor, zeros for the rest.",
        runs_at="client",
        trusts=NOBODY,
        guarantee="heuristic",
        adaptive="Match or divide on the entries that are not zero, and pool them over rows.",
    ),
    "quantisation": DefenseEntry(
        build=quantisation,
        description="Round every entry to one of 2^bits - 1 levels.",
        runs_at="client",
        trusts=NOBODY,
        guarantee="heuristic",
        adaptive="Read the rows with large entries, where rounding is relatively small, and average them.",
    ),
    "sign": DefenseEntry(
        build=sign,
        description="Send the signs only, with one magnitude a tensor.",
        runs_at="client",
        trusts=NOBODY,
        guarantee="heuristic",
        adaptive="Match signs instead of values.",
    ),
    "soteria": DefenseEntry(
        build=soteria,
        description="Zero the columns of a dense layer's gradient that reveal most about the input.",
        runs_at="client",
        trusts=NOBODY,
        guarantee="heuristic",
        adaptive="Leave the defended layer's zero columns out of the matching (Balunovic et al. 2022).",
        reads_data=True,
    ),
    "oasis": DefenseEntry(
        build=oasis,
        description="Train on every image together with rotated, flipped or sheared copies of it.",
        runs_at="client",
        trusts=NOBODY,
        guarantee="heuristic",
        adaptive="Solve for the original under the known transforms; crafted rows can tell the copies apart.",
        reads_data=True,
    ),
    "share_layers": DefenseEntry(
        build=share_layers,
        description="Send some layers only; by default all but the first.",
        runs_at="client",
        trusts=NOBODY,
        guarantee="heuristic",
        adaptive="Match the shared layers only; features read there can be inverted.",
    ),
    "hide_bias": DefenseEntry(
        build=hide_bias,
        description="Send zeros or noise for the bias gradient of the first dense layer.",
        runs_at="client",
        trusts=NOBODY,
        guarantee="heuristic",
        adaptive="Rows are still multiples of inputs: scale them by the known value range.",
    ),
}
"""By the name that an audit file uses."""

"""Threat models: what each grants, and that nothing else is shown or claimed."""

from __future__ import annotations

import itertools

import pytest
import torch

from seepage.core.errors import SpecError
from seepage.core.types import Batch, Grant, InputSpec, Knowledge, LocalTraining, Modality
from seepage.protocol import (
    THREATS,
    ThreatModel,
    custom_threat,
    describe_knowledge,
    effective_grants,
    knowledge,
    missing_grants,
    server_sees,
)

TOLD = {"batch_size", "local_training", "buffers", "value_range", "normalisation"}
EXPECTED = {
    "honest_but_curious": (TOLD | {"individual_updates"}, 1),
    "honest_but_curious_aggregate": (TOLD, 1),
    "outsider": ({"individual_updates"}, 1),
    "malicious_server": (
        TOLD
        | {
            "individual_updates",
            "craft_weights",
            "target_client",
            "several_rounds",
            "different_models",
            "choose_clients",
        },
        1000,
    ),
    "malicious_server_secure_aggregation": (TOLD | {"craft_weights", "several_rounds"}, 1000),
}
SPEC = InputSpec(
    modality=Modality.IMAGE, shape=(1, 2, 2), num_classes=3, value_range=(0.0, 1.0), mean=(0.5,), std=(0.2,)
)
PUBLIC = Batch(torch.rand(4, 1, 2, 2), torch.tensor([0, 1, 2, 0]))
LOCAL = LocalTraining(algorithm="fedavg", lr=0.25)


def known_to(threat: ThreatModel, aggregation: str = "per_client", spec: InputSpec = SPEC) -> Knowledge:
    return knowledge(
        threat, aggregation, spec=spec, loss="cross_entropy", local=LOCAL, auxiliary=PUBLIC, seed=9
    )


def of(*grants: Grant) -> ThreatModel:
    return ThreatModel(name="test", description="", grants=frozenset(grants))


def test_named_threats_grant_what_their_table_says() -> None:
    assert {n: ({str(g) for g in t.grants}, t.rounds) for n, t in THREATS.items()} == EXPECTED
    assert all(name == threat.name for name, threat in THREATS.items())


def test_custom_threat_adds_and_removes() -> None:
    threat = custom_threat("honest_but_curious", grant=["labels"], deny=["buffers", "batch_size"])
    expected = THREATS["honest_but_curious"].grants | {Grant.LABELS}
    assert threat.grants == expected - {Grant.BUFFERS, Grant.BATCH_SIZE}
    assert threat.name == "honest_but_curious +labels -batch_size -buffers"
    assert custom_threat("outsider") == THREATS["outsider"]
    assert custom_threat("malicious_server") == THREATS["malicious_server"]
    assert THREATS["honest_but_curious"].rounds == 1  # the table itself is not changed


def test_rounds_follow_the_grant_of_several_rounds() -> None:
    assert custom_threat("malicious_server", deny=["several_rounds"]).rounds == 1
    assert custom_threat("malicious_server", rounds=7).rounds == 7
    assert custom_threat("honest_but_curious", grant=["craft_weights", "several_rounds"]).rounds == 1000
    assert custom_threat("honest_but_curious", rounds=1).rounds == 1
    with pytest.raises(SpecError) as error:
        custom_threat("malicious_server", deny=["several_rounds"], rounds=5)
    assert str(error.value) == (
        "the threat model 'malicious_server' is given rounds = 5 but not the grant that allows them: "
        "add grant = ['several_rounds'], or leave rounds out."
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"base": "outsidr"}, "unknown threat model 'outsidr': did you mean 'outsider'"),
        ({"base": "outsider", "grant": ["label"]}, "unknown grant 'label': did you mean 'labels'"),
        ({"base": "outsider", "deny": ["x"]}, "unknown grant 'x'"),
        (
            {"base": "outsider", "grant": ["labels"], "deny": ["labels"]},
            "both grants and denies labels: keep one of the two.",
        ),
    ],
)
def test_custom_threat_refuses(arguments, sentence) -> None:
    with pytest.raises(SpecError, match=sentence):
        custom_threat(**arguments)


NEEDS = frozenset({Grant.INDIVIDUAL_UPDATES, Grant.LABELS})


@pytest.mark.parametrize(
    ("requires", "threat", "aggregation", "sentence"),
    [
        (NEEDS, of(*NEEDS), "per_client", ""),
        (frozenset(), of(), "secure_sum", ""),
        (
            NEEDS,
            of(Grant.INDIVIDUAL_UPDATES),
            "mean",
            "needs labels, which the threat model 'test' does not grant: "
            "choose another threat model, or grant = ['labels'] in a custom one.",
        ),
        (
            NEEDS,
            of(*NEEDS),
            "secure_sum",
            "needs individual_updates, which aggregation = 'secure_sum' hides: choose another aggregation.",
        ),
        (
            NEEDS,
            of(Grant.INDIVIDUAL_UPDATES),
            "secure_sum",
            "needs individual_updates, which aggregation = 'secure_sum' hides and labels, which the threat "
            "model 'test' does not grant: choose another aggregation, and choose another threat model, or "
            "grant = ['labels'] in a custom one.",
        ),
        (
            frozenset({Grant.INDIVIDUAL_UPDATES}),
            of(),
            "secure_sum",
            "needs individual_updates, which aggregation = 'secure_sum' hides: choose another aggregation, "
            "and choose another threat model, or grant = ['individual_updates'] in a custom one.",
        ),
    ],
)
def test_missing_grants_says_what_hides_and_what_is_denied(requires, threat, aggregation, sentence) -> None:
    assert missing_grants(requires, threat, aggregation) == sentence


@pytest.mark.parametrize("threat", [*THREATS.values(), of(*Grant), of()], ids=lambda t: t.name)
def test_a_secure_sum_hides_single_updates_and_targets_whatever_the_threat(threat) -> None:
    hidden = {Grant.INDIVIDUAL_UPDATES, Grant.TARGET_CLIENT}
    assert not effective_grants(threat, "secure_sum") & hidden
    assert server_sees(threat, "secure_sum", 3) == "only the secure sum of 3 client(s)"
    for rule in ("per_client", "mean", "median"):
        assert effective_grants(threat, rule) == threat.grants  # none of these has labels without batch_size


def test_what_the_server_sees_in_words() -> None:
    full, aggregate_only = of(Grant.INDIVIDUAL_UPDATES), of()
    assert server_sees(full, "mean", 4) == server_sees(full, "per_client", 4) == "each client's update"
    assert server_sees(aggregate_only, "median", 4) == "only the median over 4 client(s)"


FIELDS = {
    Grant.VALUE_RANGE: lambda k: k.input.value_range,
    Grant.NORMALISATION: lambda k: k.input.mean and k.input.std,
    Grant.LOCAL_TRAINING: lambda k: k.local,
    Grant.AUXILIARY: lambda k: k.auxiliary,
}


@pytest.mark.parametrize("grant", FIELDS, ids=str)
def test_knowledge_blanks_what_is_not_granted(grant) -> None:
    only, all_but = known_to(of(grant)), known_to(of(*(set(Grant) - {grant})))
    for other, read in FIELDS.items():
        assert (read(only) is not None) == (other is grant)
        assert (read(all_but) is None) == (other is grant)
    assert only.normalised == (grant is not Grant.NORMALISATION)
    assert only.seed == 9


def test_unnormalised_inputs_are_not_called_normalised() -> None:
    plain = InputSpec(modality=Modality.IMAGE, shape=(1, 2, 2), num_classes=3)
    assert not known_to(of(), spec=plain).normalised
    assert known_to(of(Grant.VALUE_RANGE), spec=plain).input.value_range == (0.0, 1.0)


CLAIMS = {
    Grant.BATCH_SIZE: ("How many examples are behind", "Not how many examples"),
    Grant.LABELS: ("The labels.", "Not the labels."),
    Grant.LOCAL_TRAINING: ("The local training settings", "Not the local training settings"),
    Grant.VALUE_RANGE: ("That raw values lie in [0, 1].", None),
    Grant.NORMALISATION: ("How inputs are normalised.", "Not how inputs are normalised"),
    Grant.AUXILIARY: ("4 other examples of the same kind, none of them a client's.", None),
}


def test_descriptions_never_contradict_the_grants() -> None:
    """All 64 combinations of the grants that a sentence is about."""
    for size in range(len(CLAIMS) + 1):
        for chosen in itertools.combinations(CLAIMS, size):
            threat = of(*chosen)
            sentences = describe_knowledge(threat, "per_client", known_to(threat))
            for grant, (yes, no) in CLAIMS.items():
                # who has the labels can count them
                granted = grant in chosen or (grant is Grant.BATCH_SIZE and Grant.LABELS in chosen)
                assert any(s.startswith(yes) for s in sentences) == granted, (chosen, grant)
                if no is not None:
                    assert any(s.startswith(no) for s in sentences) != granted, (chosen, grant)


def test_labels_imply_the_batch_size() -> None:
    threat = custom_threat("honest_but_curious", grant=["labels"], deny=["batch_size"])
    assert Grant.BATCH_SIZE in effective_grants(threat, "per_client")
    assert missing_grants(frozenset({Grant.BATCH_SIZE}), threat, "per_client") == ""

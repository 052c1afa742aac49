"""The verdict's level and its exact sentences for logs whose answer is known."""

from __future__ import annotations

import pytest

from seepage.record import TIME_UP, Cost, DefenseRecord, DefenseRef, NotTried, summarise
from seepage.report import AuditVerdict, verdict


def judge(builder) -> AuditVerdict:
    log = builder.build()
    return verdict(log, summarise(log))


def test_exact_images_from_one_update_with_all_details(new_log):
    builder = new_log().add_images("prior_only", [10.0] * 20)
    found = judge(builder.add_images("analytic", [100.0] * 14 + [10.0] * 6))
    assert found.level == "high"
    assert found.headline == "A curious server recovers 14 of 20 images exactly from one update."
    # mean (14*100 + 6*10)/20 = 73; the ends are those of seepage.record
    interval = summarise(builder.build())[1].scores["psnr"]
    assert found.details == (
        f"Mean PSNR of analytic: 73.0 dB (95 % interval {interval.low:.1f} to {interval.high:.1f}), "
        "against 10.0 dB (all equal) for the best guess without any update.",
        "Measured on one batch of 20 images: the interval says nothing about other batches.",
        "This is a lower bound: stronger attacks may recover more.",
    )


@pytest.mark.parametrize(
    ("spec", "grants", "rounds", "seeds", "headline"),
    [
        ({}, (), 1, 1, "A curious server recovers 1 of 1 image exactly from one update."),
        ({"protocol": "odd"}, (), 5, 1, "A curious server recovers 1 of 1 image exactly from 5 updates."),
        (
            {"protocol": {"clients": 8, "aggregation": "secure_sum"}},
            ("craft_weights",),
            1,
            1,
            "A dishonest server recovers 1 of 1 image exactly from the secure sum of 8 clients.",
        ),
        (
            {"protocol": {"clients": 8, "aggregation": "none"}},
            (),
            3,
            1,
            "A curious server recovers 1 of 1 image exactly from the updates of 8 clients over 3 rounds.",
        ),
        (
            {"protocol": {"clients": 4, "aggregation": "median"}},
            (),
            1,
            1,
            "A curious server recovers 1 of 1 image exactly from the median of 4 clients' updates.",
        ),
        (
            {"protocol": {"clients": 1}},
            (),
            1,
            2,
            "A curious server recovers 2 of 2 images exactly from one update in each of 2 runs.",
        ),
    ],
)
def test_what_the_server_looked_at(new_log, spec, grants, rounds, seeds, headline):
    builder = new_log(spec=spec, grants=grants, seeds=tuple(range(seeds)))
    for seed in range(seeds):
        cost = Cost(seconds=1, rounds=rounds, peak_memory_mb=1)
        builder.add_images("analytic", [100.0], seed=seed, cost=cost)
    assert judge(builder).headline == headline


def test_the_attack_that_needs_less_is_named_first(new_log):
    """Both are exact on every image: no crafted weights is the worse news, then fewer updates."""
    builder = new_log(grants=("craft_weights",))
    for name, crafted, rounds in (("fishing", True, 5), ("reading", False, 2), ("peeling", False, 1)):
        cost = Cost(seconds=1, rounds=rounds, peak_memory_mb=1)
        builder.add_images(name, [100.0, 100.0], cost=cost, crafted=crafted)
    assert judge(builder).headline == "A curious server recovers 2 of 2 images exactly from one update."


def test_secure_sum_is_read_from_the_threat_model_when_the_protocol_is_silent(new_log):
    builder = new_log(spec={}, threat_changes={"server_sees": "only the secure sum of the updates"})
    builder.add_images("analytic", [100.0, 12.0])
    assert judge(builder).headline == (
        "A curious server recovers 1 of 2 images exactly from the secure sum of 1 client."
    )


def test_texts_and_rows_have_their_own_nouns(new_log):
    text = new_log(modality="text").add("tag", [{"token_accuracy": 1.0, "exact": 1.0}], guess={"exact": 0.0})
    assert judge(text).headline == "A curious server recovers 1 of 1 text exactly from one update."
    rows = new_log(modality="tabular").add(
        "rows", [{"rmse": 0.0, "exact": 1.0}, {"rmse": 1.0, "exact": 0.0}], guess={"rmse": 1.0, "exact": 0.0}
    )
    assert judge(rows).headline == "A curious server recovers 1 of 2 rows exactly from one update."


@pytest.mark.parametrize(
    ("values", "level", "headline"),
    [
        (
            [13.0, 13.0],
            "high",
            "On average, a curious server rebuilds the images far better than guessing from one update.",
        ),
        (
            [12.9, 12.9],
            "some",
            "On average, a curious server rebuilds the images better than guessing from one update.",
        ),
        ([10.0, 10.0], "none_shown", "No attack run here recovered anything beyond the baseline guess."),
        # a single image has no interval: 2.9 dB are then not enough, 3 dB are
        ([12.9], "none_shown", "No attack run here recovered anything beyond the baseline guess."),
        ([13.0], "high", "A curious server rebuilds the image far better than guessing from one update."),
    ],
)
def test_the_margin_of_three_decibels(new_log, values, level, headline):
    found = judge(new_log().add_images("invert", values, guess=10.0))
    assert (found.level, found.headline) == (level, headline)


def test_nothing_shown_is_not_called_safe(new_log):
    found = judge(new_log().add_images("invert", [9.0, 9.5]))
    assert "That is not a proof of safety: stronger attacks exist." in found.details
    assert not any("lower bound" in d for d in found.details)


@pytest.mark.parametrize("psnr", [9.0, 100.0])
def test_a_filter_that_nobody_here_knows_is_named_in_the_verdict(new_log, psnr):
    """It may have stopped attacks that do not know it: the page's notes alone would be too far away."""
    names = ("clipping", "nvflare:SVTPrivacy", "flower:secaggplus_mod", "nvflare:hospital.filters.Own")
    points = [
        DefenseRecord(defense=DefenseRef(name=name), description="", guarantee="heuristic") for name in names
    ]
    found = judge(new_log(header_changes={"defenses": points}).add_images("invert", [psnr, psnr]))
    said = [detail for detail in found.details if "not attacked adaptively" in detail]
    assert said == [
        "Nothing here knows how to undo nvflare:hospital.filters.Own: it was not attacked adaptively."
    ]


def test_lower_errors_leak_more(new_log):
    def of(value: float) -> str:
        scores = [{"rmse": value, "exact": 0.0}] * 2
        return judge(new_log(modality="tabular").add("r", scores, guess={"rmse": 1.0, "exact": 0.0})).level

    assert [of(0.70), of(0.72), of(1.1)] == ["high", "some", "none_shown"]  # 1/sqrt(2) = 0.707


def test_one_example_far_ahead_is_not_hidden_by_the_mean(new_log):
    found = judge(new_log().add_images("invert", [16.0, 9.0, 9.0, 9.0]))
    assert found.level == "some"
    assert found.headline == (
        "A curious server rebuilds 1 of 4 images far better than guessing from one update, "
        "though on average it is not shown to do better than the guess."
    )
    unmatched = new_log().add_images("invert", [16.0, 9.0, 9.0, 9.0], recovered=[False, True, True, True])
    assert judge(unmatched).level == "none_shown"  # grey happens to be near: not recovered


def test_exact_features_are_some_leakage_in_words(new_log):
    scores = [{"relative_error": 0.0, "exact": 1.0}, {"relative_error": 0.9, "exact": 0.0}]
    guess = {"relative_error": 1.0, "exact": 0.0}
    found = judge(new_log().add("analytic", scores, guess=guess, space="fc1"))
    assert found.level == "some"
    assert found.headline == (
        "A curious server rebuilds the features that enter layer 'fc1' exactly for 1 of 2 images "
        "from one update, but not the images themselves."
    )


def test_exact_guesses_of_the_baseline_are_no_finding(new_log):
    guess = {"psnr": 100.0, "exact": 1.0}
    same = new_log().add("invert", [{"psnr": 100.0, "exact": 1.0}] * 3, guess=guess)
    assert judge(same).level == "none_shown"


def test_labels_count_only_when_not_granted_and_beyond_the_baseline(new_log):
    def of(accuracy: float, grants: tuple[str, ...] = ()) -> AuditVerdict:
        builder = new_log(grants=grants, seeds=(0, 1))
        for seed in (0, 1):
            builder.add_images("prior_only", [10.0, 10.0], seed=seed, batch_scores={"label_accuracy": 0.3})
            builder.add_images("invert", [9.0, 9.0], seed=seed, batch_scores={"label_accuracy": accuracy})
        return judge(builder)

    leak = of(0.95)
    assert (leak.level, leak.headline) == (
        "some",
        "A curious server infers 95 % of the labels from one update in each of 2 runs, "
        "but recovers no image beyond the baseline guess.",
    )
    assert of(0.95, ("labels",)).level == "none_shown"
    assert of(0.3).level == "none_shown"
    assert of(0.3).headline == "No attack run here recovered any image beyond the baseline guess."


def test_unknown_when_no_attack_finished(new_log):
    assert judge(new_log().add_images("prior_only", [10.0, 10.0])).level == "unknown"
    waiting = judge(new_log().add_images("prior_only", [10.0]).plan("invert"))
    assert waiting.headline == "No attack has finished, so nothing can be said yet."
    assert waiting.details == ("Partial log: 1 of 2 cells is missing; run the same command again to finish.",)
    refused = judge(new_log().add_status("trap", "not_applicable", "no linear layer"))
    assert refused.level == "unknown"
    assert refused.headline == "No attack of this audit can work in this setting, so nothing was measured."
    assert refused.details[0] == "Not applicable here: trap (no linear layer)."


def test_the_strongest_attack_speaks(new_log):
    builder = new_log().add_images("weak", [9.0, 9.0]).add_images("mean", [20.0, 20.0])
    assert judge(builder.add_images("strong", [100.0, 5.0])).headline.startswith(
        "A curious server recovers 1 of 2 images exactly"
    )


def test_there_are_three_verdicts(new_log):
    shown = judge(new_log().add_images("a", [100.0]))
    partly = judge(new_log().add_images("a", [12.9, 12.9]))
    one = judge(new_log().add_images("a", [10.0, 10.0]))
    two = judge(new_log().add_images("a", [10.0, 10.0]).add_images("b", [9.0, 9.0]))
    nothing = judge(new_log().add_status("a", "failed", "out of memory"))
    assert [(v.outcome, v.badge) for v in (shown, partly, one, two, nothing)] == [
        ("leak_shown", "Leak shown"),
        ("leak_shown", "Leak shown, in part"),
        ("not_shown", "Not shown by this attack"),
        ("not_shown", "Not shown by these 2 attacks"),
        ("not_measured", "Not measured"),
    ]


def test_what_was_not_shown_names_what_was_not_tried_and_why(new_log):
    left = (
        NotTried(name="april", why="does_not_fit", reason="the model has no patches."),
        NotTried(name="tag", why="not_listed", reason="the audit names its attacks."),
        NotTried(name="idlg", why="not_listed", reason="the audit names its attacks."),
        NotTried(name="trap_weights", why="not_granted", reason="it needs craft_weights."),
        NotTried(name="deep_leakage", why="over_budget", reason="no time was left."),
    )
    wanted = (
        "Not applicable here: reading (the first layer is frozen).",
        "Failed: search (KeyError: 'weight').",
        "Fit this deployment but were not tried: tag and idlg.",
        "Not tried for want of time: deep_leakage.",
        "Not tried: 1 attack made for other models, data or protocols and 1 attack ruled out by this threat "
        "model.",
    )

    def log(value: float):
        builder = new_log(header_changes={"not_tried": left}).add_images("prior_only", [10.0, 10.0])
        builder.add_images("invert", [value, value])
        builder.add_status("reading", "not_applicable", "the first layer is frozen")
        return builder.add_status("search", "failed", "KeyError: 'weight'.")

    found = judge(log(10.0))
    assert found.outcome == "not_shown" and found.details[-len(wanted) :] == wanted
    assert found.badge == "Not shown by this attack"  # those that did not run are not counted
    shown = judge(log(100.0))
    assert "Not applicable here: reading; the reason is given below." in shown.details
    assert not any("not tried" in detail.lower() for detail in shown.details)


def test_scores_that_are_no_numbers_are_not_below_anything(new_log):
    nan = float("nan")
    alone = judge(new_log().add_images("a", [nan, 10.0]))
    assert alone.outcome == "not_measured"
    assert alone.headline == "The scores of every attack are no numbers, so nothing was measured."
    assert "Not counted, for its scores are no numbers: a." in alone.details
    beside = judge(new_log().add_images("a", [nan, 10.0]).add_images("b", [10.0, 10.0]))
    assert beside.badge == "Not shown by this attack"
    assert "Not counted, for its scores are no numbers: a." in beside.details
    guessed = judge(new_log().add_images("a", [10.0, 10.0], guess=nan))
    assert guessed.outcome == "not_measured"
    exact = judge(new_log().add_images("a", [nan, 100.0]))
    assert exact.outcome == "leak_shown"  # a copy is a copy


def test_scores_without_a_guess_beside_them_were_not_measured(new_log):
    """A log from elsewhere may hold no baseline: then 12 dB are neither above a guess nor below one."""

    def scores(*values: float) -> list[dict[str, float]]:
        return [{"psnr": value, "exact": 0.0} for value in values]

    alone = judge(new_log().add("a", scores(12.0, 12.0), guess={}))
    assert (alone.outcome, alone.badge, alone.measured) == ("not_measured", "Not measured", 0)
    assert alone.headline == "The log holds no baseline to compare an attack with, so nothing was measured."
    assert "Not counted, for the log holds no baseline to compare it with: a." in alone.details
    # a guess for one example, and a score for another only, are not compared either
    crossed = [{"exact": 0.0}, {"psnr": 12.0, "exact": 0.0}]
    apart = judge(new_log().add("a", crossed, guess=[{"psnr": 10.0}, {}]))
    assert apart.outcome == "not_measured"
    spoiled = new_log().add("a", scores(12.0, 12.0), guess={}).add_images("b", [float("nan"), 10.0])
    assert judge(spoiled).headline == (
        "No attack has scores that can be compared with a guess, so nothing was measured."
    )
    beside = judge(new_log().add("a", scores(12.0, 12.0), guess={}).add_images("b", [10.0, 10.0]))
    assert beside.badge == "Not shown by this attack"
    assert "Not counted, for the log holds no baseline to compare it with: a." in beside.details


def test_without_the_main_score_of_such_data_as_many_copies_as_guessed_show_nothing(new_log):
    """One image is a copy, of another the guess is: which of them leaked the rest of the log must say."""
    found = [{"exact": 1.0}, {"exact": 0.0}]
    mixed = judge(new_log().add("a", found, guess=found[::-1]))
    assert (mixed.outcome, mixed.measured) == ("not_measured", 0)
    assert mixed.headline == "The scores of every attack are no numbers, so nothing was measured."


def test_an_attack_that_finished_in_part_is_named(new_log):
    builder = new_log(seeds=(0, 1)).add_images("a", [10.0, 10.0])
    found = judge(builder.add_status("a", "failed", "KeyError: 'x'.", seed=1))
    assert any(d.startswith("Finished only in part: a (1 of 2 runs did not finish") for d in found.details)


def test_an_attack_is_compared_with_the_guess_on_the_same_examples(new_log):
    """Easy and hard batches: the two means' intervals overlap widely, each example gains four decibels."""
    builder = new_log(seeds=(0, 1, 2))
    for seed, level in enumerate((8.0, 14.0, 20.0)):
        guesses = [{"psnr": level + i, "exact": 0.0} for i in range(4)]
        scores = [{"psnr": g["psnr"] + 4.0 + 0.1 * i, "exact": 0.0} for i, g in enumerate(guesses)]
        builder.add("invert", scores, guess=guesses, seed=seed)
    (summary,) = [s for s in summarise(builder.build()) if s.attack.name == "invert"]
    assert summary.scores["psnr"].low < summary.baseline["psnr"].high
    assert judge(builder).level == "high"


def test_differences_that_batches_do_not_share_show_nothing(new_log):
    builder = new_log(seeds=(0, 1, 2))
    for seed, gain in enumerate((4.0, -3.0, 5.0)):
        builder.add_images("invert", [10.0 + gain, 10.1 + gain, 9.9 + gain], guess=10.0, seed=seed)
    assert judge(builder).level == "none_shown"


@pytest.mark.parametrize(
    ("found", "guess", "level"),
    [
        ((1.0, 1.0, 1.0), (0.95, 0.95, 0.95), "none_shown"),  # one label of 20 each may be luck
        ((1.0, 1.0, 1.0), (0.6, 0.7, 0.65), "some"),
        ((0.6, 0.7, 0.65), (1.0, 1.0, 1.0), "none_shown"),
    ],
)
def test_labels_are_compared_batch_by_batch(new_log, found, guess, level):
    builder = new_log(seeds=(0, 1, 2))
    for seed, (mine, theirs) in enumerate(zip(found, guess, strict=True)):
        builder.add_images("prior_only", [10.0] * 20, seed=seed, batch_scores={"label_accuracy": theirs})
        builder.add_images("invert", [10.0] * 20, seed=seed, batch_scores={"label_accuracy": mine})
    assert judge(builder).level == level


def test_a_single_image_has_no_mean_and_no_interval(new_log):
    found = judge(new_log().add_images("invert", [13.0], guess=10.0))
    assert found.details[0] == (
        "PSNR of invert: 13.0 dB, against 10.0 dB for the best guess without any update."
    )


def test_two_images_have_both_and_equal_ones_say_so(new_log):
    found = judge(
        new_log(seeds=(0, 1)).add_images("invert", [13.0], seed=0).add_images("invert", [13.0], seed=1)
    )
    assert found.details[:2] == (
        "Mean PSNR of invert: 13.0 dB (all equal), against 10.0 dB (all equal) for the best guess without "
        "any update.",
        "Measured on 2 images in 2 batches, one for each seed.",
    )


@pytest.mark.parametrize(("count", "selves"), [(1, "image itself"), (2, "images themselves")])
def test_features_that_are_better_than_the_mean_feature(new_log, count, selves):
    scores, guess = [{"relative_error": 0.5, "exact": 0.0}] * count, {"relative_error": 1.0, "exact": 0.0}
    found = judge(new_log().add("analytic", scores, guess=guess, space="fc1"))
    assert (found.level, found.headline) == (
        "some",
        "A curious server rebuilds the features that enter layer 'fc1' better than guessing from one update, "
        f"but not the {selves}.",
    )
    assert found.details[0].endswith("for the mean feature.")


def test_a_copy_needs_no_guess_beside_it(new_log):
    found = judge(new_log().add("invert", [{"psnr": 100.0, "exact": 1.0}], guess={}))
    assert found.headline == "A curious server recovers 1 of 1 image exactly from one update."
    assert found.details[0] == "PSNR of invert: 100.0 dB. The log holds no baseline to compare it with."


def test_single_features_far_ahead_are_no_images(new_log):
    """One of four is far better than the mean feature, the others are worse: nothing to tell about images."""
    scores = [{"relative_error": value, "exact": 0.0} for value in (0.1, 1.1, 1.1, 1.1)]
    guess = {"relative_error": 1.0, "exact": 0.0}
    assert judge(new_log().add("analytic", scores, guess=guess, space="fc1")).level == "none_shown"


@pytest.mark.parametrize(
    ("grants", "guess", "told"),
    [
        ((), 0.3, ["It also infers 95 % of the labels (the baseline 30 %)."]),
        ((), None, ["It also infers 95 % of the labels (this log has no baseline for labels)."]),
        (("labels",), 0.3, []),
    ],
)
def test_labels_are_told_beside_images_unless_they_were_given(new_log, grants, guess, told):
    builder = new_log(grants=grants)
    if guess is not None:
        builder.add_images("prior_only", [10.0] * 20, batch_scores={"label_accuracy": guess})
    builder.add_images("invert", [100.0] * 20, batch_scores={"label_accuracy": 0.95})
    assert [said for said in judge(builder).details if "labels" in said] == told


def test_labels_that_are_the_finding_are_told_once(new_log):
    builder = new_log()
    builder.add_images("prior_only", [10.0] * 20, batch_scores={"label_accuracy": 0.3})
    builder.add_images("invert", [10.0] * 20, batch_scores={"label_accuracy": 0.95})
    found = judge(builder)
    assert "95 % of the labels" in found.headline and not any("labels" in said for said in found.details)


def test_an_example_without_a_guess_of_its_own_does_not_stand_out(new_log):
    """Nor does it keep the others from being judged."""
    scores, guess = (
        [{"psnr": v, "exact": 0.0} for v in (60.0, 16.0, 9.0, 9.0, 9.0)],
        {"psnr": 10.0, "exact": 0.0},
    )
    found = judge(new_log().add("invert", scores, guess=[{}, guess, guess, guess, guess]))
    assert found.headline.startswith("A curious server rebuilds 1 of 5 images far better than guessing")


def test_a_log_without_the_baseline_is_judged_too(new_log):
    log = new_log().add_images("invert", [13.0], batch_scores={"label_accuracy": 1.0}).build()
    attacks = [summary for summary in summarise(log) if summary.attack.name != "prior_only"]
    found = verdict(log, attacks)
    assert found.level == "high"
    assert "It also infers 100 % of the labels (this log has no baseline for labels)." in found.details


def test_claims_that_take_the_declared_number_at_its_word_say_so_where_nobody_checked_them(new_log):
    for conditional in (False, True):
        builder = new_log(seeds=(0,)).add(
            "reader", [], guess={}, claims=2, claims_right=None, claimed_examples=2,
            claims_if_declared=conditional,
        )  # fmt: skip
        found = judge(builder)
        assert found.level == "claimed"
        said = any("declared the right number of their examples" in detail for detail in found.details)
        assert said is conditional


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            [9.0, 9.5],
            [
                "Stopped by the time budget: invert in 1 of 2 runs; a longer budget (--budget, or its own) "
                "may find more."
            ],
        ),
        ([100.0, 100.0], []),  # nothing was left to be found
    ],
)
def test_a_search_that_ran_out_of_time_is_told_on_the_first_screen(new_log, values, told):
    builder = new_log(seeds=(0, 1))
    for seed in (0, 1):
        builder.add_images("prior_only", [10.0, 10.0], seed=seed)
        builder.add_images("invert", values, seed=seed, notes=(TIME_UP,) if seed else ())
        builder.add_images("other", [9.0, 9.0], seed=seed)
    found = judge(builder)
    assert [said for said in found.details[: found.first] if "time budget" in said] == told
    assert found.details[1].startswith("Measured on 4 images") and found.first == 2 + len(told)

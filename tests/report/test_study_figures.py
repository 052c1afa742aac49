"""The figures: theory's bound, the Pareto front, leakage, and the words made of them."""

from __future__ import annotations

import io
import itertools
import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from seepage.record import (
    SHARE,
    AttackRef,
    AuditLog,
    Cell,
    DefenseRecord,
    DefenseRef,
    Estimate,
    Example,
    Header,
    InputRecord,
    RunFolder,
    RunHeader,
    RunLog,
    ThreatRecord,
)
from seepage.report.charts.tradeoff import TradeoffPlot, build_plot
from seepage.report.study import (
    DefenseRow,
    StudyResult,
    advise,
    pareto_front,
    print_study,
    reconstruction_bound,
    study_html,
)
from seepage.report.study.leakage import Leak, leak, removed_error
from seepage.report.study.result import _counted_spaces, _leaks, _row, _short_title, _with_stopped
from seepage.report.study.words import leak_text


def test_the_bound_is_reached_by_the_best_attacker_of_a_simulated_mechanism() -> None:
    """T noisy releases of 0 or of the clipping norm; the likelihood-ratio test is set by the former."""
    rng = np.random.default_rng(0)
    for sigma, steps, kappa in ((1.0, 1, 0.05), (2.0, 5, 0.1), (4.0, 9, 0.01)):
        without = rng.normal(0.0, sigma, size=(200_000, steps)).sum(axis=1)
        with_it = rng.normal(1.0, sigma, size=(200_000, steps)).sum(axis=1)
        success = float((with_it > np.quantile(without, 1 - kappa)).mean())
        bound = reconstruction_bound(sigma=sigma, steps=steps, prior_success=kappa)
        assert success == pytest.approx(bound, abs=0.01)


def test_no_attacker_who_looks_at_one_release_only_exceeds_the_bound() -> None:
    rng = np.random.default_rng(1)
    without, with_it = rng.normal(0, 2, (200_000, 4)), rng.normal(1, 2, (200_000, 4))
    success = (with_it[:, 0] > np.quantile(without[:, 0], 0.9)).mean()
    assert success < reconstruction_bound(sigma=2.0, steps=4, prior_success=0.1) - 0.05


def test_the_bound_at_its_ends() -> None:
    assert reconstruction_bound(sigma=0.0, prior_success=0.3) == 1.0
    assert reconstruction_bound(sigma=1.0, steps=0, prior_success=0.3) == 0.3
    assert reconstruction_bound(sigma=1e9, prior_success=0.3) == pytest.approx(0.3)
    for wrong in ({"prior_success": 0.0}, {"prior_success": 1.0}, {"steps": -1}):
        with pytest.raises(ValueError, match="must"):
            reconstruction_bound(**{"sigma": 1.0, **wrong})  # type: ignore[arg-type]


def test_the_front_of_hand_made_points() -> None:
    points = [
        (0.9, 1.0),
        (0.9, 0.9),
        (0.5, 0.1),
        (0.5, 0.1),
        (0.4, 0.1),
        (None, 0.0),
        (0.2, 0.0),
        (0.95, None),
    ]
    assert pareto_front(points) == [False, True, True, True, False, False, True, False]
    assert pareto_front([(0.9, 1.0), (0.9, 0.99999)]) == [True, True]  # a rounding error protects nobody


def test_the_front_agrees_with_its_definition_on_all_small_grids() -> None:
    values = (0.1, 0.5, 0.9)
    for points in itertools.combinations(itertools.product(values, values), 4):
        expected = [not any((a > c and b <= d) or (a >= c and b < d) for a, b in points) for c, d in points]
        assert pareto_front(points) == expected


def test_leakage_is_the_error_removed() -> None:
    assert removed_error({"mse": 0.0}, {"mse": 0.1}) == 1.0
    assert removed_error({"rmse": 1.0}, {"rmse": 2.0}) == 0.75
    assert removed_error({"token_accuracy": 0.75}, {"token_accuracy": 0.5}) == 0.5
    assert removed_error({"relative_error": 2.0, "cosine": 0.1}, {"relative_error": 1.0}) == 0.0
    assert math.isnan(removed_error({"mse": math.nan}, {"mse": 0.1}))
    assert math.isnan(removed_error({"mse": 0.1}, {"mse": math.nan}))
    assert removed_error({"mse": math.inf}, {"mse": 0.1}) == 0.0


def cell(seed: int, *errors: float, status: str = "done") -> Cell:
    examples = tuple(
        Example(
            index=i,
            client=0,
            label=0,
            recovered=True,
            scores={"mse": e, "psnr": -10 * math.log10(e + 1e-10), "exact": float(e == 0)},
            baseline={"mse": 0.1, "psnr": 10.0, "exact": 0.0},
        )
        for i, e in enumerate(errors)
    )
    return Cell(attack=AttackRef(name="a"), seed=seed, status=status, examples=examples)  # type: ignore[arg-type]


def test_an_attack_is_summed_up_over_seeds() -> None:
    found = leak(AttackRef(name="a"), [cell(0, 0.0, 0.1), cell(1, 0.05, 0.05)], planned=2)
    assert found.status == "done" and (found.exact_count, found.examples) == (1, 4)
    assert found.leakage == Estimate.of([[1.0, 0.0], [0.5, 0.5]], SHARE)
    assert found.exact == Estimate.of_counts([(1, 2), (0, 2)])
    assert found.metric == "psnr" and found.baseline == Estimate.of([[10.0, 10.0], [10.0, 10.0]], "dB")
    assert found.main is not None and found.main.value == pytest.approx((100 + 10 + 20 * math.log10(20)) / 4)
    assert found.main.high == 100.0 and found.main.batches == 2


def test_what_did_not_run_is_not_taken_for_safe() -> None:
    assert leak(AttackRef(name="a"), [], planned=2).leakage is None
    assert leak(AttackRef(name="a"), [cell(0, status="failed")], planned=1).leakage is None
    assert leak(AttackRef(name="a"), [cell(0, status="not_applicable")], planned=1).leakage is None
    assert leak(AttackRef(name="a"), [cell(0, 0.0)], planned=2).status == "partial"


def test_scores_that_are_no_numbers_are_not_taken_for_safe() -> None:
    found = leak(AttackRef(name="a"), [cell(0, math.nan, 0.1)], planned=1)
    assert found.leakage is None and found.status == "failed" and "no numbers" in found.reason
    copied = leak(AttackRef(name="a"), [cell(0, math.nan, 0.0)], planned=1)
    assert copied.leakage is not None and copied.leakage.value == 0.5 and copied.status == "partial"


def test_a_defense_stops_only_what_works_without_it() -> None:
    works = leak(AttackRef(name="a"), [cell(0, 0.0)], planned=1)
    ruled_out = leak(AttackRef(name="a"), [cell(0, status="not_applicable")], planned=1)
    failed = leak(AttackRef(name="a"), [cell(0, status="failed")], planned=1)
    stopped = _with_stopped([(works,), (ruled_out,), (failed,)])
    assert stopped[1][0].leakage is not None and stopped[1][0].leakage.value == 0.0
    assert stopped[2][0].leakage is None
    assert all(row[0].leakage is None for row in _with_stopped([(ruled_out,), (ruled_out,)]))


def row(
    name: str, accuracy: float, leakage: float, *, epsilon: float | None = None, **params: object
) -> DefenseRow:
    formal = epsilon is not None
    guarantee = "formal (DP)" if formal else "none" if name == "none" else "heuristic"
    point = DefenseRecord(
        defense=DefenseRef(name=name, params=params),
        description="",
        guarantee=guarantee,
        protects="one example",
        epsilon=epsilon,
        delta=1e-5,
        steps=3 if formal else None,
        sampling_rate=1.0,
    )
    known = Estimate.of([[leakage]], SHARE)
    one = Leak(
        attack=AttackRef(name="attack"), status="done", leakage=known, exact=known, main=known, metric="psnr"
    )
    return DefenseRow(
        point=point,
        accuracy=Estimate.of_counts([(round(1000 * accuracy), 1000)]),
        leaks=(one,),
        worst="attack",
        leakage=known,
        exact=known,
    )


def of_features(one: DefenseRow) -> DefenseRow:
    leaks = tuple(found.model_copy(update={"space": "fc2"}) for found in one.leaks)
    return one.model_copy(update={"leaks": leaks})


def test_features_are_not_inputs() -> None:
    inputs, features = row("none", 0.9, 1.0), of_features(row("clipping", 0.9, 1.0))
    assert _counted_spaces([inputs.leaks, features.leaks]) == {"input"}
    assert _counted_spaces([features.leaks]) == {"input", "fc2"}
    assert "features of layer 'fc2'" in leak_text(features.leaks[0])
    mixed = " ".join(advise(study(inputs, features)).caveats)
    assert "shown in the table there, not counted as leakage" in mixed
    alone = " ".join(advise(study(of_features(inputs), features)).caveats)
    assert "so the leakage is that of features" in alone
    assert "features" not in " ".join(advise(study(inputs, inputs)).caveats)


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        (AttackRef(name="trap_weights"), False),  # peeling is the default
        (AttackRef(name="trap_weights", params={"read": "rows"}), True),
        (
            AttackRef(
                name="adaptive",
                params={"attack": "quantile_traps", "options": {"read": "rows"}, "knows": ["clipping"]},
            ),
            True,
        ),
        (AttackRef(name="analytic_extraction"), False),
        (AttackRef(name="an attack of another version"), False),
    ],
)
def test_a_study_that_reads_single_rows_says_that_more_can_be_read(attack: AttackRef, said: bool) -> None:
    one = row("none", 0.9, 1.0)
    leaks = tuple(found.model_copy(update={"attack": attack}) for found in one.leaks)
    caveats = advise(study(one.model_copy(update={"leaks": leaks}))).caveats
    assert any("read row by row" in caveat for caveat in caveats) is said


def test_where_the_same_attack_peels_too_nothing_is_said_of_single_rows() -> None:
    one = row("none", 0.9, 1.0)
    (leak,) = one.leaks
    peels, rows = AttackRef(name="trap_weights"), AttackRef(name="trap_weights", params={"read": "rows"})
    leaks = tuple(leak.model_copy(update={"attack": attack}) for attack in (rows, peels))
    caveats = advise(study(one.model_copy(update={"leaks": leaks}))).caveats
    assert not any("read row by row" in caveat for caveat in caveats)


def test_only_what_counts_is_in_the_row() -> None:
    inputs, features = row("none", 0.9, 0.4), of_features(row("none", 0.9, 1.0))
    found = _row(
        study(inputs).log.points[0],
        (*inputs.leaks, *features.leaks),
        frozenset({"input"}),
        prior_success=0.01,
    )
    assert found.leakage is not None and found.exact is not None
    assert (found.leakage.value, found.exact.value, len(found.leaks)) == (0.4, 0.4, 2)


def header_of(point: DefenseRecord) -> Header:
    return Header(
        key=point.key,
        title=point.title,
        created="now",
        spec={},
        run_key="",
        seeds=(0,),
        attacks=(),
        threat=ThreatRecord(name="", description="", grants=(), server_sees=""),
        input=InputRecord(modality="image", shape=(1, 4, 4), num_classes=10),
        model_name="m",
        model_parameters=0,
        data_name="d",
        data_source="",
        data_examples=0,
        training_seeds=(0,),
        point=point,
        exact_tolerance=1e-3,
        device="cpu",
        packages={},
        python="",
    )


def study(*rows: DefenseRow, title: str = "a study") -> StudyResult:
    headers = [header_of(r.point) for r in rows]
    spec = {"training": {"rounds": 2, "clients": 2, "examples": 8}, "prior_success": 0.01}
    header = RunHeader(written_by="", kind="study", title=title, spec=spec, run_key="", points=tuple(headers))
    folder = RunFolder(Path("x"))
    logs = [AuditLog(folder.at(one.key), one, ()) for one in headers]
    return StudyResult(RunLog(folder, header, tuple(logs)), rows)


def test_the_ranking_weighs_what_is_stopped_with_what_is_kept() -> None:
    rows = (
        row("none", 0.9, 1.0),
        row("clipping", 0.9, 1.0),
        row("sign", 0.82, 0.1),  # stops 0.9, keeps 0.9
        row("dp_sgd", 0.5, 0.0, epsilon=2.0),  # stops all, keeps half
    )
    advice = advise(study(*rows))
    assert [place.row.point.defense.name for place in advice.ranking] == ["sign", "dp_sgd", "clipping"]
    assert [place.score for place in advice.ranking] == pytest.approx([0.81, 0.5, 0.0])
    assert "sign" in advice.headline and advice.level == "some"
    told = " ".join(advice.details + advice.caveats)
    assert "do not know" in told and "Match signs" in told and "0 exact copies is not safety" in told
    assert "dp_sgd stops" in told  # the best one with a proof is named too


def test_at_equal_scores_a_proof_comes_first_and_a_large_epsilon_is_no_proof() -> None:
    rows = (row("none", 0.9, 1.0), row("sign", 0.8, 0.0), row("dp_sgd", 0.8, 0.0, epsilon=2.0))
    advice = advise(study(*rows))
    assert advice.ranking[0].row.point.formal and advice.level == "none_shown"
    weak = advise(study(*rows[:2], row("dp_sgd", 0.8, 0.0, epsilon=500.0)))
    assert weak.level == "some" and any("promises little" in caveat for caveat in weak.caveats)
    assert any("No defense in this study has a proof" in detail for detail in weak.details)


def test_a_mechanism_without_its_noise_is_not_called_proven() -> None:
    bare = row("dp_sgd", 0.8, 0.5, sigma=0.0)
    caveats = " ".join(advise(study(row("none", 0.9, 1.0), bare)).caveats)
    assert "dp_sgd(sigma=0.0): without the noise" in caveats and "holds against every" not in caveats


def test_where_nothing_can_be_ranked_it_says_so() -> None:
    other = row("sign", 0.8, 0.0)
    assert "cannot rank" in advise(study(row("none", 0.9, 0.0), other)).headline
    assert "did not learn" in advise(study(row("none", 0.1, 1.0), other)).headline
    assert "None of these" in advise(study(row("none", 0.9, 1.0), row("clipping", 0.9, 1.0))).headline


def test_a_defense_that_only_tames_the_learning_rate_is_not_praised_for_it() -> None:
    unstable = advise(study(row("none", 0.3, 1.0), row("clipping", 0.6, 0.5)))
    assert unstable.details[0].startswith("Do not read the accuracies yet")
    assert all(figure in unstable.details[0] for figure in ("ends at 30 %", "clipping at 60 %"))
    stable = advise(study(row("none", 0.55, 1.0), row("clipping", 0.6, 0.5)))
    assert not any("Do not read" in detail for detail in stable.details)


def assert_labels_apart(plot: TradeoffPlot) -> None:
    """No two labels share a point, nor does a label with a mark; a letter is 9 wide and a line 20 high."""
    boxes = []
    for mark in plot.marks:
        width = 9 * len(mark.label)
        left = mark.label_x - width if mark.anchor == "end" else mark.label_x
        boxes.append((left, left + width, mark.label_y - 14, mark.label_y + 6))
    for (a, b, c, d), (e, f, g, h) in itertools.combinations(boxes, 2):
        assert b <= e or f <= a or d <= g or h <= c
    for (a, b, c, d), mark in itertools.product(boxes, plot.marks):
        assert not (a < mark.x < b and c < mark.y < d - 6)


def test_the_plot_has_every_point_with_epsilon_beside_dp_and_labels_apart() -> None:
    rows = [row("none", 0.9, 1.0)] + [row("dp_sgd", 0.5, 0.0, epsilon=e) for e in (1.0, 2.0, 3.0)]
    plot = build_plot(rows)
    assert plot is not None and len(plot.marks) == 4
    assert sorted(m.label for m in plot.marks) == ["0", "1: ε 1.0", "2: ε 2.0", "3: ε 3.0"]
    assert_labels_apart(plot)
    none = next(m for m in plot.marks if m.kind == "none")
    assert none.x > max(m.x for m in plot.marks if m is not none)  # more accurate: further to the right
    assert none.y < min(m.y for m in plot.marks if m is not none)  # leaks more: higher up
    assert build_plot([]) is None


def test_the_page_escapes_what_users_wrote_and_needs_nothing_from_elsewhere() -> None:
    nasty = "<script>alert(1)</script>"
    page = study_html(study(row("none", 0.9, 1.0), row("sign", 0.8, 0.1, layer=nasty), title=nasty))
    assert nasty not in page and page.count("&lt;script&gt;") >= 4
    assert "http://" not in page and "https://" not in page and "<svg" in page
    assert "--paper" in page  # the style of the other reports came along


def test_labels_of_many_marks_at_the_top_stay_in_the_picture() -> None:
    plot = build_plot([row(f"d{i}", 0.5, 1.0) for i in range(8)])
    assert plot is not None
    heights = sorted(mark.label_y for mark in plot.marks)
    assert heights[0] > 12 and heights[-1] < 300
    assert_labels_apart(plot)


def test_the_worse_of_the_plain_and_the_adaptive_attack_counts() -> None:
    """Two logs by hand: the attack that knows removes nine tenths of the guess's error, the other none."""
    plain = AttackRef(name="attack", params={"steps": 2})
    knowing = AttackRef(
        name="adaptive", params={"attack": "attack", "options": {"steps": 2}, "knows": ["sign"]}
    )
    assert knowing.plain == plain and plain.plain is plain

    def one(ref: AttackRef, error: float) -> Cell:
        example = Example(
            index=0, client=0, label=0, recovered=True, scores={"mse": error}, baseline={"mse": 1.0}
        )
        return Cell(attack=ref, seed=0, status="done", examples=(example,))

    cells = (one(plain, 1.0), one(knowing, 0.1))
    header = SimpleNamespace(seeds=(0,), attacks=(AttackRef(name="prior_only"), plain, knowing))
    log = SimpleNamespace(header=header, cells_of=lambda ref: [c for c in cells if c.attack == ref])
    (found,) = _leaks(log)  # type: ignore[arg-type]
    assert found.attack == plain and found.adaptive is not None
    assert found.leakage is not None and found.leakage.value == 0.0
    assert found.adaptive.leakage is not None and found.adaptive.leakage.value == pytest.approx(0.9)
    assert len(found.both) == 2 and _short_title(found.adaptive) == "attack(steps=2), knowing the defense"


def test_the_bars_of_the_plot_are_the_intervals() -> None:
    one = row("none", 0.5, 1.0).model_copy(
        update={
            "accuracy": Estimate.of_counts([(90, 200), (100, 200), (110, 200)]),
            "leakage": Estimate.of_counts([(20, 20), (20, 20), (20, 20)]),
        }
    )
    plot = build_plot([one])
    assert plot is not None
    (mark,) = plot.marks
    assert mark.low < mark.x < mark.high and mark.x - mark.low == pytest.approx(mark.high - mark.x)
    assert mark.top == mark.y < mark.bottom  # all came back: the leakage may be less, not more
    page = study_html(study(one))
    assert "37.6" in page and "62.4" in page and "95 % interval" in page  # 50 -+ 4.303 * 5 / sqrt(3)


def test_accuracies_are_counts_of_tested_examples() -> None:
    plain = row("none", 0.9, 0.4)
    cells = [
        Cell(
            attack=AttackRef(name="training"),
            seed=seed,
            status="done",
            batch_scores={"accuracy": accuracy, "tested": 10.0},
        )
        for seed, accuracy in enumerate((0.5, 1.0))
    ]
    log = AuditLog(RunFolder(Path("x")), header_of(plain.point), (), tuple(cells))
    found = _row(log, plain.leaks, frozenset({"input"}), prior_success=0.01)
    assert found.accuracy == Estimate.of_counts([(5, 10), (10, 10)])


@pytest.mark.parametrize(("right", "said"), [(84, True), (109, True), (150, False)])
def test_a_model_that_did_not_learn_gets_no_recommendation(right: int, said: bool) -> None:
    """Of 1000 examples in ten classes: three standard errors are 2.8 to 3.4 points."""
    plain = row("none", right / 1000, 1.0)
    advice = advise(study(plain, row("sign", right / 1000, 0.0)))
    assert advice.headline.startswith("No recommendation: the model did not learn") is said
    assert (advice.ranking == ()) is said and (advice.level == "unknown") is said


def test_chance_is_the_largest_class_where_classes_are_uneven() -> None:
    plain = row("none", 0.72, 1.0).model_copy(update={"chance": 0.7})
    assert "guessing has 70 %" in advise(study(plain, row("sign", 0.7, 0.0))).headline


def test_a_contradicted_promise_is_no_proof() -> None:
    private = row("dp_sgd", 0.85, 0.0, epsilon=2.0)
    broken = private.model_copy(update={"contradicted": True, "accuracy_note": "canaries show 50."})
    assert advise(study(row("none", 0.9, 1.0), private)).level == "none_shown"
    advice = advise(study(row("none", 0.9, 1.0), broken))
    assert (
        advice.level == "some" and "Its promise does not hold: canaries show 50." in advice.ranking[0].words
    )


def test_a_defense_that_some_attack_was_not_run_on_is_not_recommended() -> None:
    other = row("sign", 0.85, 0.0)
    unknown = Leak(attack=AttackRef(name="stronger"), status="failed", reason="out of memory")
    gap = other.model_copy(update={"leaks": (*other.leaks, unknown)})
    assert advise(study(row("none", 0.9, 1.0), gap)).ranking == ()


def test_several_epsilons_of_one_mechanism_are_one_curve() -> None:
    rows = (row("none", 0.9, 1.0), *(row("dp_sgd", 0.5 + e / 20, 0.1, epsilon=e) for e in (8.0, 1.0, 3.0)))
    plot = build_plot(rows)
    assert plot is not None and len(plot.curves) == 1
    across = [float(spot.partition(",")[0]) for spot in plot.curves[0].split()]
    assert len(across) == 3 and across == sorted(across)


LONG = ("gaussian_noise", "local_averaging", "quantisation", "nvflare:PercentilePrivacy")


@pytest.mark.parametrize("width", [80, 100, 200])
def test_in_the_terminal_no_name_is_broken_in_a_word_and_no_figure_cut(width: int) -> None:
    rows = [row("none", 0.9, 1.0), *(row(name, 0.5, 0.25) for name in LONG)]
    worst = [one.model_copy(update={"worst": "one_shot_binary_fishing, knowing the defense"}) for one in rows]
    several = [one.model_copy(update={"leaks": (*one.leaks, *one.leaks)}) for one in worst]
    text = io.StringIO()
    print_study(study(*several), Console(file=text, width=width))
    lines = text.getvalue().splitlines()
    start = next(i for i, line in enumerate(lines) if "Defense" in line)
    end = next(i for i, line in enumerate(lines) if line.startswith("Below each share"))
    table = lines[start:end]
    assert all(len(line.rstrip()) <= width for line in table)
    assert not any("…" in line for line in table)
    pieces = {piece for line in table for piece in re.split(r"[\s_(,]+", line)}
    whole = {piece for name in (*LONG, "fishing", "knowing", "binary") for piece in re.split(r"[_(]", name)}
    assert whole <= pieces


def test_the_pages_tables_fit_at_1280_pixels(browser, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    names = (
        "exact_extraction",
        "trap_weights",
        "inverting_gradients",
        "cross_device_fishing",
        "binary_fishing",
    )
    rows = []
    for one in (row("none", 0.9, 1.0), *(row(name, 0.5, 0.25, epsilon=3.0, sigma=0.01) for name in LONG)):
        leaks = [one.leaks[0].model_copy(update={"attack": AttackRef(name=name)}) for name in names]
        twins = tuple(leak.model_copy(update={"adaptive": leak}) for leak in leaks)
        rows.append(one.model_copy(update={"leaks": twins, "worst": f"{names[3]}, knowing the defense"}))
    page = tmp_path / "study.html"
    page.write_text(study_html(study(*rows)), encoding="utf-8")
    browser.get(page.as_uri())
    browser.execute_script("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    wanted = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", wanted)
    cut = "return [...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth).length"
    assert browser.execute_script("return document.querySelectorAll('.scroll').length") == 2
    assert browser.execute_script(cut) == 0

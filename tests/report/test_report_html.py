"""The page: one file, well formed, everything escaped, partial logs included."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import stat
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from seepage.core.errors import LogError
from seepage.record import AttackRef, AuditLog
from seepage.report import render_html, write_html
from seepage.report.sentences import marked_words

VOID = {"meta", "link", "br", "img", "wbr", "hr", "input"}
HEADER_TEXTS = ("title", "created", "run_key", "model_name", "data_name", "data_source", "device", "python")
HEADER_TEXTS += ("git_revision",)
EVIL = "<script>alert('x')</script>\"'&"


class Page(HTMLParser):
    """Checks that tags nest, and keeps texts and attributes."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.words.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def many(new_log):
    """Two seeds with every status: done, partial, not applicable, failed, not run; features too."""
    builder = new_log(seeds=(0, 1))
    for seed in (0, 1):
        builder.add_images("prior_only", [10.0] * 4, seed=seed)
        scores = {"extraction_recall": 0.5, "label_accuracy": 0.75}
        builder.add_images(
            "analytic",
            [100.0, 30.0, 20.0, 9.0],
            seed=seed,
            recovered=[True, True, True, False],
            batch_scores=scores,
            claims=2,
            claims_right=1,
            claimed_examples=1,
            knowledge=("the shape of an image",),
            notes=("read layer fc1",),
            label_counts=(2, 1, 1),
            true_label_counts=(1, 1, 2),
        )
        builder.add_status("trap", "not_applicable", "the model has no linear layer", seed=seed)
    builder.add_images("invert", [12.0, 8.0, 7.0, 9.0])
    builder.add_status("broken", "failed", "out of memory")
    feature = {"relative_error": 0.4, "cosine": 0.9, "exact": 0.0}
    builder.add("deep", [feature] * 2, guess={"relative_error": 1.0, "exact": 0.0}, space="conv2")
    return builder.plan("later").build()


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(many):
    html = render_html(many)
    page = Page(html)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", html)
    for _, attributes in page.tags:
        for name in ("src", "href"):
            if name in attributes:
                assert str(attributes[name]).startswith(("data:", "#"))
    policy = str(page.of("meta")[1]["content"])
    for kind in ("style", "script"):  # our own, let in by its hash: nothing else runs
        [inside] = re.findall(f"<{kind}>(.*?)</{kind}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert all(image["alt"] for image in page.of("img"))
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    links = {str(a["href"])[1:] for a in page.of("a")}
    assert links and links <= set(ids)


def test_the_page_says_what_the_log_holds_in_order(many):
    text = Page(render_html(many)).text
    parts = [
        "Leak shown",
        "A curious server recovers 2 of 8 images exactly from one update in each of 2 runs.",
        "Partial log: 5 of 14 cells are missing; run the same command again to finish.",
        "What came out",
        "For whom it is bad",
        "The people behind 2 of 8 images",
        "What to do",
        "No change of this deployment was measured here",
        "On one page",
        "Contents",
        "Every attack in one table",
        "baseline: sees no update",
        "2 of 4",  # claims right
        "75 %",
        "Attack by attack",
        "the shape of an image",
        "read layer fc1",
        "✓ exact",
        "not recovered",
        "Leakage is not uniform",
        "How it was measured",
        "off by more than 0.1 % of the value range",
        "What this does not claim",
    ]
    place = 0
    for part in parts:
        place = text.find(part, place)
        assert place >= 0, f"'{part}' is missing or stands too early"
    for said in (
        "The model has no linear layer.",
        "Out of memory.",
        "This attack has not been run yet.",
        "1 of 2 runs are still missing.",
        "features, not images",
        "“conv2”",
    ):
        assert said in text


def test_pictures_on_the_page_are_the_originals(new_log):
    truth = np.random.default_rng(1).integers(0, 256, (2, 3, 8, 8)).astype(np.float32) / 255
    builder = new_log(input_changes={"shape": (3, 8, 8)})
    builder.add_images("analytic", [15.0, 100.0], arrays=(truth, truth[::-1].copy()))
    html = render_html(builder.build())
    images = Page(html[html.index('<section aria-labelledby="attacks"') :].partition("</main>")[0]).of("img")
    drawn = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(str(i["src"]).partition(",")[2])))) for i in images
    ]
    order = [truth[1], truth[0], truth[0], truth[1]]  # most leaked (index 1) first, each before its copy
    for pixels, picture in zip(drawn, order, strict=True):
        assert np.array_equal(pixels, np.round(picture.transpose(1, 2, 0) * 255))


def test_long_galleries_are_cut_and_say_so(new_log):
    html = render_html(new_log().add_images("analytic", [20.0] * 30).build())
    assert len(Page(html).of("figure")) == 24 + 3  # three large ones on the first screen
    assert "and 6 more in the log" in html


@pytest.mark.parametrize("modality", ["image", "text", "tabular"])
def test_everything_a_user_can_name_is_escaped(new_log, modality):
    builder = new_log(
        modality=modality,
        spec={"protocol": {EVIL: EVIL}, EVIL: EVIL},
        grants=(EVIL,),
        header_changes=dict.fromkeys(HEADER_TEXTS, EVIL) | {"packages": {EVIL: EVIL}},
        input_changes={"class_names": (EVIL,) * 3, "column_names": (EVIL,) * 3},
        threat_changes={"name": EVIL, "description": EVIL, "server_sees": EVIL},
    )
    shared = {"knowledge": (EVIL,), "notes": (EVIL,), "batch_scores": {EVIL: 0.5}}
    shared |= {"label_counts": (1, 1, 0), "true_label_counts": (1, 0, 1)}
    scores = {"psnr": 20.0, "token_accuracy": 0.5, "rmse": 0.5, "exact": 0.0, EVIL: 0.5}
    shape = (2, *builder.shape)
    arrays = (np.zeros(shape, np.float32), np.ones(shape, np.float32))
    builder.add(
        "attack", [scores] * 2, guess=scores, arrays=arrays, texts=[(EVIL, f"{EVIL} {EVIL}")] * 2, **shared
    )
    builder.add("feature_attack", [scores], guess=scores, space=EVIL)
    builder.add_status("refused", "not_applicable", EVIL)
    builder.attacks.append(AttackRef(name="other", params={EVIL: EVIL}))
    html = render_html(builder.build())
    page = Page(html)
    assert html.count("<script") == 1
    assert "&lt;script&gt;" in html
    allowed = {
        "class",
        "id",
        "href",
        "src",
        "alt",
        "style",
        "scope",
        "role",
        "tabindex",
        "lang",
        "content",
        "name",
    }
    allowed |= {"charset", "http-equiv", "rel", "aria-label", "aria-labelledby", "title", "open", "hidden"}
    allowed |= {"type", *(name for _, found in page.tags for name in found if name.startswith("data-"))}
    allowed -= {"style"}
    drawing = {"viewbox", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height", "text-anchor"}
    assert {name for _, attributes in page.tags for name in attributes} <= allowed | drawing
    assert page.text.count("alert('x')") > 15


def test_words_of_a_text_are_marked_by_where_they_came_out(new_log):
    builder = new_log(modality="text")
    scores = [{"token_accuracy": 0.33, "rouge_l": 0.67, "exact": 0.0}]
    builder.add("tag", scores, guess={"token_accuracy": 0.0}, texts=[("the cat sat", "sat cat on")])
    html = render_html(builder.build())
    page = re.sub(r"(?s)<small>\s*<mark>Underlined</mark>.*?</small>", "", html)
    assert re.findall("<mark>(.*?)</mark>", page) == ["cat"] * 4  # twice on the first screen and below
    assert re.findall('<mark class="elsewhere">(.*?)</mark>', page) == ["sat"] * 4
    assert "known, but not where they stand" in html
    assert marked_words("", "a") == ((), (("a", ""),))
    # one that stands in its place does not vouch for another
    assert [mark for _, mark in marked_words("a b a", "a c d")[0]] == ["place", "", ""]


def test_rows_show_truth_and_reconstruction_of_each_column(new_log):
    builder = new_log(modality="tabular", input_changes={"column_names": ("age", "income", "hours")})
    truth = np.array([[39.0, 77516.0, 40.0], [50.0, 83311.0, 13.0]], np.float32)
    scores = [{"rmse": 0.9, "exact": 0.0}, {"rmse": 0.1, "exact": 0.0}]
    builder.add("rows", scores, guess={"rmse": 1.0, "exact": 0.0}, arrays=(truth, truth + 1))
    html = render_html(builder.build())
    text = Page(html[html.index('<section aria-labelledby="attacks"') :].partition("</main>")[0]).text
    shown = "Column age income hours original 50 83311 13 rebuilt 51 83312 14"
    assert shown in text
    assert text.index(shown) < text.index("original 39 77516 40 rebuilt 40 77517 41")  # lower error first
    assert "of its column's standard deviation" in text


def test_columns_of_days_are_shown_as_dates(new_log):
    """The nearest day; a number that is no day of the calendar stays one."""
    builder = new_log(
        modality="tabular",
        input_changes={
            "column_names": ("age", "born", "seen"),
            "column_kinds": ("integer",) * 3,
            "column_days": (1, 2),
        },
    )
    truth = np.array([[39.0, 19782.0, -1.0]], np.float32)
    rebuilt = np.array([[40.0, 19781.98, 1e9]], np.float32)
    builder.add("rows", [{"rmse": 0.1}], guess={"rmse": 1.0}, arrays=(truth, rebuilt))
    text = Page(render_html(builder.build())).text
    assert "original 39 2024-02-29 1969-12-31 rebuilt 40 2024-02-29 1000000000" in text


def test_columns_stand_beside_the_baseline_the_most_leaked_first(new_log, columns):
    builder = new_log(
        modality="tabular",
        seeds=(0, 1),
        input_changes={
            "column_kinds": ("categorical", "integer", "real"),
            "fed": "Columns are fed as they are.",
        },
    )
    for seed in (0, 1):
        scores = [{"rmse": 0.9, "exact": float(seed)}, {"rmse": 0.1, "exact": 0.0}]
        builder.add("rows", scores, guess={"rmse": 1.0, "exact": 0.0}, seed=seed, columns=columns)
        builder.add("prior_only", scores, guess={"rmse": 1.0, "exact": 0.0}, seed=seed, columns=columns)
    text = Page(render_html(builder.build())).text
    assert text.count("Which columns came out") == 1  # the baseline is not compared with itself
    assert "1 of 4 rows came out exactly, every column included." in text
    income, sex, height = (
        text.index(shown)
        for shown in (
            "income integer 2 of 4 50 % 0 0 % +50",
            "sex categorical 4 of 4 100 % 4 100 % 0",
            "height real 0 of 4 0 % 2 50 % -50",
        )
    )
    assert income < sex < height
    assert "whole numbers and categories equal after rounding" in text
    assert "within 0.1 % of its column's standard deviation, taken over all 200 rows at hand" in text
    assert text.count("Columns are fed as they are.") == 2  # with the rule, and in the list of settings


def test_features_are_never_drawn(new_log):
    builder = new_log()
    scores = [{"relative_error": 0.1, "cosine": 1.0, "exact": 0.0}] * 2
    arrays = (np.zeros((2, 5), np.float32), np.zeros((2, 5), np.float32))
    builder.add("deep", scores, guess={"relative_error": 1.0}, space="fc1", arrays=arrays)
    page = Page(render_html(builder.build()))
    assert not page.of("img")
    assert "Features count as exact when none is off by more than 0.1 % of their own range." in page.text


def test_one_batch_is_said_to_say_nothing_about_others(new_log):
    one = render_html(new_log().add_images("a", [9.0, 8.0]).build())
    assert "There was only one batch" in one
    builder = new_log(seeds=(0, 1))
    two = builder.add_images("a", [9.0, 8.0]).add_images("a", [9.0, 8.0], seed=1).build()
    assert "There was only one batch" not in render_html(two)


def test_a_certificate_of_completeness_is_shown_where_there_is_one(new_log):
    builder = new_log(seeds=(0, 1))
    builder.add_images("peel", [100.0], seed=0, complete=True).add_images("peel", [100.0], seed=1)
    assert "In 1 of 2 runs the attack certifies" in render_html(builder.build())
    assert "certifies" not in render_html(new_log().add_images("peel", [100.0]).build())


def test_an_empty_run_and_a_run_without_tensors_render(new_log):
    assert "Not measured" in Page(render_html(new_log().plan("a").build())).text
    bare = new_log().add_images("a", [9.0], arrays=None).build()
    assert "The tensors of this run are not in the log." in Page(render_html(bare)).text


def test_tensors_that_do_not_fit_are_refused_in_one_sentence(new_log):
    short = np.zeros((1, 1, 8, 8), np.float32)
    log = new_log().add_images("a", [9.0, 8.0], arrays=(short, short)).build()
    with pytest.raises(LogError, match="names example 1, but its tensors hold 1 row"):
        render_html(log)


def test_write_html_goes_beside_the_log_or_where_it_is_told(new_log, tmp_path):
    log = new_log().add_images("a", [9.0, 8.0]).build()
    assert write_html(log) == log.folder.path / "report.html"
    elsewhere = write_html(log, tmp_path / "x" / "y.html")
    assert elsewhere.read_text() == render_html(AuditLog.read(log.folder.path))
    assert stat.S_ISREG(elsewhere.stat().st_mode)


def test_the_report_does_not_need_torch():
    code = (
        "import sys, seepage.report; "
        "loaded = {m.split('.')[0] for m in sys.modules}; "
        "sys.exit(' '.join(sorted(loaded & {'torch', 'scipy', 'sklearn', 'skimage'})) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_verdict_is_green(new_log):
    """Neither on paper nor on a dark screen: that nothing was shown is no good news."""
    style = re.search(r"<style>(.*?)</style>", render_html(new_log().plan("a").build()), re.DOTALL)
    assert style is not None
    roots = re.findall(r":root \{(.*?)\}", style[1], re.DOTALL)
    assert len(roots) >= 2
    for level in ("high", "some", "none_shown", "unknown"):
        rule = re.search(rf"\.{level} \{{(.*?)\}}", style[1])
        assert rule is not None
        names = re.findall(r"var\((--[a-z-]+)\)", rule[1])
        assert len(names) == 2
        for name, root in ((name, root) for name in names for root in roots):
            if value := re.search(rf"{name}: #([0-9a-f]{{6}})", root):
                red, green, blue = (int(value[1][i : i + 2], 16) for i in (0, 2, 4))
                assert green <= max(red, blue) + 4, (level, name, value[1])


def test_the_one_page_summary_calls_nothing_a_bound_where_nothing_was_measured(new_log):
    nothing = Page(render_html(new_log().add_status("a", "failed", "out of memory").build())).text
    assert "Left open Everything: nothing was measured." in nothing and "A lower bound" not in nothing
    assert "Left open A lower bound" in Page(render_html(new_log().add_images("a", [100.0]).build())).text


def test_a_page_holds_no_control_characters(new_log):
    builder = new_log(
        header_changes={"title": "a\x1b[31m\x07b"}, input_changes={"class_names": ("\x00", "b")}
    )
    html = render_html(builder.add_images("a", [100.0]).build())
    assert "a\ufffd[31m\ufffdb" in html
    assert not set(html) & {chr(code) for code in range(32)} - set("\t\n\r")

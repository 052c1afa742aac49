"""The page in a real browser: it runs its own script alone, reaches nothing, and can be used by everybody."""

from __future__ import annotations

import base64
import importlib.util
import re
from pathlib import Path

import pytest

from seepage.report import write_html
from seepage.report.actions import Action, Actions
from seepage.report.compared import compare_logs

EVIL = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


@pytest.fixture
def page(new_log, tmp_path, browser):
    builder = new_log(header_changes={"title": EVIL}, input_changes={"class_names": (EVIL, "b", "c")})
    builder.add_images("prior_only", [10.0] * 4)
    builder.add_images("analytic", [100.0, 30.0, 20.0, 9.0], recovered=[True, True, True, False])
    file = write_html(builder.build(), tmp_path / "report.html")
    browser.get_log("performance")
    browser.get(file.as_uri())
    return browser


def test_nothing_of_a_users_names_runs_and_no_request_leaves(page):
    assert page.title != "taken"
    asked = [entry["message"] for entry in page.get_log("performance")]
    sent = [message for message in asked if "Network.requestWillBeSent" in message]
    assert not [message for message in sent if '"url":"http' in message or '"url":"ws' in message]
    assert page.get_log("browser") == []


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_the_page_fits_its_window(page, width):
    wanted = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", wanted)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width


def test_examples_are_filtered_and_a_pair_is_enlarged(page):
    shown = "return [...document.querySelectorAll('#attack-1 [data-item]')].filter(i => !i.hidden).length"
    assert page.execute_script(shown) == 4
    page.execute_script("document.querySelector('#attack-1 .bar input[type=checkbox]').click()")
    assert page.execute_script(shown) == 1
    page.execute_script("document.querySelector('#attack-1 button.zoom').click()")
    assert page.execute_script("return document.querySelector('dialog').open")
    assert page.execute_script("return document.activeElement.type") == "range"


def test_no_serious_fault_of_accessibility(page):
    assert not faults(page)


def faults(page):
    """Serious ones, as axe-core finds them."""
    found = importlib.util.find_spec("axe_core_python")
    if found is None or not found.submodule_search_locations:
        pytest.skip("axe-core-python is not installed")
    page.execute_script((Path(found.submodule_search_locations[0]) / "axe.min.js").read_text())
    result = page.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:150]}"
        for one in result["violations"]
        if one["impact"] in ("serious", "critical")
    ]


def test_an_actions_button_copies_its_command(new_log, tmp_path, browser, monkeypatch):
    from selenium.webdriver.support.wait import WebDriverWait

    command = "seepage audit 'my audit.toml' --with dp_sgd:clip=1.0,sigma=2 # <b>&"
    words = {
        "how": "",
        "stops": "",
        "price": "",
        "also": "",
        "proof": "",
        "setting": "",
        "stopped": 1.0,
        "kept": 1.0,
    }
    listed = tuple(Action(title=f"change {i}", command=f"{command}{i}", **words) for i in range(2))
    monkeypatch.setattr("seepage.report.front.read_actions", lambda log: Actions(listed=listed))
    builder = new_log()
    builder.add_images("prior_only", [10.0] * 2)
    builder.add_images("analytic", [100.0, 100.0])
    browser.get(write_html(builder.build(), tmp_path / "report.html").as_uri())
    browser.execute_script("document.querySelectorAll('button.copy')[1].click()")
    copied = "return document.querySelectorAll('button.copy')[1].dataset.copied"
    waiting = WebDriverWait(browser, 60)
    assert waiting.until(lambda page: page.execute_script(copied)) == f"{command}1"


@pytest.mark.parametrize("width", [390, 1280])
def test_a_comparison_fits_its_window_and_has_no_serious_fault(new_log, tmp_path, browser, width):
    logs = []
    for value in (100.0, 9.0):
        builder = new_log(input_changes={"class_names": (EVIL, "b", "c")}, seeds=(0, 1))
        for seed in (0, 1):
            builder.add_images("prior_only", [10.0] * 4, seed=seed)
            builder.add_images("one_shot_binary_fishing", [value] * 4, seed=seed)
        logs.append(builder.build())
    found = compare_logs(logs, [EVIL, "after the change"])
    browser.get(found.to_html(tmp_path / "comparison.html").as_uri())
    wanted = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", wanted)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.title != "taken"
    assert not faults(browser)


def test_the_keyboard_reaches_what_a_mouse_does_and_shows_where_it_is(page):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    asked = (
        "const e = document.activeElement; return [e.tagName, e.className, getComputedStyle(e).outlineStyle]"
    )
    reached = []
    for _ in range(60):
        ActionChains(page).send_keys(Keys.TAB).perform()
        reached.append(page.execute_script(asked))
    kinds = {(tag, name) for tag, name, _ in reached}
    assert {"A", "SUMMARY", "BUTTON", "INPUT", "SELECT"} <= {tag for tag, _ in kinds}
    assert ("BUTTON", "zoom") in kinds
    assert all(outline != "none" for tag, _, outline in reached if tag in ("A", "SUMMARY", "BUTTON"))


def test_an_opened_fold_stands_in_the_address_and_opens_again(page):
    page.execute_script("document.querySelector('details summary').click()")
    asked = "return document.querySelector('details').open && location.hash.includes('open=')"
    assert page.execute_script(asked) or page.execute_async_script(
        f"setTimeout(() => arguments[0]((() => {{{asked}}})()), 500)"
    )
    address = page.current_url
    page.get("about:blank")
    page.get(address)
    assert page.execute_script("return document.querySelector('details').open")


def test_on_paper_and_without_scripts_everything_is_there(page):
    """But for examples of further runs, which are counted there."""
    kept = "details:not(.screen) > :not(summary)"
    heights = f"return [...document.querySelectorAll('{kept}')].map(e => e.offsetHeight)"
    hidden = "return [...document.querySelectorAll('.screen')].map(e => e.offsetHeight)"
    counted = "return [...document.querySelectorAll('.paper')].map(e => e.offsetHeight)"
    assert page.execute_script(hidden) and not any(page.execute_script(counted))
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert all(height > 0 for height in page.execute_script(heights))
        assert not any(page.execute_script(hidden)) and all(page.execute_script(counted))
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.refresh()
        shown = page.find_element("css selector", "body").text
    finally:
        page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "Leak shown" in shown
    assert "What came out" in shown
    assert "analytic" in shown


def test_every_metric_is_explained_on_hover_and_in_words_below(page):
    titles = page.execute_script(
        "return [...document.querySelectorAll('th [title], th[title]')].map(e => e.title)"
    )
    assert any("peak signal-to-noise" in title for title in titles)
    assert any("structural similarity" in title for title in titles)
    body = page.execute_script("return document.body.textContent")
    assert "Peak signal-to-noise ratio, at most 100 dB" in body


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_the_page_follows_the_readers_scheme_without_a_serious_fault(page, scheme, dark):
    wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
    try:
        colour = page.execute_script("return getComputedStyle(document.body).backgroundColor")
        red = int(colour.split("(")[1].split(",")[0])
        assert (red < 100) is dark
        assert not faults(page)
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_report_of_many_runs_prints_on_few_pages(new_log, tmp_path, browser):
    """Twenty runs of twenty examples, each with a note and figures of its own."""
    builder = new_log(seeds=tuple(range(20)))
    for seed in range(20):
        for name in ("prior_only", "analytic"):
            builder.add_images(name, [10.0 + i for i in range(20)], seed=seed, notes=(f"Read {seed} of 99.",))
    file = write_html(builder.build(), tmp_path / "many.html")
    assert "(And 19 more like it, with other figures.)" in file.read_text()
    browser.get(file.as_uri())
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) <= 12
    box = "document.querySelector('.sheet').getBoundingClientRect().height"
    wide = {"width": 718, "height": 1000, "deviceScaleFactor": 1, "mobile": False}  # A4 within its margins
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", wide)
    try:
        assert browser.execute_script(f"return {box}") <= 1047
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

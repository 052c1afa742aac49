"""The page in a real browser: it runs its own script alone, reaches nothing, and can be used by everybody."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from seepage.report import write_html

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("no chromium with its driver is installed", allow_module_level=True)

EVIL = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def browser():
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for one in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(one)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


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
    found = importlib.util.find_spec("axe_core_python")
    if found is None or not found.submodule_search_locations:
        pytest.skip("axe-core-python is not installed")
    page.execute_script((Path(found.submodule_search_locations[0]) / "axe.min.js").read_text())
    result = page.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    bad = [
        f"{one['id']}: {one['nodes'][0]['html'][:150]}"
        for one in result["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert not bad

"""report.html in a real browser: no console error, charts drawn, nothing wider than the screen."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iobench.analysis.suite import analyse
from iobench.report import html
from tests.build import hostile
from tests.build import report as fixture
from tests.capabilities import need

pytestmark = pytest.mark.slow
SWITCHES = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    need("chromium")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser")
    profile = tmp_path_factory.mktemp("profile")
    for switch in (*SWITCHES, f"--user-data-dir={profile}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "localhost,127.0.0.1")  # where the driver listens
        patch.setenv("NO_PROXY", "localhost,127.0.0.1")
        driver = webdriver.Chrome(options=options, service=service)
        yield driver
        driver.quit()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    plan, records = fixture.suite()
    html.write(path, plan, records, analyse(plan, records))
    return path


@pytest.fixture(params=[400, 1280], ids=["narrow", "wide"])
def page(browser: Any, report: Path, request: pytest.FixtureRequest) -> Any:
    size = {"width": request.param, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(report.as_uri())
    return browser


def test_no_console_message(page: Any) -> None:
    assert page.get_log("browser") == []


def test_every_chart_is_drawn_and_named(page: Any) -> None:
    sizes = page.execute_script(
        "return [...document.querySelectorAll('figure.plot')].map(f => { const s ="
        " f.querySelector('svg'); const r = s.getBoundingClientRect(); return [r.width, r.height,"
        " s.querySelectorAll('path').length, (s.getAttribute('aria-label') || '').length]; })"
    )
    assert len(sizes) == 10
    for width, height, paths, label in sizes:
        assert width > 250
        assert height > 80
        assert paths > 10
        assert label > 10


def test_nothing_is_wider_than_the_screen(page: Any) -> None:
    for opened in (False, True):
        page.execute_script(
            "document.querySelectorAll('details').forEach(d => { d.open = arguments[0]; })", opened
        )
        wide = page.execute_script(
            "return [...document.querySelectorAll('body *')].filter(e => !e.closest('svg') &&"
            " !e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth + 0.5)"
            ".map(e => e.outerHTML.slice(0, 80))"
        )
        assert wide == []
        assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_it_prints_with_everything_unfolded(page: Any) -> None:
    import base64

    pdf = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert pdf.startswith(b"%PDF")
    closed = page.execute_script("return document.querySelectorAll('details:not([open])').length")
    assert closed == 0


def test_no_name_runs_in_a_browser(browser: Any, tmp_path: Path) -> None:
    plan, records = hostile.suite(hostile.ALL)
    html.write(tmp_path / "report.html", plan, records, analyse(plan, records))
    browser.get((tmp_path / "report.html").as_uri())
    count = "return document.querySelectorAll(arguments[0]).length"
    assert browser.execute_script("return typeof owned") == "undefined"
    assert browser.execute_script(count, "script") == 1
    assert browser.execute_script(count, "img, b, iframe, object, a[href^='javascript']") == 0
    assert browser.execute_script(count, "figure.plot svg") == 10
    assert browser.get_log("browser") == []

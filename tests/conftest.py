"""A browser for tests of pages."""

import shutil
from importlib.util import find_spec

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="session")
def browser():
    if not (CHROMIUM and find_spec("playwright") and find_spec("plotly")):
        pytest.skip("needs chromium and the group browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser):
    """Open a file as a page, which raises nothing and asks for nothing from elsewhere."""
    wrong, asked = [], []

    def opened(path, **settings):
        page = browser.new_page(**settings)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        return page

    yield opened
    assert wrong == []
    assert not [url for url in asked if url.startswith("http")]

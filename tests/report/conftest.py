"""The browser window that the tests of the page share, which ends every test with a clean console and no network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.report.browser import Browser, chromium


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """The window, and after the test: nothing on the console, and nothing asked of the network."""
    window.complaints()
    window.requested()
    yield window
    assert window.complaints() == []
    assert window.requested() <= {"file", "data", "blob", "about"}

"""Logging in to the dashboard, in a real Chromium: the pages and their websocket are behind one form."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import needs_chromium, playwright, see, shoot
from processes import dashboard, serve

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytestmark = needs_chromium


def test_a_person_logs_in_and_is_where_she_wanted_to_be(tmp_path: Path, page: playwright.Page) -> None:
    tokens, tracer = tmp_path / "tokens", serve(tmp_path)
    tokens.write_text("the-token\n")
    try:
        with dashboard(tmp_path, tracer.url, "--login-token-file", str(tokens)) as url:
            page.goto(f"{url}/savings")
            page.get_by_label("Token").fill("another")
            page.get_by_role("button", name="Log in").click()
            see(page, "This token is not valid here.")
            page.get_by_label("Token").fill("the-token")
            page.get_by_role("button", name="Log in").click()
            playwright.expect(page.get_by_role("link", name="Savings")).to_be_visible()
            playwright.expect(page).to_have_url(f"{url}/savings")
            shoot(page, "logged-in")
            page.get_by_role("link", name="Requests").click()
            playwright.expect(page).to_have_url(f"{url}/requests")
            page.reload()
            playwright.expect(page.get_by_role("link", name="Savings")).to_be_visible()
            page.get_by_role("link", name="Log out").click()
            playwright.expect(page.get_by_label("Token")).to_be_visible()
            page.emulate_media(color_scheme="dark")
            assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light dark"
    finally:
        tracer.end()

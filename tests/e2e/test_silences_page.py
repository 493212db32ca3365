"""From a finding to a silence and back, in a real browser: nothing vanishes, and the first page says what is silenced."""

from __future__ import annotations

import re

import pytest
from browser import SCHEMES, needs_chromium, playwright, see, shoot, switch_scheme
from processes import SharedDashboard, Tracer
from stories import HEALTHY, STALE, feed

pytestmark = needs_chromium


@pytest.mark.long
def test_a_finding_is_silenced_and_the_silence_is_ended(
    page: playwright.Page, pages: SharedDashboard, shown: Tracer
) -> None:
    feed(shown, STALE.replace(" !Mismatch in tokens to load", ""), request="chat-7-0123abcd", engine="engine-a")
    feed(shown, HEALTHY, request="chat-8-0123abcd", engine="engine-b")
    page.goto(f"{pages.url}/request?id=chat-7-0123abcd&engine=engine-a")
    page.get_by_role("link", name="Silence", exact=True).click()
    page.wait_for_url(re.compile("/silences.*rule=stale-lookup"))
    see(page, "None: all findings count, and alert.")

    page.get_by_role("button", name="Silence").click()
    see(page, "The tracer refuses: say in 'why' why these findings are known")
    page.get_by_label("Why they are known").fill("LMCache #2158, fixed in 0.33")
    page.get_by_label("By whom").fill("ana")
    page.get_by_role("button", name="Silence").click()
    see(page, re.compile("Silenced: rule stale-lookup, connector Connector. Active until .* by ana"))
    for scheme in SCHEMES:
        switch_scheme(page, scheme)
        shoot(page, f"silences-{scheme}")

    page.goto(pages.url)
    see(page, re.compile("no finding but 1 silenced"))
    shoot(page, "overview-silenced")
    page.get_by_role("link", name=re.compile("1 known finding of stale-lookup is silenced")).click()
    page.wait_for_url(re.compile("/findings.*silenced=yes"))
    see(page, "1 finding, latest first")
    see(page, re.compile("Silenced until .* by ana: LMCache #2158, fixed in 0.33"))
    shoot(page, "findings-silenced")

    page.get_by_role("link", name=re.compile("Silenced until")).click()
    page.get_by_role("button", name="End now").click()
    see(page, re.compile("No longer silenced: rule stale-lookup"))
    (silence,) = shown.get("/api/silences")
    assert not silence["is_active"]
    page.goto(pages.url)
    see(page, re.compile("1 finding of stale-lookup"))

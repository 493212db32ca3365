"""The suite's page: what it says, in which order, and that no foreign text is taken for anything else."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conformance_reports import TEST, failure, folder_with_files, report, requirement

from kvtrail.connector.simulate.conformance import page

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)></style>\"'&amp;\x1b[31m\x00\ud800]]> `<b>code</b>`"
VOID = {"meta", "br", "img", "link"}
POLICY = "Content-Security-Policy"
INLINE = {"code", "a", "span", "i"}


class Read(HTMLParser):
    """A page as a browser takes it: its elements, its texts in order, and what style sheets hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, str] = {}
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == [], "every element is closed"

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._apart(tag)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        self._apart(tag)

    def _apart(self, tag: str) -> None:
        if tag not in INLINE:
            self.texts.append(" ")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self.raw[self._open[-1]] = self.raw.get(self._open[-1], "") + data
        else:
            self.texts.append(data)


def read(of: dict[str, Any], folder: Path) -> Read:
    return Read(page.as_html(of, folder_with_files(folder)))


def test_what_was_not_exercised_comes_before_the_verdict(tmp_path: Path) -> None:
    text = read(report(), tmp_path).text
    said = [
        "2 of 6 requirements of level core were not put to the test",
        "core.lookup.after-eviction: it was never reached",
        "extended.groups.hit: it was refused",
        "Its plans and its store were hidden, for want of a probe: it has no probe",
        "groups, states: ValueError: it does not support HMA",
        "Failed: 1 failure, by which 1 requirement did not hold; 3 held",
        "A cached lookup answer was handed out",
    ]
    places = [text.index(each) for each in said]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"requirements": [requirement("core.load.bytes", "passed")]},
            "Nothing: 1 requirement of level core was put to the test",
        ),
        ({}, "Passed: all 3 requirements that were exercised held in 10,020 scheduling steps"),
        (
            {"verdict": "inconclusive", "inconclusive": ["None of 9 lookups hit."]},
            "Inconclusive: nothing failed in 10,020 scheduling steps, but that proves nothing. None of 9 lookups hit.",
        ),
        (
            {"workers": {"own": False, "why_fake": "they need a GPU", "loads_read": 0, "blocks_compared": 0}},
            "The connector's own workers did not run: they need a GPU.",
        ),
    ],
)
def test_a_verdict_says_what_it_rests_on(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert said in read(report(**{"verdict": "passed", "failures": [], **more}), tmp_path).text


def test_each_requirement_has_its_sentence_source_result_and_counts(tmp_path: Path) -> None:
    of = report()
    text = read(of, tmp_path).text
    for each in of["requirements"]:
        why = f"Not exercised: {each['why'].replace('`', '')} " if each["why"] else ""
        why += "".join(f"{id_} " for id_ in each["failures"])
        source = each["source"].replace("`", "")
        said = f"{each['result']} {each['sentence']} {each['id']} {source} {why}{each['reached']:,} "
        assert said in text, each["id"]


def test_a_failure_has_its_timeline_its_test_and_its_command(tmp_path: Path) -> None:
    shown = read(report(), tmp_path)
    rows = [attributes for tag, attributes in shown.elements if tag == "tr" and attributes.get("class") == "proof"]
    assert len(rows) == 2, "two lookups prove it"
    for said in (
        "bug-02", "arrival", "lookup", "preemption", "12 bug-02 lookup (L1) ", "max(0, 256 - 288) = 0",
        " ".join(TEST.split()), failure()["again"], "It was seen 3 times", "Usually: ",
        "It was found after 1,219 scheduling steps.",
    ):  # fmt: skip
        assert said in shown.text, said


def test_it_is_one_file_that_needs_no_network(tmp_path: Path) -> None:
    shown = read(report(), tmp_path)
    policy = next(each["content"] or "" for _, each in shown.elements if each.get("http-equiv") == POLICY)
    assert policy.startswith("default-src 'none'; ")
    assert {tag for tag, _ in shown.elements}.isdisjoint({"link", "img", "iframe", "object", "script"})
    for tag, attributes in shown.elements:
        assert "src" not in attributes, tag
        assert "style" not in attributes, f"{tag}: the policy forbids it"
        assert (attributes.get("href") or "#").startswith(("#", "https://")), tag
    assert "url(" not in shown.raw["style"]


def hostile(of: Any) -> Any:
    """A report with hostile texts, but for the words that the suite itself chooses."""
    if isinstance(of, dict):
        kept = ("result", "verdict", "level", "trace", "test")
        return {key: value if key in kept else hostile(value) for key, value in of.items()}
    if isinstance(of, list):
        return [hostile(each) for each in of]
    return f"{of}{HOSTILE}" if isinstance(of, str) else of


def test_no_text_is_taken_for_an_element(tmp_path: Path) -> None:
    whole = report(failures=[failure(details="Traceback")])
    plain, attacked = read(whole, tmp_path), read(hostile(whole), tmp_path)
    allowed = {tag for tag, _ in plain.elements} | {"code"}
    assert {tag for tag, _ in attacked.elements} <= allowed
    assert attacked.raw == plain.raw
    names = {name for _, attributes in plain.elements for name in attributes}
    assert {name for _, attributes in attacked.elements for name in attributes} <= names
    assert "<script>alert(1)</script><img src=x onerror=alert(2)>" in attacked.text
    assert not re.search(r"[\x00\x1b\ud800]", attacked.text), "control characters are shown as what they are"
    assert r"\x1b[31m\x00\ud800" in attacked.text


def test_of_a_long_history_the_last_events_of_the_named_requests_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read(report(), tmp_path)
    monkeypatch.setattr(page, "MOST_EVENTS", 5)
    part = read(report(), tmp_path)
    assert "Not shown: " in part.text
    assert "Not shown: " not in whole.text
    assert len([each for each in part.elements if each[0] == "tr"]) < len(
        [each for each in whole.elements if each[0] == "tr"]
    )
    assert "bug-02 lookup (L2)" in part.text

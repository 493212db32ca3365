"""A page as Streamlit runs it, without a browser: what it says, its tables, and where its links lead. It costs a tenth."""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
from streamlit import config
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

from kvtrail.dashboard.command import TRACER_VARIABLE
from kvtrail.dashboard.views import answers

APP = Path(answers.__file__).parents[1] / "app.py"


class Opened:
    """A page that was opened by its address.

    Attributes:
        app: what Streamlit's own tests see of it, with which something is typed or chosen.
    """

    def __init__(self, address: str) -> None:
        path, _, query = address.partition("?")
        self.app = AppTest.from_file(APP, default_timeout=1e9)
        self.app._page_hash = calc_hash(path or "overview")
        self.app.query_params.update(parse_qsl(query))
        self.run()

    def run(self) -> None:
        main = sys.modules["__main__"]
        try:
            self.app.run()
        finally:
            sys.modules["__main__"] = main  # Streamlit puts the page there, and forks would run it again
        assert not self.app.exception, self.app.exception[0].stack_trace

    def sees(self, text: str) -> None:
        """An element says something that this pattern describes."""
        assert any(re.search(text, each, re.DOTALL) for each in self.texts()), [*self.texts()]

    def texts(self) -> Iterator[str]:
        """What each element says: its label, its value, the code of its chart."""
        for each in self._elements():
            proto = each.proto
            parts = [getattr(each, "value", ""), *(getattr(proto, name, "") for name in ("label", "body", "spec"))]
            yield html.unescape(re.sub(r"\\(\W)|\*\*|<[^>]*>", r"\1", " ".join(map(str, parts))))

    def follow(self, label: str) -> Opened:
        """The page to which a link with such a label leads. A link to another state of the same page is a button."""
        links = [each for each in self._elements() if each.type in ("page_link", "button")]
        found = [each for each in links if re.search(label, re.sub(r"\\(\W)", r"\1", each.proto.label))]
        assert found, [each.proto.label for each in links]
        if found[0].type == "button":
            found[0].click()
            self.run()
            return self
        return Opened(f"{found[0].proto.page}?{found[0].proto.query_string}")

    def rows(self, key: str) -> list[list[Any]]:
        """The cells of a table's rows, by the name of its container."""
        rows: list[list[Any]] = self._table(key)["rows"]
        return rows

    def open_row(self, key: str, which: Callable[[list[Any]], bool] = bool) -> Opened:
        """The page to which the first such row of a table leads."""
        links, rows = self._table(key)["links"], self.rows(key)
        return Opened(next(link for link, cells in zip(links, rows, strict=True) if which(cells)))

    def _table(self, key: str) -> Any:
        shown = [each.proto for each in self._elements() if each.type == "bidi_component"]
        (table,) = (each for each in shown if each.id.endswith(f"-{key}_rows"))
        return json.loads(table.json)

    def _elements(self) -> Iterator[Any]:
        waiting = [self.app.main]
        while waiting:
            block: Any = waiting.pop(0)
            for each in block.children.values():
                if hasattr(each, "children"):
                    waiting.append(each)
                if hasattr(each, "proto") and each.proto is not None:
                    yield each


def show(tracer_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages of this process show this tracer from now on."""
    monkeypatch.setenv(TRACER_VARIABLE, tracer_url)
    answers.tracer.clear()  # type: ignore[attr-defined]  # Streamlit's cache of it
    config.set_option("runner.magicEnabled", False)  # as `kvtrail dashboard` has it

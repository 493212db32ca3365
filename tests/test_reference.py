"""The pages that are made from the code are current, and complete."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def made_from_code() -> ModuleType:
    """docs/reference.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("docs_reference", DOCS / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFERENCE = made_from_code()


@pytest.mark.parametrize("page", REFERENCE.PAGES)
def test_a_page_is_what_the_code_says(page: str) -> None:
    assert (DOCS / page).read_text(encoding="utf-8") == REFERENCE.PAGES[page](), "run `python docs/reference.py`"

"""Elements of a page. Their texts are escaped by the way in which they are made: a tree of elements is written, never a
string. Connectors' names and errors are other people's text."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from kvtrail.tracer.reports.terminal import plain

Child = ET.Element | str | None


def element(tag: str, *children: Child, **attributes: str | float | None) -> ET.Element:
    """An element with its children, None left out. Attributes that are None are left out; `class_` is `class`, and
    underscores are dashes."""
    made = ET.Element(
        tag, {name.rstrip("_").replace("_", "-"): safe(str(of)) for name, of in attributes.items() if of is not None}
    )
    for child in children:
        if isinstance(child, str):
            if len(made):
                made[-1].tail = (made[-1].tail or "") + safe(child)
            else:
                made.text = (made.text or "") + safe(child)
        elif child is not None:
            made.append(child)
    return made


def safe(text: str) -> str:
    """Untrusted text as XML and HTML can hold it: control characters but line breaks are escaped."""
    return "\n".join(map(plain, text.split("\n")))


def page(root: ET.Element) -> str:
    """The document."""
    return "<!doctype html>\n" + ET.tostring(root, encoding="unicode", method="html") + "\n"

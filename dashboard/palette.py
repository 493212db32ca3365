"""Every colour with a meaning, in the light and the dark theme, for pages, charts and the live view.

Each has a contrast of at least 4.5 as text and 3 as a mark on its theme's background (WCAG 2.2, 1.4.3 and 1.4.11); a test
computes it. Red is reserved for what is lost or wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Colour:
    """A colour in both themes, and the Streamlit colour of a badge."""

    light: str
    dark: str
    badge: str

    def on(self, *, dark: bool) -> str:
        """The colour in one of the themes."""
        return self.dark if dark else self.light

    @property
    def css(self) -> str:
        """The colour in CSS, which follows the theme."""
        return f"light-dark({self.light}, {self.dark})"


@dataclass(frozen=True, slots=True)
class Meaning:
    """A colour and its meaning."""

    colour: Colour
    means: str


def label(word: str) -> str:
    """A state or an outcome of the API, as pages show it."""
    return LABELS.get(word, word)


RED = Colour("#c8281e", "#ff7066", "red")
PINK = Colour("#b02a78", "#f08cc0", "violet")
ORANGE = Colour("#b8400a", "#fb8b5a", "orange")
YELLOW = Colour("#856100", "#e6c34a", "yellow")
LIME = Colour("#5d6e1a", "#a3b84a", "green")
GREEN = Colour("#0b7a55", "#3ecf9a", "green")
CYAN = Colour("#0a7488", "#4cc9e0", "blue")
BLUE = Colour("#1d5fd6", "#7aa7ff", "blue")
VIOLET = Colour("#7c3aed", "#b794f6", "violet")
GREY = Colour("#5b6472", "#a3acba", "gray")

BACKGROUND = Colour("#ffffff", "#0e1117", "")
SECONDARY = Colour("#f3f5f8", "#1b1f29", "")
"""The background of fields and table headings."""
TEXT = Colour("#12151c", "#f4f5f7", "")
"""Streamlit draws captions, axes and legends in it, at 60 % opacity."""
BORDER = Colour("#dfe3ea", "#2f3542", "")
PRIMARY = Colour("#1d5fd6", "#4d86f0", "")
"""Clickable and selected elements."""
FILLED = Colour("#1d5fd6", "#1d5fd6", "")
"""Buttons with white text, for which `PRIMARY` is too light in the dark theme."""
OF_PAGE = {
    "page": BACKGROUND, "secondary": SECONDARY, "line": BORDER, "muted": GREY, "clickable": PRIMARY, "filled": FILLED,
}  # fmt: skip
"""The page's own colours, by their CSS names, including text of less importance, such as column headings."""

LEVEL = {
    "lost": Meaning(RED, "something is lost: an engine, a request, a right answer"),
    "warning": Meaning(ORANGE, "something is worse than it was, or not known"),
    "calm": Meaning(GREEN, "nothing is wrong"),
}
"""Levels of sentences on the first page."""
STATE = {
    "running": Meaning(GREEN, "sends spans or heartbeats"),
    "lost_contact": Meaning(ORANGE, "sends nothing, without an end record"),
    "died": Meaning(RED, "ended with an error"),
    "drained": Meaning(GREY, "ended cleanly"),
    "replaced": Meaning(GREY, "replaced by another engine"),
    "unseen": Meaning(GREY, "not seen since the tracer started"),
}
"""States of an engine."""
STATUS = {
    "queued": Meaning(GREY, "arrived, and not yet processed"),
    "admitted": Meaning(CYAN, "was given blocks"),
    "loading": Meaning(GREEN, "waits for KV from the connector"),
    "running": Meaning(BLUE, "is computed"),
    "preempted": Meaning(ORANGE, "preempted, until its next step"),
    "finished": Meaning(GREEN, "ended as it should"),
    "failed": Meaning(RED, "a call about it raised"),
    "abandoned": Meaning(RED, "never ended, and its engine is gone"),
}
"""Statuses of a request, in order."""
OUTCOME = {
    "running": Meaning(BLUE, "has not ended"),
    "finished": Meaning(GREEN, "ended as it should"),
    "aborted": Meaning(GREY, "its caller gave up"),
    "failed": Meaning(RED, "a call about it raised, or it ended in an error"),
    "lost": Meaning(RED, "it was open when its engine ended"),
    "lost_contact": Meaning(ORANGE, "contact with its engine was lost"),
}
"""Outcomes of a request."""
LABELS = {"lost_contact": "contact lost", "unseen": "not seen"}
"""Display words of states and outcomes that differ from the API's."""
VERDICT = {
    "ok": Meaning(GREEN, "what was checked agrees, and nothing is missing"),
    "drift": Meaning(RED, "events contradict each other"),
    "unknown": Meaning(GREY, "the recorded events cannot decide it"),
}
SEVERITY = {
    "crash": Meaning(RED, "can kill the engine"),
    "wrong output": Meaning(PINK, "can give a wrong answer"),
    "broken contract": Meaning(VIOLET, "was agreed on and not kept; whether it did harm is not known"),
    "hang": Meaning(ORANGE, "can keep a request waiting forever"),
    "leak": Meaning(YELLOW, "can keep blocks or chunks that nobody uses"),
    "wasted work": Meaning(LIME, "can compute or copy in vain"),
    "wrong metrics": Meaning(GREY, "makes a number wrong"),
}
"""Severities of a finding, worst first."""
DID = {
    "engine died": Meaning(RED, "its engine ended with an error at that moment"),
    "request lost": Meaning(RED, "its request was open when its engine ended"),
    "request failed": Meaning(RED, "its request ended in an error"),
    "wrong KV read": Meaning(RED, "its request went on with KV that is not its own"),
    "harm not known": Meaning(
        YELLOW, "its request went on, maybe with KV that is not its own: only bytes would show it"
    ),
    "no harm seen": Meaning(GREY, "its request went on, as far as spans show"),
    "healed": Meaning(GREEN, "the guard replaced the answer before it was used"),
}
"""Impacts of a finding, worst first."""
KNOWN = {
    "known": Meaning(GREY, "the file of known findings names it, and alerts leave it out"),
    "partly known": Meaning(YELLOW, "some of its findings are known"),
}
"""Whether a finding, or findings of a rule, are known."""
PHASE = {
    "queued": Meaning(Colour("#8490a3", "#7d899c", ""), "arrived, and not yet processed"),
    "lookup": Meaning(Colour("#0c8ea6", "#22b8cf", ""), "the scheduler asks the connector"),
    "waiting for remote KV": Meaning(Colour("#b98100", "#e6b422", ""), "a load was promised and has not finished"),
    "load": Meaning(Colour("#0a9168", "#20b486", ""), "KV is copied from the store"),
    "prefill": Meaning(Colour("#1d4ed8", "#3b74f2", ""), "the prompt is computed"),
    "decode": Meaning(Colour("#7c9416", "#a9c445", ""), "the output is computed"),
    "preempted": Meaning(Colour("#e8590c", "#f47b3e", ""), "preempted, until its next step"),
    "store": Meaning(Colour("#8b46d9", "#a877ee", ""), "KV is copied into the store"),
    "done": Meaning(Colour("#88929f", "#66728a", ""), "it has ended"),
    "running": Meaning(Colour("#a8588f", "#d08bbb", ""), "prefill or decode: which of them is not recorded"),
    "failed": Meaning(Colour("#d92d20", "#f2594b", ""), "a call about it raised"),
}
"""Phases of a request; marks, never text."""
STAGE = {
    name: Meaning(PHASE[phase].colour, means)
    for name, phase, means in (
        ("queue to prefill", "queued", "from the arrival at the engine that prefills to its first step"),
        ("prefill", "prefill", "the prompt is computed there"),
        ("hand-off", "preempted", "from its end there to the arrival at the engine that decodes: the router"),
        ("queue to load", "done", "from the arrival there until blocks are allocated to load into"),
        ("load", "load", "until the load is received"),
        ("first token", "decode", "from the load to the end of the step of the first token, as far as it is recorded"),
    )
}
"""The parts of the time to the first token over a pair of engines; marks, never text."""
SOURCE = {
    "vLLM's own cache": Meaning(BLUE, "tokens that vLLM's prefix cache held"),
    "connector's store": Meaning(GREEN, "tokens that the connector was to load"),
    "computed": Meaning(GREY, "tokens that had to be computed"),
}
"""Sources of a token."""
TIERS = (GREEN, VIOLET, YELLOW, PINK, CYAN, LIME)
"""The tiers of a connector that names them, nearest first."""
CAUSE = {
    "held": Meaning(BLUE, "vLLM's own cache held it"),
    "loaded": Meaning(GREEN, "the connector loaded it"),
    "last-token": Meaning(CYAN, "held, and computed again by rule: the last token always is"),
    "unaligned": Meaning(CYAN, "partial last block (only full blocks are reused)"),
    "stranded": Meaning(PINK, "held, but not the whole prefix before it"),
    "pending": Meaning(VIOLET, "a running request was still computing or storing it"),
    "refused": Meaning(PINK, "held or handed over, but not offered or not taken"),
    "failed-load": Meaning(RED, "promised, but its load failed"),
    "evicted": Meaning(ORANGE, "held once, and evicted to make room"),
    "reset": Meaning(YELLOW, "held until the cache was emptied"),
    "uncached": Meaning(VIOLET, "computed once, but a KV cache group never kept its part"),
    "elsewhere": Meaning(LIME, "computed by another engine, never by this one"),
    "new": Meaning(GREY, "never computed before"),
    "unknown": Meaning(TEXT, "its cause was not recorded, or was lost"),
    "not-computed": Meaning(GREY, "never computed, since the request or its engine had ended"),
}
"""Causes of a token; the first that holds counts."""
MARKER = {
    "deploy": Meaning(BLUE, "an engine that is new, or has another version or setting than the one before it"),
    "restart": Meaning(CYAN, "an engine in the place of an equal one that had ended"),
    "death": Meaning(RED, "an engine ended with an error"),
    "contact lost": Meaning(ORANGE, "an engine stopped reporting"),
    "end": Meaning(GREY, "an engine ended well, or was replaced"),
    "reset": Meaning(YELLOW, "a cache was emptied"),
    "drop": Meaning(PINK, "a recorder dropped events"),
}
"""Markers on charts over time."""
GROUPS: dict[str, Mapping[str, Meaning]] = {
    "level": LEVEL, "state": STATE, "status": STATUS, "outcome": OUTCOME, "verdict": VERDICT, "severity": SEVERITY,
    "did": DID, "known": KNOWN, "phase": PHASE, "source": SOURCE, "cause": CAUSE, "marker": MARKER,
}  # fmt: skip
"""All groups, under their names; only the marks of `phase` are never text."""
BADGES = {
    name: each.colour.badge
    for group in (STATUS, OUTCOME, VERDICT, SEVERITY, DID, KNOWN)
    for name, each in group.items()
}
"""The colour of a badge by its word, which has one meaning in all groups."""


def colours(group: Mapping[str, Meaning], *, dark: bool) -> dict[str, str]:
    """The colours of a group in one of the themes, for each name."""
    return {name: each.colour.on(dark=dark) for name, each in group.items()}


def streamlit_options() -> dict[str, str]:
    """The palette as options of Streamlit's themes, for its own badges, notes, captions and links."""
    named = {
        "red": RED,
        "orange": ORANGE,
        "yellow": YELLOW,
        "green": GREEN,
        "blue": BLUE,
        "violet": VIOLET,
        "gray": GREY,
    }
    options = {
        "primaryColor": PRIMARY, "backgroundColor": BACKGROUND, "secondaryBackgroundColor": SECONDARY, "textColor": TEXT,
        "borderColor": BORDER, "linkColor": BLUE,
        **{f"{name}TextColor": colour for name, colour in named.items()},
        **{f"{name}Color": colour for name, colour in named.items()},
    }  # fmt: skip
    return {
        f"theme.{theme}.{option}": colour.on(dark=theme == "dark")
        for theme in ("light", "dark")
        for option, colour in options.items()
    }


def style() -> str:
    """The page's own colours as CSS variables that follow the theme, and those of levels and markers (`--level-lost`)."""
    lines = [f"--{name}: {each.css};" for name, each in OF_PAGE.items()]
    for group in ("level", "marker"):
        lines += [f"--{group}-{name.replace(' ', '-')}: {each.colour.css};" for name, each in GROUPS[group].items()]
    return ":root {\n  " + "\n  ".join(lines) + "\n}"

"""Known findings: which of them somebody has silenced, until when, why and by whom.

A silence changes no finding and deletes none. It says of each that it covers that nobody needs to be alerted to it: for as
long as it is active, and whenever the finding was made. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

MATCHERS = ("rule", "engine", "connector", "vllm_version", "kvtrail_version")
"""What a silence may ask of a finding. A connector has no version of its own in what is recorded: one of vLLM's has vLLM's,
the OffloadConnector kvtrail's."""
MAX_WHY, MAX_BY, MAX_MATCHER = 500, 100, 500
"""Characters."""
MAX_ACTIVE = 500
"""Silences that may be active at a time."""
LATEST_NS = 2**62
"""The latest end that a silence may have, in Unix nanoseconds."""


class Place(NamedTuple):
    """All of a finding that decides whether a silence covers it, with what its engine says of itself."""

    rule: str
    engine: str
    connector: str


class Sighting(NamedTuple):
    """When the findings of one place were first and last seen, over all time; Unix nanoseconds."""

    place: Place
    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Findings that somebody knows about. Times are Unix nanoseconds.

    Attributes:
        id: unique, and the same in every store that has it.
        rule, connector: as the finding names them; an empty text means any, as for each of `MATCHERS`.
        engine: vLLM's id of the engine, or its name for people.
        vllm_version, kvtrail_version: the versions of vLLM and of the recorder, as the engine reports them now.
        began_ns: when it was made.
        ends_ns: it is active before then; None until somebody ends it.
        why, by: for those who read it.
        written_ns: its last change: of two records with the same id the later one counts.
    """

    id: str
    rule: str = ""
    engine: str = ""
    connector: str = ""
    vllm_version: str = ""
    kvtrail_version: str = ""
    began_ns: int
    ends_ns: int | None
    why: str
    by: str
    written_ns: int

    def is_active(self, at_ns: int) -> bool:
        """Whether it has an effect at this moment."""
        return self.ends_ns is None or at_ns < self.ends_ns

    def covers(self, place: Place, about: Mapping[str, Any]) -> bool:
        """Whether it covers the findings of a place; `about` is its engine, as `model.engines.listed` has it."""
        return (
            self.rule in ("", place.rule)
            and self.engine in ("", place.engine, about.get("name"))
            and self.connector in ("", place.connector)
            and self.vllm_version in ("", about.get("version"))
            and self.kvtrail_version in ("", about.get("kvtrail"))
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return asdict(self)


class Silencing:
    """Which findings are silenced at one moment."""

    def __init__(self, silences: Iterable[Silence], engines: Mapping[str, Mapping[str, Any]], *, at_ns: int) -> None:
        """`engines` as `model.engines.listed` has them."""
        active = [each for each in silences if each.is_active(at_ns)]
        # Of several that cover a finding, the one that lasts longest is named.
        self._active = sorted(active, key=lambda each: -(LATEST_NS + 1 if each.ends_ns is None else each.ends_ns))
        self._engines = engines
        self._of_rule: dict[str, list[Silence]] = {}
        self._known: dict[Place, Silence | None] = {}
        self.until_ns = min((each.ends_ns for each in active if each.ends_ns is not None), default=LATEST_NS)
        """When the first of them ends."""

    def of(self, place: Place) -> Silence | None:
        """The silence that covers the findings of a place; None if none does."""
        if place not in self._known:
            about = self._engines.get(place.engine, {})
            if (candidates := self._of_rule.get(place.rule)) is None:
                candidates = [each for each in self._active if each.rule in ("", place.rule)]
                self._of_rule[place.rule] = candidates
            self._known[place] = next((each for each in candidates if each.covers(place, about)), None)
        return self._known[place]

    def about(self, engine: str) -> int:
        """How many active silences cover findings of an engine, if it has such: those of all engines, too."""
        about = self._engines.get(engine, {})
        return sum(each.covers(Place(each.rule, engine, each.connector), about) for each in self._active)


def place_of(finding: Mapping[str, Any]) -> Place:
    """The place of a finding, as the api and the stores have it."""
    return Place(*(str(finding[name]) for name in Place._fields))


def proposed(asked: Mapping[str, Any], *, id: str, now_ns: int, rules: Collection[str], active: int) -> Silence:
    """The silence that somebody asks for; `active` is how many are active already.

    Raises:
        ValueError: it cannot be made; the text is a sentence about what is wrong.
    """
    if unknown := asked.keys() - {*MATCHERS, "ends_ns", "why", "by"}:
        raise ValueError(f"a silence has no {sorted(unknown)[0]!r}: it has {', '.join(MATCHERS)}, ends_ns, why and by")
    matchers = {name: _text(asked, name, MAX_MATCHER) for name in MATCHERS}
    if not any(matchers.values()):
        raise ValueError(f"a silence without a matcher would silence everything: give one of {', '.join(MATCHERS)}")
    if (rule := matchers["rule"]) and rule not in rules:
        near = get_close_matches(rule, rules, n=1)
        raise ValueError(f"there is no rule {rule!r}{f'; did you mean {near[0]!r}?' if near else ''}")
    texts = {"why": _text(asked, "why", MAX_WHY), "by": _text(asked, "by", MAX_BY)}
    for name, what in (("why", "why these findings are known"), ("by", "who silences them")):
        if not texts[name]:
            raise ValueError(f"say in {name!r} {what}")
    if active >= MAX_ACTIVE:
        raise ValueError(f"{MAX_ACTIVE} silences are active already: end one first")
    return Silence(
        id=id, began_ns=now_ns, ends_ns=_end(asked, now_ns=now_ns), written_ns=now_ns, **matchers, **texts
    )  # fmt: skip


def _text(asked: Mapping[str, Any], name: str, most: int) -> str:
    text = asked.get(name, "")
    if not isinstance(text, str):
        raise ValueError(f"{name!r} must be a text, and is {text!r:.40}")
    text = text.strip()
    if len(text) > most:
        raise ValueError(f"{name!r} has {len(text):,} characters; {most} are the most")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name!r} has characters that no store can hold") from None
    return text


def _end(asked: Mapping[str, Any], *, now_ns: int) -> int | None:
    if "ends_ns" not in asked:
        raise ValueError(
            "say when it ends: 'ends_ns' in Unix nanoseconds, or null for one that lasts until it is ended"
        )
    ends_ns = asked["ends_ns"]
    if ends_ns is None:
        return None
    if type(ends_ns) is not int:
        raise ValueError(f"'ends_ns' must be Unix nanoseconds or null, and is {ends_ns!r:.40}")
    if ends_ns <= now_ns:
        raise ValueError("'ends_ns' is in the past: such a silence would have no effect")
    if ends_ns > LATEST_NS:
        raise ValueError(f"'ends_ns' is beyond {LATEST_NS}; use null for a silence that lasts until it is ended")
    return ends_ns

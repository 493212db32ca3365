"""The mismatches that a block check found: numbers, and the sentences of the rules about bytes."""

from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import BlockCheck

MAX_NAMED = 4
"""Maximum number of wrong blocks that a sentence names. The others are counted, and the witness has up to 64."""

DIFFERS, EARLY, CHANGED = "differs", "early", "changed"
WHERE = {"drift": DIFFERS, "early": EARLY, "rot": CHANGED}
"""The words of a finding for each kind of wrong block that a worker reports."""
_ORIGINS = {
    "computed": "This request computed them.",
    "loaded": "They were loaded for this request.",
    "admitted": "This request took them over from vLLM's prefix cache.",
    "held": "This request holds them.",
}


def numbers(event: BlockCheck, kind: str) -> dict[str, Any] | None:
    """The numbers of the event's wrong blocks of this kind; None if there are none. Lists are parallel, with one item for
    each block that the sentences name."""
    rows = list(
        zip(
            event.check_wrong_kinds, event.check_wrong_blocks, event.check_wrong_tokens, event.check_wrong_holds,
            event.check_wrong_from, strict=False,
        )
    )  # fmt: skip
    wrong = [row[1:] for row in rows if row[0] == kind]
    if not wrong:
        return None
    columns = map(list, zip(*wrong[:MAX_NAMED], strict=True))
    return {
        "where": WHERE[kind],
        "look": event.check_look,
        "looked": event.looked,
        "wrong": len(wrong),
        "unlisted": event.check_wrong_more,
        "block_size": event.block_size,
        "rank": event.rank,
        **({} if event.group is None else {"group": event.group}),
        **dict(zip(("blocks", "tokens", "holds", "sources"), columns, strict=True)),
    }


def sentences(of: dict[str, Any]) -> dict[str, Any]:
    """The parts of an explanation: the source of the blocks, the content of each of the first wrong ones, and the number of
    further ones."""
    size, group, verb = of["block_size"], of.get("group"), "held" if of["where"] == EARLY else "holds"
    contents = []
    for block, token, holds, source in zip(of["blocks"], of["tokens"], of["holds"], of["sources"], strict=True):
        of_group = f", this request's {tokens(token, size)},"
        if group is not None:
            of_group = f" of KV cache group {group}, at this request's token {token},"
        left = f"; request {source} left it so" if source else ""
        contents.append(f"Block {block}{of_group} {verb} {_content(holds, size, group)}{left}.")
    others = of["wrong"] + of["unlisted"] - len(contents)
    return {
        "origin": _ORIGINS.get(of["look"], "They are of this request."),
        "contents": " ".join(contents),
        "others": others or None,
    }


def tokens(first: int, size: int | None) -> str:
    """The tokens of a block."""
    return f"tokens from {first} on" if size is None else f"tokens {first} to {first + size}"


def place(token: int, size: int | None, group: int | None) -> str:
    """The tokens of a block, and its group if there are several KV cache groups."""
    return tokens(token, size) if group is None else f"bytes of KV cache group {group} at token {token}"


def _content(holds: str, size: int | None, group: int | None) -> str:
    """The content of a wrong block of this KV cache group, in words. Groups may differ in the tokens of a block. A recurrent
    state has none: it is named by the tokens that it has processed."""
    if holds in _ODD:
        return _ODD[holds]
    request, _, place = holds.rpartition("@")
    token, _, of_group = place.partition("/")
    if not (request and token.isdigit()):
        return "other content, of unknown origin"
    if group is None:
        return f"the KV of request {request}'s {tokens(int(token), size)}"
    for_group = f" for KV cache group {of_group}" if of_group.isdigit() else ""
    return f"what request {request} computed{for_group} at token {token}"


_ODD = {"zeros": "zeros", "poison": "what was computed after a wrong block"}

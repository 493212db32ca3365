"""The mismatches that a block check found: numbers, and the sentences of the rules about bytes."""

from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import BlockCheck
from kvtrail.tracer.model import words

MAX_NAMED = 4
"""Wrong blocks that a sentence names; the others are counted, and the witness has up to 64."""

DIFFERS, EARLY, CHANGED = "differs", "early", "changed"
WHERE = {"drift": DIFFERS, "early": EARLY, "rot": CHANGED}
"""What a finding says of each kind of wrong block that a worker reports."""
_CHECKED = {
    "computed": "blocks that this request computed",
    "loaded": "blocks that were loaded for this request",
    "admitted": "blocks that this request took over from vLLM's prefix cache",
    "held": "blocks that this request holds",
}


def numbers(event: BlockCheck, kind: str) -> dict[str, Any] | None:
    """The event's wrong blocks of this kind; None where it has none. Lists are parallel, and as long as the sentences name
    blocks."""
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


def checked(of: dict[str, Any]) -> str:
    """Which blocks were checked: "3 blocks that were loaded for this request were"."""
    blocks, many = _CHECKED.get(of["look"], "blocks of this request"), of["looked"] != 1
    if of["look"] == "held":  # repeatedly: the number says nothing
        return f"{blocks} were"
    return f"{words.count(of['looked'])} {blocks if many else _one(blocks)} {'were' if many else 'was'}"


def _one(blocks: str) -> str:
    return blocks.replace("blocks", "block", 1).replace(" were ", " was ", 1)


def sentences(of: dict[str, Any]) -> dict[str, str]:
    """The parts of an explanation: what was checked, what applies to all wrong blocks, and what each of them holds. Where
    several were left so by the same request, one sentence says it."""
    sources, verb = _of_all(of["sources"]), "held" if of["where"] == EARLY else "holds"
    contents = []
    for number, holds in enumerate(of["holds"]):
        text = f"{_place(of, number)} {verb} {_content(holds, of['block_size'], of.get('group'))}"
        if sources is None and of["sources"][number]:
            text += f"; request {of['sources'][number]} left it so"
        contents.append(f"{text}.")
    of_all = _unnamed(of)
    of_all += [f"Request {sources} left these so."] if sources else []
    return {"checked": checked(of), "of_all": "".join(f" {each}" for each in of_all), "contents": " ".join(contents)}


def _of_all(values: list[str]) -> str | None:
    """What several blocks have in common; None where they differ, or there is only one."""
    return values[0] if len(values) > 1 and len(set(values)) == 1 else None


def _unnamed(of: dict[str, Any]) -> list[str]:
    """The wrong blocks that are not named, as sentences of their own."""
    more, unlisted = of["wrong"] - len(of["blocks"]), of["unlisted"]
    texts = [f"{words.count(more)} of them {'is' if more == 1 else 'are'} not named here."] if more else []
    if unlisted:
        texts.append(
            f"{words.some(unlisted, 'more wrong block')} of this check {'is' if unlisted == 1 else 'are'} not listed."
        )
    return texts


def _place(of: dict[str, Any], number: int) -> str:
    """A wrong block and its tokens."""
    block, token, group = of["blocks"][number], of["tokens"][number], of.get("group")
    if group is None:
        return f"Block {block}, this request's {tokens(token, of['block_size'])},"
    return f"Block {block} of KV cache group {group}, at this request's token {token},"


def tokens(first: int, size: int | None) -> str:
    """The tokens of a block."""
    return f"tokens from {first} on" if size is None else f"tokens {first} to {first + size}"


def place(token: int, size: int | None, group: int | None) -> str:
    """The tokens of a block, and its group where there are several KV cache groups."""
    return tokens(token, size) if group is None else f"bytes of KV cache group {group} at token {token}"


def _content(holds: str, size: int | None, group: int | None) -> str:
    """What a wrong block of this KV cache group holds. Where there are several, they may differ in the tokens of a block, and
    a recurrent state has none: it is named by the tokens that it has seen."""
    match holds:
        case "zeros":
            return "zeros"
        case "poison":
            return "what was computed after a wrong block"
    request, at, place = holds.rpartition("@")
    token, _, of_group = place.partition("/")
    if at and token.isdigit():
        if group is None:
            return f"the KV of request {request}'s {tokens(int(token), size)}"
        if of_group.isdigit():
            return f"what request {request} computed for KV cache group {of_group} at token {token}"
        return f"what request {request} computed at token {token}"
    return "other content, of unknown origin"

"""What a look at blocks found wrong, as the rules about bytes tell it: numbers, and sentences made of them."""

from __future__ import annotations

from typing import Any

from kvtrail.tracer.model import words
from kvtrail.tracer.model.events import BlockCheck

MOST_NAMED = 4
"""Wrong blocks that a sentence names; the others are counted, and the witness has up to 64."""

_LOOKED = {
    "computed": "blocks that this request computed",
    "loaded": "blocks that were loaded for this request",
    "admitted": "blocks that this request took over from vLLM's prefix cache",
    "held": "blocks that this request holds",
}


def numbers(event: BlockCheck, kind: str) -> dict[str, Any] | None:
    """What the event says of wrong blocks of this kind; None where it names none. Lists are parallel, and as long as a
    sentence about them."""
    rows = list(
        zip(
            event.check_wrong_kinds, event.check_wrong_blocks, event.check_wrong_tokens, event.check_wrong_layers,
            event.check_wrong_holds, event.check_wrong_from, strict=False,
        )
    )  # fmt: skip
    wrong = [row[1:] for row in rows if row[0] == kind]
    if not wrong:
        return None
    columns = map(list, zip(*wrong[:MOST_NAMED], strict=True))
    return {
        "look": event.check_look,
        "looked": event.looked,
        "wrong": len(wrong),
        "unlisted": event.check_wrong_more,
        "block_size": event.block_size,
        "rank": event.rank,
        **dict(zip(("blocks", "tokens", "layers", "holds", "sources"), columns, strict=True)),
    }


def looked(of: dict[str, Any]) -> str:
    """Which blocks were looked at: "3 blocks that were loaded for this request were"."""
    blocks, many = _LOOKED.get(of["look"], "blocks of this request"), of["looked"] != 1
    return f"{words.count(of['looked'])} {blocks if many else _one(blocks)} {'were' if many else 'was'}"


def _one(blocks: str) -> str:
    return blocks.replace("blocks", "block", 1).replace(" were ", " was ", 1)


def sentences(of: dict[str, Any], verb: str = "holds") -> dict[str, str]:
    """The parts of an explanation: what was looked at, what each wrong block holds, and what is left out."""
    told = (f"{_place(of, n)} {verb} {_held(of, n)}." for n in range(len(of["blocks"])))
    return {"looked": looked(of), "told": " ".join(told), "rest": _rest(of)}


def _rest(of: dict[str, Any]) -> str:
    """The wrong blocks that are not named, as sentences of their own; empty where there are none."""
    more, unlisted = of["wrong"] - len(of["blocks"]), of["unlisted"]
    texts = [f" {words.some(more, 'more block')} {'is' if more == 1 else 'are'} wrong, too."] if more else []
    if unlisted:
        texts.append(
            f" {words.some(unlisted, 'more wrong block')} of this look {'is' if unlisted == 1 else 'are'} not listed."
        )
    return "".join(texts)


def _place(of: dict[str, Any], number: int) -> str:
    """A wrong block and its tokens."""
    return f"Block {of['blocks'][number]}, this request's {tokens(of['tokens'][number], of['block_size'])},"


def tokens(first: int, size: int | None) -> str:
    """The tokens of a block."""
    return f"tokens from {first} on" if size is None else f"tokens {first} to {first + size}"


def _held(of: dict[str, Any], number: int) -> str:
    """What a wrong block holds, where it differs, and who left it so."""
    layers, source = of["layers"][number], of["sources"][number]
    where = (
        f"; layer{'' if layers.isdigit() else 's'} {layers} differ{'s' if layers.isdigit() else ''}" if layers else ""
    )
    left = f"; request {source} left it so" if source else ""
    return f"{_content(of['holds'][number], of['block_size'])}{where}{left}"


def _content(holds: str, size: int | None) -> str:
    match holds:
        case "zeros":
            return "zeros"
        case "poison":
            return "what was computed after a wrong block"
    request, at, first = holds.rpartition("@")
    if at and first.isdigit():
        return f"the KV of request {request}'s {tokens(int(first), size)}"
    return "something else, and whose it is is not known"

"""LMCache's lines, through its versions from 0.3.0 to 0.5 in vLLM's process, those of its multiprocess server, and those of
its siblings, which print the same with a word changed.

The formats are those of LMCache's `vllm_v1_adapter.py`, `cache_engine.py`, `storage_manager.py`, `token_database.py`,
`memory_management.py` and the asynchronous lookup client. Of a lookup the words before its numbers are read, whatever their
order.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ingest.logs.line_patterns import ID_STOPS, NUMBER, Reading, Role, note, number, numbers, pattern_of

_ID = rf"(?P<request>[^{ID_STOPS}\]]*[^{ID_STOPS}\].;])"
_REQ_ID = rf"(?:\[req_id={_ID}[^\]]*\]\s*)?"
_N = NUMBER
_VALUE = re.compile(rf"[ \t:=]*(?P<value>(?<![\d,.])(?<!\d_)-?{_N}|None)(?!\w|\.\d)")
_NOT_A_LABEL = re.compile(r"[^A-Za-z_ .()/-]")
"""What ends the words before a value."""
_LONGEST_LABEL = 80
_OWN = re.compile(r"^(?:LMCache|[Ee]xternal|[Mm]atched|[Nn]um_?|[Pp]refix|[Cc]ache)?$")
"""What stands before `hit tokens` and names no other system."""
_SMALL = re.compile(r"< min_retrieve|skip retrieve")


def _lookup(match: re.Match[str]) -> Reading | None:
    """The scheduler asked. `need to load` may be negative, and newer versions print 0 instead; both answer 0 new tokens."""
    values, system = _labels(match["rest"])
    matched, need, total = values.get("matched"), values.get("need"), values.get("total")
    if "matched" in values and matched is None:
        return Reading(Role.NOTE, "looked up: the store is still looking, and vLLM will ask again", match["request"])
    if matched is None or need is None or total is None or matched < 0 or total < 0:
        return None
    reading = _asked(
        match["request"], total, matched, need, values.get("computed"), _SMALL.search(match["rest"]) is not None
    )
    reading.connector = system
    return reading


def _labels(text: str) -> tuple[dict[str, int | None], str]:
    """The numbers of a lookup by what they count, and the system that owns the store; empty for LMCache."""
    values: dict[str, int | None] = {}
    system = ""
    ended = 0
    for match in _VALUE.finditer(text):
        words, value = _NOT_A_LABEL.split(text[ended : match.start()])[-1][-_LONGEST_LABEL:], match["value"]
        ended = match.end()
        label = words.lower()
        if "comput" in label:
            name = "computed"
        elif "need" in label or label.endswith(("to load", "to fetch", "to pull")):
            name = "need"
        elif "total" in label and "token" in label:
            name = "total"
        elif "token" in label and re.search(r"hit|match|found", label):
            name = "matched"
            word = words.strip(" .").split(" ")[0]
            system = "" if _OWN.match(word) else word
        else:
            continue
        values.setdefault(name, None if value == "None" else number(value))
    return values, system


def _asked(request: str, total: int, matched: int, need: int, printed: int | None, is_small: bool) -> Reading:
    """A lookup by its numbers.

    Where vLLM's computed tokens are not printed they follow from h - c, except on a full hit (from which some versions
    subtract one token, and some have before) and where the answer would be checked against a number that was derived
    from it: then only what the store holds is known, which is what one rank's lookup says.
    """
    computed = matched - need if printed is None and matched < total and need <= 0 else printed
    returned = 0 if is_small else max(0, need)
    how = f"{matched} of {total} tokens found in the store"
    reading = Reading(Role.EVENT, "", request, Kind.LOOKUP)
    if computed is None or not 0 <= computed <= total or (computed + returned >= total and returned):
        known = "how many were computed is not printed" if printed is None else f"{computed} computed"
        reading.words = f"looked up, {known}: {how}, {need} to load"
        reading.kind = Kind.RANK_LOOKUP
        reading.fields = {"total": total, "matched": matched}
        return reading
    inferred = "" if printed is not None else f" (not printed: {matched} found less {need} to load)"
    reading.words = f"looked up with {computed} tokens computed{inferred}: {how}, "
    if is_small:
        reading.words += f"{need} to load, which is fewer than it cares to load: 0 new tokens"
    elif need < 0 or matched < computed:
        reading.words += f"{matched} - {computed} = {matched - computed} to load, which is legal and means 0 new tokens"
        reading.remarkable = matched > 0
    else:
        reading.words += f"{need} to load"
    reading.fields = {"total": total, "computed": computed, "matched": matched, "returned": returned}
    return reading


def _storing(match: re.Match[str]) -> Reading:
    count, upto = numbers(match, "count", "upto")
    start = number(match["start"]) if match["start"] else max(0, upto - count)
    fields = {"start": start, "count": count}
    return Reading(
        Role.STORING, f"begins to store {count} tokens from {start} on", match["request"], Kind.STORE, fields
    )


def _stored(match: re.Match[str]) -> Reading:
    count, of = numbers(match, "count", "of")
    words = f"stored {count} of {of} tokens"
    return Reading(Role.STORED, words, match["request"], Kind.STORE, {"count": count, "of": of})


def _retrieved(match: re.Match[str]) -> Reading:
    count, expected, of = numbers(match, "count", "expected", "of")
    fields = {"start": max(0, of - expected), "count": count, "expected": expected}
    words = f"loaded {count} tokens; the chunks that it asked for have {expected}"
    return Reading(Role.RETRIEVED, words, match["request"], Kind.LOAD, fields, remarkable=count < expected)


def _shortfall(match: re.Match[str]) -> Reading:
    count, expected = numbers(match, "count", "expected")
    words = f"loaded {count} tokens where {expected} were expected"
    fields = {"count": count, "expected": expected}
    return Reading(Role.SHORTFALL, words, None, Kind.LOAD, fields, error=match[0].strip(), remarkable=True)


def _mismatch(match: re.Match[str]) -> Reading:
    allocated, matched, computed = numbers(match, "allocated", "matched", "computed")
    words = (
        f"the connector's assertion fails: {allocated} tokens were allocated, and {matched} found less {computed} computed is"
        f" {matched - computed}"
    )
    fields = {"allocated": allocated, "matched": matched, "computed": computed}
    return Reading(Role.MISMATCH, words, match["request"], Kind.ALLOC, fields, error=match[0].strip(), remarkable=True)


def _backend(match: re.Match[str]) -> Reading:
    words = (
        f"{match['backend']} holds {match['matched']} tokens, {match['hit']} of the {match['chunks']} chunks asked for"
    )
    fields = {"matched": number(match["matched"])}
    return Reading(Role.EVENT, words, match["request"], Kind.RANK_LOOKUP, fields, connector_id=match["backend"])


def _key(match: re.Match[str]) -> Reading:
    """A key stands for its content only where the preview shows all of the chunk's tokens; as a rule it shows ten."""
    fields = {"chunk_key": _hex(match["key"])}
    if match["parent"] != "None":
        fields["chunk_parent"] = _hex(match["parent"])
    if len(match["preview"].replace(",", " ").split()) == int(match["length"]):
        content = f"{match['preview']} {match['extra']}".encode()
        fields["chunk_content"] = hashlib.blake2b(content, digest_size=8).hexdigest()
    return Reading(Role.EVENT, f"the key of {match['length']} tokens is {fields['chunk_key']}", None, Kind.KEY, fields)


def _scheduled(match: re.Match[str]) -> Reading:
    """Without the tokens that vLLM has, the number is the length of the prefix: it says neither where the load begins nor how
    long it is."""
    prefix = number(match["count"])
    if match["computed"] is None:
        return Reading(Role.NOTE, f"scheduled to load, for a prefix of {prefix} tokens", match["request"])
    start = number(match["computed"])
    fields = {"start": start, "count": max(0, prefix - start)}
    return Reading(
        Role.EVENT, f"scheduled to load tokens {start} to {prefix}", match["request"], Kind.LOAD_PLAN, fields
    )


def _hex(text: str) -> str:
    """A hash as the vocabulary has keys: shortened hexadecimal digits."""
    return f"{int(text) & (2**64 - 1):016x}" if re.fullmatch(r"-?\d{1,20}", text) else text[:16]


def _count(match: re.Match[str]) -> Reading:
    name = "refs" if match["what"] == "Ref" else "pins"
    words = f"the {match['what'].lower()} count of memory object {match['object']} is {match['value']}"
    fields = {name: int(match["value"])}
    return Reading(Role.EVENT, words, None, Kind.REFCOUNT, fields, remarkable=True)


LMCACHE = tuple(
    replace(each, connector="LMCache")
    for each in (
        pattern_of(
            " tokens",
            rf"(?i:\breq(?:uest)?[ _]?id\b)[ :=]{{0,3}}['\"]?{_ID}(?P<rest>.{{0,400}})",
            _lookup,
        ),
        pattern_of(
            " tokens",
            rf"\b(?:Storing|Saving|Offloading|Putting) (?:KV ?[Cc]aches? )?(?:for )?(?P<count>{_N}) (?:out )?of"
            rf" (?P<upto>{_N}) tokens(?: \([^)]*?skip_leading_tokens=(?P<start>{_N})\))?.{{0,80}}? for request {_ID}",
            _storing,
        ),
        pattern_of(
            " tokens",
            rf"{_REQ_ID}\b(?:Stored|Saved|Offloaded) (?P<count>{_N}) (?:out )?of (?:total )?(?P<of>{_N})"
            r" (?:total )?tokens",
            _stored,
        ),
        pattern_of(
            " tokens",
            rf"{_REQ_ID}\b(?:Retrieved|Loaded|Fetched) (?P<count>{_N}) out of (?:total )?(?P<expected>{_N})"
            rf"(?: required tokens \(from| out of total) (?P<of>{_N}) (?:total )?tokens",
            _retrieved,
        ),
        pattern_of(
            "The number of retrieved tokens is less",
            rf"(?:Request (?P<request>[^{ID_STOPS}]*?))?\s*The number of retrieved tokens is less than",
            note("LMCache itself calls the load too short", role=Role.SHORT_OF, remarkable=True),
        ),
        pattern_of(
            "Num retrieved tokens: ",
            rf"Num retrieved tokens: (?P<count>{_N}), num expected tokens: (?P<expected>{_N})(?!\d)",
            _shortfall,
        ),
        pattern_of(
            "KV cache will not be stored",
            rf"{_REQ_ID}[^\n]{{0,200}}?KV cache will not be stored",
            note("not stored: LMCache has no room for it", role=Role.NOT_STORED, remarkable=True),
        ),
        pattern_of(
            "Mismatch in tokens to load: ",
            rf"Mismatch in tokens to load: (?P<allocated>{_N}) vs (?P<matched>{_N})(?: \(tokens in [^)]*\))?"
            rf" - (?P<computed>{_N})(?: \(tokens in vllm\))?(?: - {_N}[^\n]*? for request {_ID})?",
            _mismatch,
        ),
        pattern_of(
            "Scheduled to load ",
            rf"Scheduled to load (?P<count>{_N}) tokens(?: \((?P<computed>{_N}) cached in vLLM\))? for request {_ID}",
            _scheduled,
        ),
        pattern_of(
            "still waiting for async lookup",
            rf"Request {_ID} is still waiting for async lookup after (?P<seconds>{_N}) seconds",
            note("the store did not answer within {seconds} seconds: LMCache says 0 tokens", remarkable=True),
        ),
        pattern_of(
            "Lookup ",
            rf"Lookup (?P<request>[^{ID_STOPS}:]+): Backend (?P<backend>\S{{1,80}}) hit (?P<hit>{_N}) chunks out of"
            rf" (?P<chunks>{_N}), (?P<matched>{_N}) tokens",
            _backend,
        ),
        pattern_of(
            "[HASH_GENERATION]",
            r"prefix_hash=(?P<parent>-?\w{1,80}), tokens_len=(?P<length>\d{1,9}), tokens_preview=[(\[]"
            r"(?P<preview>[\d, ]*)[)\]], extra_keys=(?P<extra>.*?),.*? result_hash=(?P<key>-?\w{1,80})",
            _key,
        ),
        pattern_of(
            " count of MemoryObj ",
            rf"(?P<what>Ref|Pin) count of MemoryObj (?P<object>-?\d+) ?is negative: (?P<value>-{_N})",
            _count,
        ),
        pattern_of(
            "lookup_id=",
            rf"Releasing memory object for lookup_id={_ID}",
            note("a memory object of its lookup is released"),
        ),
        pattern_of(
            " failed to load ",
            rf"Request {_ID} failed to load (?P<count>{_N}) tokens across (?P<blocks>{_N}) blocks",
            # It counts blocks and does not say which they are.
            note("{count} tokens in {blocks} blocks could not be loaded, which is reported to vLLM", remarkable=True),
        ),
        pattern_of(
            "Prefetch request completed",
            rf"Prefetch request completed \(L1\+L2\): (?P<hit>{_N})/(?P<chunks>{_N}) (?:retained keys|prefix hits)"
            rf"(?:.*\bexternal_request_id=(?P<request>[^{ID_STOPS})]+))?",
            # The multiprocess server counts chunks, and does not print how long they are.
            note("the server holds {hit} of the {chunks} chunks asked for"),
        ),
        pattern_of(
            "slot_mapping/token_ids",
            rf"Skipping KV save for request {_ID}: slot_mapping/token_ids\s+length mismatch"
            rf" \(slot_mapping=(?P<slots>{_N}), token_ids=(?P<tokens>{_N})\)",
            note("not stored: it has {tokens} tokens, and slots for {slots}", remarkable=True),
        ),
        pattern_of(
            "The number of tokens is more than the number of blocks",
            rf"The number of tokens is more than the number of blocks(?: for request {_ID}(?<!\.))?",
            note("LMCache has fewer blocks of it than its tokens need", remarkable=True),
        ),
        pattern_of(
            "num blocks: ",
            rf"Num tokens: (?P<tokens>{_N}), num blocks: (?P<blocks>{_N}), block size: (?P<size>{_N})",
            note("it has {tokens} tokens, and {blocks} blocks of {size}", remarkable=True),
        ),
        pattern_of(
            "attn_metadata is None",
            r"In connector\.start_load_kv, but the attn_metadata is None",
            note("a step without attention metadata: nothing is loaded in it"),
        ),
        pattern_of(
            "Error processing request from scheduler",
            r"Error processing request from scheduler: *(?P<error>[^(]{0,200})",
            note("the store fails to answer a lookup", remarkable=True),
        ),
        pattern_of(
            "Store skips ",
            rf"Store skips (?P<skipped>{_N}) tokens and then stores (?P<count>{_N}) tokens",
            note("stores {count} tokens after the first {skipped}, of a request that is not named"),
        ),
        pattern_of(
            "Injected token number: ",
            rf"Injected token number: (?P<count>{_N})",
            note("loads {count} tokens, of a request that is not named"),
        ),
        pattern_of(
            "pinned object ",
            r"Unregistered pinned object (?P<object>\d+) from timeout monitoring",
            note("memory object {object} is no longer pinned"),
        ),
        pattern_of(
            "The cache block is in the storage",
            r"The cache block is in the storage, but it can't be retrieved",
            note("a chunk is in the store and cannot be read from it", remarkable=True),
        ),
        pattern_of(
            " tokens in ",
            rf"\b(?P<what>Stored|Retrieved) (?P<count>{_N}) tokens in \d{{1,9}}\.\d+ seconds",
            # The multiprocess server names neither the request nor the place in it.
            note("{what} {count} tokens, of a request that is not named"),
        ),
    )
)

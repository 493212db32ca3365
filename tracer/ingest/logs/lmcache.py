"""LMCache's lines, through its versions from 0.3.0 to 0.5 in vLLM's process, and those of its multiprocess server.

The formats are those of LMCache's `vllm_v1_adapter.py`, `cache_engine.py`, `storage_manager.py`, `token_database.py`,
`memory_management.py` and the asynchronous lookup client.
"""

from __future__ import annotations

import hashlib
import re

from kvtrail.tracer.ingest.logs.readings import NUMBER, Form, Reading, Role, Table, note, numbers
from kvtrail.tracer.model.semconv import Kind

_ID = r"(?P<request>[^\s,\]]+)"
_REQ_ID = rf"(?:\[req_id={_ID}[^\]]*\]\s*)?"
_N = NUMBER


def _lookup(match: re.Match[str]) -> Reading:
    """The scheduler asked. `need to load` may be negative, and newer versions print 0 instead; both answer 0 new tokens.

    Where vLLM's computed tokens are not printed they follow from h - c, except on a full hit (from which some versions
    subtract one token, and some have before) and where the answer would be checked against a number that was derived
    from it: then only what the store holds is known, which is what one rank's lookup says.
    """
    total, matched, need = numbers(match, "total", "matched", "need")
    printed = match["before"] or match["after"]
    computed = int(printed) if printed is not None else matched - need if matched < total and need <= 0 else None
    returned = 0 if match["skip"] else max(0, need)
    how = f"{matched} of {total} tokens found in the store"
    reading = Reading(Role.EVENT, "", match["request"], Kind.LOOKUP)
    if computed is None or computed > total or (computed + returned >= total and returned):
        known = "how many were computed is not printed" if printed is None else f"{computed} computed"
        reading.words = f"looked up, {known}: {how}, {need} to load"
        reading.kind = Kind.RANK_LOOKUP
        reading.fields = {"total": total, "matched": matched}
        return reading
    inferred = "" if printed is not None else f" (not printed: {matched} found less {need} to load)"
    reading.words = f"looked up with {computed} tokens computed{inferred}: {how}, "
    if match["skip"]:
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
    start = int(match["start"]) if match["start"] else max(0, upto - count)
    fields = {"start": start, "count": count}
    return Reading(
        Role.STORING, f"begins to store {count} tokens from {start} on", match["request"], Kind.STORE, fields
    )


def _stored(match: re.Match[str]) -> Reading:
    count, of = numbers(match, "count", "of")
    words = f"stored {count} of {of} tokens"
    return Reading(Role.STORED, words, match["request"], Kind.STORE, {"count": count})


def _retrieved(match: re.Match[str]) -> Reading:
    count, expected, of = numbers(match, "count", "expected", "of")
    fields = {"start": max(0, of - expected), "count": count, "expected": expected}
    words = f"loaded {count} of the {expected} tokens that it was to load"
    return Reading(Role.RETRIEVED, words, match["request"], Kind.LOAD, fields, remarkable=count < expected)


def _shortfall(match: re.Match[str]) -> Reading:
    count, expected = numbers(match, "count", "expected")
    words = f"loaded {count} tokens where {expected} were expected"
    fields = {"count": count, "expected": expected}
    return Reading(Role.SHORTFALL, words, None, Kind.LOAD, fields, error=match[0].strip(), remarkable=True)


def _mismatch(match: re.Match[str]) -> Reading:
    allocated, matched, computed = numbers(match, "allocated", "matched", "computed")
    words = (
        f"LMCache's assertion fails: {allocated} tokens were allocated, and {matched} found less {computed} computed is"
        f" {matched - computed}"
    )
    fields = {"allocated": allocated, "matched": matched, "computed": computed}
    return Reading(Role.MISMATCH, words, match["request"], Kind.ALLOC, fields, error=match[0].strip(), remarkable=True)


def _backend(match: re.Match[str]) -> Reading:
    words = (
        f"{match['backend']} holds {match['matched']} tokens, {match['hit']} of the {match['chunks']} chunks asked for"
    )
    fields = {"matched": int(match["matched"])}
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


def _hex(text: str) -> str:
    """A hash as the vocabulary has keys: shortened hexadecimal digits."""
    return f"{int(text) & (2**64 - 1):016x}" if re.fullmatch(r"-?\d{1,20}", text) else text[:16]


def _count(match: re.Match[str]) -> Reading:
    name = "refs" if match["what"] == "Ref" else "pins"
    words = f"the {match['what'].lower()} count of memory object {match['object']} is {match['value']}"
    fields = {name: int(match["value"])}
    return Reading(Role.EVENT, words, None, Kind.REFCOUNT, fields, remarkable=True)


LMCACHE = Table(
    "LMCache",
    (
        Form(
            "LMCache hit tokens: ",
            re.compile(
                rf"Reqid: {_ID}, Total tokens (?P<total>{_N}),"
                rf"(?: Inference Engine computed tokens: (?P<before>{_N}),)?"
                rf" LMCache hit tokens: (?P<matched>{_N}),(?: but)? need to load: (?P<need>-?{_N})(?!\d)"
                rf"(?:, num_computed_tokens:? (?P<after>{_N})(?!\d))?(?P<skip> < min_retrieve)?"
            ),
            _lookup,
        ),
        Form(
            "LMCache hit tokens: ",
            re.compile(rf"Reqid: {_ID},.*? LMCache hit tokens: None"),
            note("looked up: the store is still looking, and vLLM will ask again"),
        ),
        Form(
            "Storing KV cache for ",
            re.compile(
                rf"Storing KV cache for (?P<count>{_N}) out of (?P<upto>{_N}) tokens"
                rf"(?: \(skip_leading_tokens=(?P<start>{_N})\))? for request {_ID}"
            ),
            _storing,
        ),
        Form("Stored ", re.compile(rf"{_REQ_ID}\bStored (?P<count>{_N}) out of total (?P<of>{_N}) tokens"), _stored),
        Form(
            "Retrieved ",
            re.compile(
                rf"{_REQ_ID}\bRetrieved (?P<count>{_N}) out of (?:total )?(?P<expected>{_N})"
                rf"(?: required tokens \(from| out of total) (?P<of>{_N}) (?:total )?tokens"
            ),
            _retrieved,
        ),
        Form(
            "The number of retrieved tokens is less",
            re.compile(r"(?:Request (?P<request>[^\s,]*?))?\s*The number of retrieved tokens is less than"),
            note("LMCache itself calls the load too short", role=Role.SHORT_OF, remarkable=True),
        ),
        Form(
            "Num retrieved tokens: ",
            re.compile(rf"Num retrieved tokens: (?P<count>{_N}), num expected tokens: (?P<expected>{_N})(?!\d)"),
            _shortfall,
        ),
        Form(
            "Mismatch in tokens to load: ",
            re.compile(
                rf"Mismatch in tokens to load: (?P<allocated>{_N}) vs (?P<matched>{_N})(?: \(tokens in lmcache\))?"
                rf" - (?P<computed>{_N})(?: \(tokens in vllm\))?(?: - {_N}[^\n]*? for request {_ID})?"
            ),
            _mismatch,
        ),
        Form(
            "Scheduled to load ",
            re.compile(rf"Scheduled to load (?P<count>{_N}) tokens for request {_ID}"),
            # The number is the length of the prefix: it says neither where a load begins nor how long it is.
            note("scheduled to load, for a prefix of {count} tokens"),
        ),
        Form(
            "still waiting for async lookup",
            re.compile(rf"Request {_ID} is still waiting for async lookup after (?P<seconds>{_N}) seconds"),
            note("the store did not answer within {seconds} seconds: LMCache says 0 tokens", remarkable=True),
        ),
        Form(
            "Lookup ",
            re.compile(
                rf"Lookup (?P<request>[^\s:]+): Backend (?P<backend>\S{{1,80}}) hit (?P<hit>{_N}) chunks out of"
                rf" (?P<chunks>{_N}), (?P<matched>{_N}) tokens"
            ),
            _backend,
        ),
        Form(
            "[HASH_GENERATION]",
            re.compile(
                r"prefix_hash=(?P<parent>-?\w{1,80}), tokens_len=(?P<length>\d{1,9}), tokens_preview=[(\[]"
                r"(?P<preview>[\d, ]*)[)\]], extra_keys=(?P<extra>.*?),.*? result_hash=(?P<key>-?\w{1,80})"
            ),
            _key,
        ),
        Form(
            " count of MemoryObj ",
            re.compile(rf"(?P<what>Ref|Pin) count of MemoryObj (?P<object>-?\d+) ?is negative: (?P<value>-{_N})"),
            _count,
        ),
        Form(
            "lookup_id=",
            re.compile(rf"Releasing memory object for lookup_id={_ID}"),
            note("a memory object of its lookup is released"),
        ),
        Form(
            " failed to load ",
            re.compile(rf"Request {_ID} failed to load (?P<count>{_N}) tokens across (?P<blocks>{_N}) blocks"),
            # It counts blocks and does not say which they are.
            note("{count} tokens in {blocks} blocks could not be loaded, which vLLM is told", remarkable=True),
        ),
        Form(
            "Prefetch request completed",
            re.compile(
                rf"Prefetch request completed \(L1\+L2\): (?P<hit>{_N})/(?P<chunks>{_N}) (?:retained keys|prefix hits)"
                r"(?:.*\bexternal_request_id=(?P<request>[^\s,)]+))?"
            ),
            # The multiprocess server counts chunks, and does not print how long they are.
            note("the server holds {hit} of the {chunks} chunks asked for"),
        ),
        Form(
            "The cache block is in the storage",
            re.compile(r"The cache block is in the storage, but it can't be retrieved"),
            note("a chunk is in the store and cannot be read from it", remarkable=True),
        ),
        Form(
            " tokens in ",
            re.compile(rf"\b(?P<what>Stored|Retrieved) (?P<count>{_N}) tokens in \d{{1,9}}\.\d+ seconds"),
            # The multiprocess server names neither the request nor the place in it.
            note("{what} {count} tokens, of a request that is not named"),
        ),
    ),
)

"""The lines of LMCache 0.3.0 to 0.5 in vLLM's process, and of related systems that print the same lines under another name.

The formats are those of LMCache's `vllm_v1_adapter.py`, `cache_engine.py`, `storage_manager.py`, `token_database.py` and
`memory_management.py`.
"""

from __future__ import annotations

import hashlib
import re

from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ingest.logs.line_patterns import ID_STOPS, NUMBER, Reading, Role, always, numbers, pattern_of

_ID = rf"(?P<request>[^{ID_STOPS}\]]*[^{ID_STOPS}\].;])"
_REQ_ID = rf"(?:\[req_id={_ID}[^\]]*\]\s*)?"
_N = NUMBER
_CONNECTOR = "LMCache"


def _lookup(match: re.Match[str]) -> Reading:
    """A lookup of the scheduler. `need to load` may be negative, and newer versions print 0 instead; both mean 0 new tokens.

    If vLLM's computed tokens are not printed, they follow from h - c. There are two exceptions: a full hit, from which some
    versions subtract one token, and an answer that would be judged by a number derived from it. In these cases, only the
    matched length is known, as in the lookup of one rank.
    """
    total, matched, need = numbers(match, "total", "matched", "need")
    printed = match["computed"] or match["num_computed"]
    computed = int(printed) if printed else matched - need if matched < total and need <= 0 else None
    returned = 0 if match["small"] else max(0, need)
    reading = Reading(Role.EVENT, match["request"], Kind.LOOKUP, connector=match["system"])
    if computed is None or not 0 <= computed <= total or (computed + returned >= total and returned):
        reading.kind = Kind.RANK_LOOKUP
        reading.fields = {"total": total, "matched": matched}
    else:
        reading.fields = {"total": total, "computed": computed, "matched": matched, "returned": returned}
    return reading


def _storing(match: re.Match[str]) -> Reading:
    count, upto = numbers(match, "count", "upto")
    start = int(match["start"]) if match["start"] else max(0, upto - count)
    return Reading(Role.STORING, match["request"], Kind.STORE, {"start": start, "count": count})


def _stored(match: re.Match[str]) -> Reading:
    count, of = numbers(match, "count", "of")
    return Reading(Role.STORED, match["request"], Kind.STORE, {"count": count, "of": of})


def _retrieved(match: re.Match[str]) -> Reading:
    count, expected, of = numbers(match, "count", "expected", "of")
    fields = {"start": max(0, of - expected), "count": count, "expected": expected}
    return Reading(Role.RETRIEVED, match["request"], Kind.LOAD, fields)


def _shortfall(match: re.Match[str]) -> Reading:
    count, expected = numbers(match, "count", "expected")
    return Reading(Role.SHORTFALL, None, Kind.LOAD, {"count": count, "expected": expected}, error=match[0].strip())


def _mismatch(match: re.Match[str]) -> Reading:
    allocated, matched, computed = numbers(match, "allocated", "matched", "computed")
    fields = {"allocated": allocated, "matched": matched, "computed": computed}
    return Reading(Role.FAILURE, match["request"], Kind.ALLOC, fields, error=match[0].strip())


def _backend(match: re.Match[str]) -> Reading:
    (matched,) = numbers(match, "matched")
    return Reading(Role.EVENT, match["request"], Kind.RANK_LOOKUP, {"matched": matched}, connector_id=match["backend"])


def _key(match: re.Match[str]) -> Reading:
    """A chunk's key. Its content is known only if the preview shows all of the chunk's tokens; it usually shows ten."""
    fields = {"chunk_key": _hex(match["key"])}
    if match["parent"] != "None":
        fields["chunk_parent"] = _hex(match["parent"])
    if len(match["preview"].replace(",", " ").split()) == int(match["length"]):
        content = f"{match['preview']} {match['extra']}".encode()
        fields["chunk_content"] = hashlib.blake2b(content, digest_size=8).hexdigest()
    return Reading(Role.EVENT, None, Kind.KEY, fields)


def _scheduled(match: re.Match[str]) -> Reading:
    """A planned load. The printed number is the length of the prefix, including the part that vLLM has."""
    prefix, start = numbers(match, "count", "computed")
    return Reading(Role.EVENT, match["request"], Kind.LOAD_PLAN, {"start": start, "count": max(0, prefix - start)})


def _hex(text: str) -> str:
    """A hash in the form of a recorded key: shortened hexadecimal digits."""
    return f"{int(text) & (2**64 - 1):016x}" if re.fullmatch(r"-?\d{1,20}", text) else text[:16]


def _count(match: re.Match[str]) -> Reading:
    name = "refs" if match["what"] == "Ref" else "pins"
    return Reading(Role.EVENT, None, Kind.REFCOUNT, {name: int(match["value"])})


LMCACHE = (
    pattern_of(
        " hit tokens: ",
        rf"\bReqid: {_ID}, Total tokens (?P<total>{_N}), (?:Inference Engine computed tokens: (?P<computed>{_N}), )?"
        rf"(?P<system>\w{{1,40}}) hit tokens: (?P<matched>{_N}),(?: but)? need to load: (?P<need>-?{_N})(?!\.\d)"
        rf"(?:, num_computed_tokens (?P<num_computed>{_N})|(?P<small> < min_retrieve))?",
        _lookup,
    ),
    pattern_of(
        " tokens",
        rf"\b(?:Storing|Saving|Offloading) KV caches? for (?P<count>{_N}) (?:out )?of"
        rf" (?P<upto>{_N}) tokens(?: \([^)]*?skip_leading_tokens=(?P<start>{_N})\))?.{{0,80}}? for request {_ID}",
        _storing,
        _CONNECTOR,
    ),
    pattern_of(
        " tokens",
        rf"{_REQ_ID}\bStored (?P<count>{_N}) out of total (?P<of>{_N}) tokens",
        _stored,
        _CONNECTOR,
    ),
    pattern_of(
        " tokens",
        rf"{_REQ_ID}\bRetrieved (?P<count>{_N}) out of (?:total )?(?P<expected>{_N})"
        rf"(?: required tokens \(from| out of total) (?P<of>{_N}) (?:total )?tokens",
        _retrieved,
        _CONNECTOR,
    ),
    pattern_of(
        "The number of retrieved tokens is less",
        rf"(?:Request (?P<request>[^{ID_STOPS}]*?))?\s*The number of retrieved tokens is less than",
        always(Role.SHORT_OF),
        _CONNECTOR,
    ),
    pattern_of(
        "Num retrieved tokens: ",
        rf"Num retrieved tokens: (?P<count>{_N}), num expected tokens: (?P<expected>{_N})",
        _shortfall,
        _CONNECTOR,
    ),
    pattern_of(
        "KV cache will not be stored",
        rf"{_REQ_ID}[^\n]{{0,200}}?KV cache will not be stored",
        always(Role.NOT_STORED),
        _CONNECTOR,
    ),
    pattern_of(
        "Mismatch in tokens to load: ",
        rf"Mismatch in tokens to load: (?P<allocated>{_N}) vs (?P<matched>{_N})(?: \(tokens in [^)]*\))?"
        rf" - (?P<computed>{_N})(?: \(tokens in vllm\))?(?: - {_N}[^\n]*? for request {_ID})?",
        _mismatch,
        _CONNECTOR,
    ),
    pattern_of(
        "Scheduled to load ",
        rf"Scheduled to load (?P<count>{_N}) tokens \((?P<computed>{_N}) cached in vLLM\) for request {_ID}",
        _scheduled,
        _CONNECTOR,
    ),
    pattern_of(
        "Lookup ",
        rf"Lookup (?P<request>[^{ID_STOPS}:]+): Backend (?P<backend>\S{{1,80}}) hit {_N} chunks out of"
        rf" {_N}, (?P<matched>{_N}) tokens",
        _backend,
        _CONNECTOR,
    ),
    pattern_of(
        "[HASH_GENERATION]",
        r"prefix_hash=(?P<parent>-?\w{1,80}), tokens_len=(?P<length>\d{1,9}), tokens_preview=[(\[]"
        r"(?P<preview>[\d, ]*)[)\]], extra_keys=(?P<extra>.*?),.*? result_hash=(?P<key>-?\w{1,80})",
        _key,
        _CONNECTOR,
    ),
    pattern_of(
        " count of MemoryObj ",
        rf"(?P<what>Ref|Pin) count of MemoryObj -?\d+ ?is negative: (?P<value>-{_N})",
        _count,
        _CONNECTOR,
    ),
)

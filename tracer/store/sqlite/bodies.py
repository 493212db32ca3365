"""The accounts of requests in SQLite: JSON, compressed with a dictionary, since a single account is short.

The dictionary is part of the schema: a change of the dictionary changes the schema version.
"""

from __future__ import annotations

from typing import Any

import zstandard

_TYPICAL = (
    b'{"engine":"engine-0","request":"chatcmpl-","external":"chatcmpl-","trace_id":"","connector":"OffloadConnector",'
    b'"status":"finished","recorder":"","epoch":0,"total":0,"prompt":null,"identity":null,"computed":0,"matched":null,'
    b'"returned":0,"allocated":0,"scheduled":0,"begun":0,"rejected":0,"loaded":0,"stored":0,"loaded_by_rank":{},'
    b'"stored_by_rank":{},"stored_ranges":[[0,2048]],"longest_match":0,"lookups":1,"loads":0,"wait_loads":0,"waited_ns":0,'
    b'"recomputed":0,"refused":0,"looked_at":0,"wrong_blocks":0,"started_ns":17,"last_ns":17,"ended_ns":17,'
    b'"outcome":"stopped","error":null,"causes":[{"prefix":"","epoch":0,"total":0,"at_ns":17,"span_id":"",'
    b'"connector":"OffloadConnector","final":true,"parts":[{"cause":"evicted","tier":"host","start":0,"tokens":16,'
    b'"at_ns":17,"span_id":"","request":"chatcmpl-"},{"cause":"held","tier":"gpu","start":0,"tokens":16},'
    b'{"cause":"loaded","tier":"host","start":0,"tokens":256},{"cause":"new","tier":"","start":0,"tokens":256},'
    b'{"cause":"unknown","tier":"","start":0,"tokens":16,"why":"block_hashes"},'
    b'{"cause":"unaligned","tier":"","start":16,"tokens":1}]}],"missing":null,"complete":true,"unknown":null,'
    b'"times":{"queued":1,"lookup":1,"load_wait":1,"prefill":1,"decode":1,"running":1,"preempted":1,"duration":1},'
    b'"tokens":{"held":16,"loaded":256,"new":16,"unknown":16,"unaligned":1},"prefix":"","verdict":"ok","findings":0}'
)
_LEVEL = 1
_DICTIONARY = zstandard.ZstdCompressionDict(_TYPICAL, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
_DICTIONARY.precompute_compress(level=_LEVEL)


def packer() -> zstandard.ZstdCompressor:
    """Compresses accounts. Not thread-safe."""
    return zstandard.ZstdCompressor(_LEVEL, dict_data=_DICTIONARY, write_checksum=True)


def unpacked(body: Any) -> bytes:
    """The JSON of an account. Raises ValueError if it is damaged."""
    try:
        return zstandard.ZstdDecompressor(dict_data=_DICTIONARY).decompress(body)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error

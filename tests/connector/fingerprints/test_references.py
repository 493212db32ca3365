"""What is known of a hash decides, and what is not known causes no findings."""

from __future__ import annotations

import random

import pytest

from kvtrail.connector.fingerprints import references
from kvtrail.connector.fingerprints.fingerprint import UNREPORTED_BITS
from kvtrail.connector.fingerprints.references import References
from kvtrail.connector.fingerprints.result import Match, Origin

BLOCK = 32
WIDE = (1 << 40) + 1
"""Makes a hash of a small number."""


def known(*, own: bool = True, exact: bool = True) -> References:
    made = References(own=own, units={0: BLOCK})
    made.is_exact = exact
    learn(made, {11 * WIDE: 0xA1A2A3A4A5A60000, 12 * WIDE: 0xB1B2B3B4B5B60000})
    return made


def learn(made: References, contents: dict[int, int], of: str = "r-1") -> None:
    for number, (hash_, content) in enumerate(contents.items()):
        made.add(0, [(number, 0, hash_, content << UNREPORTED_BITS)], of)


def judge(made: References, hash_: int, content: int, *, is_whole: bool = True) -> Match:
    return made.match(0, hash_ * WIDE, content << UNREPORTED_BITS, is_whole=is_whole)


def test_what_is_not_what_was_computed_is_wrong_and_named() -> None:
    made = known()
    assert judge(made, 11, 0xA1A2A3A4A5A60000) is True
    assert judge(made, 11, 0xB1B2B3B4B5B6FFFF) == Origin("r-1", BLOCK), "its bits by another hash"
    assert judge(made, 11, 0) == "zeros"
    assert judge(made, 11, 0xC1C2C3C4C5C60000) == "unknown"
    assert judge(made, 13, 0xC1C2C3C4C5C60000) is None, "nothing is known of this hash"
    made.add_contaminated(0, 12 * WIDE, 0xD1D2D3D4D5D60000 << UNREPORTED_BITS)
    assert judge(made, 12, 0xD1D2D3D4D5D60000) == "poison"
    learn(made, {12 * WIDE: 0xD1D2D3D4D5D60000})
    assert judge(made, 12, 0xD1D2D3D4D5D60000) is True, "it was computed rightly, too"


def test_every_version_that_was_computed_is_right() -> None:
    made = known()
    learn(made, {11 * WIDE: 0xA1A2A3A4A5A60001})
    assert judge(made, 11, 0xA1A2A3A4A5A60000) is judge(made, 11, 0xA1A2A3A4A5A60001) is True


def test_a_store_that_others_write_to_or_that_loses_precision_proves_nothing() -> None:
    assert judge(known(own=False), 11, 0xC1C2C3C4C5C60000) is None
    assert judge(known(exact=False), 11, 0xC1C2C3C4C5C60000) is None
    assert judge(known(exact=False), 11, 0xB1B2B3B4B5B60000) is not None, "exactly another's"


def test_a_block_may_differ_in_part_after_its_last_token_was_recomputed() -> None:
    assert judge(known(), 11, 0xA1A2A3A4C5C60000, is_whole=False) is None
    assert judge(known(), 11, 0xC1C2C3C4C5C60000, is_whole=False) == "unknown"


def test_a_block_with_another_last_token_is_right_in_part() -> None:
    """All bytes count in the lowest bits alone, and these are no other block's either."""
    made = known()
    assert judge(made, 11, 0xA1A2A3A4A5A6FFFF) == "unknown"
    assert made.match(0, 11 * WIDE, (0xA1A2A3A4A5A60000 << UNREPORTED_BITS) + 1, is_whole=True) == "unknown", "a bit"
    assert judge(made, 11, 0xA1A2A3A4A5A6FFFF, is_whole=False) is True


def test_a_hash_in_doubt_causes_no_findings() -> None:
    made = known()
    made.mark_incomplete(0, [11 * WIDE])
    assert judge(made, 11, 0xC1C2C3C4C5C60000) is None
    assert judge(made, 11, 0xA1A2A3A4A5A60000) is True
    assert judge(made, 12, 0xC1C2C3C4C5C60000) == "unknown"


def test_where_zeros_are_computed_they_are_nothing_special() -> None:
    made = known()
    learn(made, {14 * WIDE: 0})
    assert judge(made, 13, 0) is None


def test_what_is_forgotten_is_unknown_even_when_it_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "HASHES", 32)
    monkeypatch.setattr(references, "DROPPED", 4)
    rng = random.Random(0)
    contents = {rng.getrandbits(64): rng.getrandbits(64) for _ in range(200)}
    made = References(own=True, units={0: BLOCK})
    made.is_exact = True
    for some in ([*contents.items()][:100], [*contents.items()][100:]):
        learn(made, dict(some))
    assert 28 <= len(made) <= 32
    verdicts = [made.match(0, hash_, content << UNREPORTED_BITS, is_whole=True) for hash_, content in contents.items()]
    assert {*verdicts} == {True, None}
    learn(made, {hash_: content ^ 1 for hash_, content in [*contents.items()][:100]})
    again = [made.match(0, hash_, content << UNREPORTED_BITS, is_whole=True) for hash_, content in contents.items()]
    assert {*again} <= {True, None}, "they were right once"


def test_other_weights_leave_nothing_known() -> None:
    made = known()
    made.clear()
    learn(made, {11 * WIDE: 0xA1A2A3A4A5A60001})
    made.is_exact = True
    assert judge(made, 11, 0xA1A2A3A4A5A60000) is None
    assert judge(made, 11, 0xA1A2A3A4A5A60001) is True


def test_a_block_is_named_no_longer_when_many_have_come_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "ORIGINS", 4)
    monkeypatch.setattr(references, "DROPPED", 1)
    made = known()
    for n in range(40):
        learn(made, {(20 + n) * WIDE: (n + 1) << 56 | 0xFFFFFFFF0000}, f"later-{n}")
        found = judge(made, 11, (n + 1) << 56 | 0xFFFFFFFF0000)
        assert found == Origin(f"later-{n}", 0)
    assert judge(made, 11, 0xB1B2B3B4B5B60000) == "unknown"

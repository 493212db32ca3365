"""What is known of a hash decides, and what is not known causes no findings."""

from __future__ import annotations

import pytest

from kvtrail.connector.fingerprints import full_reference
from kvtrail.connector.fingerprints.full_reference import FullReference
from kvtrail.connector.fingerprints.mismatch import Mismatch, Origin

ONE, OTHER = (0, 11), (0, 12)
PLAIN = "plain"
HERE, THERE = Origin("r-1", 32, PLAIN), Origin("r-2", 64, PLAIN)


def known(*, own: bool = True) -> FullReference:
    made = FullReference(own=own)
    made.add(ONE, 100, (1, 2, 3), HERE)
    made.add(OTHER, 200, (4, 5, 6), THERE)
    return made


def test_any_version_that_was_computed_is_right() -> None:
    made = known()
    made.add(ONE, 101, (1, 2, 9), HERE)
    assert made.match(ONE, 100, (1, 2, 3), PLAIN) is True
    assert made.match(ONE, 101, (1, 2, 9), PLAIN) is True
    assert made.match((0, 13), 999, (0, 0, 1), PLAIN) is None, "nothing is known of this hash"
    assert made.match((1, 11), 100, (1, 2, 3), "salt") is None, "another group's hash is another one"


def test_what_a_wrong_block_holds_and_where_it_differs() -> None:
    made = known()
    assert made.match(ONE, 200, (4, 5, 6), PLAIN) == Mismatch(THERE, (0, 1, 2))
    assert made.match(ONE, 0, (0, 0, 0), PLAIN) == Mismatch("zeros", (0, 1, 2))
    assert made.match(ONE, 777, (1, 7, 3), PLAIN) == Mismatch("unknown", (1,))
    made.add_contaminated(OTHER, 888)
    assert made.match(ONE, 888, (8, 8, 8), PLAIN) == Mismatch("poison", (0, 1, 2))
    made.add(ONE, 102, (1, 7, 4), HERE)
    assert made.match(ONE, 777, (1, 7, 3), PLAIN) == Mismatch("unknown", (1,)), "the most similar version"


def test_a_store_that_others_write_to_has_only_contents_that_prove_themselves_wrong() -> None:
    made = known(own=False)
    assert made.match(ONE, 777, (1, 7, 3), PLAIN) is None
    assert made.match(ONE, 200, (4, 5, 6), PLAIN) == Mismatch(THERE, (0, 1, 2))
    assert made.match(ONE, 200, (4, 5, 6), "salt") is None, "a salt changes the hash, and not the content"
    assert made.match((0, 13), 0, (0, 0, 0), PLAIN) == Mismatch("zeros", ())


def test_a_hash_in_doubt_causes_no_findings() -> None:
    made = known()
    made.mark_incomplete(ONE)
    assert made.match(ONE, 777, (1, 7, 3), PLAIN) is None
    assert made.match(ONE, 100, (1, 2, 3), PLAIN) is True
    assert made.match(OTHER, 777, (1, 7, 3), PLAIN) == Mismatch("unknown", (0, 1, 2))


def test_what_is_forgotten_is_unknown_even_when_it_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_reference, "MAX_HASHES", 2)
    made = known()
    made.match(ONE, 100, (1, 2, 3), PLAIN)  # used: the other one is the oldest
    made.add((0, 13), 300, (7, 8, 9), HERE)
    assert len(made) == 2
    assert made.match(OTHER, 200, (4, 5, 6), PLAIN) is None
    made.add(OTHER, 201, (4, 5, 7), THERE)
    assert made.match(OTHER, 200, (4, 5, 6), PLAIN) is None, "it was right once"


def test_other_weights_leave_nothing_known() -> None:
    made = known()
    made.clear()
    assert made.match(ONE, 200, (4, 5, 6), PLAIN) is None
    made.add(ONE, 500, (5, 5, 5), HERE)
    assert made.match(ONE, 100, (1, 2, 3), PLAIN) is None
    assert made.match(ONE, 500, (5, 5, 5), PLAIN) is True


def test_versions_of_a_hash_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_reference, "MAX_VERSIONS", 3)
    made = FullReference(own=True)
    for version in range(1, 6):
        made.add(ONE, version, (version,), HERE)
    assert made.match(ONE, 5, (5,), PLAIN) is True
    assert made.match(ONE, 1, (1,), PLAIN) is None
    assert made.match(ONE, 99, (9,), PLAIN) is None

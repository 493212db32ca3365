"""The curve as requests come, beside the exact one of the same touches."""

from __future__ import annotations

from collections import Counter
from math import sqrt
from statistics import fmean

import pytest
from test_curve import prefixes

from kvtrail.tracer.capacity import live_needs
from kvtrail.tracer.capacity.curve import curve_of
from kvtrail.tracer.capacity.live_needs import SAMPLED, STEPS, WANTED, LiveNeeds, curve_of_measures
from kvtrail.tracer.capacity.touches import Touch

OWNER = ("engine-a", "0")


def measured(needs: LiveNeeds, touches: list[Touch | None]) -> Counter[str]:
    """The sums of all touches."""
    sums: Counter[str] = Counter()
    for touch in touches:
        if touch is None:
            needs.reset(OWNER)
        else:
            sums += needs.touched(OWNER, touch, chunk_size=64, heads_stay=True)
    return sums


@pytest.mark.parametrize("seed", range(3))
def test_at_the_capacities_that_are_kept_the_sums_are_exact(seed: int) -> None:
    touches = prefixes(seed, 1500)
    exact, kept = curve_of(touches), curve_of_measures(measured(LiveNeeds(), touches))
    capacities = [int(2 ** (step / STEPS)) for step in (0, STEPS, 3 * STEPS, 5 * STEPS, 7 * STEPS)]
    assert kept.wanted == exact.wanted
    assert [share.value for share in kept.hits(capacities)] == pytest.approx(
        [share.value for share in exact.hits(capacities)]
    )


def test_sums_of_two_stretches_are_those_of_both() -> None:
    touches = prefixes(1, 800)
    needs = LiveNeeds()
    first, second = measured(needs, touches[:300]), measured(needs, touches[300:])
    assert first + second == measured(LiveNeeds(), touches)


def test_samples_differ_from_the_whole_by_about_their_error() -> None:
    """The keys differ by sample, and so does what is followed; nothing else does."""
    touches, capacities = prefixes(0, 6000, heads=400, chunks=12), (256, 1024)
    exact, apart, errors = curve_of(touches).hits(capacities), [], []
    for sample in range(6):
        named = [touch and Touch([f"{sample}/{key}" for key in touch.keys], touch.wanted) for touch in touches]
        sums = measured(LiveNeeds(most_followed=800), named)
        assert 0 < sums[SAMPLED] < sums[WANTED]
        for truth, guess in zip(exact, curve_of_measures(sums).hits(capacities), strict=True):
            apart.append((guess.value - truth.value) ** 2)
            errors.append(guess.error**2)
    assert 0.3 < sqrt(fmean(apart) / fmean(errors)) < 3
    assert sqrt(fmean(errors)) < 0.03


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_needs, "MOST_CONNECTORS", 2)
    needs, touch = LiveNeeds(), Touch(("a",), (64,))
    for name in ("0", "1", "2"):
        needs.touched(("engine-a", name), touch, chunk_size=64, heads_stay=True)
    assert "memory::" in needs.touched(("engine-a", "0"), touch, chunk_size=64, heads_stay=True), (
        "the first was dropped: it begins anew"
    )
    assert "memory::0" in needs.touched(("engine-a", "2"), touch, chunk_size=64, heads_stay=True)
    needs.forget("engine-a")
    assert "memory::" in needs.touched(("engine-a", "2"), touch, chunk_size=64, heads_stay=True)
    most = len(measured(LiveNeeds(most_followed=100), prefixes(0, 3000, heads=400, chunks=12)))
    assert most < 9 * STEPS * 16

"""What the offload is worth, in the rows and words that the page shows. Pure.

A `worth` is the api's: docs and units are in the tracer's `/docs`, and in tracer/detect/savings.py.
"""

from __future__ import annotations

from kvtrail.dashboard import wording
from kvtrail.dashboard.client import Row

LOCAL, COMPUTED = "vLLM's own cache", "computed"
"""Where tokens came from that no tier of the connector brought."""
EPOCHS = {"0": "first run", "1": "after 1 preemption", "2": "after 2 preemptions", "3": "after 3 or more"}


def parts(worth: Row) -> dict[str, int]:
    """The tokens of the admitted requests by where they came from; together they are `asked`."""
    tiers = {tier_name(tier): tokens for tier, tokens in worth["tiers"].items() if tokens}
    rest = max(0, worth["asked"] - worth["local"] - sum(tiers.values()))
    return {LOCAL: worth["local"], **tiers, COMPUTED: rest}


def tier_name(tier: str) -> str:
    """A tier as people read it."""
    return {"store": "connector's store", "other": "other tiers"}.get(tier, tier)


def sources(efficiency: Row) -> list[str]:
    """All places that tokens came from in the window, nearest first."""
    tiers = [name for name in parts(efficiency["worth"]) if name not in (LOCAL, COMPUTED)]
    return [LOCAL, *tiers, COMPUTED]


def time_rows(efficiency: Row) -> list[Row]:
    """The tokens of each stretch of time by where they came from."""
    step_ms = efficiency["step_s"] * 1000
    return [
        {**row, "at": stretch["at_ns"] // 10**6, "to": stretch["at_ns"] // 10**6 + step_ms,
         "time": wording.clock(stretch["at_ns"]).rpartition(".")[0]}
        for stretch in efficiency["trend"]
        for row in _source_rows(stretch["worth"], sources(efficiency))
    ]  # fmt: skip


def epoch_rows(efficiency: Row) -> list[Row]:
    """The tokens of each epoch by where they came from."""
    return [
        {**row, "epoch": EPOCHS.get(epoch, epoch)}
        for epoch, worth in efficiency["by_epoch"].items()
        if worth["asked"]
        for row in _source_rows(worth, sources(efficiency))
    ]


def gauges(worth: Row) -> list[tuple[str, str, str]]:
    """The numbers of the page's head: name, value, and a note below it."""
    unused = worth["lookups_unused"]
    share = f"{percent(_share(unused, worth['lookups']))} of {wording.some(worth['lookups'], 'lookup')}"
    waited = worth["waited_s"] + worth["postponed_s"]
    return [
        ("Prefill saved", seconds(worth["prefill_saved_s"]), f"{wording.some(worth['spared'], 'token')} spared"),
        ("Offload hit rate", percent(worth["hit_share"]), f"of {wording.some(worth['asked'], 'token')}"),
        ("vLLM's own hit rate", percent(worth["local_share"]), "its prefix cache"),
        ("Held, yet computed", wording.count(worth["recomputed"]), "tokens that the store had"),
        ("Unused lookups", wording.count(unused), share),
        ("Waited for KV", seconds(waited), f"in {wording.some(worth['waits'], 'load')}"),
    ]


def how_it_is_known(worth: Row) -> str:
    """Where the seconds saved come from, or why they are not known."""
    rate = worth["prefill_tokens_per_s"]
    if worth["prefill_saved_s"] is not None:
        here = "" if rate is None else f" (here {wording.rate(rate)} tokens/s)"
        text = (
            "Prefill saved: the tokens that were spared, which means loaded and not computed, divided by the prefill rate of"
            f" their own engine{here}, as its steps in this window show it."
        )
        if worth["spared_unrated"]:
            text += (
                f" {wording.some(worth['spared_unrated'], 'token')} of engines whose rate is not known are left out."
            )
        return text
    if not worth["spared"]:
        return "No prefill was saved in this window: nothing was loaded in place of being computed."
    return (
        "How many seconds of prefill were saved is not known, because no engine's prefill rate is: it is measured from steps"
        " that follow each other, which recorders tell at level `detailed`. Nothing is guessed in its place."
    )


def limits(worth: Row) -> str:
    """What the numbers cannot say, or nothing."""
    said = []
    if worth["hidden"]:
        said.append(
            f"{wording.count(worth['hidden'])} of {wording.some(worth['admissions'], 'admission')} went through a connector"
            " that hides what its store held, so more tokens may have been computed in vain."
        )
    if worth["failed"]:
        said.append(f"{wording.some(worth['failed'], 'token')} were to be loaded and failed.")
    return " ".join(said)


def copy_rows(worth: Row) -> list[Row]:
    """Loads and stores, a row each."""
    return [
        {
            "": name,
            "Tokens": wording.count(worth[f"{way}_tokens"]),
            "Bytes": wording.size(worth[f"{way}_bytes"]) if worth[f"{way}_bytes"] else wording.NOTHING,
            "Bandwidth": bandwidth(worth[f"{way}_bytes_per_s"]),
            "Workers' time": seconds(worth[f"{way}_s"]) if worth[f"{way}_s"] else wording.NOTHING,
        }
        for name, way in (("Loads", "load"), ("Stores", "store"))
    ]


def place_rows(efficiency: Row, models: dict[str, str]) -> list[Row]:
    """Engines and their connectors, those that spared most first."""
    places = sorted(efficiency["by_place"], key=lambda p: (-p["worth"]["spared"], p["engine"], p["connector"]))
    return [
        {
            "Engine": place["engine"][:8],
            "Connector": place["connector"],
            "Model": models.get(place["engine"]) or None,
            "Hit rate": _hundredths(place["worth"]["hit_share"]),
            "vLLM's own": _hundredths(place["worth"]["local_share"]),
            "Spared": place["worth"]["spared"],
            "Saved": place["worth"]["prefill_saved_s"],
            "Held, yet computed": place["worth"]["recomputed"],
            "Unused lookups": place["worth"]["lookups_unused"],
            "Waited": place["worth"]["waited_s"] + place["worth"]["postponed_s"],
            "Preemptions": place["worth"]["preemptions"],
        }
        for place in places
        if place["worth"]["lookups"] or place["worth"]["load_tokens"] or place["worth"]["store_tokens"]
    ]


def percent(share: float | None) -> str:
    """A share: 34.1 %, and 12 % where digits would pretend."""
    if share is None:
        return wording.NOTHING
    return f"{share * 100:.1f} %" if 0 < share < 0.9995 else f"{share * 100:.0f} %"


def seconds(value: float | None) -> str:
    """A length of time in seconds as people read it."""
    return wording.NOTHING if value is None else "0 s" if not value else wording.duration(round(value * 1e9))


def bandwidth(bytes_per_s: float | None) -> str:
    """Bytes a second with their unit."""
    return wording.NOTHING if bytes_per_s is None else f"{wording.size(round(bytes_per_s))}/s"


def _source_rows(worth: Row, names: list[str]) -> list[Row]:
    told = parts(worth)
    return [
        {"source": name, "order": order, "tokens": told.get(name, 0),
         "said": f"{wording.count(told.get(name, 0))} ({percent(_share(told.get(name, 0), worth['asked']))})"}
        for order, name in enumerate(names)
    ]  # fmt: skip


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _hundredths(share: float | None) -> float | None:
    return None if share is None else share * 100

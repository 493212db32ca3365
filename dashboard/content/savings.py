"""Savings of the offload: sources of tokens, spared tokens, copies, waits, and host memory.

A `Row` named `sums` holds the API's sums over a time range, engines and connectors: `worth` in `/api/efficiency`, defined in
tracer/savings/sums.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.tracer.model.causes import REUSED, Cause
from kvtrail.tracer.model.words import NOTHING, count, size, some

LOCAL, COMPUTED = "vLLM's own cache", "computed"
"""The sources of tokens other than the connector's tiers."""
WORTH = 0.01
"""The share of saved prefill from which the offload counts as worth its memory."""
NO_HIT_POSSIBLE, MOSTLY_NEW = (Cause.NEW, Cause.UNALIGNED), 0.9
"""If no cache could have held this share of the computed tokens, the lack of loads is not a negative verdict."""
_TIERS = {"store": "connector's store", "other": "other tiers"}


def sources(sums: Row) -> dict[str, int]:
    """The tokens of admitted requests by source, nearest first; they add up to `asked`."""
    loaded = f"{Cause.LOADED}:"
    tiers = {name.removeprefix(loaded): tokens for name, tokens in sums["causes"].items() if name.startswith(loaded)}
    tiers = {_TIERS.get(tier, tier): tokens for tier, tokens in tiers.items()}
    return {LOCAL: sums["local"], **tiers, COMPUTED: max(0, sums["asked"] - sums["local"] - sum(tiers.values()))}


def time_rows(efficiency: Row) -> list[Row]:
    """The tokens of each interval by source."""
    return [
        {**row, "at": interval["at_ns"] // 10**6, "to": interval["at_ns"] // 10**6 + efficiency["step_s"] * 1000,
         "time": text.clock(interval["at_ns"]).rpartition(".")[0]}
        for interval in efficiency["trend"]
        for row in _source_rows(interval["worth"], list(sources(efficiency["worth"])))
    ]  # fmt: skip


def saved_share(sums: Row) -> float | None:
    """The spared share of the tokens to prefill, which neither vLLM's own cache held nor another engine handed over."""
    return _share(sums["spared"], _to_prefill(sums))


def _to_prefill(sums: Row) -> int:
    return int(sums["asked"] - sums["local"] - sums["handed"])


def _new_share(sums: Row) -> float:
    """The share of computed tokens that no cache can have held; 0 if no cause is recorded."""
    computed = {name: tokens for name, tokens in sums["causes"].items() if name.partition(":")[0] not in REUSED}
    new = sum(tokens for name, tokens in computed.items() if name.partition(":")[0] in NO_HIT_POSSIBLE)
    return new / sum(computed.values()) if computed else 0.0


def verdict(savings: Row, engines: Iterable[Row]) -> tuple[str, str]:
    """The page's first line: a level of the palette, and whether the offload is worth its memory. Savings of ended engines
    alone do not count."""
    running = {engine["engine"] for engine in engines if engine["state"] == "running"}
    spared: Counter[str] = Counter()
    for place in savings["by_place"]:
        spared[place["engine"]] += place["worth"]["spared"]
    idle = running & spared.keys()
    if not spared.total() or not idle or any(spared[engine] for engine in idle):
        return is_it_worth_it(savings["worth"])
    share = text.percent(saved_share(savings["worth"]))
    return "warning", (
        f"Not worth its memory now: all that was saved in this range, {share} of prefill, was saved by engines that have"
        f" ended; {some(len(idle), 'engine')} that {'runs' if len(idle) == 1 else 'run'} saved nothing."
    )


def is_it_worth_it(sums: Row) -> tuple[str, str]:
    """The same from the sums only."""
    share, saved_s = saved_share(sums), sums["prefill_saved_s"]
    if not sums["spared"] and (new := _new_share(sums)) >= MOSTLY_NEW:
        return (
            "calm",
            f"Nothing to load in this range: {text.percent(new)} of what was computed could be in no cache.",
        )
    if not sums["spared"] or share is None:
        return "warning", "Not worth its memory in this range: nothing was loaded in place of being computed."
    if saved_s is None:
        is_little = share < WORTH
        return "warning" if is_little else "calm", (
            f"{'Hardly worth its memory in this range: it' if is_little else 'It'} spared {text.percent(share)} of prefill:"
            f" {count(sums['spared'])} of {some(_to_prefill(sums), 'token')}. In seconds: not measured."
        )
    # Requests wait for asynchronous loads: the longer of wait and copy counts, once.
    loads_s, stores_s = max(sums["waited_s"] + sums["postponed_s"], sums["load_s"]), sums["store_s"]
    net_s = saved_s - loads_s - stores_s
    of = f"{text.seconds(saved_s)} of {text.seconds(saved_s / share)} of prefill saved"
    cost = f"{text.seconds(loads_s)} in loads, {text.seconds(stores_s)} in stores"
    if net_s <= 0:
        return "warning", f"Not shown to be worth its memory in this range: {of}, but {cost}."
    net = share * net_s / saved_s
    saved = f"{text.percent(net)} of prefill saved, net. {of}; {cost}."
    return (
        ("warning", f"Hardly worth its memory in this range: {saved}")
        if net < WORTH
        else ("calm", f"Worth it: {saved}")
    )


def memory_held(savings: Row, engines: Iterable[Row]) -> str:
    """The host memory that the connectors in the sums hold according to their probes, and the limit of their settings."""
    summed = {place["engine"] for place in savings["by_place"]}
    reporting = [engine for engine in engines if engine["engine"] in summed and engine["recorders"]]
    known = [engine for engine in reporting if _most(engine, "held_bytes") is not None]
    if not known:
        return "How much host memory it holds is not known: no probe of an engine that reports reads it."
    held, limits = ([_most(engine, name) for engine in known] for name in ("held_bytes", "memory_limit"))
    of = "" if None in limits else f" of {size(sum(filter(None, limits)))}"
    each = " on each worker" if any(len(engine["recorders"]) > 1 for engine in reporting) else ""
    amount = size(sum(filter(None, held)))
    return f"It holds {amount}{of} of host memory{each} in {count(len(known))} of {some(len(summed), 'engine')}."


def cards(sums: Row) -> list[list[str]]:
    """The cards at the top of the page, besides the first line: name, value, note, and the glossary's term. Zeros are
    omitted."""
    unused, asked, again = sums["lookups_unused"], sums["asked"], sums["recomputed"]
    share = f"{text.percent(_share(unused, sums['lookups']))} of {text.short(sums['lookups'])} lookups"
    waited_s = sums["waited_s"] + sums["postponed_s"]
    shown = [
        (asked, "Hit rate", text.percent(sums["hit_share"]), f"of {text.short(asked)} tokens", "hit rate"),
        (sums["local"], "vLLM's own", text.percent(sums["local_share"]), "its prefix cache", "vLLM's own hit rate"),
        (again, "Held, yet computed", text.short(again), "tokens the store had", "held, yet computed"),
        (unused, "Unused lookups", count(unused), share, "unused lookups"),
        (waited_s, "Waited for KV", text.seconds(waited_s), waits(sums), "waited for KV"),
    ]
    return [card for number, *card in shown if number]


def waits(sums: Row) -> str:
    """The number of loads that requests waited for. Only asynchronous loads count; others are part of a step."""
    if sums["load_tokens"] and not sums["waits"]:
        return "no asynchronous load"
    return f"in {some(sums['waits'], 'load')}"


def source_of_savings(sums: Row) -> str:
    """How the saved seconds were calculated, or why they are unknown."""
    if not sums["spared"]:
        return "No prefill was saved in this window: nothing was loaded in place of being computed."
    if sums["prefill_saved_s"] is None:
        return (
            "How many seconds of prefill were saved is not known, because no engine's prefill rate is: it is measured from"
            " consecutive steps, which are recorded at level `detailed`."
        )
    unrated = sums["spared_unrated"]
    return (
        "Prefill saved: the spared tokens (loaded, not computed), divided by the prefill rate of their own engine, as"
        " measured from its steps in this window."
        + (f" {some(unrated, 'token')} of engines with an unknown rate are left out." if unrated else "")
    )


def limits(sums: Row) -> str:
    """Data that the numbers omit; empty if there is none."""
    said = {
        "hidden": f"{count(sums['hidden'])} of {some(sums['admissions'], 'admission')} went through a connector that hides"
        " what its store held, so more tokens may have been computed in vain.",
        "handed": f"{some(sums['handed'], 'token')} were computed by another engine and handed over: that is not counted as"
        " saved.",
        "failed": f"{some(sums['failed'], 'token')} were to be loaded and failed.",
    }
    return " ".join(sentence for name, sentence in said.items() if sums[name])


def copy_rows(sums: Row) -> list[Row]:
    """One row each for loads and stores."""
    return [
        {
            "": name,
            "Tokens": sums[f"{way}_tokens"],
            "Bytes": size(sums[f"{way}_bytes"]) if sums[f"{way}_bytes"] else NOTHING,
            "Bandwidth": text.bandwidth(sums[f"{way}_bytes_per_s"]),
            "Workers' time": text.seconds(sums[f"{way}_s"] or None),
        }
        for name, way in (("Loads", "load"), ("Stores", "store"))
    ]


def place_rows(efficiency: Row, models: dict[str, str]) -> list[Row]:
    """Engines and their connectors, the most spared tokens first; `models` by engine."""
    names = efficiency["engine_names"]
    places = sorted(efficiency["by_place"], key=lambda p: (-p["worth"]["spared"], p["engine"], p["connector"]))
    return [
        {
            "Engine": names.get(place["engine"], place["engine"]),
            "Connector": place["connector"],
            "Model": models.get(place["engine"]) or None,
            "Hit rate": sums["hit_share"],
            "vLLM's own": sums["local_share"],
            "Spared": sums["spared"],
            "Saved": sums["prefill_saved_s"],
            "Waited": sums["waited_s"] + sums["postponed_s"],
        }
        for place in places
        if (sums := place["worth"])["lookups"] or sums["load_tokens"] or sums["store_tokens"]
    ]


def _source_rows(sums: Row, names: list[str]) -> list[Row]:
    tokens = sources(sums)
    return [
        {"source": name, "order": order, "tokens": tokens.get(name, 0),
         "share": f"{count(tokens.get(name, 0))} ({text.percent(_share(tokens.get(name, 0), sums['asked']))})"}
        for order, name in enumerate(names)
    ]  # fmt: skip


def _most(engine: Row, name: str) -> int | None:
    """The largest value among an engine's recorders: each reports one worker."""
    return max((each[name] for each in engine["recorders"] if each[name] is not None), default=None)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None

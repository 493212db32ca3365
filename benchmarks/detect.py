"""The processor time that the detector takes for an event: order, account, engine, rules and causes, without decoding and
storing.

    python benchmarks/detect.py                    the fleet of `fleet.py`, and every step with its blocks
    python benchmarks/detect.py --against OTHER    this checkout, compared with another one
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path

import rounds
from fleet import Engine

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.serve.server import GC_THRESHOLDS

ROOT = Path(__file__).parents[1]
ENGINES, PAYLOADS = 8, 20
DETAILED = (
    "L 749 c0 h256 -> 256\nA 256 [1-9]\nplan load 0+256 [1-8]\nS 256+48 [1-10]\n"
    + "".join(f"S {n}+1 []\nplan store {n // 32 * 32 - 64}+32 [{n // 32 - 1}]\n" for n in range(290, 320))
    + "end"
)
"""Every step with its blocks, and a plan in each: more than an engine records."""
REQUESTS = 1000
TRAFFIC = ("fleet", "detailed")
UNIT = "us of a processor per event"


def requests(traffic: str) -> list[list[Event]]:
    """The events of some traffic, in requests of a recorder."""
    if traffic == "fleet":
        engines = [Engine(f"engine-{number}") for number in range(ENGINES)]
        decoder = ProtobufDecoder()
        payloads = [engine.payload() for _ in range(PAYLOADS) for engine in engines]
        return [decoder.decoded(payload.body).events for payload in payloads]
    sys.path.insert(0, str(ROOT / "tests"))
    from history import history  # which only knows the rules of this checkout

    histories = [history(DETAILED, request=f"r-{number}") for number in range(REQUESTS)]
    for number, event in enumerate(event for events in histories for event in events):
        event.sequence = number  # of one recorder
    return histories


def measure(traffic: str) -> None:
    """Print the microseconds that an event takes."""
    histories = requests(traffic)
    gc.set_threshold(*GC_THRESHOLDS)  # as `kvtrail serve` does
    detector = Detector(listener=lambda event, account: None, on_fact=lambda fact, account: None)
    began = time.process_time()
    for events in histories:
        detector.feed(events)
    print((time.process_time() - began) / sum(map(len, histories)) * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--against", type=Path, help="the root of another checkout")
    parser.add_argument("--traffic", choices=TRAFFIC, help="only print the time of an event of this traffic")
    options = parser.parse_args()
    if options.traffic is not None:
        measure(options.traffic)
    elif options.against is None:
        rounds.compare(
            "judging", __file__, {name: (ROOT, ("--traffic", name)) for name in TRAFFIC}, options.rounds, UNIT
        )
    else:
        for name in TRAFFIC:
            sides = {"this": (ROOT, ("--traffic", name)), "the other": (options.against, ("--traffic", name))}
            rounds.compare(f"judging, {name}", __file__, sides, options.rounds, UNIT)


if __name__ == "__main__":
    main()

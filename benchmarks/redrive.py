"""Driving a recording again, against the bare scheduler without kvtrail: the same scenario, the same connector, untraced.

A round times both, in alternating order. `driven again` is the whole of `redrive`: the workload made of the history, the run
and its recording, the rules over it, and the comparison. `alone` is the run with nothing recorded.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path

from rounds import print_ratio

from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate import tiny_model
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.check.profiles import scenario_of
from kvtrail.connector.simulate.redrive.redrive import redrive
from kvtrail.connector.simulate.run import drive, play
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.tracer.history.history import History, load
from kvtrail.tracer.ingest import otlp_json

EXTRA = {"chunk_size": 64, "cpu_bytes_to_use": 50_000_000}


def alone(scenario: Scenario) -> float:
    """Seconds of the bare run."""
    with tempfile.TemporaryDirectory() as folder:
        connector = configuration("UntracedOffloadConnector", EXTRA) | {"kv_connector_module_path": "kvtrail.connector"}
        started = time.perf_counter()
        bare = BareScheduler(
            Path(folder), connector, num_blocks=scenario.num_blocks, seed=scenario.seed, **scenario.settings
        )
        drive(scenario, bare)
        return time.perf_counter() - started


def driven(history: History) -> float:
    """Seconds of the whole re-drive."""
    started = time.perf_counter()
    result = redrive(history)
    seconds = time.perf_counter() - started
    assert result.comparison.parting is None
    return seconds


def recording(scenario: Scenario) -> History:
    played = play(scenario, configuration("OffloadConnector", EXTRA))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        path.write_text(otlp_json.spans_to_json_line(played.spans))
        return load([path])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--profile", default="mixed")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    tiny_model.prepare_environment()
    scenario = scenario_of(arguments.profile, 1)
    history = recording(scenario)
    print(f"{arguments.profile}: {len(scenario.arrivals)} requests, {len(history.moments):,} recorded events")
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(arguments.rounds + 1):
        if number % 2:
            one, other = alone(scenario), driven(history)
        else:
            other, one = driven(history), alone(scenario)
        if number:  # the first round warms up
            ours.append(1000 * other)
            theirs.append(1000 * one)
    print_ratio("a re-drive", ours, theirs, "ms", ("driven again", "alone"))


if __name__ == "__main__":
    main()

"""One run of a real vLLM engine with a real LMCache, for a process of its own: LMCache's threads would keep a test alive.

Takes one argument, JSON: `connector` (the KV transfer configuration, or null), `passes` over the workload of LMCache #2158,
its `seed`, `mended` (whether LMCache's mistakes in `cpu.py` are mended), `probed` (whether kvtrail's probe of it is used),
`server` (whether LMCache is in a process of its own, and as it comes), and `folder` for the model. Prints one line of JSON at
the end: the tokens of each pass, or the error that the engine died of.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Any

import cpu

from kvtrail.connector.demo import workload
from kvtrail.connector.known.probe import Probe
from kvtrail.connector.recording import recorder
from kvtrail.connector.simulate import tiny_model
from kvtrail.connector.tracing import traced


def main(task: dict[str, Any]) -> dict[str, Any]:
    tiny_model.prepare_environment()
    recorder.HEARTBEAT_S = 0.1  # one in the middle of the work: a heartbeat says what LMCache holds
    if task["server"]:
        cpu.let_numba_be_imported_early()
    else:
        cpu.prepare_late(mended=task["mended"])
    if not task["probed"]:
        vars(traced)["probe_for"] = lambda cls: Probe()
    llm = tiny_model.build(Path(task["folder"]), task["connector"])
    tokens = []
    try:
        for number in range(task["passes"]):
            llm.reset_prefix_cache()  # what comes again must come from LMCache
            named = [
                workload.DemoRequest(f"{number}-{j.id}", *astuple(j)[1:])
                for j in workload.stale_lookup(seed=task["seed"])
            ]
            tokens.append({name[2:]: generated for name, generated in workload.run(llm, named).items()})
    except Exception as died:
        return {"error": f"{type(died).__name__}: {died}"}
    llm.llm_engine.engine_core.shutdown()
    return {"tokens": tokens}


if __name__ == "__main__":
    result = main(json.loads(sys.argv[1]))
    print(json.dumps(result), flush=True)
    os._exit(0)  # hard: LMCache's threads do not end

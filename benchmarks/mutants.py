"""Mutants of the OffloadConnector and of the documentation's connector, and what `kvtrail check` finds of each: killed,
inconclusive (nothing is found, and the report says that this proves nothing), or survived. Most are drawn; those that a
maintainer would write are by hand. What survives is run again with more steps (`--steps 20000`); docs/conformance/mutants.md
says of each survivor what it is. It goes on where it was stopped."""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.util
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import apart
from mutation import Mutant, by_hand, drawn

STEPS = 5_000
SEED = 32
OFFLOAD, MINE = "kvtrail.connector.offload", "my_connector"
CONNECTORS = {OFFLOAD: "OffloadConnector", MINE: "my_connector:MyConnector"}
DOCUMENTED = apart.ROOT / "docs" / "conformance"
DRAWN: dict[str, tuple[int, Sequence[str]]] = {
    f"{OFFLOAD}.scheduler": (20, (
        "longest_prefix", "use", "extend", "end_step", "discard", "clear", "new_tokens", "admitted", "load_failed", "reset",
        "_track", "_keys", "_longest_hit", "_reaches", "_loadable", "_follow_tables", "_give", "_store_up_to", "_copies",
    )),
    f"{OFFLOAD}.groups": (3, ("first_seen", "rows", "needed", "at_hand")),
    f"{OFFLOAD}.host_memory": (2, ("_places", "_blocks")),
    f"{OFFLOAD}.transfers": (3, ("load", "store", "wait_for_blocks", "take_loaded", "_end_load")),
    MINE: (13, (
        "get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta", "store", "use", "drop",
        "update_connector_output", "request_finished", "reset_cache", "start_load_kv", "wait_for_save", "get_finished",
    )),
}  # fmt: skip
"""By module: the functions, and how many mutants of each."""
BY_HAND: dict[str, Sequence[tuple[str, str, str]]] = {
    f"{OFFLOAD}.scheduler": (
        ("pins of a step forgotten", "if oldest in self._in_step:", "if False:"),
        ("heads are evicted before tails", "for key in reversed(prefix):", "for key in prefix:"),
        ("keys cut to two bytes", "return list(islice(request.block_hashes, hashes - 1, None, hashes))",
         "return [key[-2:] for key in islice(request.block_hashes, hashes - 1, None, hashes)]"),
        ("a reset forgets every second chunk", "self._free.extend(self._slot.values())\n        self._slot.clear()",
         "for key in list(self._slot)[::2]:\n            self._free.append(self._slot.pop(key))"),
        ("a reset frees no slot", "self._free.extend(self._slot.values())\n", "\n"),
        ("stored before computed", "before + (0 if self._drafts else scheduled)", "tracked_end(self, request_id)"),
        ("drafts count as computed", "(0 if self._drafts else scheduled)", "scheduled"),
        ("failed loads ignored", "for key, _ in dropwhile(lambda load: blocks.isdisjoint(load[1]), each.loads):",
         "for key, _ in ():"),
        ("a slot is not given back", "if slot is not None:\n            self._free.append(slot)",
         "if False:\n            pass"),
        ("the wrong group", "copies.append(replace(chunk, first=first - (end - rows), blocks=blocks, group=each))",
         "copies.append(replace(chunk, first=first - (end - rows), blocks=blocks, group=0))"),
        ("a table appended on resume", "if request_id in running.resumed_req_ids:", "if False:"),
        ("an allocation of nothing loads", "if external == 0:\n            return",
         "external = external or self._loadable(tracked)\n        if external == 0:\n            return"),
    ),
    f"{OFFLOAD}.host_memory": (
        ("slots off by one", "copy.slot * rows + copy.first", "max(0, copy.slot * rows + copy.first - 1)"),
    ),
    f"{OFFLOAD}.transfers": (
        ("a load is done when it begins", "for request_id, load in self._loads.items() if load.ticket.done()",
         "for request_id, load in self._loads.items()"),
        ("no store is waited for", "self._stores.append(_Running(ticket, _blocks(copies)))", "pass"),
    ),
    MINE: (
        ("heads are dropped before tails", "for key in reversed(keys):", "for key in keys:"),
        ("blocks off by one", "zip(keys[first:], table[first:last], strict=True)",
         "zip(keys[first:], table[first + 1 : last] + table[first : first + 1], strict=True)"),
        ("computed tokens not subtracted", "new = max(0, matched - num_computed_tokens)", "new = matched"),
        ("stored before computed", "after = before[request_id] + scheduled", "after = before[request_id] + 2 * scheduled"),
        ("a reset forgets half", "for key in list(self.held):", "for key in list(self.held)[::2]:"),
        ("failed loads ignored", "if connector_output.invalid_block_ids:", "if False:"),
        ("a load is received twice", "received, self.received = self.received, set()", "received = set(self.received)"),
        ("one load of several is received", "return None, received", "return None, set(sorted(received)[:1])"),
        ("stored a step late", "for key, block in plan.stores.items():",
         "late, self.late = getattr(self, 'late', {}), plan.stores\n        for key, block in late.items():"),
        ("the blocks of a resumed request are appended", "self.tracked[request_id].table = []", "pass"),
        ("the last token is loaded, too", "request.block_hashes[: (request.num_tokens - 1) // self.block_size]",
         "request.block_hashes[: request.num_tokens // self.block_size]"),
        ("a capacity that is not kept", "if len(self.held) == self.capacity:", "if False:"),
    ),
}  # fmt: skip
TRACKED_END = "\n\ndef tracked_end(self, request_id):\n    return self._tracked[request_id].request.num_tokens\n"
"""What a mutant by hand calls."""


def mutants() -> list[Mutant]:
    """All of them, those by hand first."""
    made = []
    for module in DRAWN:
        source = _path(module).read_text()
        made += [by_hand(module, source + TRACKED_END, *each) for each in BY_HAND.get(module, ())]
    for module, (count, functions) in DRAWN.items():
        made += drawn(module, _path(module).read_text(), count, functions, SEED)
    return made


def killed(mutant: Mutant, steps: int, profiles: Sequence[str] | None) -> Mapping[str, Any]:
    """What is found of a mutant, in a process in which nobody has imported the connector yet."""
    assert mutant.module not in sys.modules
    sys.meta_path.insert(0, _Instead(mutant))
    connector = next(name for module, name in CONNECTORS.items() if mutant.module.startswith(module))
    return apart.checked(connector, steps, profiles)


class _Instead(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a mutant instead of the module."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._mutant.module:
            return None
        return importlib.util.spec_from_loader(name, self)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._mutant.source, f"<{self._mutant.name}>", "exec"), module.__dict__)


def _path(module: str) -> Path:
    if module == MINE:
        return DOCUMENTED / f"{MINE}.py"
    return apart.ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS, help="scheduling steps for each mutant, at the most")
    parser.add_argument("--only", default="", help="mutants with this in their name")
    parser.add_argument("--profile", action="append", help="a profile to run; by default all of them take turns")
    arguments = parser.parse_args()
    sys.path.insert(0, str(DOCUMENTED))
    apart.import_vllm()
    known, verdicts, all_of_them = apart.Known("mutants.jsonl"), Counter[str](), mutants()
    for mutant in all_of_them:
        if arguments.only not in mutant.name:
            continue
        answer = known.answers.get(mutant.name, {})
        is_new = not answer or answer.get("steps", 0) < arguments.steps or arguments.profile
        if is_new and not (answer.get("found") or answer.get("died")):
            known.add(mutant.name, apart.run(partial(killed, mutant, arguments.steps, arguments.profile)))
            answer = known.answers[mutant.name]
        verdict = "killed" if answer.get("found") or answer.get("died") else "SURVIVED"
        if verdict != "killed" and answer.get("inconclusive"):
            verdict = "inconclusive"
        verdicts[verdict] += 1
        print(f"{verdict:12} {answer.get('steps', 0):6,} {mutant.name}: {answer.get('found')}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()), f"of {len(all_of_them)}")


if __name__ == "__main__":
    main()

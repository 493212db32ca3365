"""Real engines on the CPU that share a store, a folder of vLLM's ExampleConnector: one's truth judges what another loads."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from memory import MemoryTransport

from kvtrail.connector.demo import workload
from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.recording import exporter, recorder
from kvtrail.connector.simulate import tiny_model
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.model.events import BlockCheck, Event
from kvtrail.tracer.model.findings import Unknown

LENGTH = 4 * tiny_model.BLOCK_SIZE + 10


@dataclass
class Engines:
    """Engines that run one after the other, each with a recorder of its own, over one store.

    Attributes:
        store: the store's folder, with a folder for each prompt.
    """

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def run(self, engine: str, *jobs: str | Callable[[], None]) -> list[Event]:
        """Run prompts, and what is to be done between them, on a new engine; gives what it recorded."""
        sent = MemoryTransport()
        connector = {
            "kv_connector": "TracedExampleConnector",
            "engine_id": engine,
            "kv_connector_extra_config": {"shared_storage_path": str(self.store), "kvtrail": {"fingerprints": "all"}},
        }
        with recorder.exporting_to(lambda: exporter.InProcessExporter(sent)):
            # One model for all, and prompts that are computed in one step: those are what this connector stores.
            llm = tiny_model.build(self.folder, connector, max_num_batched_tokens=1024)
            for job in jobs:
                if callable(job):
                    job()
                else:
                    workload.run(llm, [DemoRequest(job, prompt(job), 3)])
            workload.run(llm, [DemoRequest("after", (5, 6, 7), 1)])  # the looks after the last step
            llm.llm_engine.engine_core.shutdown()
            del llm
            gc.collect()
        return sent.events()

    def exchange(self) -> None:
        """What is stored of two prompts changes places; nothing is stored of a short one but its folder."""
        one, other = (
            folder for folder in self.store.iterdir() if max(f.stat().st_size for f in folder.iterdir()) > 1000
        )
        aside = self.folder / "aside"
        for source, target in ((one, aside), (other, one), (aside, other)):
            source.rename(target)


def prompt(name: str) -> tuple[int, ...]:
    rng = random.Random(name)
    return tuple(rng.randrange(3, tiny_model.VOCABULARY) for _ in range(LENGTH))


def judged(*parts: list[Event]) -> Detector:
    detector = Detector()
    for part in parts:
        detector.feed(part)
    detector.settle()
    return detector


def test_what_one_engine_computed_judges_what_another_loads(tmp_path: Path) -> None:
    engines = Engines(tmp_path)
    computed = engines.run("one", "p", "q")
    loaded = engines.run("two", "q", engines.exchange, "p")
    looks = [event for event in loaded if isinstance(event, BlockCheck) and event.check_look == "loaded"]
    assert [(event.check_blocks, event.check_unknown) for event in looks] == [(4, 4)] * 2, (
        "the engine itself cannot tell"
    )

    alone, together = judged(loaded), judged(computed, loaded)
    assert alone.findings == {}
    assert alone.unknown["byte-drift", Unknown.CONTENT] - together.unknown["byte-drift", Unknown.CONTENT] == 2
    ((finding,),) = (held.values() for held in together.findings.values())
    assert (finding.rule, finding.engine, finding.external) == ("byte-drift", "two", "p")
    assert finding.numbers["wrong"] == 4
    owner, block = finding.numbers["owner"], tiny_model.BLOCK_SIZE
    assert owner.startswith("q-")
    said = f"this request's tokens 0 to {block} hold what engine one computed at B1"
    assert said in finding.explanation
    assert f"for request {owner}'s tokens 0 to {block}, under another hash." in finding.explanation

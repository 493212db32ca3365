"""Rules about bytes find their faults on real engines, and one engine's truth finds what another has loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from byte_engines import EXCHANGE, found, judged, offload, sharing, two_rounds
from faults import OF_BYTES

from kvtrail.connector.simulate.tiny_model import BLOCK_SIZE
from kvtrail.tracer.events.events import BlockCheck
from kvtrail.tracer.model.findings import Unknown


@pytest.mark.parametrize(("fault", "where"), OF_BYTES.items())
def test_the_rule_finds_its_fault_on_a_real_engine(tmp_path: Path, fault: str, where: str) -> None:
    ran = two_rounds(tmp_path, offload(f"Faulty:{fault}:OffloadConnector"))
    findings = ran.findings()
    assert where in {finding.numbers["where"] for finding in findings}
    assert {finding.rule for finding in findings} == {"byte-drift"}
    assert all(finding.explanation for finding in findings)
    looks = [event for event in ran.events if isinstance(event, BlockCheck) and event.check_wrong_kinds]
    assert all(event.check_blocks >= event.check_unknown + event.wrong for event in looks), (
        "what is wrong was looked at"
    )


def test_what_one_engine_computed_judges_what_another_loads(tmp_path: Path) -> None:
    computed = sharing(tmp_path, "one", ["p", "q"])
    loaded = sharing(tmp_path, "two", ["q", EXCHANGE, "p"])
    looks = [event for event in loaded if isinstance(event, BlockCheck) and event.check_look == "loaded"]
    assert [(event.check_blocks, event.check_unknown) for event in looks] == [(4, 4)] * 2, (
        "the engine itself cannot tell"
    )

    alone, together = judged(loaded), judged(computed, loaded)
    assert alone.findings == {}
    assert alone.unknown["byte-drift", Unknown.CONTENT] - together.unknown["byte-drift", Unknown.CONTENT] == 2
    (finding,) = found(computed, loaded)
    assert (finding.rule, finding.engine, finding.external) == ("byte-drift", "two", "p")
    assert finding.numbers["wrong"] == 4
    owner = finding.numbers["owner"]
    assert owner.startswith("q-")
    assert f"this request's tokens 0 to {BLOCK_SIZE} hold what engine one computed at B1" in finding.explanation
    assert f"for request {owner}'s tokens 0 to {BLOCK_SIZE}, under another hash" in finding.explanation

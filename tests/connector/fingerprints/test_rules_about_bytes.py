"""Rules about bytes find their faults on real engines, and one engine's truth finds what another has loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from byte_engines import EXCHANGE, found, judged, offload, sharing, two_rounds
from faults import BY_RULE

from kvtrail.connector.simulate.tiny_model import BLOCK_SIZE
from kvtrail.tracer.events.events import BlockCheck
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.model.findings import Unknown
from kvtrail.tracer.rules import all_rules


@pytest.mark.parametrize("rule", BY_RULE)
def test_the_rule_finds_its_fault_on_a_real_engine(tmp_path: Path, rule: str) -> None:
    ran = two_rounds(tmp_path, offload(f"Faulty:{BY_RULE[rule]}:OffloadConnector"))
    findings = ran.findings()
    assert rule in {finding.rule for finding in findings}
    assert {finding.rule for finding in findings} <= set(BY_RULE)
    assert all(finding.explanation for finding in findings)
    looks = [event for event in ran.events if isinstance(event, BlockCheck) and event.check_wrong_kinds]
    assert all(event.check_blocks >= event.check_unknown + event.wrong for event in looks), (
        "what is wrong was looked at"
    )


def test_every_rule_about_bytes_has_its_fault() -> None:
    assert set(BY_RULE) == {rule.id for rule in all_rules() if Kind.BLOCK_CHECK in rule.kinds}


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
    assert f"for request {owner}'s tokens 0 to {BLOCK_SIZE}, under another hash." in finding.explanation

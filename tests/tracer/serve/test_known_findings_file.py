"""The file of known findings: what it says, its errors, and its changes."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvtrail.__main__ import main
from kvtrail.refused import Refused
from kvtrail.tracer.model.known import NEVER_NS, Known
from kvtrail.tracer.serve.known_findings import KnownFindingsFile, read
from kvtrail.tracer.serve.watched_file import LOOK_AGAIN_S


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def ns(year: int, month: int, day: int, hour: int = 0) -> int:
    return int(datetime(year, month, day, hour, tzinfo=UTC).timestamp()) * 10**9


def test_a_file_says_what_is_known_why_and_until_when(tmp_path: Path) -> None:
    text = """
- rule: stale-lookup
  engine: llama-a
  connector: LMCacheConnectorV1
  version: 0.31
  until: 2026-09-01
  why: "LMCache #2158: fixed in vLLM 0.32"
- {rule: no-token-left, why: by design}
"""
    first, second = read(written(tmp_path / "known.yaml", text))
    assert first == Known(
        rule="stale-lookup",
        engine="llama-a",
        connector="LMCacheConnectorV1",
        version="0.31",
        until="2026-09-01",
        until_ns=ns(2026, 9, 2),  # that day still counts
        why="LMCache #2158: fixed in vLLM 0.32",
    )
    assert second == Known(rule="no-token-left", why="by design")
    assert read(written(tmp_path / "empty.yaml", "# nothing is known\n")) == ()
    assert KnownFindingsFile().content == ()
    assert KnownFindingsFile().status is None


def test_an_old_name_of_a_rule_means_the_rule_of_today(tmp_path: Path) -> None:
    (known,) = read(written(tmp_path / "known.yaml", "- {rule: short-load, why: by design}"))
    assert known.rule == "incomplete-load"


@pytest.mark.parametrize(
    ("until", "ends_ns"),
    [
        ("2026-09-01T12:00:00Z", ns(2026, 9, 1, 12)),
        ("2026-09-01 12:00", ns(2026, 9, 1, 12)),
        ("2026-09-01T12:00:00+02:00", ns(2026, 9, 1, 10)),
        ("2020-01-01", ns(2020, 1, 2)),
        ("9998-12-31", NEVER_NS),
    ],
)
def test_an_end_is_a_day_or_a_time_in_utc(tmp_path: Path, until: str, ends_ns: int) -> None:
    (entry,) = read(written(tmp_path / "known.yaml", f"- {{rule: no-token-left, why: x, until: '{until}'}}"))
    assert entry.until_ns == ends_ns


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rule: no-token-left\n", "Expected `array`, got `object`"),
        ("- no-token-left\n", "line 1: Expected `object`, got `str`"),
        ("- rule: no-token-left\n", "line 1: Object missing required field `why`"),
        ("- why: x\n- rule: no-token-left\n  why: x\n", "line 1: Object missing required field `rule`"),
        ("- rule: no-token-left\n  why: x\n  untill: 2026-01-01\n", "line 1: Object contains unknown field `untill`"),
        ("# first\n- why: x\n  rule: stale-lokup\n", "line 2: there is no rule 'stale-lokup'. Did you mean 'stale-lookup'"),
        ("- rule: no-token-left\n  why: x\n  until: someday\n", "line 1: 'someday' is not a date or time: write 2026-09-01"),
        ("- rule: no-token-left\n  why: x\n  until: 9999-12-31\n", "line 1: '9999-12-31' is not a date or time"),
        ("- rule: no-token-left\n  why:\n", "line 1: Expected `str` of length >= 1 in 'why'"),
        ("- rule: no-token-left\n  why: [x]\n", "line 1: Expected `str`, got `array` in 'why'"),
        ("- rule: no-token-left\n  why: x\n  engine: ''\n", "line 1: Expected `str` of length >= 1 in 'engine'"),
        (f"- rule: no-token-left\n  why: {'x' * 501}\n", "line 1: Expected `str` of length <= 500 in 'why'"),
        ("- [", "while parsing"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_its_entry_and_the_reason(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(Refused) as refused:
        KnownFindingsFile(written(tmp_path / "known.yaml", text))
    assert said in str(refused.value)
    assert "known.yaml" in str(refused.value)


def test_nothing_is_served_with_a_bad_file(tmp_path: Path) -> None:
    path = written(tmp_path / "known.yaml", "- rule: no-token-letf\n  why: x\n")
    for options in ([], ["--read-only", "--store", "clickhouse://nowhere.invalid/x"]):
        result = CliRunner().invoke(main, ["serve", *options, "--known-findings", str(path)])
        assert result.exit_code == 2
        assert "there is no rule 'no-token-letf'. Did you mean 'no-token-left'" in " ".join(result.output.split())


def test_a_changed_file_is_read_again_and_a_bad_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    path = written(tmp_path / "known.yaml", "- {rule: no-token-left, why: x}")
    file = KnownFindingsFile(path, clock=lambda: now[0])

    def after(text: str | None) -> list[str]:
        path.unlink() if text is None else path.write_text(text)
        now[0] += LOOK_AGAIN_S
        return [each.why for each in file.content]

    assert after("- {rule: no-token-left, why: another reason}") == ["another reason"]
    assert file.content is file.content
    assert file.status == "ok"
    assert after("- {rule: no-token-left}") == ["another reason"]
    for _ in range(3):
        now[0] += LOOK_AGAIN_S
        assert "missing required field `why`" in (file.status or "")
    assert caplog.text.count("its old content stays in use") == 1
    assert after("- {rule: no-token-left, why: back}") == ["back"]
    assert file.status == "ok"
    assert after(None) == ["back"]
    assert "cannot read the known findings" in (file.status or "")

"""state-boundary: a recurrent state is stored for a length at which no step ended."""

from __future__ import annotations

from kvtrail.tracer.events.cache_groups import NULL_BLOCK
from kvtrail.tracer.events.events import StorePlan
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.block_table import BlockTable, blocks_by_group
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import Groups, RequestRule


class StateBoundary(RequestRule[StorePlan]):
    """The connector stores a recurrent state for a length at which no step ended.

    Invariant: a block that a plan stores of a recurrent group at place i of its table is not the null block, and no step of
    the request with several tokens ran from before (i + 1) x b tokens to behind them, b the group's block size, unless
    another one ended there.

    A step leaves one state, that after its last token. vLLM ends a prompt's steps where states are to be kept, but not at
    each multiple of b; it does not fill the places between. Steps with speculative tokens are not counted: of them vLLM keeps
    the state at a multiple of b that was accepted. It judges groups of `mamba_cache_mode` `align` without checkpoints within
    a step. Source: vLLM, `Scheduler._mamba_block_aligned_split`; the incidents are LMCache #5004
    (https://github.com/LMCache/LMCache/pull/5004) and vLLM #53084 (https://github.com/vllm-project/vllm/issues/53084). Needs
    block ids (level `detailed`), a probe that reads plans by group, and every event of the request.
    """

    id = "state-boundary"
    only_with = "blocks_by_group"
    severity = Severity.WRONG_OUTPUT
    groups = Groups.EACH
    level = Level.DETAILED
    classes = ("C22", "N2")
    hint = (
        "The connector takes a state for each place of the table, as for attention. Store those that vLLM hands over"
        " (`boundary_state_offloads`), or those of the ends of steps."
    )

    def judge(self, event: StorePlan, account: Account) -> Judgement:
        table = account.evidence.blocks
        if event.group_starts is None or event.blocks_by_group is None or event.chunk_present or table is None:
            return None
        judged = None
        for group, blocks in enumerate(blocks_by_group(event)):
            if not blocks or group >= len(table.kinds) or not table.kinds[group].has_states_at_ends_alone:
                continue
            judged = OK
            if wrong := _wrong(event, account, table, group):
                return Drift(wrong, [event])
        return judged

    def template(self, finding: Finding) -> str:
        of = "At {0:epoch} the connector stores block {block} of KV cache group {group} as the state of {boundary} tokens"
        if finding.numbers["block"] == NULL_BLOCK:
            return of + ": that is the null block, which nobody has written."
        return of + ". A step ran from token {begins} to {end} without an end there, and left no such state."


def _wrong(event: StorePlan, account: Account, table: BlockTable, group: int) -> dict[str, int] | None:
    """The first block of a group that holds no state of its length."""
    size, starts = table.size_of(group), event.group_starts
    if not size or starts is None or event.epoch != account.epoch:
        return None
    steps = account.evidence.steps
    ends = {length for step in steps for length in step}
    for place, block in enumerate(blocks_by_group(event)[group], starts[group] // size):
        numbers = {"group": group, "boundary": (place + 1) * size, "block": block}
        if block == NULL_BLOCK:
            return numbers
        boundary = numbers["boundary"]
        for begins, end in steps if boundary not in ends else ():
            if begins < boundary < end:
                return {**numbers, "begins": begins, "end": end}
    return None

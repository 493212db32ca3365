"""The worker's side: checks blocks as the scheduler's plan says.

On a CPU a check is judged at once. On a GPU the fingerprints are read after the engine's queued work, and one of the next
steps judges them, in order. The engine waits for them only in steps with loads, and only with healing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from kvtrail.connector.fingerprints.block_fingerprints import BlockFingerprints
from kvtrail.connector.fingerprints.checksums import BlockChecksums
from kvtrail.connector.fingerprints.judge import Judge, JudgeOne
from kvtrail.connector.fingerprints.plan import COMPUTED, Check, CheckPlan, HandedLoad
from kvtrail.connector.fingerprints.reading import Readings
from kvtrail.connector.fingerprints.references import References
from kvtrail.connector.fingerprints.result import CheckResult, Results

MAX_ADMITTED = 64
"""Maximum number of blocks that are checked when a request takes over blocks without a known mismatch."""


class CheckWorker:
    """Checks the blocks of one rank."""

    def __init__(
        self,
        fingerprints: Mapping[int, BlockFingerprints],
        references: References,
        *,
        checksums: BlockChecksums | None,
        fill_with_zeros: Callable[[Collection[int]], None],
        heals: bool,
        report: Callable[[CheckResult], None],
    ) -> None:
        """
        Args:
            fingerprints: by the number of the KV cache group.
            checksums: checksums of hand-offs from other engines; None if there are none.
            fill_with_zeros: overwrites these blocks with zeros in all layers.
            heals: whether mismatched blocks are filled with zeros and reported to vLLM.
            report: called with each result.
        """
        self._references, self._checksums, self._fill_with_zeros = references, checksums, fill_with_zeros
        self._sees_partial = all(each.sees_partial for each in fingerprints.values())
        self._results = Results(report)
        self._judge = Judge(references, self._results, heals=heals, shares=not references.own)
        self._readings = Readings(
            fingerprints, on_batch=lambda *read: self._judge.judge_all(self._judge.before_step(), *read)
        )
        self._random = random.Random(0)
        self._loads: list[Check] = []
        self._async_loads: dict[str, list[Check | HandedLoad]] = {}
        """Loads that end between steps, by request."""
        self._received: list[Check | HandedLoad] = []
        self._taken: list[Check] = []
        """Loads of this step with fingerprints that are being read."""
        self._reported: set[int] = set()
        """The blocks of this step's loads that the connector reports as not loaded."""

    def begin(self, plan: CheckPlan | None) -> bool:
        """Called at the beginning of a step, before its loads and its forward pass. Returns whether the other methods must be
        called in this step."""
        if (
            plan is not None
            or self._judge.rechecks
            or self._readings.is_busy
            or self._loads
            or self._received
            or self._taken
        ):
            self._begin(plan or CheckPlan())
        return bool(self._loads or self._async_loads or self._judge.to_heal)

    def _begin(self, plan: CheckPlan) -> None:
        self._readings.run_ready()
        rechecks, self._judge.rechecks = self._judge.rechecks, []
        self._loads, self._taken, self._reported = [], [], set()
        if plan.reset:
            self._readings.end_batches()
            self._readings.run_ready()
            self._references.clear()
        for check in plan.unreadable:
            self._references.mark_incomplete(check.group, check.hashes)
        for request_id in plan.restarted:
            self._async_loads.pop(request_id, None)
        self._loads = list(plan.loads)
        for load in plan.async_loads:
            self._async_loads.setdefault(load.request_id, []).append(load)
        for recheck in rechecks:
            numbers = {block.number for block, _ in recheck.mismatches}
            check = recheck.check.only([number in numbers for number in recheck.check.numbers])
            self._read([check], partial(self._judge.judge_again, recheck))
        self._check_before(plan.before)
        if plan.states:
            self._read(plan.states, self._judge.before_step())
        if changed := (*plan.restarted, *plan.rewound, *plan.ended):
            is_awaited = self._judge.shares and plan.ended  # another engine may have loaded their results
            if is_awaited or self._readings.is_busy or self._judge.has_contaminated(changed):
                self._readings.end_batches()
            self._readings.call(partial(self._on_requests_changed, plan))
        self._readings.run_ready()

    def _check_before(self, checks: Sequence[Check]) -> None:
        """Check the blocks that requests have computed, taken over, or hold."""
        computed = [check for check in checks if check.kind == COMPUTED]
        kept = [check for check in checks if check.kind != COMPUTED]
        fresh = {(check.group, block) for check in computed for block in check.blocks}
        if fresh:
            kept = [check.only([(check.group, block) not in fresh for block in check.blocks]) for check in kept]
        kept = [self._fewer(check) for check in kept]
        if kept or any(check.partial in check.numbers for check in computed):
            self._read([*kept, *computed], self._judge.before_step())
        elif computed:
            self._readings.read_batched(computed)

    def received(self, request_ids: Iterable[str], failed: Collection[str]) -> None:
        """Note loads that the connector reports as ended between steps."""
        for request_id in request_ids:
            self._received += self._async_loads.pop(request_id, [])
        if failed:
            self._received = [load for load in self._received if load.request_id not in failed]

    def forward_passed(self) -> None:
        """Called after the forward pass and before the connector's next call: the pass has read loads that end only now."""
        loads, self._loads = self._loads, []
        if not self._sees_partial:
            loads = [check.only([number != check.partial for number in check.numbers]) for check in loads]
        self._take(loads, read=True)

    def conclude(self, reported: Collection[int]) -> set[int]:
        """Called after the forward pass. Returns the blocks that vLLM must recompute besides those that the connector
        `reported`."""
        self.forward_passed()
        received, self._received = self._received, []
        unlike = self._unlike_what_was_handed_over([each for each in received if isinstance(each, HandedLoad)])
        reported = {*reported, *unlike} if unlike else reported
        self._take([each for each in received if isinstance(each, Check)], read=False)
        self._reported.update(reported)
        loads, self._taken = self._taken, []
        for check in loads:
            for block in check.blocks:
                if block in reported:
                    self._judge.mark_recomputed(check.group, block, check.request_id)
        self._readings.run_ready(wait=self._judge.heals and bool(loads))
        healed, self._judge.to_heal = self._judge.to_heal | unlike, set()
        if healed:
            self._fill_with_zeros(healed)
        return healed

    def end(self) -> None:
        """Report the remaining results at the end."""
        self._readings.end_batches()
        self.begin(None)
        self._readings.run_ready(wait=True)
        self._results.flush()

    def _unlike_what_was_handed_over(self, loads: Iterable[HandedLoad]) -> set[int]:
        """Compare loads that have ended with the checksums of the engines that handed them over. Returns the blocks to be
        computed again: all blocks of a load with a wrong one, since its read cannot be trusted."""
        unlike: set[int] = set()
        for check, checksums, layout, blocks in loads:
            if self._checksums is None or layout != self._checksums.layout:
                continue  # the other engine's blocks have another layout
            read = self._checksums.of(check.numbers, check.blocks)
            wrong = check.only([one != other for one, other in zip(read, checksums, strict=True)])
            if wrong.blocks:
                self._judge.judge_handed_over(check, wrong)
                if self._judge.heals:
                    unlike.update(blocks)
        return unlike

    def _take(self, loads: Sequence[Check], *, read: bool) -> None:
        """Read loaded blocks, which `conclude` judges. `read`: a forward pass may have read them."""
        self._taken += loads
        self._read(loads, partial(self._judge.judge_loaded, self._reported, read))

    def _read(self, checks: Sequence[Check], judge: JudgeOne) -> None:
        self._readings.read(checks, partial(self._judge.judge_all, judge))

    def _fewer(self, check: Check) -> Check:
        """The check, reduced to a random sample of its blocks if there are many."""
        if len(check.blocks) <= MAX_ADMITTED or not self._judge.mismatched.isdisjoint(check.blocks):
            return check
        chosen = {*self._random.sample(check.numbers, MAX_ADMITTED)}
        return check.only([number in chosen for number in check.numbers])

    def _on_requests_changed(self, plan: CheckPlan) -> None:
        """Handle requests that start again or end. Called when all blocks computed before are judged."""
        self._judge.on_rewind(plan.rewound)
        for request_id in (*plan.restarted, *plan.ended):
            self._judge.on_restart(request_id)
        for request_id in plan.ended:
            self._async_loads.pop(request_id, None)
            self._readings.call_after_batches(partial(self._results.flush_request, request_id))

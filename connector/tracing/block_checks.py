"""The bytes of KV blocks, looked at around the calls of the outermost connector of an engine.

Nothing of this is in the way where it is off: only an object whose bytes are judged has these methods in front of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from itertools import groupby
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from kvtrail.connector.fingerprints.orders import Group, OrderBook, Orders, below
from kvtrail.connector.fingerprints.store import is_own
from kvtrail.connector.settings import FingerprintStore, Guard, HeldBlocks, Settings
from kvtrail.connector.tracing.identity import identity_of
from kvtrail.connector.tracing.instrumentation import Instrumentation
from kvtrail.tracer.events.semconv import Kind

if TYPE_CHECKING:
    from kvtrail.connector.fingerprints.looks import Told
    from kvtrail.connector.fingerprints.truth import Place

logger = logging.getLogger("vllm.kvtrail")

ORDERS = "_kvtrail_orders"
"""Attribute of a connector's metadata in which the scheduler's side tells its workers which blocks to look at."""
LAYER_CALL = "wait_for_layer_load"
"""What vLLM calls for every layer: it has something in front of it only in a step that needs it."""
MOST_WRONG = 64
"""Wrong blocks that one event lists."""


class BlockChecks:
    """Stands in front of the methods of one connector object.

    Whatever fails here ends the looking, with one line in the log, and never the engine.

    Attributes:
        in_front: the names of the methods that it stands in front of.
    """

    def __init__(
        self,
        connector: Any,
        instrumentation: Instrumentation,
        settings: Settings,
        vllm_config: Any,
        kv_cache_config: Any,
    ) -> None:
        self._connector, self._instrumentation = connector, instrumentation
        self._settings, self._vllm_config, self._kv_cache_config = settings, vllm_config, kv_cache_config
        self._own = {
            FingerprintStore.AUTO: is_own(vllm_config.kv_transfer_config),
            FingerprintStore.OWN: True,
            FingerprintStore.SHARED: False,
        }[settings.fingerprint_store]
        self._groups = groups_of(vllm_config, kv_cache_config)
        self._unhealed = self._why_unhealed()
        self._steps = 0
        self._book: Any = None
        self._checks: Any = None
        self._in_step: dict[str, Callable[..., Any]] = {}
        """What stands in front of a worker's methods in steps with something to look at."""
        self.in_front: set[str] = set()

    def follow(self) -> None:
        """On the scheduler's side: tell the workers where to look."""
        self._book = OrderBook(
            self._groups,
            hash_size=_hash_size(self._vllm_config, self._kv_cache_config),
            rate=self._settings.rate,
            all_held=self._settings.fingerprint_held is HeldBlocks.ALL,
            identity=identity_of,
            slim=self._settings.slim,
        )
        self._after("get_num_new_matched_tokens", self._looked_up)
        self._after("update_state_after_alloc", self._allocated)
        self._after("build_connector_meta", self._step_built)
        self._after("update_connector_output", self._workers_reported)
        self._after("reset_cache", self._reset)

    def look(self) -> None:
        """On a worker: look where the scheduler's side says."""
        self._after("register_kv_caches", self._registered)

    # On the scheduler's side.

    def _looked_up(self, answer: Any, request: Any, computed: int) -> None:
        if answer[0] is not None:
            self._book.looked_up(request, computed, bool(answer[1]))

    def _allocated(self, result: Any, request: Any, blocks: Any, external: int) -> None:
        self._book.allocated(request, external, blocks)

    def _step_built(self, metadata: Any, output: Any) -> None:
        number, self._steps = self._steps, self._steps + 1
        if self._instrumentation.loads_nothing:
            self._instrumentation.loads_nothing.difference_update(output.finished_req_ids)
        orders = self._book.step(output, number)
        if orders is not None:
            for look in (*orders.before, *orders.loads, *orders.awaited):
                self._place(look.request_id, orders)
            setattr(metadata, ORDERS, orders)

    def _place(self, request_id: str, orders: Orders) -> None:
        """Workers in other processes cannot derive a request's place in its caller's trace."""
        if (recorder := self._instrumentation.recorder) is not None and request_id not in orders.places:
            context = recorder.contexts.named(request_id)
            if context.has_caller:
                orders.places[request_id] = context.root, context.sampled

    def _workers_reported(self, result: Any, output: Any) -> None:
        invalid, failed = getattr(output, "invalid_block_ids", None), getattr(output, "failed_recving", None)
        if invalid or failed:
            waiting = self._book.loads_failed()
            if self._settings.guard is Guard.HEAL and self._unhealed is None:
                # vLLM asks again, and would load the same wrong bytes for ever.
                self._instrumentation.loads_nothing |= waiting.difference(failed or ())

    def _reset(self, succeeded: Any) -> None:
        self._book.forget()

    # On a worker.

    def _registered(self, result: Any, kv_caches: dict[str, Any]) -> None:
        from vllm.distributed import kv_transfer

        from kvtrail.connector.fingerprints.checks import Checks
        from kvtrail.connector.fingerprints.fingerprint import Fingerprints
        from kvtrail.connector.fingerprints.reference import SlimReference
        from kvtrail.connector.fingerprints.references import References
        from kvtrail.connector.fingerprints.slim import SlimFingerprints
        from kvtrail.connector.fingerprints.truth import Truth

        if kv_transfer.has_kv_transfer_group() and kv_transfer.get_kv_transfer_group() is not self._connector:
            return  # another connector's child
        names = {
            group.number: self._kv_cache_config.kv_cache_groups[group.number].layer_names for group in self._groups
        }
        caches = {number: {name: kv_caches[name] for name in layers} for number, layers in names.items()}
        num_blocks, sizes = self._kv_cache_config.num_blocks, dict(self._groups)
        slims: dict[int, SlimFingerprints] = {}
        truth, slim = Truth(own=self._own), None
        if self._settings.slim:
            slims = {number: SlimFingerprints(each, num_blocks, sizes[number]) for number, each in caches.items()}
            slim = SlimReference(own=self._own, incomplete=truth.incomplete)
        self._checks = Checks(
            {number: Fingerprints(each, num_blocks) for number, each in caches.items()},
            sizes,
            References(truth, slim, sizes, below=below(self._settings.rate), own=self._own),
            slims=slims,
            heals=self._heals(),
            shares=not self._own,
            tell=self._tell,
        )
        self._after("bind_connector_metadata", self._bound)
        self._after("shutdown", lambda result: self._checks.end())
        after = {
            "start_load_kv": self._loads_started,
            "get_finished": self._finished,
            "get_transfer_results": self._received,
            "get_block_ids_with_load_errors": self._conclude,
        }
        self._in_step = {call: wrapped for call, do in after.items() if (wrapped := self._followed(call, do))}
        self._in_step["wait_for_save"] = self._preceded("wait_for_save", self._checks.forward_passed)

    def _heals(self) -> bool:
        """Whether wrong blocks are computed again; says in one line why not, where that is asked for."""
        if self._settings.guard is not Guard.HEAL:
            return False
        if self._unhealed is not None:
            logger.warning("kvtrail: wrong bytes are recorded and not healed: %s", self._unhealed)
        return self._unhealed is None

    def _why_unhealed(self) -> str | None:
        """Why vLLM cannot compute wrong blocks again; None if it can."""
        if getattr(self._vllm_config.kv_transfer_config, "kv_load_failure_policy", "fail") != "recompute":
            return "kv_load_failure_policy is not 'recompute'"
        if len(self._kv_cache_config.kv_cache_groups) != 1:
            return "vLLM computes failed loads again in models with one KV cache group only"
        return None

    def _bound(self, result: Any, metadata: Any) -> None:
        orders = getattr(metadata, ORDERS, None)
        if orders is not None:
            self._steps = orders.step
            if (recorder := self._instrumentation.recorder) is not None:
                for request_id, place in orders.places.items():
                    recorder.contexts.adopt(request_id, *place)
        is_busy = self._checks.begin(orders)
        if is_busy != ("wait_for_save" in self.in_front):
            for call, wrapped in self._in_step.items():
                if is_busy:
                    self._put(call, wrapped)
                else:
                    self._take(call)

    def _loads_started(self, result: Any, *_: Any, **__: Any) -> None:
        if self._checks.loads_started():
            self._after(LAYER_CALL, lambda result, name: self._checks.layer_loaded(name))

    def _finished(self, result: Any, *_: Any) -> None:
        if result and result[1]:
            self._checks.received(result[1], ())

    def _received(self, result: Any, *_: Any) -> None:
        self._checks.received(result.finished_recving or (), getattr(result, "failed_recving", None) or ())

    def _conclude(self, result: Any) -> Any:
        self._take(LAYER_CALL)
        healed = self._checks.conclude(result or ())
        return {*result, *healed} if healed else result

    def _tell(self, told: Told) -> None:
        """Record what a look has to tell."""
        if (recorder := self._instrumentation.recorder) is None:
            return
        wrong = told.wrong[:MOST_WRONG]
        contexts = recorder.contexts
        values = (
            told.look,
            told.blocks,
            told.unknown,
            tuple(map(_short, told.hashes)) or None,
            tuple(told.fingerprints) or None,
            tuple(told.tokens) or None,
            tuple(each.kind for each in wrong) or None,
            tuple(each.block for each in wrong) or None,
            tuple(each.token for each in wrong) or None,
            tuple(_short(each.hash) for each in wrong) or None,
            tuple(_ranges(each.wrong.layers) for each in wrong) or None,
            tuple(_held(each.wrong.holds, contexts.name_of) for each in wrong) or None,
            tuple(each.of and contexts.name_of(each.of) for each in wrong) or None,
            len(told.wrong) - len(wrong) or None,
            told.healed or None,
            told.group or None,
            self._steps,
            told.identity,
            told.slim or None,
        )
        at_ns = monotonic_ns()
        source = self._instrumentation.source
        recorder.record(Kind.BLOCK_CHECK.value, source, contexts.named(told.request_id), at_ns, at_ns, values)

    # In front of the connector's methods.

    def _preceded(self, call: str, do: Callable[[], None]) -> Callable[..., Any]:
        """The method, before each call of which this is done."""
        plain = getattr(self._connector, call)

        @wraps(plain)
        def looked(*args: Any, **kwargs: Any) -> Any:
            try:
                do()
            except Exception:
                logger.exception("kvtrail: the bytes of KV blocks are not looked at any more")
                self.stop()
            return plain(*args, **kwargs)

        return looked

    def _followed(self, call: str, do: Callable[..., Any]) -> Callable[..., Any] | None:
        """The method, after each call of which this is done, with what it returns and its arguments; None if there is no such
        method. What this returns is the answer in the place of the connector's, if it is anything."""
        plain = getattr(self._connector, call, None)
        if plain is None:
            return None

        @wraps(plain)
        def looked(*args: Any, **kwargs: Any) -> Any:
            result = plain(*args, **kwargs)
            try:
                instead = do(result, *args, **kwargs)
            except Exception:
                logger.exception("kvtrail: the bytes of KV blocks are not looked at any more")
                self.stop()
                return result
            return result if instead is None else instead

        return looked

    def _after(self, call: str, do: Callable[..., Any]) -> None:
        if (looked := self._followed(call, do)) is not None:
            self._put(call, looked)

    def _put(self, call: str, looked: Callable[..., Any]) -> None:
        setattr(self._connector, call, looked)
        self.in_front.add(call)

    def _take(self, call: str) -> None:
        """The connector has its own method again."""
        if call in self.in_front:
            self.in_front.remove(call)
            delattr(self._connector, call)

    def stop(self) -> None:
        """The connector has all of its own methods again."""
        for call in (*self.in_front,):
            self._take(call)


def attach(
    connector: Any,
    instrumentation: Instrumentation,
    settings: Settings,
    vllm_config: Any,
    role: Any,
    kv_cache_config: Any,
) -> BlockChecks | None:
    """Look at bytes around the calls of this connector, if the settings say so and its caches can be looked at."""
    if not (settings.rate or settings.slim):
        return None
    if not groups_of(vllm_config, kv_cache_config):
        logger.info(
            "kvtrail: the bytes of KV blocks are not looked at: no group of full attention, or context parallelism"
        )
        return None
    checks = BlockChecks(connector, instrumentation, settings, vllm_config, kv_cache_config)
    if role.name == "SCHEDULER":
        checks.follow()
    else:
        checks.look()
    return checks


def groups_of(vllm_config: Any, kv_cache_config: Any) -> list[Group]:
    """The KV cache groups whose blocks can be looked at: those of full attention, which keep a request's blocks until its
    end."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    parallel = vllm_config.parallel_config
    spread = getattr(parallel, "decode_context_parallel_size", 1) * getattr(
        parallel, "prefill_context_parallel_size", 1
    )
    if kv_cache_config is None or spread > 1:
        return []
    return [
        Group(number, group.kv_cache_spec.block_size)
        for number, group in enumerate(kv_cache_config.kv_cache_groups)
        if isinstance(group.kv_cache_spec, FullAttentionSpec)
    ]


def _hash_size(vllm_config: Any, kv_cache_config: Any) -> int:
    """Tokens of a hash of vLLM's requests."""
    try:
        from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
    except ImportError:  # an older vLLM, in which all groups have one size
        return int(vllm_config.cache_config.block_size)
    return int(resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)[1])


def _short(number: int) -> str:
    return f"{number:016x}"


def _held(holds: str | Place, name: Callable[[str], str]) -> str:
    return holds if isinstance(holds, str) else f"{name(holds.request_id)}@{holds.token}"


def _ranges(layers: tuple[int, ...]) -> str:
    """Numbers in order, as "0-3,7"."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0])]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)

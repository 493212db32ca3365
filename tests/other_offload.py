"""OffloadConnectors with loads that end between steps, as those of a slower store do, or layer by layer within one."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.offload import UntracedOffloadConnector


class AsyncOffloadConnector(UntracedOffloadConnector):
    """Requests wait for their loads; it reports the ends of these with the step after."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._loading: set[str] = set()
        self._loaded: set[str] = set()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        tokens, _ = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return tokens, bool(tokens)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._loaded, self._loading = self._loaded | self._loading, set()
        super().start_load_kv(forward_context, **kwargs)
        self._loading = {copy.request_id for copy in self._bound_plan().loads}

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        ended, self._loaded = self._loaded, set()
        return None, ended or None


class HastyOffloadConnector(AsyncOffloadConnector):
    """It reports a load before it copies anything."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._later: list[Any] = []

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        later, self._later = self._later, []
        if later:
            super().load_chunks(later)
        super().bind_connector_metadata(connector_metadata)

    def load_chunks(self, copies: Any) -> None:
        self._later += copies

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        super().start_load_kv(forward_context, **kwargs)
        self._loaded, self._loading = self._loaded | self._loading, set()


class LayerwiseOffloadConnector(UntracedOffloadConnector):
    """It loads a layer when the forward pass asks for it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._waiting: dict[str, Any] = {}

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._waiting = dict(zip(self._layers, self._memory._parts, strict=True)) if self._bound_plan().loads else {}

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        self._layers = list(kv_caches)

    def wait_for_layer_load(self, layer_name: str) -> None:
        part = self._waiting.pop(layer_name, None)
        if part is not None:
            every, self._memory._parts = self._memory._parts, [part]
            self.load_chunks(self._bound_plan().loads)
            self._memory._parts = every

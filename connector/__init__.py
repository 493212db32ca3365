"""The vLLM side: an offload connector, and tracing for any connector.

Importing this package needs OpenTelemetry only. Classes that need vLLM are created at their first use:

- `OffloadConnector`: offload of KV blocks to host memory, traced.
- `Traced<X>`: connector X as vLLM's registry knows it, traced. `TracedLMCacheConnectorV1`, for instance.
- `<X>`: the same class under its plain name, for `kv_connector: "<X>"` with `kv_connector_module_path: "kvtrail.connector"`.
  vLLM compares the names of some connectors (MultiConnector, Nixl, Mooncake, MoRIIO, HiSparse); those want this form.
- `Traced:<module>:<X>`: class X of a module, traced, for connectors that vLLM finds by module path.
- `Faulty:<fault>:<X>`: X (any of the names above) with a known bug of `faults.py`
  injected; for tests and demos.

With the package installed, vLLM knows the names of the first two. The others need `kv_connector_module_path:
"kvtrail.connector"`.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if "Connector" in name or name.startswith(("Traced:", "Faulty:")):
        from kvtrail.connector.registration import resolve

        return resolve(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""vLLM's engine and scheduler, and the model, imported once for many engines, and nothing of LMCache; `forks.py` imports it
before it forks.

vLLM collects garbage eight times while it builds and ends an engine, each time among the million objects of its own modules:
that takes longer than all else, and a fork copies their memory then. Here it does not, and whoever ends an engine collects.
"""

import gc
import sys
from types import SimpleNamespace

import vllm.model_executor.models.opt
import vllm.v1.worker.cpu_worker
from vllm import LLM, ModelRegistry

from kvtrail.connector.simulate import bare_scheduler, tiny_model

__all__ = ["LLM", "bare_scheduler", "tiny_model", "vllm"]

_COLLECTS_NOTHING = SimpleNamespace(
    **{**vars(gc), "collect": lambda generation=2: 0, "freeze": lambda: None, "unfreeze": lambda: None}
)
for module in [each for name, each in sys.modules.items() if name.startswith("vllm.")]:
    if vars(module).get("gc") is gc:
        module.gc = _COLLECTS_NOTHING  # type: ignore[attr-defined]


def load_model(architecture: str) -> None:
    """Load the class of a model. vLLM would look at it in a process of its own, which imports vLLM once more."""
    registered = ModelRegistry.models[architecture]
    if hasattr(registered, "module_name"):  # it is not loaded
        ModelRegistry.register_model(architecture, registered.load_model_cls())


load_model("OPTForCausalLM")
gc.collect()
gc.freeze()

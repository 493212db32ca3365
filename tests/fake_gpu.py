"""A GPU where there is none: tensors on `cuda:0` with shapes, dtypes, strides and devices, and without contents.

PyTorch's `FakeTensorMode` computes what each operation would give, and refuses tensors of two devices in one. What a build
without CUDA cannot do even so is done here: indexing, pinned memory, events. Operations that CUDA restricts are checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("cuda:0")


class _Indexing(TorchFunctionMode):
    """Python's indexing asks for CUDA's current device: the same operations by their names do not."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            return _part(*args)
        if func is torch.Tensor.__setitem__:
            tensor, index, value = args
            if isinstance(index, torch.Tensor):
                tensor.index_put_((index,), value)
            else:
                _copy(_part(tensor, index), value)
            return None
        if func is torch.Tensor.copy_:
            _copy(*args)
            return args[0]
        if func is torch.Tensor.data_ptr:  # no memory: where it would begin is as good
            return args[0].untyped_storage()._cdata + args[0].storage_offset() * args[0].element_size()
        kwargs = dict(kwargs or {})
        if kwargs.pop("pin_memory", False):
            assert kwargs.get("device") in (None, "cpu", torch.device("cpu")), "only a host's memory can be pinned"
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.contiguous:
            return torch.clone(args[0], memory_format=torch.contiguous_format)
        device = torch.device(kwargs.get("device") or "cpu")
        if func is torch.tensor and device.type == "cuda":
            return func(*args, **{**kwargs, "device": "cpu"}).to(device)
        return func(*args, **kwargs)


def _copy(to: torch.Tensor, of: torch.Tensor) -> None:
    """What may be copied: numbers of one device, one number, or a result to the host. A copy itself asks for streams."""
    assert to.device == of.device or of.dim() == 0 or not to.is_cuda, f"from {of.device} to {to.device}"
    assert torch.broadcast_shapes(to.shape, of.shape) == to.shape


def _part(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    dimension = 0
    for each in index if isinstance(index, tuple) else (index,):
        if isinstance(each, slice):
            count = tensor.shape[dimension]
            start, stop, step = each.indices(count)
            tensor = torch.ops.aten.slice(tensor, dimension, start, stop, step)
            dimension += 1
        elif isinstance(each, torch.Tensor):
            assert dimension == 0
            tensor = torch.ops.aten.index(tensor, [each])
            dimension += each.dim()
        else:
            tensor = torch.select(tensor, dimension, each)
    return tensor


class _Rules(TorchDispatchMode):
    """What CUDA's operations ask for, and `FakeTensorMode` does not."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._int_mm.default and args[0].is_cuda:
            self._check_product(*args)
        return func(*args, **(kwargs or {}))

    def _check_product(self, one: torch.Tensor, other: torch.Tensor) -> None:
        """`_int_mm_out_cuda` in aten/src/ATen/native/cuda/Blas.cpp."""
        self.products += 1
        assert one.dtype == other.dtype == torch.int8
        assert one.size(0) > 16, "self.size(0) needs to be greater than 16"
        assert one.size(1) % 8 == 0, "self.size(1) needs to be a multiple of 8"
        assert one.size(1) == other.size(0)
        assert other.size(1) % 8 == 0, "mat2.size(1) needs to be a multiple of 8"


class _Event:
    """An event of CUDA that has come."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


@contextmanager
def fake_gpu() -> Iterator[_Rules]:
    """A GPU; what it gives counts the products of 8-bit matrices."""
    with (
        pytest.MonkeyPatch.context() as patch,
        FakeTensorMode(allow_non_fake_inputs=True),
        _Rules() as rules,
        _Indexing(),
    ):
        patch.setattr(torch.cuda, "Event", _Event)
        patch.setattr(torch.UntypedStorage, "data_ptr", lambda storage: storage._cdata)
        yield rules

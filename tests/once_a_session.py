"""What is made once in a session of tests, by the process that needs it first, and read from disk by all others.

A pytest plugin makes the folder; without pytest everything is made anew.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import inspect
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

FOLDER = "KVTRAIL_ONCE_A_SESSION"
"""The environment variable that names the folder: processes of pytest-xdist inherit it."""
P = ParamSpec("P")
T = TypeVar("T")


def once_a_session(make: Callable[P, T]) -> Callable[P, T]:
    """The function, run once for arguments with the same `repr`. Each call returns an object of its own.

    Not for arguments whose `repr` does not tell them apart; and while something is patched, call `inspect.unwrap(function)`.
    """
    signature = inspect.signature(make)

    @functools.wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        folder = os.environ.get(FOLDER)
        if folder is None:
            return make(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments.items()
        others = {name: value for name, value in given if value != signature.parameters[name].default}
        called = f"{make.__module__}.{make.__qualname__} {others}"
        path = Path(folder, hashlib.sha256(called.encode()).hexdigest())
        if not path.exists():
            with path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not path.exists():
                    written = path.with_suffix(".written")
                    written.write_bytes(pickle.dumps(make(*args, **kwargs), pickle.HIGHEST_PROTOCOL))
                    written.rename(path)
        result: T = pickle.loads(path.read_bytes())
        return result

    return made


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="kvtrail-once-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and (folder := os.environ.pop(FOLDER, None)):
        shutil.rmtree(folder, ignore_errors=True)

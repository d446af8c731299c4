"""A file whose opening waits in the kernel, as one waits for a file of a dead server."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

FAN_CLOEXEC, FAN_CLASS_CONTENT = 0x1, 0x4
FAN_MARK_ADD = 0x1
FAN_OPEN_PERM = 0x10000
AT_FDCWD = -100


@contextlib.contextmanager
def opening_waits(file: Path) -> Iterator[None]:
    """Who opens ``file`` waits until this ends, since a listener is asked for leave and does not answer; needs rights."""
    libc = ctypes.CDLL(None, use_errno=True)
    listener = libc.fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, os.O_RDONLY)
    if listener < 0:
        pytest.skip(f"no right to be asked before a file is opened: {os.strerror(ctypes.get_errno())}")
    try:
        mask = ctypes.c_uint64(FAN_OPEN_PERM)
        if libc.fanotify_mark(listener, FAN_MARK_ADD, mask, AT_FDCWD, os.fsencode(file)) < 0:
            pytest.skip(f"opening cannot be made to wait here: {os.strerror(ctypes.get_errno())}")
        yield
    finally:
        os.close(listener)

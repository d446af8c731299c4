"""Calls in a child of this process."""

import os
import signal
import time
import traceback
from collections.abc import Callable


def in_child(calls: Callable[[], None], seconds: float = 30.0) -> int:
    """Forks and calls; what the child ended with: 0, 1 after an exception, or -n for the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            calls()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError(f"the child hangs after {seconds} s")

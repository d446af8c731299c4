"""A pytest plugin for upstream's own tests: puts kvweir's classes where those tests import vLLM's.

Loaded with ``-p substitute`` before any test module is imported. ``KVWEIR_UPSTREAM_BOUND`` gives the file tier a bound.
What upstream's tests reach into besides public names is not imitated, with exceptions that only wait: two helpers of
``test_fs_tier.py`` (``lookup_and_wait`` looks at a private queue of vLLM's tier to know when to ask again; ``drain``
counts on ``drain_jobs`` finishing queued loads, which it may cancel) and the synchronous double of
``test_tiering_offloading.py`` (see ``doubles.py``).
"""

import os
import time
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Replaces the classes."""
    from doubles import SyncKvweirTier
    from vllm.v1.kv_offload.tiering import backpressure
    from vllm.v1.kv_offload.tiering.example import manager as example
    from vllm.v1.kv_offload.tiering.fs import manager as fs

    from kvweir import plugin
    from kvweir.vllm import KvweirDetector, KvweirDropPolicy, KvweirFsTier, KvweirThrottledDropPolicy

    backpressure.EMABackpressureDetector = KvweirDetector
    backpressure.DropStorePolicy = KvweirDropPolicy
    backpressure.ThrottledDropPolicy = KvweirThrottledDropPolicy
    example.ExampleSecondaryTierManager = SyncKvweirTier
    bound = os.environ.get("KVWEIR_UPSTREAM_BOUND")

    class Bounded(KvweirFsTier):
        def __init__(self, **named: Any) -> None:
            super().__init__(max_bytes=bound, **named)

    fs.FileSystemTierManager = Bounded if bound else KvweirFsTier
    plugin.register()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Replaces the helpers that wait."""
    for item in session.items:
        module = getattr(item, "module", None)
        if hasattr(module, "lookup_and_wait"):
            module.lookup_and_wait = lookup_and_wait
            module.drain = drain


def drain(tier: Any) -> list[Any]:
    """Waits until all jobs have ended and collects them."""
    ended = []
    end = time.monotonic() + 10.0
    while tier.has_pending_work() and time.monotonic() < end:
        ended += tier.get_finished_jobs()
        time.sleep(0.0005)
    tier.drain_jobs()
    return ended + list(tier.get_finished_jobs())


def lookup_and_wait(tier: Any, keys: list[Any], ctx: Any = None, timeout: float = 5.0) -> list[Any]:
    """Asks until every answer is one."""
    from vllm.v1.kv_offload.base import LookupResult, ReqContext

    ctx = ctx if ctx is not None else ReqContext(req_id="test")
    end = time.monotonic() + timeout
    while True:
        answers = [tier.lookup(k, ctx) for k in keys]
        if LookupResult.RETRY not in answers or time.monotonic() > end:
            return answers
        time.sleep(0.002)

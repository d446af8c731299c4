"""A pytest plugin for upstream's own tests: puts kvweir's manager and specification where those tests import vLLM's.

Numbers are told whenever they are asked for, not at most every tenth of a second. Tests of the connector whose manager
is a mock get one that asks a manager of kvweir for whatever the test has not given an answer to.
"""

from typing import Any
from unittest.mock import MagicMock

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Replaces the classes."""
    from manager_doubles import CpuDouble, PrimaryDouble, TieringDouble
    from vllm.platforms import current_platform
    from vllm.v1.kv_offload.cpu import manager as cpu
    from vllm.v1.kv_offload.tiering import manager as tiering
    from vllm.v1.kv_offload.tiering import spec

    from kvweir import plugin
    from kvweir.vllm import manager_metrics
    from kvweir.vllm.spec import KvweirOffloadingSpec

    manager_metrics.EVERY_S = 0.0
    cpu.CPUOffloadingManager = CpuDouble
    tiering.CPUPrimaryTierOffloadingManager = PrimaryDouble
    tiering.TieringOffloadingManager = TieringDouble
    spec.TieringOffloadingSpec = KvweirOffloadingSpec
    if current_platform.device_type not in ("cuda", "cpu", "xpu"):
        # a scheduler is made without any device
        type(current_platform).support_hybrid_kv_cache = classmethod(lambda cls: True)
    plugin.register()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Replaces the mocked managers."""
    import sys

    module = sys.modules.get("tests.v1.kv_connector.unit.offloading_connector.utils")
    if module is not None:
        module.MagicMock = ManagerMock


class ManagerMock(MagicMock):
    """A mock of a manager that wraps one of kvweir."""

    def __init__(self, *args: Any, **named: Any) -> None:
        from manager_doubles import CpuDouble
        from vllm.v1.kv_offload.base import OffloadingManager

        if named.get("spec") is OffloadingManager:
            named["wraps"] = CpuDouble(num_chunks=64, enable_events=True)
        super().__init__(*args, **named)

"""A kvweir tier in the clothes of vLLM's example tier, for upstream's tests of the tiering manager.

The example tier is synchronous, has no directory, and shows its content as the dictionary ``chunks``. This one waits for
each job of the real file tier before ``submit_*`` returns. It decides nothing.
"""

import tempfile
import time
from typing import Any
from unittest.mock import MagicMock

from vllm.v1.kv_offload.base import Medium

from kvweir.vllm import KvweirFsTier

WAIT_S = 5.0


def real_spec() -> Any:
    """Upstream gives the example tier a mock; a file tier names its directory after a real specification."""
    from tests.v1.kv_offload.conftest import make_offloading_config

    spec = MagicMock()
    spec.config = make_offloading_config()
    spec.blocks_per_chunk = 1
    spec.kv_events_config = None
    return spec


class Chunks:
    """What is resident; setting an item stores it."""

    def __init__(self, tier: "SyncKvweirTier") -> None:
        self._tier = tier
        self._jobs = 1 << 60

    def __setitem__(self, key: bytes, _: bool) -> None:
        native = self._tier._tier
        self._jobs += 1
        native.submit_store(self._jobs, "test", [key], [0])
        end = time.monotonic() + WAIT_S
        while not (ended := native.poll()) and time.monotonic() < end:
            time.sleep(0.0005)
        assert [e[0] for e in ended] == [self._jobs] and ended[0][2] == [True]

    def __len__(self) -> int:
        return self._tier.stats()["blocks"]


class SyncKvweirTier(KvweirFsTier):
    """Every job has ended when its submission returns; medium and polling are the example tier's."""

    medium = Medium.CPU
    tolerates_off_thread_polling = False

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        custom_param: int = 0,
        backpressure_detector: Any = None,
    ) -> None:
        self._root = tempfile.TemporaryDirectory()
        super().__init__(
            offloading_spec=real_spec(),
            primary_kv_view=primary_kv_view,
            tier_type=tier_type,
            backpressure_detector=backpressure_detector,
            root_dir=self._root.name,
            max_bytes="1GiB",
        )
        self.completed_jobs: list[Any] = []
        self.chunks = Chunks(self)

    def submit_store(self, job_metadata: Any) -> None:
        super().submit_store(job_metadata)
        self._wait(job_metadata.job_id)

    def submit_load(self, job_metadata: Any) -> None:
        super().submit_load(job_metadata)
        self._wait(job_metadata.job_id)

    def _wait(self, job_id: int) -> None:
        end = time.monotonic() + WAIT_S
        while not any(r.job_id == job_id for r in self.completed_jobs) and time.monotonic() < end:
            self.completed_jobs += super().get_finished_jobs()
            time.sleep(0.0005)

    def get_finished_jobs(self) -> list[Any]:
        ended, self.completed_jobs = self.completed_jobs, []
        return ended

    def get_num_chunks(self) -> int:
        return len(self.chunks)

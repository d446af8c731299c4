"""vLLM's manager with the faults put right that kvweir's does not have. Each correction has a name and is counted, so
that a test can tell whether it mattered.

``hit_stays``             a block that was answered HIT is not evicted before the step ends
``ended_loads_nothing``   what an ended request had queued to be brought up is not brought up
``queued_is_work``        promotions that wait for the end of the step are pending work
``no_store_while_held``   between a reset and its flush no slot is handed out: a late copy may still name it (0.33)
``source_goes_with_block`` a block that was brought up, evicted and stored anew comes from the primary
``gone_is_not_told``      a block that came and went between two takes of events is not told as stored
``reset_is_told``         blocks that a reset takes away are told as removed

At the end of a step in which nothing was looked up it takes in what ended once more, as kvweir's does. ``per_call``
gives it (0.33) an LRU policy in which all that a request has loaded and stored is as recent as its last such call: in
vLLM's it is as recent as the request's first.
"""

from collections import Counter
from collections.abc import Collection
from typing import Any

from vllm.v1.kv_offload.base import LookupResult
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy


class PerCallLru(LRUCachePolicy):
    """Blocks of one call are ordered by their place in the prefix, the last the coldest."""

    def __init__(self, cache_capacity: int, sources: dict[str, dict[Any, Any]], fixed: Counter[str]) -> None:
        super().__init__(cache_capacity)
        self._sources = sources
        self.hits: set[Any] = set()
        self._fixed = fixed
        self._call = 0
        self._used: dict[str, list[Any]] = {}

    def on_store_miss(self, keys: Any, req_context: Any) -> None:
        """No use."""

    def next_call(self) -> None:
        """What comes now is more recent than what came before."""
        self._next_rank += 1
        self._call = self._next_rank

    def insert(self, key: Any, chunk: Any, req_context: Any) -> None:
        """As recent as the call."""
        super().insert(key, chunk, req_context)
        self._ranks[key] = (self._call, -(req_context.get_offload_key_position(key) or 0))

    def on_request_access(self, keys: Any, req_context: Any) -> None:
        """Told by ``use``."""

    def use(self, keys: Any, req_context: Any) -> None:
        """All that the request has loaded and stored is as recent as its last call that did so, its end the coldest."""
        used = self._used.setdefault(req_context.req_id, [])
        used += [key for key in keys if key not in used]
        for place, key in enumerate(used):
            if key in self._ranks:
                self._ranks[key] = (self._call, -place)
        self._update_heap([key for key in used if key in self._evictable])

    def evict(self, n: int, protected: set[Any]) -> Any:
        """Never what was answered HIT in this step."""
        coldest = sorted((self._ranks[k], k) for k in self._evictable - protected)[:n]
        self._fixed["hit_stays"] += any(key in self.hits for _, key in coldest)
        out = super().evict(n, protected | self.hits)
        for sources in self._sources.values():
            for key, _ in out or ():
                self._fixed["source_goes_with_block"] += sources.pop(key, None) is not None
        return out


class Reference:
    """Stands before vLLM's manager."""

    def __init__(self, manager: Any, *, per_call: bool, flushes: bool) -> None:
        self.manager = manager
        self.secondary_tiers = manager.secondary_tiers
        self.fixed: Counter[str] = Counter()
        self._primary = manager.primary_tier
        self._flushes = flushes
        self._held = False
        self._told_at_reset: list[Any] = []
        self._policy = None
        if per_call:
            slots, sources = self._primary._num_chunks, manager._request_load_sources
            self._policy = self._primary._policy = PerCallLru(slots, sources, self.fixed)
        self._looked = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manager, name)

    def _stays(self, keys: Collection[Any]) -> None:
        if self._policy is not None:
            self._policy.hits.update(keys)

    def lookup(self, key: Any, context: Any) -> Any:
        """A hit stays."""
        self._looked = True
        if self._policy is not None:
            self._policy.next_call()
        answer = self.manager.lookup(key, context)
        if answer is LookupResult.HIT:
            self._stays([key])
        return answer

    def prepare_load(self, keys: Any, context: Any) -> Any:
        """A use."""
        place = self.manager.prepare_load(keys, context)
        if self._policy is not None:
            self._policy.next_call()
            self._policy.use(keys, context)
        return place

    def prepare_store(self, keys: Any, context: Any) -> Any:
        """Not while a reset is not flushed."""
        if self._held:
            self.fixed["no_store_while_held"] += 1
            return None
        if self._policy is not None:
            self._policy.next_call()
        # what has ended is taken in first
        if self._flushes:
            self.manager._process_finished_jobs()
        else:
            self.manager._maybe_process_finished_jobs()
        ready = [k for k in keys if self._primary.lookup(k, context) is LookupResult.HIT]
        self._stays(ready)
        room = self.manager.prepare_store(keys, context)
        if self._policy is not None and room is not None and room.keys_to_store:
            self._policy.use(room.keys_to_store, context)
        return room

    def on_request_finished(self, context: Any) -> None:
        """With what it had queued."""
        for pending in self.manager._pending_load_submissions.values():
            if (entry := pending.pop(context.req_id, None)) is not None:
                self.fixed["ended_loads_nothing"] += 1
                self._primary.complete_write(entry.keys, context, False)
        self.manager.on_request_finished(context)

    def on_schedule_end(self, context: Any) -> None:
        """Hits no longer stay."""
        if not self._looked and self._flushes:
            self.manager._processed_jobs_this_step = False
        self._looked = False
        self.manager.on_schedule_end(context)
        if self._policy is not None:
            self._policy.hits.clear()

    def has_pending_work(self) -> bool:
        """With what is queued."""
        queued = any(self.manager._pending_load_submissions.values())
        said = self.manager.has_pending_work()
        self.fixed["queued_is_work"] += queued and not said
        return said or queued

    def reset_cache(self) -> None:
        """Tells what goes."""
        reset = self._primary.reset_cache

        def telling() -> None:
            gone = [k for k, chunk in self._primary._policy.chunks.items() if chunk.is_ready]
            self._told_at_reset += gone
            self.fixed["reset_is_told"] += len(gone)
            reset()

        self._primary.reset_cache = telling
        self.manager.reset_cache()
        self._primary.reset_cache = reset
        if self._policy is not None:
            self._policy.hits.clear()
        self._held = self._flushes

    def on_reset_flushed(self) -> None:
        """Stores again."""
        self._held = False
        self.manager.on_reset_flushed()

    def changes(self) -> list[tuple[bytes, bool]]:
        """Blocks that came and went, oldest first."""
        out = [
            (bytes(key), e.removed)
            for e in self.manager.take_events()
            # a store that failed was never there
            if not getattr(e, "metadata_only", False)
            for key in e.keys
        ]
        gone, self._told_at_reset = self._told_at_reset, []
        out += [(bytes(key), True) for key in gone]
        removed = {key: i for i, (key, removed) in enumerate(out) if removed}
        last = [out[i] for i in range(len(out)) if out[i][1] or removed.get(out[i][0], -1) < i]
        self.fixed["gone_is_not_told"] += len(out) - len(last)
        return last

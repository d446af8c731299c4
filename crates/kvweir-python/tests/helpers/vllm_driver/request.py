"""One request on its way through the scheduler."""

import enum
from dataclasses import dataclass, field
from typing import Any


class State(enum.Enum):
    """Where a request is."""

    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(eq=False)
class Request:
    """Keys by group, in the order of the prompt, and how far it came. Counts are chunks per group."""

    name: str
    keys: list[list[Any]]
    context: Any
    arrived: int
    state: State = State.WAITING
    # known once it was admitted
    hits: int | None = None
    # what the accelerator holds of it, what was offered to the manager
    computed: int = 0
    stored: int = 0
    # steps that put it off; all its steps, once it ended
    waited: int = 0
    steps: int | None = None
    # stores that the manager refused for want of room
    refused: int = 0
    aborted: bool = False
    # copies under way
    jobs: set[int] = field(default_factory=set)

    @property
    def chunks(self) -> int:
        """How long the prompt is."""
        return len(self.keys[0])

    @property
    def ended(self) -> bool:
        """Whether an answer was given, or nobody waits for one."""
        return self.state is State.ENDED

    def __str__(self) -> str:
        hits = "no lookup answered" if self.hits is None else f"{self.hits} hits"
        return f"{self.name}: {self.state.value}, {self.chunks} chunks, put off {self.waited} times, {hits}"

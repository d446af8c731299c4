"""vLLM's tiered offloading without an accelerator and without a model.

    from vllm_driver import Driver

    with Driver([stanza], slots=64, groups=3, step_s=0.001) as d:
        keys = d.prompt(48)            # the keys of a prompt of 48 blocks, in its order
        d.ask(keys)                    # one request to its end: computed and stored
        d.forget()                     # the primary is empty, the tiers keep what they have
        assert d.ask(keys).hits == 48  # blocks per group that were not computed again
        many = d.ask_all([d.prompt(32, f"p{i}") for i in range(50)])
        print(d.meters[0].loaded_blocks, d.meters[0].used_blocks, d.steps)

Real are, of whatever vLLM is installed (0.30 to 0.33; ``versions.py``): the specification, the tiering manager, the
primary tier with its policy, both ends of the shared region, the factory that makes tiers of stanzas, and the tiers.
Written here are the scheduler's loop (``driver.py``, ``lookups.py``), in vLLM's own order of calls, and the accelerator
that fills slots and reads them (``accelerator.py``).

What it checks by itself, whatever the test asks for:

* Every byte that comes to the accelerator is compared, when the copy begins and when it ends. A store's slot holds
  rubbish until the copy ends, so a tier that reads too early is found when the block comes back. (``WrongBytes``)
* Every wait is bounded in steps: ``ask``, ``ask_all``, ``run`` and ``settle`` raise ``NeverEnds``, which tells who
  waits for what and what was loaded meanwhile.

What a test may look at: ``Request.hits`` (None before they are known), ``.waited`` (steps in which its lookup was put
off), ``.steps``; ``d.steps``, ``d.refused_stores``; and for each tier ``d.meters[i]``: calls counted and timed
(``calls``, ``history`` by step), ``lookups`` by answer, ``loaded_blocks``, ``used_blocks`` and ``wasted_blocks``
(loaded and gone again before anybody used them).

A request is waiting, loading, running or ended. ``add`` only queues it; ``step`` is one step; ``abort`` ends it as a
client does who goes away. ``Driver(max_running=..., chunks_per_step=..., accelerator_chunks=...)`` limit a step as
vLLM's settings do; ``windows=(None, 4)`` gives groups sliding windows of so many blocks.
"""

from vllm_driver.accelerator import WrongBytes
from vllm_driver.driver import Driver, NeverEnds
from vllm_driver.lookups import prompt
from vllm_driver.meter import Meter
from vllm_driver.request import Request, State
from vllm_driver.shape import Shape

__all__ = ["Driver", "Meter", "NeverEnds", "Request", "Shape", "State", "WrongBytes", "prompt"]

"""Where cells run: in this process, in a pool of processes, on a Ray cluster, on a Dask cluster.

`open_executor` opens one of them, or takes any `concurrent.futures.Executor` that a user made.
`finished` sends it the jobs of a `Work` and yields each result as it comes; the jobs of a dead worker are run
again.
"""

from seepage.engine.executors.completion import finished, width
from seepage.engine.executors.opening import Engine, choose, open_executor
from seepage.engine.executors.work import Died, Work

__all__ = ["Died", "Engine", "Work", "choose", "finished", "open_executor", "width"]

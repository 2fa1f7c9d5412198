"""The ranks that train together."""

import traceback
from collections.abc import Callable
from typing import Any

from . import _zero
from .errors import STATUS, CommError, DeadlineError, Error, PoisonedError

_STATE = 2


class World:
    """One rank's membership in the set of ranks. Make it with self_(), launched() or run().

    - `with World.launched() as world:` leaves the world at its end; where an exception leaves the
      block it first tells the other ranks (abort()), whose calls then fail at once.
    - Threads: used by the rank's own thread.
    - Errors of every call: ValueError after close().
    """

    def __init__(self, world: Any) -> None:
        """- world: of the extension; callers use self_(), launched() or run()."""
        if not isinstance(world, _zero.World):
            raise TypeError("make a world with World.self_(), World.launched() or World.run()")
        self._world = world

    @classmethod
    def self_(cls) -> "World":
        """A world of one rank."""
        return cls(_zero.world_self())

    @classmethod
    def launched(cls, deadline_ms: int = 0) -> "World":
        """Join the world that the launcher described: torchrun's RANK, WORLD_SIZE, LOCAL_RANK,
        MASTER_ADDR and MASTER_PORT, or mpirun's. Without any of these: a world of one rank.

        - deadline_ms: how long a collective waits for the other ranks; 0 is 600000.
        - Collective over the launched processes. Ctrl-C ends the wait.
        - Errors: InvalidArgumentError for half-described variables; UnsupportedError for what this
          build lacks; DeadlineError when a rank does not come; CommError, MismatchError.
        """
        return cls(_zero.world_launched(deadline_ms))

    @staticmethod
    def is_launched() -> bool:
        """True if a launcher described more than one rank in this process's environment."""
        return _zero.world_is_launched()

    @staticmethod
    def run(ranks: int, fn: Callable[["World"], Any], deadline_ms: int = 0) -> list[Any]:
        """Run `fn` on `ranks` threads of this process, each with its own world, and wait for all.

        - fn: gets its world, which is over when it returns; it closes its engines before. A rank
          that has returned has left: others that wait for it get CommError.
        - deadline_ms: as in launched().
        - Returns what fn returned, by rank.
        - Errors: the exception of the rank that failed first, which a note names; failures of other
          ranks that follow from it are dropped. Ctrl-C ends the ranks' waits, then raises.
        - Threads: ranks are threads of Python. The GIL is free while the library waits or works.
        """
        run = _Run(ranks, fn)
        try:
            _zero.world_run(ranks, deadline_ms, run.rank)
        except Error as error:
            failure = run.first_failure()
            if failure is None:
                raise
            raise failure from (error if isinstance(failure, KeyboardInterrupt) else None)
        return run.returned

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        return self._world.rank()

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._world.size()

    @property
    def local_size(self) -> int:
        """Number of ranks of this world on this host."""
        return self._world.local_size()

    @property
    def cpus(self) -> int:
        """CPUs for this rank's threads, at least 1."""
        return self._world.cpus()

    @property
    def backend(self) -> str:
        """Of the collectives: "self", "local", "shm", "mpi" or "nccl"."""
        return self._world.backend()

    def barrier(self) -> None:
        """Wait until every rank has called this. Collective."""
        self._world.barrier()

    def gather(self, data: bytes) -> list[bytes]:
        """The bytes of every rank, in rank order, on all ranks; each gives as many. Collective."""
        return self._world.gather(data)

    def mean(self, value: float) -> float:
        """The mean of a number of every rank, such as a loss: the same bits on all. Collective."""
        return self._world.mean(value)

    def abort(self) -> None:
        """Tell the other ranks that this one cannot go on: their collectives fail at once. Local
        call."""
        self._world.abort()

    def close(self) -> None:
        """Leave the world, once. Close its engines before. Collective unless a rank failed."""
        self._world.close()

    def __enter__(self) -> "World":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is not None:
            self._world.abort()
        self.close()


class _Run:
    """The ranks of one World.run: what they returned and what they raised."""

    def __init__(self, ranks: int, fn: Callable[[World], Any]) -> None:
        self.fn = fn
        self.returned: list[Any] = [None] * max(ranks, 0)
        self.raised: list[BaseException] = []

    def rank(self, handle: Any) -> int:
        """One rank's function, as the extension calls it; its status."""
        world = World(handle)
        number, size = world.rank, world.size
        try:
            self.returned[number] = self.fn(world)
            return 0
        except BaseException as error:
            error.add_note(f"on rank {number} of {size}")
            self.raised.append(error)
            # Engines and arrays of the frames that failed: nothing else holds them.
            traceback.clear_frames(error.__traceback__)
            return next((status for kind, status in STATUS.items() if type(error) is kind), _STATE)

    def first_failure(self) -> BaseException | None:
        """The first that does not follow from another rank's."""
        def follows(error: BaseException) -> bool:
            late = isinstance(error, (CommError, DeadlineError, PoisonedError))
            return isinstance(error, Error) and (late or error.of_other != 0)

        own = [error for error in self.raised if not follows(error)]
        return next(iter(own + self.raised), None)

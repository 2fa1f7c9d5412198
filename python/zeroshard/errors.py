"""The library's failures as exceptions, a class for each status."""

from . import _zero


class Error(Exception):
    """A call of the library failed. str() has the values involved and the remedy.

    - status: the name of the status, such as "MISMATCH".
    - native: errno, or the code of MPI, or 0.
    - file, line: where in the library's source the fault was found.
    - of_other: 1: the fault was found on another rank, which the message names first; 2: another
      rank has failed, and this one could not go on without it; 0: any other fault.
    """

    status: str = ""
    native: int = 0
    file: str = ""
    line: int = 0
    of_other: int = 0

    @property
    def message(self) -> str:
        """The text: values and remedy, one line."""
        return str(self)


class InvalidArgumentError(Error, ValueError):
    """An argument is outside what the call accepts."""


class StateError(Error):
    """The call is not legal now; the message says what comes first."""


class UnsupportedError(Error):
    """Not available in this build or on this machine."""


class OutOfMemoryError(Error, MemoryError):
    """Memory could not be allocated, or a budget is too small."""


class DeviceError(Error):
    """The device reported a fault."""


class CommError(Error):
    """A collective failed: mostly, another rank has left or failed."""


class IoError(Error):
    """A file operation failed."""


class CorruptError(Error):
    """Stored data is damaged, or not of this library."""


class MismatchError(Error):
    """Ranks disagree: they gave different values, or are in different calls."""


class DeadlineError(Error):
    """A rank did not arrive within the deadline (status TIMEOUT)."""


class PoisonedError(Error):
    """An earlier failure made the engine unusable; the message is that failure's."""


# By zero_status of zero/status.h, whose values never change.
BY_STATUS: dict[int, type[Error]] = {
    1: InvalidArgumentError,
    2: StateError,
    3: UnsupportedError,
    4: OutOfMemoryError,
    5: DeviceError,
    6: CommError,
    7: IoError,
    8: CorruptError,
    9: MismatchError,
    10: DeadlineError,
    11: PoisonedError,
}
STATUS: dict[type[Error], int] = {kind: status for status, kind in BY_STATUS.items()}

for _status, _kind in BY_STATUS.items():
    _zero.set_error_class(_status, _kind)

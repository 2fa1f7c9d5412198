"""What `zero` starts for a subcommand that is a script: start.py SPEAKER MODULE WORD...

The module's function main(words) returns the exit status. What it raises as Refused, and what
stdout does not take, is a line on stderr, and the exit status is 1. This file is read by any
Python 3, since it says which one is needed."""

import contextlib
import importlib
import os
import signal
import sys


def say(speaker: str, text: object) -> int:
    with contextlib.suppress(OSError):
        os.write(2, f"{speaker}: {text}\n".encode(errors="surrogateescape"))
    return 1


def run(speaker: str, module: str, words: "list[str]") -> int:
    """The exit status."""
    if sys.version_info < (3, 11):
        return say(speaker, f"python3 is {sys.version.split()[0]}; it needs 3.11 or newer")
    from command_line import Refused  # pylint: disable=import-outside-toplevel # of an older one

    try:
        if sys.stdout is None:
            raise Refused("stdout cannot be written: it is closed")
        status: int = importlib.import_module(module).main(words)
        sys.stdout.flush()
        return status
    except Refused as reason:
        return say(speaker, reason)
    except MemoryError:
        return say(speaker, "no memory left")
    except OSError as error:  # files are named by who uses them
        return say(speaker, f"stdout cannot be written: {error.strerror}")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    STATUS = run(sys.argv[1], sys.argv[2], sys.argv[3:])
    os._exit(STATUS)  # not what is left for a stdout that takes nothing

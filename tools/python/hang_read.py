"""Files of last collectives, as zero_engine_collectives_write writes them (zero/trace.h). A rank of
a part of the model has the number part * world + rank, its process."""

from dataclasses import dataclass
from typing import Any

from command_line import Refused
from trace_json import Wrong, each, is_integer, load, nanoseconds, optional_text, text, whole
from trace_read import WORLD_MAX

FORMAT = "libzero collectives"
VERSION = 1
WRITER = "zero_engine_collectives_write"
STATES = ("enqueued", "started", "done", "failed", "captured")


@dataclass
class Batch:
    """Times are the rank's clock; 0: unknown."""

    number: int
    state: str  # how far it has come on the rank: one of STATES
    text: str  # its first collective
    of: str | None  # the name of its unit
    collectives: int
    hash: int
    enqueued_ns: int
    started_ns: int
    ended_ns: int


@dataclass
class Group:
    name: str
    members: tuple[int, ...]  # processes
    enqueued: int
    done: int  # all below it are
    batches: dict[int, Batch]  # by number, ascending


@dataclass
class File:
    """A rank's."""

    path: str
    host: str
    rank: int
    world: int
    part: int
    parts: int
    written_ns: int
    written_at_ns: int  # since 1970
    status: str
    error: str
    groups: list[Group]

    @property
    def process(self) -> int:
        return self.part * self.world + self.rank


def _batch(value: Any) -> Batch:
    if not isinstance(value, dict):
        raise Wrong("", "is no object")
    number = whole(value, "batch")
    state = text(value, "state")
    if state not in STATES:
        raise Wrong("state", "is none that a batch has")
    return Batch(number, state, text(value, "text"), optional_text(value, "of"),
                 whole(value, "collectives"), whole(value, "hash"),
                 nanoseconds(value, "enqueued_ns"), nanoseconds(value, "started_ns"),
                 nanoseconds(value, "ended_ns"))


def _members(value: dict[str, Any], file: File) -> tuple[int, ...]:
    members = value.get("members")
    if not isinstance(members, list) or not members:
        raise Wrong("members", "is no list of ranks")
    for member in members:
        if not is_integer(member) or not 0 <= member < file.world * file.parts:
            raise Wrong("members", "has what is no rank of the run")
    if file.process not in members:
        raise Wrong("members", "lacks the file's own rank")
    return tuple(members)


def _group(value: Any, file: File) -> Group:
    if not isinstance(value, dict):
        raise Wrong("", "is no object")
    group = Group(text(value, "name"), (), whole(value, "enqueued"), whole(value, "done"), {})
    group.members = _members(value, file)
    if not isinstance(value.get("batches"), list):
        raise Wrong("batches", "is no list")
    last = -1

    def read(item: Any) -> Batch:
        nonlocal last
        batch = _batch(item)
        if not last < batch.number < group.enqueued:
            raise Wrong("batch", "is out of order")
        last = batch.number
        return batch

    group.batches = {batch.number: batch for batch in each(value["batches"], "batches", read)}
    return group


def _head(path: str, root: dict[str, Any]) -> File:
    version = whole(root, "version")
    if version != VERSION:
        raise Refused(f"{path} has version {version} of the format, and this program reads "
                      f"{VERSION}; use the `zero` of the library that wrote it")
    file = File(path, text(root, "host"), whole(root, "rank"), whole(root, "world"),
                whole(root, "part"), whole(root, "parts"), nanoseconds(root, "written_ns"),
                nanoseconds(root, "written_at_ns"), text(root, "status"), text(root, "error"), [])
    if file.rank >= file.world or file.world > WORLD_MAX:
        raise Wrong("rank", "is not one of the world")
    if file.part >= file.parts or file.parts > WORLD_MAX:
        raise Wrong("part", "is not one of the model's")
    return file


def _read(path: str) -> File:
    root = load(path, WRITER)
    if root.get("format") != FORMAT:
        raise Refused(f"{path} is no file of {WRITER}")
    try:
        file = _head(path, root)
        if not isinstance(root.get("groups"), list):
            raise Wrong("groups", "is no list")
        file.groups = each(root["groups"], "groups", lambda value: _group(value, file))
    except Wrong as wrong:
        raise Refused(f"{path}: {wrong}") from None
    return file


def read_files(paths: list[str]) -> dict[int, File]:
    """By process, ascending: of one run, and each rank once."""
    files = sorted((_read(path) for path in paths), key=lambda file: file.process)
    for a, b in zip(files, files[1:]):
        if (a.world, a.parts) != (b.world, b.parts):
            raise Refused(f"{a.path} is of {a.world * a.parts} ranks, {b.path} of "
                          f"{b.world * b.parts}; name files of one run")
        if a.process == b.process:
            raise Refused(f"{a.path} and {b.path} are of the same rank; name one file of each")
    return {file.process: file for file in files}

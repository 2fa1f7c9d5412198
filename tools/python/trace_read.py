"""Timelines of ranks, as zero_engine_trace writes them (zero/trace.h)."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from command_line import Refused
from trace_json import (COUNT_MAX, Wrong, each, is_integer, is_number, load, optional_text, placed,
                        text, whole)

VERSION = 1  # of the format
TIME_MAX_US = 1e15  # about 31 years
WORLD_MAX = (1 << 31) - 1


class Span(NamedTuple):
    """Times are nanoseconds, by the clock of rank 0."""

    track: int
    begin: int
    end: int
    category: str
    of: str  # "": of nothing with a name
    group: str | None = None  # None: it is no collective
    leader: int = 0
    ranks: int = 0
    batch: int = 0


@dataclass
class Rank:
    """A rank's file."""

    path: str
    head: dict[str, Any]  # otherData
    rank: int
    world: int
    part: int
    parts: int
    offset: int  # ns that its clock is ahead of rank 0's
    error: int
    lost: int
    events: list[dict[str, Any]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)  # by track and time, the outer one first
    hooks: int = 0  # the track that hooks wait on

    @property
    def process(self) -> int:
        return self.part * self.world + self.rank


def _time(event: dict[str, Any], name: str) -> int:
    us = event.get(name)
    if not is_number(us) or not 0 <= us <= TIME_MAX_US:
        raise Wrong(name, "is no time in microseconds" if name in event else "is missing")
    return round(us * 1e3)


def _span(event: dict[str, Any], offset: int) -> Span:
    args = event.get("args", {})
    if not isinstance(args, dict):
        raise Wrong("args", "is no object")
    track = whole(event, "tid")
    begin = _time(event, "ts") - offset
    end = begin + _time(event, "dur")
    category = text(event, "cat")
    of = optional_text(args, "of") or ""
    group = optional_text(args, "group")
    if group is None:
        return Span(track, begin, end, category, of)
    return Span(track, begin, end, category, of, group, whole(args, "leader"),
                whole(args, "ranks"), whole(args, "batch"))


def _hook_track(events: list[dict[str, Any]]) -> int:
    """A GPU's hooks wait on the caller's stream, a CPU's on the calling thread."""
    tracks: dict[str, int] = {}
    for event in events:
        if event["ph"] == "M" and event.get("name") == "thread_name":
            args = event.get("args")
            name = args.get("name") if isinstance(args, dict) else None
            tracks[str(name)] = event.get("tid", 0)
    return tracks.get("caller's stream", tracks.get("calling thread", 0))


def _head(path: str, root: dict[str, Any]) -> Rank:
    """The file but for its events."""
    head = root.get("otherData")
    if not isinstance(head, dict):
        what = "no object" if "otherData" in root else "missing"
        raise Wrong("", f"is {what}; name files of zero_engine_trace")
    version = whole(head, "version", VERSION)  # the first files had none
    if version != VERSION:
        raise Wrong("version", f"{version} of the format is not {VERSION}, which this program "
                    "reads; use the `zero` of the library that wrote it")
    rank = Rank(path, head, whole(head, "rank"), whole(head, "world"), whole(head, "part", 0),
                whole(head, "parts", 1), head.get("clock_offset_ns", 0),
                whole(head, "clock_error_ns", 0), whole(head, "lost", 0))
    if rank.rank >= rank.world or rank.world > WORLD_MAX:
        raise Wrong("rank", f"{rank.rank} is not one of a world of {rank.world}")
    if rank.part >= rank.parts or rank.parts > WORLD_MAX:
        raise Wrong("part", f"{rank.part} is not one of {rank.parts}")
    if not is_integer(rank.offset) or abs(rank.offset) > COUNT_MAX:
        raise Wrong("clock_offset_ns", "is no time in nanoseconds")
    return rank


def _read_events(rank: Rank, root: dict[str, Any], keep: bool) -> None:
    def read(event: Any) -> Span | None:
        if not isinstance(event, dict):
            raise Wrong("", "is no object")
        return _span(event, rank.offset) if text(event, "ph") == "X" else None  # others' are theirs

    events = root.get("traceEvents")
    if not isinstance(events, list):
        raise Wrong("traceEvents", "is no array" if "traceEvents" in root else "is missing")
    rank.spans = [span for span in each(events, "traceEvents", read) if span is not None]
    rank.spans.sort(key=lambda span: (span.track, span.begin, -span.end))
    rank.hooks = _hook_track(events)
    rank.events = events if keep else []


def _read(path: str, keep_events: bool) -> Rank:
    root = load(path, "zero_engine_trace")
    try:
        with placed("otherData"):
            rank = _head(path, root)
        _read_events(rank, root, keep_events)
    except Wrong as wrong:
        raise Refused(f"{path}: {wrong}") from None
    return rank


def _check_fit(a: Rank, b: Rank) -> None:
    if (a.world, a.parts) != (b.world, b.parts):
        raise Refused(f"{a.path} is of a world of {a.world * a.parts} ranks, {b.path} of one of "
                      f"{b.world * b.parts}; name files of one run")
    if a.process == b.process:
        raise Refused(f"{a.path} and {b.path} are both of rank {a.rank}")


def read_all(paths: list[str], keep_events: bool) -> list[Rank]:
    """All files of a run, which fit together: each rank is there at most once, and all are of one
    world."""
    ranks: list[Rank] = []
    for path in paths:
        rank = _read(path, keep_events)
        for other in ranks:
            _check_fit(other, rank)
        ranks.append(rank)
    return ranks

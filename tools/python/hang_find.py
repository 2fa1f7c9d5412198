"""What files of last collectives say together: which rank the others wait for, and in what.
Invariant: a rank is said to be missing only where its own file says so; of a rank without a file
nothing is known."""

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from hang_read import Batch, File, Group

# What NCCL runs is looked at every 10 ms, so of what was enqueued just before the file was written
# it is not known whether it has begun or ended.
YOUNG_NS = 50_000_000


class Kind(Enum):
    """What is wrong with a group."""

    DIFFERENT = "different"  # ranks put different collectives on it
    MISSING = "missing"  # ranks have not come to the batch, or too late
    NO_FILE = "no file"  # all that have a file have come to it
    BEHIND = "behind"  # ranks have enqueued it, and their stream has not come to it
    BEGUN = "begun"  # all have come to it, and some have not ended it


class Place(Enum):
    """Where a member stands with the batch."""

    WAITS = "waits"  # it has come to it
    ABSENT = "absent"  # it has not enqueued it
    LATE = "late"  # it came when the others had given up
    QUEUED = "queued"  # it is on its stream
    OVER = "over"  # it has ended there
    UNKNOWN = "no file"


@dataclass
class Finding:
    """The first batch of a group that not all members have ended, or that differs between them."""

    kind: Kind
    group: Group  # of any file
    number: int
    batch: Batch | None  # of the first file that has it; None: no file has it any more
    places: dict[int, Place]  # of each member
    groups: dict[int, Group]  # the same group of each member that has a file with it
    waited_ns: int  # the longest that a member has waited in it; 0: unknown

    def at(self, place: Place) -> list[int]:
        return [process for process in self.group.members if self.places[process] is place]

    def batch_of(self, process: int) -> Batch | None:
        group = self.groups.get(process)
        return group.batches.get(self.number) if group is not None else None


Files = dict[int, File]  # by process, ascending
Groups = dict[int, Group]  # the same one of each file, by process


def _meetings(files: Files) -> list[Groups]:
    """All files' copies of each group."""
    meetings: dict[tuple[str, tuple[int, ...], int], Groups] = {}
    for process, file in files.items():
        seen: Counter[tuple[str, tuple[int, ...]]] = Counter()
        for group in file.groups:
            key = (group.name, group.members)
            meetings.setdefault((*key, seen[key]), {})[process] = group
            seen[key] += 1
    return list(meetings.values())


def _first_open(file: File, group: Group) -> int | None:
    """The first batch that the rank has enqueued and not ended."""
    for batch in group.batches.values():
        young = batch.state == "enqueued" and file.written_ns - batch.enqueued_ns < YOUNG_NS
        if batch.number >= group.done and batch.state not in ("done", "captured") and not young:
            return batch.number
    return None


def _first_difference(groups: Groups) -> int | None:
    """The first batch that is not the same in all files that have it."""
    seen: dict[int, tuple[int, int, str]] = {}
    different = [
        number for group in groups.values() for number, batch in group.batches.items()
        if seen.setdefault(number, (batch.hash, batch.collectives, batch.text))
        != (batch.hash, batch.collectives, batch.text)]
    return min(different, default=None)


def waited(file: File, batch: Batch) -> int:
    """How long a rank has been in a batch; 0: unknown."""
    until = batch.ended_ns or file.written_ns
    began = batch.state in ("started", "failed") and batch.started_ns != 0
    return max(until - batch.started_ns, 0) if began else 0


def _common(file: File, ns: int) -> int:
    """A rank's time, by the clock that all hosts have."""
    return file.written_at_ns - (file.written_ns - ns)


def _given_up(files: Files, groups: Groups, number: int) -> float:
    """When the first rank gave the batch up; infinity: none has."""
    batches = [(files[process], group.batches.get(number)) for process, group in groups.items()]
    return min((_common(file, batch.ended_ns) for file, batch in batches
                if batch is not None and batch.state == "failed" and batch.ended_ns != 0),
               default=float("inf"))


def _place(file: File, group: Group | None, number: int, given_up: float) -> Place:
    if group is None or number >= group.enqueued:
        return Place.ABSENT
    batch = group.batches.get(number)
    if batch is not None and batch.enqueued_ns != 0 and _common(file, batch.enqueued_ns) > given_up:
        return Place.LATE  # whatever it found there
    if number < group.done or (batch is not None and batch.state in ("done", "captured")):
        return Place.OVER
    if batch is None or batch.state == "enqueued":
        return Place.QUEUED
    # It failed at once, or came when others had failed.
    late = batch.started_ns == 0 or _common(file, batch.started_ns) > given_up
    return Place.LATE if batch.state == "failed" and late else Place.WAITS


def _kind(places: set[Place]) -> Kind:
    if places & {Place.ABSENT, Place.LATE}:
        return Kind.MISSING
    if places >= {Place.UNKNOWN, Place.WAITS}:
        return Kind.NO_FILE
    return Kind.BEHIND if Place.QUEUED in places else Kind.BEGUN


def _judge_batch(files: Files, groups: Groups, number: int, different: bool) -> Finding:
    group = next(iter(groups.values()))
    given_up = _given_up(files, groups, number)
    places = {process: _place(files[process], groups.get(process), number, given_up)
              if process in files else Place.UNKNOWN for process in group.members}
    kind = Kind.DIFFERENT if different else _kind(set(places.values()))
    finding = Finding(kind, group, number, None, places, groups, 0)
    for process in group.members:
        batch = finding.batch_of(process)
        if batch is not None:
            finding.batch = finding.batch or batch
            finding.waited_ns = max(finding.waited_ns, waited(files[process], batch))
    return finding


def judge(files: Files) -> list[Finding]:
    """What is wrong with each group: those that differ, then the longest wait first. What differs
    is the cause of what hangs behind it."""
    findings = []
    for groups in _meetings(files):
        opened = [_first_open(files[process], group) for process, group in groups.items()]
        hangs = min((number for number in opened if number is not None), default=None)
        different = _first_difference(groups)
        first = hangs if different is None else different
        if first is not None and len(next(iter(groups.values())).members) > 1:
            findings.append(_judge_batch(files, groups, first, different is not None))
    return sorted(findings, key=lambda f: (f.kind is not Kind.DIFFERENT, -f.waited_ns))

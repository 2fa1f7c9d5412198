"""What `zero trace hang` says: sentences, and JSON."""

from itertools import islice
from typing import Any

from hang_find import Files, Finding, Kind, Place, waited
from hang_read import Batch
from trace_json import printable

RANKS_NAMED = 8  # by a sentence; the JSON has all


def _rank(files: Files, process: int) -> str:
    file = next(iter(files.values()))
    part = f" of part {process // file.world}" if file.parts > 1 else ""
    return f"{process % file.world}{part}"


def _ranks(files: Files, word: str, first: list[int], count: int) -> str:
    """ "rank 3", "ranks 3, 5 and 2 more": those of `count` that are named, and how many more."""
    names = [_rank(files, process) for process in first[:RANKS_NAMED]]
    if count > len(names):
        names.append(f"{count - len(names)} more")
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f"{word}{'' if count == 1 else 's'} {listed}"


def _time(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms" if ns < 1e9 else f"{ns / 1e9:.1f} s"


def _batch(number: int, batch: Batch | None) -> str:
    """ 'batch 4, all_gather of unit 3, 4096 x bf16 ("h.1"), and 2 more' """
    if batch is None:
        return f"batch {number}, which no file has any more"
    of = f' ("{printable(batch.of)}")' if batch.of is not None else ""
    more = f", and {batch.collectives - 1} more" if batch.collectives > 1 else ""
    return f"batch {number}, {printable(batch.text)}{of}{more}"


def _print_files(files: Files) -> None:
    file = next(iter(files.values()))
    ranks = file.world * file.parts
    said = f"{len(files)} of {ranks} ranks have given files."
    if len(files) < ranks:
        missing = (process for process in range(ranks) if process not in files)
        first = list(islice(missing, min(RANKS_NAMED, ranks - len(files))))
        said += f" There is none of {_ranks(files, 'rank', first, ranks - len(files))}."
    print(said)


def _last(files: Files, finding: Finding) -> list[str]:
    """The last batch of the first rank that has not come to this one."""
    absent = finding.at(Place.ABSENT)[0]
    group = finding.groups.get(absent)
    if group is None or group.enqueued == 0:
        return []
    last = _batch(group.enqueued - 1, group.batches.get(group.enqueued - 1))
    return [f"The last that rank {_rank(files, absent)} has enqueued there is {last}."]


def _waits(ns: int, one: bool) -> str:
    if ns == 0:
        return "waited there, unknown how long."
    return f"waited there{'' if one else ', the longest'} for {_time(ns)}."


def _differences(files: Files, finding: Finding) -> list[str]:
    """By the ranks: what each has as this batch."""
    has = [(process, batch) for process in finding.group.members
           if (batch := finding.batch_of(process)) is not None]
    lines = []
    for process, batch in has[:RANKS_NAMED]:
        first = has[0][1]
        hidden = batch.text == first.text and batch.hash != first.hash
        behind = "; what follows in it, or its micro-step, differs." if hidden else "."
        lines.append(f"Rank {_rank(files, process)} has {_batch(finding.number, batch)}{behind}")
    return [*lines, "All ranks must make the same calls, in the same order."]


def _standings(files: Files, finding: Finding) -> list[str]:
    """Where the members stand with the batch, a sentence a place."""
    absent, waiting = finding.at(Place.ABSENT), finding.at(Place.WAITS)
    sentences = {
        Place.ABSENT: "is missing: it has not enqueued it." if len(absent) == 1 else
                      "are missing: they have not enqueued it.",
        Place.LATE: "came when others had given up.",
        Place.QUEUED: "enqueued it, and what is before it on the stream has not ended.",
        Place.UNKNOWN: "gave no file, and all others have come here: look there first."
                       if finding.kind is Kind.NO_FILE else "gave no file.",
        Place.WAITS: _waits(finding.waited_ns, len(waiting) == 1),
        Place.OVER: "ended it.",
    }
    lines = []
    for place, sentence in sentences.items():
        at = finding.at(place)
        if at:
            lines.append(f"{_ranks(files, 'Rank', at, len(at))} {sentence}")
        if at and place is Place.ABSENT:
            lines += _last(files, finding)
    if finding.kind is Kind.BEGUN:
        lines.append("No rank is missing: the network, a GPU, or files of different times.")
    return lines


def _print_finding(files: Files, finding: Finding) -> None:
    group = f"Group {printable(finding.group.name)} of {len(finding.group.members)} ranks"
    if finding.kind is Kind.DIFFERENT:
        print(f"\n{group}, batch {finding.number} is not the same on all ranks.")
        lines = _differences(files, finding)
    else:
        print(f"\n{group}, {_batch(finding.number, finding.batch)}:")
        lines = _standings(files, finding)
    for line in lines:
        print(f"  {line}")


def print_findings(files: Files, findings: list[Finding]) -> None:
    _print_files(files)
    for finding in findings:
        _print_finding(files, finding)
    if not findings:
        print("Nothing hangs: every collective that a rank has enqueued has ended on it.")


# ---- JSON ----


def _member_json(files: Files, finding: Finding, process: int) -> dict[str, Any]:
    part, rank = divmod(process, next(iter(files.values())).world)
    batch = finding.batch_of(process)
    return {"rank": rank, "part": part, "place": finding.places[process].value,
            "text": batch.text if batch is not None else None,
            "waited_ns": batch and waited(files[process], batch) or None}


def _finding_json(files: Files, finding: Finding) -> dict[str, Any]:
    batch = finding.batch
    return {"kind": finding.kind.value, "group": finding.group.name, "batch": finding.number,
            "text": batch.text if batch is not None else None,
            "of": batch.of if batch is not None else None, "waited_ns": finding.waited_ns or None,
            "members": [_member_json(files, finding, member) for member in finding.group.members]}


def as_json(files: Files, findings: list[Finding]) -> dict[str, Any]:
    first = next(iter(files.values()))
    given = [{"rank": file.rank, "part": file.part, "host": file.host, "status": file.status,
              "error": file.error} for file in files.values()]
    return {"world": first.world, "parts": first.parts, "files": given,
            "findings": [_finding_json(files, finding) for finding in findings]}

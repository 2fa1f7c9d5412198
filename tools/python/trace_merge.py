"""The timeline of all ranks: their events as they are, on rank 0's clock, from 0 on."""

import json
from typing import Iterator, TextIO

from command_line import written
from trace_json import is_number
from trace_read import TIME_MAX_US, Rank

_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _events(rank: Rank, zero: int) -> Iterator[str]:
    """The times of what happens at a time are moved; names of tracks have none."""
    for event in rank.events:
        event["pid"] = rank.process + 1
        time = event.get("ts")
        if is_number(time) and abs(time) <= TIME_MAX_US:
            event["ts"] = (round(time * 1e3) - rank.offset - zero) / 1e3
        yield _ENCODE(event)


def _write(file: TextIO, ranks: list[Rank]) -> None:
    zero = min((span.begin for rank in ranks for span in rank.spans), default=0)
    heads = _ENCODE({"ranks": [rank.head for rank in ranks]})
    file.write(f'{{"displayTimeUnit":"ms",\n"otherData":{heads},\n"traceEvents":[\n')
    before = ""
    for rank in ranks:
        for event in _events(rank, zero):
            file.write(before + event)
            before = ",\n"
    file.write("\n]}\n" if before else "]}\n")


def merge(out: str, ranks: list[Rank]) -> None:
    """To a new file, or to stdout for "-". One that exists is most likely a timeline: the name of
    OUT was forgotten."""
    with written(out, new=True) as file:
        _write(file, ranks)

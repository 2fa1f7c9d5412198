"""`zero trace`: reads its line and the files that it names."""

import gc
import sys

import hang_find
import hang_print
import hang_read
import trace_print
from command_line import Refused, read_line, write_json
from trace_merge import merge
from trace_read import read_all
from trace_summary import summarize

HELP = """\
usage: zero trace merge OUT FILE...
       zero trace summary FILE... [--json FILE]
       zero trace hang FILE... [--json FILE]

Reads what ranks have written, one FILE of each: timelines of zero_engine_trace, and
for hang the files of last collectives (zero_engine_collectives_write).

merge    writes all ranks to the new file OUT (- for stdout), on rank 0's clock:
         ui.perfetto.dev and chrome://tracing show them one below the other
summary  says of each step how long it took, what of it was compute, and how much
         of communication and of disk transfers was hidden behind that; which
         units the caller waited for, and which ranks came last to collectives
hang     says of each group of ranks the first collective that not all have ended:
         which rank is missing there, and how long the others have waited

options:
  --json FILE  write the summary as JSON too; - for stdout, without the tables.
               With hang: as JSON instead
  -h, --help   this text

Exit status: 0 when it was done; else 1, with a line that names file and event."""


def _hang(paths: list[str], json_path: str | None) -> None:
    files = hang_read.read_files(paths)
    findings = hang_find.judge(files)
    if json_path is None:
        hang_print.print_findings(files, findings)
    else:
        write_json(hang_print.as_json(files, findings), json_path)


def _summary(paths: list[str], json_path: str | None) -> None:
    summary = summarize(read_all(paths, keep_events=False))
    if json_path != "-":
        trace_print.print_summary(summary)
        sys.stdout.flush()
    if json_path is not None:
        write_json(trace_print.as_json(summary), json_path)


def _run(what: str, words: list[str], json_path: str | None) -> None:
    if what not in ("merge", "summary", "hang"):
        raise Refused(f"{what}: expected merge, summary or hang")
    if not words[1 if what == "merge" else 0:]:
        raise Refused(f"{what}: which files? see `zero trace --help`")
    if what == "merge" and json_path is not None:
        raise Refused("--json is for summary and hang; a merged timeline is JSON")
    if what == "merge":
        merge(words[0], read_all(words[1:], keep_events=True))
    elif what == "summary":
        _summary(words, json_path)
    else:
        _hang(words, json_path)


def main(line: list[str]) -> int:
    gc.disable()  # no garbage here is in a cycle, and looking for it in millions of events is long
    options, words = read_line(line, "help", "json")
    if "help" in options:
        print(HELP)
    elif not words:
        raise Refused("merge, summary or hang? see `zero trace --help`")
    else:
        _run(words[0], words[1:], options.get("json"))
    return 0

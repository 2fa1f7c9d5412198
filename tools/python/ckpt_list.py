"""The text of `zero ckpt ls`: the checkpoints of a run, and what is none."""

from ckpt_text import amount, moment, printable
from output import Lines, Report, show

NAME_WIDTH = 24


def row_line(row: Report) -> str:
    turn = "\n" + " " * NAME_WIDTH if len(row["name"]) > NAME_WIDTH else ""
    note = " weights" if row["kind"] == "weights" else "  latest" if row["latest"] else ""
    return (f"{row['name']:<{NAME_WIDTH}}{turn}  {row['step']:>8}  {moment(row['seconds']):<19}  "
            f"{amount(row['bytes']):>8}  {row['world']:>5}{note}")


def text(report: Report) -> Lines:
    if report["checkpoints"] or report["unread"]:
        yield f"{'name':<{NAME_WIDTH}}  {'step':>8}  {'saved':<19}  {'bytes':>8}  {'ranks':>5}"
    yield from (row_line(row) for row in report["checkpoints"])
    for torn in report["torn"]:
        yield f"{printable(torn['name']):<{NAME_WIDTH}}  torn: {printable(torn['why'])}"
    if not (report["checkpoints"] or report["unread"] or report["torn"]):
        yield f"{report['run']} has no checkpoint"


def main(words: list[str]) -> int:
    return show(text, words)

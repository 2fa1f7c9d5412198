"""The table of `zero plan --largest`: parameters that fit, by formats of states and tiers."""

from output import Lines, Report, plural, show
from plan_table import count_text


def cell_text(cell: Report | None) -> str:
    if cell is None:
        return "-"
    return f"{count_text(cell['parameters'])} {cell['limit']}" if cell["layers"] else "none"


def table(report: Report) -> Lines:
    ranks, samples, layer = (report[key] for key in ("ranks_per_node", "samples", "width_of_layer"))
    mixes = list(dict.fromkeys(cell["mix"] for cell in report["cells"]))
    cells = {(cell["master"], cell["moments"], cell["mix"]): cell for cell in report["cells"]}
    yield (f"{report['cluster_name']}: {report['nodes']} node{plural(report['nodes'])} of {ranks} "
           f"rank{plural(ranks)}; the largest model that fits at stage 3")
    yield (f"Llama-like: width {layer} x layers, heads of {layer}, 8/3 of it inside, "
           f"{report['vocab']} words")
    yield (f"bf16, {samples} x {report['sequence']} tokens of a rank, recomputed, units of "
           f"{report['units']}")
    yield ""
    yield f"{'masters and moments':<20}" + "".join(f"{mix:>15}" for mix in mixes)
    for formats in dict.fromkeys((cell["master"], cell["moments"]) for cell in report["cells"]):
        row = [cell_text(cells.get((*formats, mix))) for mix in mixes]
        yield f"{', '.join(formats):<20}" + "".join(f"{text:>15}" for text in row)
    yield ""
    yield "Parameters, and the tier that lacks most for one layer more. All formats but"
    yield "fp32 round: docs/small-states.md has losses of whole trainings."


def main(words: list[str]) -> int:
    return show(table, words)

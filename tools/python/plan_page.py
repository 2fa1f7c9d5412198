"""The page of `zero plan`: a chart for each tier and for the time of a step, the table, and the
options. Nothing is loaded from anywhere, so it can be mailed and kept."""

from html import escape

from chart import colours_of, page_head, part
from output import GIB, Lines, Report, show
from plan_search import run_lines, search_lines
from plan_text import (find_recommended, kept_text, left_out_lines, mesh_lines, option_lines,
                       role_tier)

TIERS = ("device", "host", "disk")
# Of a chart, in its own units: where bars begin, how long one is that just fits, where all end.
BAR_X = 170.0
BAR_FULL = 400.0
BAR_END = 700.0
ROW = 26
LACKS = "#d62728"
STYLE = f"""svg {{ width: 100%; height: auto; font: 13px system-ui, sans-serif; }}
svg text {{ fill: currentColor; }}
pre {{ padding: 1em; border: 1px solid #8884; overflow-x: auto; }}
.no {{ color: {LACKS}; }}
.legend span {{ margin-right: 1.2em; white-space: nowrap; }}
.legend i {{ display: inline-block; width: .8em; height: .8em; margin-right: .4em; }}"""


def head_lines(report: Report) -> Lines:
    yield page_head(f"zero plan {report['model']}", STYLE)
    yield f"<h1>{escape(report['model'])} on {escape(report['cluster_name'])}</h1>"
    yield (f"<p>{report['parameters'] / 1e9:.4g} billion parameters "
           f"({report['parameters_used'] / 1e9:.4g} billion used by a token), {report['dtype']}, "
           f"{report['layers']} layers of width {report['width']}; {report['ranks']} ranks on "
           f"{report['cluster']['nodes']} nodes; {report['samples']} x {report['sequence']} tokens "
           f"of a rank at once, activations "
           f"{kept_text(report)}.")
    yield from map(escape, left_out_lines(report))
    yield from mesh_lines(report)
    yield "</p>"


def legend_lines(colours: dict[str, str]) -> Lines:
    entries = [f'<span><i style="background:{colour}"></i>{name}</span>'
               for name, colour in colours.items()]
    yield '<p class="legend">' + "\n".join(entries)
    yield "</p>"


def parts_of(mix: Report, tier: str) -> dict[str, int]:
    """Bytes on a tier by role, and what is no role's: the reserve is what need has beyond."""
    parts = {role: size if role_tier(mix, role) == tier else 0
             for role, size in mix["role_bytes"].items()}
    parts["activations"] = mix["activation_bytes"] if tier == "device" else 0
    parts["reserve"] = max(mix["need_bytes"][tier] - sum(parts.values()), 0)
    return parts


def bar_lines(mix: Report, tier: str, y: int, colours: dict[str, str]) -> Lines:
    """A mix's parts end to end, cut where the chart ends."""
    have, need = mix["have_bytes"][tier], mix["need_bytes"][tier]
    x = BAR_X
    yield f'<text x="0" y="{y + 13}">stage {mix["name"]}</text>'
    for name, size in parts_of(mix, tier).items():
        width = min(size / have * BAR_FULL, BAR_END - x)
        if width > 0:
            yield part(x, y, width, ROW - 9, colours[name],
                       f"{mix['name']}: {name} {size / GIB:.2f} GiB")
            x += width
    lacks = f' class="no" style="fill:{LACKS}"' if need > have else ""
    amount = f"{need / GIB:.{1 if need < 100 * GIB else 0}f}"
    cut = " \u2192" if need / have * BAR_FULL > BAR_END - BAR_X else ""
    yield f'<text x="{x + 6:.2f}" y="{y + 13}"{lacks}>{amount}{cut}</text>'


def svg_head(report: Report, label: str) -> str:
    height = len(report["mixes"]) * ROW + 10
    return f'<svg viewBox="0 0 780 {height}" role="img" aria-label="{label}">'


def chart_lines(report: Report, tier: str, colours: dict[str, str]) -> Lines:
    have = report["mixes"][0]["have_bytes"][tier]
    if not have:
        return
    yield f"<h2>{tier.capitalize()}</h2>"
    yield f"<p>GiB of a rank; the line is what it has: {have / GIB:.1f}.</p>"
    yield svg_head(report, f"{tier} memory by mix")
    for row, mix in enumerate(report["mixes"]):
        yield from bar_lines(mix, tier, row * ROW + 6, colours)
    x = BAR_X + BAR_FULL
    yield (f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{len(report["mixes"]) * ROW + 10}" '
           'stroke="currentColor" stroke-dasharray="4 3"/>')
    yield "</svg>"


def step_lines(mix: Report, scale: float, y: int, colours: dict[str, str]) -> Lines:
    """A mix's terms end to end, a mark where no step is faster, and one at what to reckon with."""
    time = mix["time"]
    x = BAR_X
    yield f'<text x="0" y="{y + 13}">stage {mix["name"]}</text>'
    for term, ns in time["term_ns"].items():
        yield part(x, y, scale * ns, ROW - 9, colours[term],
                   f"{mix['name']}: {term} {ns / 1e9:.4g} s")
        x += scale * ns
    for key, width in (("low_ns", 2), ("expected_ns", 5)):
        yield (f'<rect x="{BAR_X + scale * time[key]:.2f}" y="{y - 3}" width="{width}" '
               f'height="{ROW - 3}" fill="currentColor"/>')
    yield f'<text x="{x + 6:.2f}" y="{y + 13}">{time["expected_ns"] / 1e9:.3g}</text>'


def time_lines(report: Report) -> Lines:
    times = [mix["time"] for mix in report["mixes"]]
    scale = (BAR_END - BAR_X) / max(time["high_ns"] for time in times)
    colours = colours_of(times[0]["term_ns"])
    yield "<h2>Time of a step</h2>"
    yield ("<p>Seconds, if nothing overlaps and rates are what the cluster says is reached; the "
           "thin mark is where a step would be at full rates if everything overlapped, and the "
           "thick one and the figure what to reckon with.</p>")
    yield from legend_lines(colours)
    yield svg_head(report, "time of a step by mix")
    for row, mix in enumerate(report["mixes"]):
        yield from step_lines(mix, scale, row * ROW + 6, colours)
    yield "</svg>"


def row_line(mix: Report) -> str:
    cells = [f"<td>{mix['name']}</td>"]
    for tier in TIERS:
        need = mix["need_bytes"][tier]
        lacks = ' class="no"' if need > mix["have_bytes"][tier] else ""
        cells.append(f"<td{lacks}>{need / GIB:.2f}</td>")
    cells.append(f"<td>{'yes' if mix['fits'] else 'no'}</td>")
    cells.append(f"<td>{mix['deepest_parameters'] / 1e9:.4g}</td>")
    time = mix["time"]
    if time:
        cells.append(f"<td>{time['expected_ns'] / 1e9:.3g} "
                     f"({time['likely_low_ns'] / 1e9:.3g} to {time['likely_high_ns'] / 1e9:.3g})"
                     "</td>")
        cells.append(f"<td>{time['bound']}</td>")
    else:
        cells.append("<td></td><td></td>")
    return f"<tr>{''.join(cells)}</tr>"


def table_lines(report: Report) -> Lines:
    yield "<h2>All figures</h2>"
    yield "<table>"
    heads = ("stage and tiers", "device GiB", "host GiB", "disk GiB", "fits",
             "deepest that fits, billion parameters", "seconds of a step (80 % of runs)",
             "most of it")
    yield "<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"
    yield from (row_line(mix) for mix in report["mixes"])
    yield "</table>"


def text_lines(lines: Lines) -> Lines:
    text = "\n".join(lines).strip("\n")
    yield f"<pre>{escape(text, quote=False)}"
    yield "</pre>"


def mix_lines(report: Report) -> Lines:
    """Charts and the table; and the first mix that fits."""
    colours = colours_of(report["mixes"][0]["role_bytes"])
    colours |= {"activations": LACKS, "reserve": "#bdbdbd"}
    yield from legend_lines(colours)
    for tier in TIERS:
        yield from chart_lines(report, tier, colours)
    if not report["untimed"]:
        yield from time_lines(report)
    yield from table_lines(report)
    mix = find_recommended(report)
    if mix:
        yield f"<h2>The first that fits: stage {mix['name']}</h2>"
        yield from text_lines(option_lines(report, mix))
        if mix["run"]:
            yield from text_lines(run_lines(report, mix["run"], ""))


def page(report: Report) -> Lines:
    yield from head_lines(report)
    if report["mixes"]:
        yield from mix_lines(report)
    if not report["mixes"] or find_recommended(report) is None:
        yield "<h2>The search</h2>"
        yield from text_lines(search_lines(report))
    yield "</body>"
    yield "</html>"


def main(words: list[str]) -> int:
    return show(page, words)

"""The chart of `zero bench memory`: two stacked bars for each mix, as planned and as measured, with
the paper's formulas as marks. It has what is the same on every run, so that a document's picture
can be made again.

Usage: memory_chart.py svg | html < REPORT"""

import math
from dataclasses import dataclass
from html import escape

from chart import colours_of, page_head, part
from memory_mix import memory_bytes, note_lines, roles_on, used_roles
from output import MIB, Lines, Report, plural, show

# In units of the chart.
WIDTH = 900
PLOT_X = 150.0
PLOT_WIDTH = 445.0  # of both panels
LABEL = 150.0  # behind a bar
LEGEND_Y = 62
LEGEND_ROW = 20
ROW = 48
BAR = 15
FILES = "#8c6bb1"
MARK = "#d62728"
KINDS = ("planned", "measured")


def largest(memory: Report, disk: bool) -> float:
    sizes = [0.0]
    for mix in memory["mixes"]:
        sizes += [mix[kind]["disk"] if disk else memory_bytes(mix, kind) for kind in KINDS]
        sizes += [0.0 if disk else mix["paper"]]
    return max(sizes)


@dataclass
class Chart:
    memory: Report
    scale: float  # units a byte
    disk_x: float  # where the disk's panel begins
    top: int  # where bars begin
    bottom: int
    colours: dict[str, str]


# ---- the legend ----


def legend_entries(memory: Report) -> dict[str, str | None]:
    """Text and colour of each; None: that of a mark."""
    mixes = memory["mixes"]
    entries = {role: colour for role, colour in colours_of(mixes[0]["roles"]).items()
               if any(mix["roles"][role]["planned"] for mix in mixes)}
    if largest(memory, True) > 0:
        entries["files, as the file system has them"] = FILES
    if any(mix["paper"] for mix in mixes):
        entries["the paper's formula for the shards"] = None
    return entries


def place_legend(memory: Report) -> tuple[list[tuple[float, int, str, str | None]], int]:
    """Entries with their places, and where they end; texts have at most 7.6 units a character."""
    placed = []
    x, y = 0.0, LEGEND_Y
    for text, colour in legend_entries(memory).items():
        width = 32 + 7.6 * len(text)
        if x + width > WIDTH:
            x, y = 0.0, y + LEGEND_ROW
        placed.append((x, y, text, colour))
        x += width
    return placed, y + LEGEND_ROW


def legend_lines(memory: Report) -> Lines:
    for x, y, text, colour in place_legend(memory)[0]:
        if colour:
            yield f'<rect x="{x:.2f}" y="{y}" width="11" height="11" fill="{colour}"/>'
        else:
            yield f'<path d="M{x + 5:.2f} {y - 2}v15" stroke="{MARK}" stroke-width="3"/>'
        yield f'<text x="{x + 17:.2f}" y="{y + 10}">{text}</text>'


# ---- bars ----


def bytes_part(c: Chart, x: float, y: int, size: int, colour: str, name: str) -> Lines:
    if size:
        yield part(x, y, size * c.scale, BAR, colour, f"{name}: {size} bytes")


def label_line(x: float, y: int, size: float, word: str) -> str:
    return f'<text x="{x + 6:.2f}" y="{y + 12}" font-size="12">{size / MIB:.2f} MiB {word}</text>'


def stack_lines(c: Chart, mix: Report, kind: str, disk: bool, y: int) -> Lines:
    """Roles of memory or on disk, end to end; what is theirs together comes last."""
    x = begin = c.disk_x if disk else PLOT_X
    whole = mix[kind]["disk"] if disk else memory_bytes(mix, kind)
    for name, role in roles_on(mix, disk).items():
        yield from bytes_part(c, x, y, role[kind], c.colours[name], name)
        x += role[kind] * c.scale
    end = begin + whole * c.scale
    if end - x > 0.005:
        yield from bytes_part(c, x, y, int((end - x) / c.scale), "#bdbdbd", "padding of extents")
    yield label_line(end, y, whole, kind)


def mix_lines(c: Chart, mix: Report, y: int) -> Lines:
    yield f'<text x="0" y="{y + 16}" font-size="14">stage {mix["stage"]}</text>'
    detail = mix["name"].partition(", ")[2]
    if detail:
        roles, tier = detail.rsplit(" ", 1)  # "state, grads disk"
        yield f'<text x="0" y="{y + 32}">{roles} on {tier}</text>'
    yield from stack_lines(c, mix, "planned", False, y + 4)
    yield from stack_lines(c, mix, "measured", False, y + 20)
    if mix["paper"]:
        yield (f'<path d="M{PLOT_X + mix["paper"] * c.scale:.2f} {y}v38" stroke="{MARK}" '
               f'stroke-width="3"><title>the paper: {mix["paper"]:.0f} bytes</title></path>')
    if mix["planned"]["disk"]:
        size = mix["file_bytes"] or 0
        yield from stack_lines(c, mix, "planned", True, y + 4)
        yield from bytes_part(c, c.disk_x, y + 20, size, FILES, "files")
        yield label_line(c.disk_x + size * c.scale, y + 20, size, "measured")


# ---- the plot ----


def step_of(most: float) -> float:
    """1, 2 or 5 times a power of ten, for a handful of lines."""
    power = math.pow(10, math.floor(math.log10(most / 4)))
    times = most / 4 / power
    return power * (1 if times < 2 else 2 if times < 5 else 5)


def axis_lines(c: Chart, begin: float, most: float, title: str) -> Lines:
    step = step_of(largest(c.memory, False) / MIB)
    yield f'<text x="{begin:.2f}" y="{c.top - 10}">{title}</text>'
    at = 0.0
    while at <= most / MIB:
        x = begin + at * MIB * c.scale
        yield f'<path d="M{x:.2f} {c.top}V{c.bottom}" stroke="#888" stroke-opacity=".35"/>'
        yield (f'<text x="{x:.2f}" y="{c.bottom + 15}" text-anchor="middle" '
               f'font-size="12">{at:g}</text>')
        at += step


def title_lines(memory: Report) -> Lines:
    yield (f'<text x="0" y="20" font-size="17">Memory of a rank: {escape(memory["model"])}, '
           f'{memory["parameters"] / 1e6:.4g} million parameters in {memory["dtype"]}, '
           f'{memory["ranks"]} rank{plural(memory["ranks"])}</text>')
    yield ('<text x="0" y="42">MiB; of each pair of bars the upper one is planned, the lower one '
           'is what engines held.</text>')


def make_chart(memory: Report) -> Chart:
    in_memory, on_disk = largest(memory, False), largest(memory, True)
    scale = PLOT_WIDTH / (in_memory + on_disk) if in_memory else 1.0
    top = place_legend(memory)[1] + 24
    return Chart(memory, scale, PLOT_X + in_memory * scale + LABEL, top,
                 top + len(memory["mixes"]) * ROW, colours_of(memory["mixes"][0]["roles"]))


def svg_lines(memory: Report, colour: str) -> Lines:
    """colour: of text, as an attribute; "": that of the page around it."""
    c = make_chart(memory)
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {c.bottom + 22}" '
           f'font-family="sans-serif" font-size="13" fill="currentColor"{colour} role="img" '
           'aria-label="memory of a rank by stage">')
    yield from title_lines(memory)
    yield from legend_lines(memory)
    in_memory, on_disk = largest(memory, False), largest(memory, True)
    if in_memory:
        yield from axis_lines(c, PLOT_X, in_memory, "in memory")
    if on_disk:
        yield from axis_lines(c, c.disk_x, on_disk, "on disk")
    for row, mix in enumerate(memory["mixes"]):
        yield from mix_lines(c, mix, c.top + row * ROW)
    yield "</svg>"


# ---- the page ----


def row_line(*cells: str | int) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def table_lines(memory: Report, mix: Report) -> Lines:
    yield f"<h2>Stage {mix['name']}</h2>"
    yield "<table>"
    yield "<tr><th>role</th><th>tier</th><th>planned bytes</th><th>measured bytes</th></tr>"
    for name, role in used_roles(mix).items():
        measured = "in files" if role["tier"] == "disk" else role["measured"]
        yield row_line(name, role["tier"], role["planned"], measured)
    if mix["planned"]["disk"]:
        yield row_line("files", "disk", mix["planned"]["disk"], mix["file_bytes"] or 0)
    yield row_line("all", "device, host", *(memory_bytes(mix, kind) for kind in KINDS))
    if mix["used_bytes"] is not None:
        yield row_line(f"{memory['used']}, grown by", "", "", mix["used_bytes"])
    if mix["paper"]:
        yield row_line("the paper's formula", "", f"{mix['paper']:.0f}", "")
    yield "</table>"


def page(memory: Report) -> Lines:
    yield page_head("zero bench memory", "svg { width: 100%; height: auto; }")
    yield "<h1>Planned and measured memory</h1>"
    yield from svg_lines(memory, "")
    notes = "\n".join(note_lines(memory))
    yield f"<p>{notes}"
    yield "</p>"
    yield (f"<p>{memory['figures']} figures by role, tier and rank were measured; "
           f"{memory['differ']} differ from the plan.</p>")
    for mix in memory["mixes"]:
        yield from table_lines(memory, mix)
    yield "</body>"
    yield "</html>"


def draw(report: Report, form: str) -> Lines:
    # A grey that is legible on white and on black: pages do not tell a picture which they are.
    return page(report["memory"]) if form == "html" else svg_lines(report["memory"],
                                                                   ' color="#777"')


def main(words: list[str]) -> int:
    return show(draw, words)

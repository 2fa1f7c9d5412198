"""The picture in text of `zero bench memory`, of 79 columns: a bar for each mix, and a table of
every role."""

from memory_mix import memory_bytes, note_lines, roles_on, used_roles
from output import MIB, Lines, Report, plural

BAR = 31
FILES = "files, with extents' padding"


def part_of(role: str) -> str:
    """What a bar's letters stand for; all that is in none of the others is the last one's."""
    return {"param": "p", "grad": "g", "master": "o", "moment1": "o", "moment2": "o"}.get(role, "s")


def sum_parts(mix: Report, disk: bool) -> dict[str, int]:
    """Planned bytes of each part, of device and host memory or of the disk."""
    parts = dict.fromkeys("pgo", 0)
    for name, role in roles_on(mix, disk).items():
        if part_of(name) in parts:
            parts[part_of(name)] += role["planned"]
    whole = mix["planned"]["disk"] if disk else memory_bytes(mix, "planned")
    return parts | {"s": max(whole - sum(parts.values()), 0)}


def bar_text(parts: dict[str, int], paper: float, scale: float) -> str:
    """Ends of parts are rounded, so that they add up; '|' is where the paper's formula ends."""
    bar, total = "", 0
    for letter, size in parts.items():
        total += size
        bar = bar.ljust(min(int(total * BAR / scale + 0.5), BAR), letter)
    mark = int(paper * BAR / scale + 0.5)
    return bar.ljust(mark)[:mark - 1] + "|" + bar[mark:] if mark else bar


def scale_of(memory: Report) -> float:
    """The largest bar."""
    sizes = [1.0]
    for mix in memory["mixes"]:
        sizes += [memory_bytes(mix, "planned"), mix["planned"]["disk"], mix["paper"]]
    return max(sizes)


def amount(size: int | None) -> str:
    """What the system does not tell is a dash."""
    return f"{'-':>8}" if size is None else f"{size / MIB:8.2f}"


def mix_lines(mix: Report, scale: float) -> Lines:
    yield (f"{mix['name']:<20}{amount(memory_bytes(mix, 'planned'))} "
           f"{amount(memory_bytes(mix, 'measured'))} {amount(mix['used_bytes'])}  "
           f"{bar_text(sum_parts(mix, False), mix['paper'], scale)}")
    if mix["planned"]["disk"]:
        yield (f"{'    on disk':<20}{amount(mix['planned']['disk'])} {amount(mix['file_bytes'])} "
               f"{'':>8}  {bar_text(sum_parts(mix, True), 0, scale)}")


def role_lines(mix: Report) -> Lines:
    yield ""
    yield f"stage {mix['name']:<29}  {'tier':<7} {'planned':>16} {'measured':>16}"
    for name, role in used_roles(mix).items():
        measured = "in files" if role["tier"] == "disk" else role["measured"]
        yield f"  {name:<33}  {role['tier']:<7} {role['planned']:>16} {measured:>16}"
    if mix["planned"]["disk"]:
        yield (f"  {FILES:<33}  {'disk':<7} {mix['planned']['disk']:>16} "
               f"{mix['file_bytes'] or 0:>16}")
    if mix["paper"]:
        name = "the paper's formula"
        yield f"  {name:<33}  {'':<7} {mix['paper']:>16.0f}"


def picture(memory: Report, with_roles: bool) -> Lines:
    scale = scale_of(memory)
    yield (f"{memory['model']}: {memory['parameters'] / 1e6:.4g} million parameters, "
           f"{memory['dtype']}, {memory['ranks']} rank{plural(memory['ranks'])}")
    yield ""
    yield (f"{'MiB of a rank; stage':<20}{'planned':>8} {'measured':>8} {'grown':>8}  "
           "p params g grads o state s rest")
    for mix in memory["mixes"]:
        yield from mix_lines(mix, scale)
    if with_roles:
        for mix in memory["mixes"]:
            yield from role_lines(mix)
    yield ""
    yield from note_lines(memory)
    told = ("all as planned, to the byte." if memory["differ"] == 0 else
            f"{memory['differ']} differ from the plan.")
    yield f"{memory['figures']} figures by role, tier and rank are measured: {told}"
    yield ""

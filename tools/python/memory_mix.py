"""What the text and the chart of `zero bench memory` share: the figures of a mix."""

from output import Lines, Report


def memory_bytes(mix: Report, kind: str) -> int:
    """All of device and host memory, "planned" or "measured"."""
    return mix[kind]["device"] + mix[kind]["host"]


def roles_on(mix: Report, disk: bool) -> dict[str, Report]:
    return {name: role for name, role in mix["roles"].items() if (role["tier"] == "disk") == disk}


def used_roles(mix: Report) -> dict[str, Report]:
    return {name: role for name, role in mix["roles"].items()
            if role["planned"] + role["measured"] != 0}


def note_lines(memory: Report) -> Lines:
    """What bars and marks mean."""
    top = "On top"
    if any(mix["paper"] for mix in memory["mixes"]):
        yield "The mark (|) is the paper's 16P, 4P + 12P/N, 2P + 14P/N or 16P/N bytes"
        yield '(Rajbhandari et al., "ZeRO", 2020, section 3), P 16-bit parameters, N ranks.'
        top = ("Sums of gradients are in bf16 here too (--sums). On top" if memory["bf16_sums"] else
               "Sums of gradients are in fp32 here, 2P more (--sums bf16: as there). On top")
    yield top
    yield "come slots that units are gathered to, tables, and what extents on disk pass"
    yield f"through. Grown: {memory['used']} of all ranks, the part of one."
    if any("small" in mix["name"] for mix in memory["mixes"]):
        yield "Small states: masters are remainders of 8 bits, moments are codes of 8 bits."

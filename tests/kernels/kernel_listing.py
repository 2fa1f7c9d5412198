"""Kernels as the toolkit's listings show them: what each is made of, by name, types and target, and
the loops of it."""

import os
import re
import shutil
import site
import sys
from collections import Counter, namedtuple

# family: the kernel's name in the source. types: its template arguments, zero_dtype's values first.
# target: sm_90, or ptx. ops: how often each operation occurs.
Kernel = namedtuple("Kernel", "family types target ops")

# One of SASS. goes: the addresses that may come after it.
Instruction = namedtuple("Instruction", "address op goes")

# head: the address of the first instruction. addresses: of all, those of inner loops too. own: of
# those in no inner loop.
Loop = namedtuple("Loop", "head addresses own")

F32, NARROW = 1, (2, 3, 5)  # of zero_dtype: with 32 bits, and with 16
ANY, CODES = 0, 7  # as an update's gradients, which it is told of when it runs; as its moments

_PTX_ENTRY = re.compile(r"\.entry (\w+)\(.*?\n\{\n(.*?)\n\}", re.S)
_PTX_OP = re.compile(r"^\s*(?:@!?%\w+ )?([a-z][a-z0-9_]*(?:\.[\w:]+)+)", re.M)
_SASS = re.compile(
    r"^arch = (?P<arch>\w+)|Function : (?P<function>\w+)"
    r"|^\s+/\*(?P<address>[0-9a-f]+)\*/\s+(?P<predicate>@!?U?P\w+ )?(?P<op>[A-Z][A-Z0-9_.]*)"
    r"(?P<operands>[^;\n]*)",
    re.M,
)
_RESOURCES = re.compile(
    r"^arch = (?P<arch>\w+)|Function (?P<function>\w+):"
    r"|STACK:(?P<stack>\d+) SHARED:\d+ LOCAL:(?P<local>\d+)",
    re.M,
)


def name_of(symbol):
    """(family, types) of a mangled name."""
    match = re.search(r"\d+([a-z_]+_kernel)(?:I((?:L\w+?E)+)E)?", symbol)
    if match is None:
        return symbol, ()
    return match.group(1), tuple(int(n) for n in re.findall(r"(\d+)E", match.group(2) or ""))


def read_ptx(text):
    return [
        Kernel(*name_of(symbol), "ptx", Counter(_PTX_OP.findall(body)))
        for symbol, body in _PTX_ENTRY.findall(text)
    ]


def _instructions(lines):
    """lines: matches of _SASS. A call comes back; what is called is outside of all loops here."""
    made = []
    for line, after in zip(lines, lines[1:] + [None]):
        goes = [int(after["address"], 16)] if after else []
        base = line["op"].split(".")[0]
        if base == "BRA":
            may_stay = line["predicate"] or re.search(r"\bU?P\d", line["operands"])
            target = re.search(r"0x([0-9a-f]+)\s*$", line["operands"])
            goes = (goes if may_stay else []) + [int(target[1], 16)]
        elif base in ("EXIT", "RET") and not line["predicate"]:
            goes = []
        made.append(Instruction(int(line["address"], 16), line["op"], goes))
    return made


def read_code(text):
    """[(kernel, its instructions)], where `ops` of the kernel counts them."""
    found, arch = [], ""
    for match in _SASS.finditer(text):
        if match["arch"]:
            arch = match["arch"]
        elif match["function"]:
            found.append((*name_of(match["function"]), arch, []))
        elif found:
            found[-1][3].append(match)
    return [
        (Kernel(family, types, target, Counter(line["op"] for line in lines)), _instructions(lines))
        for family, types, target, lines in found
    ]


def read_sass(text):
    return [kernel for kernel, _ in read_code(text)]


def _reached(start, goes):
    seen, left = set(), [start]
    while left:
        address = left.pop()
        if address not in seen:
            seen.add(address)
            left.extend(goes.get(address, []))
    return seen


def loops_of(instructions):
    """Loops by ascending head. What goes back to one head is one loop: all from which the branches
    back can be reached without passing the head."""
    goes = {one.address: one.goes for one in instructions}
    reached = _reached(instructions[0].address, goes) if instructions else set()
    comes = {}
    for address in reached:
        for target in goes[address]:
            comes.setdefault(target, []).append(address)
    bodies = {}
    for head in sorted(comes):
        back = [address for address in comes[head] if address >= head]
        if back:
            upward = {**comes, head: []}
            bodies[head] = {head}.union(*(_reached(address, upward) for address in back))
    made = []
    for head, body in bodies.items():
        inner = [other for at, other in bodies.items() if at != head and other < body]
        made.append(Loop(head, body, body.difference(*inner)))
    return made


def find_cuobjdump(first=()):
    """cuobjdump with nvdisasm, which it needs on the path: in these folders, on the path, or in
    Python's package nvidia-cuda-cuobjdump; None where there are not both."""
    packages = [*sys.path, *site.getsitepackages(), site.getusersitepackages()]
    packages = [os.path.join(place, "nvidia", "cu13", "bin") for place in packages]
    before = os.environ["PATH"]
    os.environ["PATH"] = os.pathsep.join([*first, before, *filter(os.path.isdir, packages)])
    return shutil.which("cuobjdump") if shutil.which("nvdisasm") else None


def read_resources(text):
    """The same with bytes of memory that a thread has for itself in place of operations."""
    kernels, arch = [], ""
    for match in _RESOURCES.finditer(text):
        if match["arch"]:
            arch = match["arch"]
        elif match["function"]:
            kernels.append(Kernel(*name_of(match["function"]), arch, Counter()))
        elif kernels:
            kernels[-1].ops["bytes"] = int(match["stack"]) + int(match["local"])
    return kernels


def function_body(text, name):
    """The body of a C function without comments."""
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    start = code.index("{", code.index(f" {name}("))
    depth = 0
    for offset in range(start, len(code)):
        depth += {"{": 1, "}": -1}.get(code[offset], 0)
        if depth == 0:
            return code[start : offset + 1]
    raise ValueError(f"{name} does not end")

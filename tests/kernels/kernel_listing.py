"""Kernels as the toolkit's listings show them: what each is made of, by name, types and target."""

import re
from collections import Counter, namedtuple

# family: the kernel's name in the source. types: its template arguments, zero_dtype's values first.
# target: sm_90, or ptx. ops: how often each operation occurs.
Kernel = namedtuple("Kernel", "family types target ops")

F32, NARROW = 1, (2, 3)  # of zero_dtype

_PTX_ENTRY = re.compile(r"\.entry (\w+)\(.*?\n\{\n(.*?)\n\}", re.S)
_PTX_OP = re.compile(r"^\s*(?:@!?%\w+ )?([a-z][a-z0-9_]*(?:\.[\w:]+)+)", re.M)
_SASS = re.compile(
    r"^arch = (?P<arch>\w+)|Function : (?P<function>\w+)"
    r"|^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?(?P<op>[A-Z][A-Z0-9_.]*)",
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


def read_sass(text):
    kernels, arch = [], ""
    for match in _SASS.finditer(text):
        if match["arch"]:
            arch = match["arch"]
        elif match["function"]:
            kernels.append(Kernel(*name_of(match["function"]), arch, Counter()))
        elif kernels:
            kernels[-1].ops[match["op"]] += 1
    return kernels


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

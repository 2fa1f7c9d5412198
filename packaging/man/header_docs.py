"""The public headers as data: each file's text, and each documented declaration with its text."""

import dataclasses
import re


class Unreadable(Exception):
    """A header that is not written like the others; the text says where."""


@dataclasses.dataclass
class Member:
    """An enumerator or a field."""

    declaration: str
    text: str


@dataclasses.dataclass
class Declaration:
    """A documented function, type or macro."""

    kind: str  # function, type or macro
    name: str
    code: str  # without comments; of a macro its lines, else one
    text: str
    members: list[Member] = dataclasses.field(default_factory=list)

    @property
    def parameters(self) -> list[str]:
        inside = self.code[self.code.index("(") + 1:self.code.rindex(")")]
        names = (re.search(r"(\w+)(?:\[\w*\])?$", part.strip()) for part in inside.split(","))
        return [match[1] for match in names if match and match[1] != "void"]


@dataclasses.dataclass
class Header:
    """A file below include/."""

    path: str  # as it is included
    text: str
    declarations: list[Declaration]

    @property
    def page(self) -> str:
        name = self.path.removeprefix("zero/")
        return "libzero" if name == "zero.h" else f"zero_{name}"


def _uncomment(block: str) -> str:
    """A /** comment's lines without what frames them."""
    lines = re.sub(r"^/\*\*<?|\*/$", "", block.strip()).split("\n")
    lines = [re.sub(r"^ +\* ?", "", line).rstrip() if i else line.strip()
             for i, line in enumerate(lines)]
    # The formatter has taken the second blank from some lines that go on with an item.
    indent = " " if any(line.startswith(" ") for line in lines[1:]) else ""
    return "\n".join(line.removeprefix(indent) for line in lines).strip("\n")


def _declaration_end(text: str, begin: int) -> int:
    """Of the declaration that begins there: behind its ; or body, or at its line's end."""
    if text.startswith("#define", begin):
        return re.compile(r"(?:\\\n|[^\n])*").match(text, begin).end()  # type: ignore[union-attr]
    depth = 0
    for match in re.compile(r"/\*.*?\*/|[{};]", re.DOTALL).finditer(text, begin):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        closes = match[0] == "}" and depth == 0 and not text.startswith("typedef", begin)
        if depth == 0 and (match[0] == ";" or closes):
            return match.end()
    raise Unreadable(f"no end of {text[begin:begin + 60]!r}")


def _expanded(body: str, text: str) -> str:
    """Rows of a list macro, as X(NAME, value, "text"), as enumerators."""
    for use in re.finditer(r"\b(\w+)\((\w+)\)", body):
        rows = re.search(rf"#define {use[1]}\(X\)((?:.*\\\n)*.*\n)", text)
        form = re.search(rf"#define {use[2]}\(name, value, text\) (\w+)##name = value,", text)
        if rows and form:
            made = re.sub(r'X\((\w+), (\d+), "([^"]*)"\)[ \\\n]*',
                          lambda row: f"{form[1]}{row[1]} = {row[2]}, /**< {row[3]} */\n",
                          rows[1].lstrip(" \\\n"))
            body = body.replace(use[0], made)
    return body


def _members(code: str, text: str) -> list[Member]:
    """Of a type's body."""
    body = code[code.index("{") + 1:code.rindex("}")]
    body = re.sub(r"/\*(?!\*<).*?\*/", "", _expanded(body, text), flags=re.DOTALL)
    pattern = r"([^;{},/]+(?:\[[^\]]*\])?)[;,]?\s*/\*\*<(.*?)\*/"
    if code.startswith("typedef struct"):
        pattern = r"([^;{}/]+);\s*/\*\*<(.*?)\*/"
    return [Member(" ".join(part.split()), " ".join(
        line.strip().removeprefix("*").strip() for line in said.split("\n")).strip())
        for part, said in re.findall(pattern, body, re.DOTALL)]


def _declaration(code: str, said: str, text: str) -> Declaration:
    clean = re.sub(r"/\*.*?\*/", "", code, flags=re.DOTALL)
    line = " ".join(clean.replace("\\\n", " ").split())
    if code.startswith("#define"):
        name = re.match(r"#define (\w+)", line)
        lines = re.sub(r" +\\$", r" \\", clean.rstrip(), flags=re.MULTILINE)
        return Declaration("macro", name[1] if name else "", lines, said)
    if code.startswith("typedef"):
        name = re.search(r"\(\*(\w+)\)|(\w+)(?:\[\w+\])?;$", line)
        members = _members(code, text) if "{" in code else []
        return Declaration("type", (name[1] or name[2]) if name else "", line, said, members)
    line = re.sub(r"\{.*", "", line).strip().rstrip(";")
    line = re.sub(r"\b(ZERO_API|ZERO_MUST_CHECK|static inline) ", "", line).strip()
    name = re.search(r"(\w+)\(", line)
    return Declaration("function", name[1] if name else "", line, said)


def read_header(folder: str, path: str) -> Header:
    """The header that is included as <path>."""
    with open(f"{folder}/{path}", encoding="utf-8") as file:
        text = file.read()
    about = re.match(r"/\*\* @file\n.*?\*/", text, re.DOTALL)
    if about is None:
        raise Unreadable(f"{path} does not begin with a comment about the file")
    header = Header(path, _uncomment(about[0]).removeprefix("@file").strip("\n"), [])
    for block in re.finditer(r"/\*\*(?![<*]).*?\*/\s*", text[about.end():], re.DOTALL):
        begin = about.end() + block.end()
        code = text[begin:_declaration_end(text, begin)]
        found = _declaration(code, _uncomment(block[0]), text)
        if not found.name:
            raise Unreadable(f"{path}: what does {code[:60]!r} declare?")
        if not found.name.endswith("_"):
            header.declarations.append(found)
    return header

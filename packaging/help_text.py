"""Commands and options of the program `zero`, from its own --help and its tables of options."""

import dataclasses
import os
import re
import subprocess

Words = tuple[str, ...]


class Unreadable(Exception):
    """A help that is not written like the others; the text says where."""


@dataclasses.dataclass
class Option:
    """A row of a help."""

    name: str
    value: str  # as the help names it, such as FILE; empty: the option takes none
    text: str

    @property
    def choices(self) -> list[str]:
        """The values, where the text begins with all of them, or the help names the only one."""
        if self.value and not self.value.isupper():
            return [] if "=" in self.value else [self.value]
        word = r"([\w+-]+)(?: \([^)]*\))?"
        text = re.sub(r"^[\w, ]+: ", "", self.text)
        match = re.match(rf"{word}(?:, {word})?(?:,? or {word})(?![\w ])|{word},? or {word}", text)
        return [name for name in match.groups() if name] if match else []


@dataclasses.dataclass
class Command:
    """A command, or the program itself, whose words are ("zero",)."""

    words: Words
    summary: str
    usage: list[str]
    blocks: list[list[str]]  # what the help says beside rows, a paragraph or list each
    options: list[Option]
    rows: dict[str, list[tuple[str, str]]]  # by heading: names, and what each is
    exit_status: str
    subcommands: list["Command"] = dataclasses.field(default_factory=list)

    def everything(self) -> list["Command"]:
        return [self] + [found for sub in self.subcommands for found in sub.everything()]

    def presets(self, title: str) -> list[str]:
        """The names of a line such as "  models: gpt2 ..." and those below it."""
        text = " ".join(line.strip() for block in self.blocks for line in block)
        match = re.search(rf"\b{title}: ((?:[\w-]+(?: |$))+)", text)
        return match[1].split() if match else []


def _run(program: str, *words: str) -> str:
    # An address sanitizer's leaks are another test's business.
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "LC_ALL": "C.UTF-8"}
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False, env=env)
    if done.returncode != 0:
        raise Unreadable(f"{' '.join(words)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def valued_options(program: str, words: Words) -> dict[str, bool]:
    """Of a command's table: whether an option takes a value."""
    said = _run(program, *words[1:], "--print-options")
    if re.search("^(?!\\S+ (?:value|flag)$)", said.rstrip("\n"), re.MULTILINE) and said:
        raise Unreadable(f"{' '.join(words)} --print-options: {said[:100]}")
    return {line.split()[0]: line.endswith(" value") for line in said.splitlines()}


def _chunks(text: str) -> list[list[str]]:
    return [chunk.split("\n") for chunk in re.split(r"\n{2,}", text.strip("\n"))]


def _joined(lines: list[str], row: str) -> list[list[str]]:
    """Rows that match, each with the lines that go on with it."""
    rows: list[list[str]] = []
    for line in lines:
        if re.match(row, line) or not rows:
            rows.append([line])
        else:
            rows[-1].append(line)
    return rows


def _option(lines: list[str], valued: dict[str, bool], where: str) -> Option:
    text = " ".join(line.strip() for line in lines)
    match = re.match(r"(?:-h, )?--([\w-]+)(?: +(.*))?$", text)
    if match is None:
        raise Unreadable(f"{where}: no option: {text}")
    name, rest = match[1], match[2] or ""
    if name in ("help", "version"):
        return Option(name, "", rest)
    if name not in valued:
        raise Unreadable(f"{where}: its table has no --{name}")
    value, _, after = rest.partition(" ") if valued[name] else ("", "", rest)
    if not after or (valued[name] and not value):
        raise Unreadable(f"{where}: --{name} has no text")
    return Option(name, value, after.strip())


def _parse(words: Words, summary: str, text: str, valued: dict[str, bool]) -> Command:
    where = " ".join(words)
    chunks = _chunks(text)
    usage = [re.sub("^usage: ", "", line).strip() for line in chunks[0]]
    if not chunks[0][0].startswith("usage: " + where):
        raise Unreadable(f"{where}: the help does not begin with its usage")
    command = Command(words, summary, usage, [], [], {}, "")
    for chunk in chunks[1:]:
        heading = re.match(r"(\w+):$", chunk[0])
        rows = chunk[1:] if heading else chunk
        if re.match("  (?:-h, )?--", rows[0] if rows else ""):
            command.options += [_option(row, valued, where)
                                for row in _joined(rows, "  (?:-h, )?--")]
        elif heading:
            pairs = (re.match(r"  (\S+) +(.*)$", row) for row in rows)
            command.rows[heading[1]] = [(pair[1], pair[2]) for pair in pairs if pair]
        else:
            whole = "\n".join(chunk)
            before, status, after = whole.partition("Exit status: ")
            command.exit_status += " ".join(after.split())
            if before.strip():
                command.blocks.append((before if status else whole).rstrip("\n").split("\n"))
    if not command.options:
        command.options = [Option("help", "", "this text")]
    return command


def _read(program: str, words: Words, summary: str, above: str = "") -> Command | None:
    """None: the help is that of the command above."""
    text = _run(program, *words[1:], "--help")
    if text == above:
        return None
    has_table = len(words) > 1 and "\ncommands:\n" not in text
    command = _parse(words, summary, text, valued_options(program, words) if has_table else {})
    found = {name: re.sub("^(?:[A-Z]+ )+ *", "", said)
             for name, said in command.rows.get("commands", [])}
    for line in command.usage:
        rest = line.removeprefix(" ".join(words)).split()
        if rest and re.fullmatch("[a-z]+", rest[0]) and rest[0] not in found:
            found[rest[0]] = ""
    for name, said in found.items():
        sub = _read(program, (*words, name), said, text)
        if sub is not None:
            sub.summary = sub.summary or _first_sentence(sub)
            command.subcommands.append(sub)
    return command


def _first_sentence(command: Command) -> str:
    sentence = " ".join(" ".join(command.blocks[0]).split()).split(". ")[0].rstrip(".")
    sentence = re.split(r"[:,] ", sentence)[0]
    return sentence[0].lower() + sentence[1:]


def read_program(program: str) -> Command:
    """The program with all its commands."""
    command = _read(program, ("zero",), "the program of libzero, which shards training jobs")
    assert command is not None
    command.options.append(Option("version", "", "print the version"))
    return command

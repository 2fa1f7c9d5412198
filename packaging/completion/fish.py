"""Completion for fish."""

from line import NOTICE, EngineOption, Line, Value

HEAD = """
# Whether the words behind zero begin with those of own, and the next one is none of subs.
function __zero_in --argument-names own subs
    set -l words (string match -v -- '-*' (commandline -opc))[2..-1]
    string match -q -- "$own *" "$words "; or return 1
    set -l next $words[(math 1 + (count (string split ' ' -- $own)))]
    test -z "$next"; or not contains -- $next (string split ' ' -- $subs)
end

# Whether the next word is the first behind these.
function __zero_first
    set -l words (string match -v -- '-*' (commandline -opc))
    test "$words[2..-1]" = "$argv"
end
"""


def _quoted(text: str) -> str:
    inner = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{inner}'"


def _value(value: Value | None, engine: str) -> str:
    """The options of `complete` for a value."""
    if value is None:
        return ""
    if value.kind == "folder":
        return " -x -a '(__fish_complete_directories)'"
    if value.kind == "file":
        names = f" -a {_quoted(' '.join(value.names))}" if value.names else ""
        return f" -r -F{names}"
    words = engine if value.kind == "engine" else " ".join(value.names)
    return f" -x -a {_quoted(words)}" if words else " -x"


def script(lines: list[Line], engine: list[EngineOption]) -> str:
    """The file."""
    settings = " ".join(f"{option.name}={value}" for option in engine
                        for value in option.values or [""])
    out = [NOTICE, *HEAD.rstrip("\n").split("\n"), "", "complete -c zero -f"]
    for line in lines:
        own = " ".join(line.words[1:])
        names = [name for name, _ in line.subcommands]
        first = _quoted(f"__zero_first {own}".strip())
        inside = _quoted(f'__zero_in "{own}" "{" ".join(names)}"') if own else first
        for name, text in line.subcommands:
            out.append(f"complete -c zero -n {first} -a {name} -d {_quoted(text)}")
        for option, value in line.options:
            short = " -s h" if option.name == "help" else ""
            out.append(f"complete -c zero -n {inside}{short} -l {option.name} "
                       f"-d {_quoted(option.text)}{_value(value, settings)}")
        for word in line.positions:
            # An option's value looks like a word, so models and clusters are offered anywhere.
            where = inside
            if line.positions[0].name == "COMMAND":
                where = first if word.name == "COMMAND" else _quoted(
                    f"not __zero_first {own}; and {inside[1:-1]}")
            if word.value.names:
                out.append(f"complete -c zero -n {where} -a {_quoted(' '.join(word.value.names))}")
            if word.value.kind == "file":
                out.append(f"complete -c zero -n {where} -F")
            if word.value.kind == "folder":
                out.append(f"complete -c zero -n {where} -a '(__fish_complete_directories)'")
    return "\n".join(out) + "\n"

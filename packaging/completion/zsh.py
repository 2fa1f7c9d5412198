"""Completion for zsh."""

import re
import shlex

from line import NOTICE, EngineOption, Line, Value


def _text(text: str) -> str:
    """A description as _arguments takes it."""
    return re.sub(r"([\\\[\]:])", r"\\\1", text)


def _action(value: Value) -> str:
    names = " ".join(re.sub(r"([:\\ ()])", r"\\\1", name) for name in value.names)
    if value.kind == "engine":
        return "_zero_engine"
    if value.kind == "choice":
        return f"({names})"
    if value.kind == "folder":
        return "_files -/"
    if value.kind == "file":
        return f"_zero_names_or_files {names}" if names else "_files"
    return " "


def _option(name: str, text: str, argument: str, value: Value | None) -> str:
    if name == "help":
        return "'(- *)'{-h,--help}" + shlex.quote(f"[{_text(text)}]")
    # Directories may be given several times, and so may --set.
    many = "*" if value is not None and value.kind in ("folder", "engine") else ""
    shown = "=[" if value is not None else "["
    spec = f"{many}--{name}{shown}{_text(text)}]"
    if value is not None:
        spec += f":{_text(argument)}:{_action(value)}"
    return shlex.quote(spec)


def _function(line: Line) -> list[str]:
    specs = [_option(option.name, option.text, option.value, value)
             for option, value in line.options]
    if line.subcommands:
        specs += [shlex.quote(f"1:command:_{line.function}_commands"),
                  shlex.quote("*::argument:->argument")]
    else:
        for place, word in enumerate(line.positions, start=1):
            where = "*" if word.many else str(place)
            specs.append(shlex.quote(f"{where}:{word.name}:{_action(word.value)}"))
    out = ["", f"_{line.function}()", "{", "    local curcontext=$curcontext state",
           "    typeset -A opt_args", "    _arguments -C \\",
           *(f"        {spec} \\" for spec in specs[:-1]), f"        {specs[-1]}"]
    if line.subcommands:
        names = "|".join(name for name, _ in line.subcommands)
        other = line.positions[0].value if line.positions else None
        out += ["    [[ $state == argument ]] || return", "    case $words[1] in",
                f"    {names}) _{line.function}_$words[1] ;;"]
        if other is not None and line.positions[0].many:
            out += [f"    *) _arguments {' '.join(specs[:-2])} "
                    f"{shlex.quote('*:' + line.positions[0].name + ':' + _action(other))} ;;"]
        out += ["    esac"]
    out += ["}"]
    if line.subcommands:
        rows = [f"{name}:{_text(text)}" for name, text in line.subcommands]
        more = line.positions[0].value.names if line.positions else []
        out += ["", f"_{line.function}_commands()", "{", "    local -a names=(",
                *(f"        {shlex.quote(row)}" for row in rows + more), "    )",
                "    _describe command names", "}"]
    return out


def script(lines: list[Line], engine: list[EngineOption]) -> str:
    """The file."""
    out = ["#compdef zero", NOTICE, "", "# NAME=VALUE of an engine's options.", "_zero_engine()",
           "{", "    if compset -P 1 '*='; then", "        case ${IPREFIX%=} in"]
    for option in engine:
        if option.values:
            out.append(f"        (|*=){option.name}) compadd -- {' '.join(option.values)} ;;")
    out += ["        esac", "        return", "    fi", "    local -a names=("]
    out += [f"        {shlex.quote(f'{option.name}:{_text(option.text)}')}" for option in engine]
    out += ["    )", "    _describe 'option of the engine' names -S =", "}",
            "", "_zero_names_or_files()", "{", "    compadd -- \"$@\"", "    _files", "}"]
    for line in lines:
        out += _function(line)
    return "\n".join([*out, "", '_zero "$@"', ""])

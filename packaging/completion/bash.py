"""Completion for bash, over the package bash-completion."""

import shlex

from line import NOTICE, EngineOption, Line, Value

HEAD = """
# Words behind `zero` that are commands, in command; how many others there are, in place.
_zero_parse()
{
    local i word
    command=zero place=0
    for ((i = 1; i < cword; i++)); do
        word=${words[i]}
        case $word in
        --*=*) ;;
        -*) [[ " $(_zero_valued) " != *" $word "* ]] || ((i += 1)) ;;
        *)
            if [[ $place -eq 0 && " $(_zero_commands) " == *" $word "* ]]; then
                command+=" $word"
            else
                ((place += 1))
            fi
            ;;
        esac
    done
}

# What cur may go on to: names, and files or folders.
_zero_offer()
{
    local kind=$1 names=$2
    mapfile -t COMPREPLY < <(compgen -W "$names" -- "$cur")
    case $kind in
    file) _filedir ;;
    folder) _filedir -d ;;
    esac
}

# NAME=VALUE. Readline replaces what is behind the last = only.
_zero_engine()
{
    local name=${cur%%=*}
    if [[ $cur != *=* ]]; then
        mapfile -t COMPREPLY < <(compgen -S = -W "$(_zero_engine_values)" -- "$cur")
        compopt -o nospace
        return
    fi
    cur=${cur#*=}
    mapfile -t COMPREPLY < <(compgen -W "$(_zero_engine_values "$name")" -- "$cur")
    [[ $COMP_WORDBREAKS == *=* ]] || COMPREPLY=("${COMPREPLY[@]/#/$name=}")
}
"""

TAIL = """

_zero()
{
    local cur prev words cword split command place
    _init_completion -s || return
    _zero_parse
    if _zero_option_value "$prev"; then
        return
    fi
    if [[ $split == true ]]; then
        return
    fi
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_zero_options)" -- "$cur")
    else
        _zero_word
    fi
} && complete -F _zero zero
"""


def _cases(subject: str, rows: list[tuple[str, str]], indent: str = "    ") -> list[str]:
    return [f"{indent}case {subject} in",
            *(f"{indent}{shlex.quote(key)}) {action} ;;" for key, action in rows if action),
            f"{indent}esac"]


def _says(name: str, words: dict[str, list[str]]) -> list[str]:
    """A function that prints words by the command."""
    rows = [(key, f"echo {shlex.quote(' '.join(found))}") for key, found in words.items() if found]
    return ["", f"{name}()", "{", *_cases('"$command"', rows), "}"]


def _action(value: Value) -> str:
    if value.kind == "engine":
        return "_zero_engine"
    return "" if value.kind == "none" else (
        f"_zero_offer {value.kind} {shlex.quote(' '.join(value.names))}")


def _word(line: Line) -> str:
    """The action for a word at $place."""
    rows = []
    for place, word in enumerate(line.positions):
        rows.append((str(place), _action(word.value)))
    names = [name for name, _ in line.subcommands]
    if names:
        first = line.positions[0].value.names if line.positions else []
        rows[:1] = [("0", f"_zero_offer choice {shlex.quote(' '.join(names + first))}")]
    pattern = [f"{place}) {action}" for place, action in rows if action]
    if line.positions and line.positions[-1].many:
        pattern.append(f"*) {_action(line.positions[-1].value)}")
    return "case $place in " + " ;; ".join(pattern) + " ;; esac" if pattern else ""


def _option_values(lines: list[Line]) -> list[str]:
    out = ["", "# Completes the value of an option; 1: it takes none.", "_zero_option_value()", "{",
           '    case "$command $1" in']
    for line in lines:
        for option, value in line.options:
            if value is not None:
                key = shlex.quote(f"{' '.join(line.words)} --{option.name}")
                out.append(f"    {key}) {_action(value) or ':'} ;;")
    return [*out, "    *) return 1 ;;", "    esac", "    return 0", "}"]


def script(lines: list[Line], engine: list[EngineOption]) -> str:
    """The file."""
    key = {" ".join(line.words): line for line in lines}
    out = [NOTICE]
    out += _says("_zero_commands",
                 {name: [sub for sub, _ in line.subcommands] for name, line in key.items()})
    out += _says("_zero_options",
                 {name: [f"--{option.name}" for option, _ in line.options]
                  for name, line in key.items()})
    out += _says("_zero_valued",
                 {name: [f"--{option.name}" for option, value in line.options if value is not None]
                  for name, line in key.items()})
    names = " ".join(option.name for option in engine)
    out += ["", "# The names of engine options; of one, its values.", "_zero_engine_values()", "{",
            *_cases('"${1-}"', [("", f"echo {shlex.quote(names)}")] + [
                (option.name, f"echo {shlex.quote(' '.join(option.values))}")
                for option in engine if option.values]), "}"]
    out += HEAD.rstrip("\n").split("\n")
    out += _option_values(lines)
    out += ["", "_zero_word()", "{", *_cases('"$command"', [
        (name, _word(line)) for name, line in key.items()]), "}"]
    return "\n".join(out) + TAIL

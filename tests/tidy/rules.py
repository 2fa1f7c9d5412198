"""The checks: each takes a SourceTree and yields (path, line, what is wrong)."""

import os
import re
import shutil
import subprocess
import tempfile

from source_tree import C_SUFFIXES

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800
LINE_COLUMNS_MAX = 100
CLANG_FORMAT_MAJOR = 14


class Skipped(Exception):
    """The check cannot be made on this machine; the text says why."""


def folder_table(tree):
    """{folder: (allowed folders) or None for everything} from ARCHITECTURE.md's folder table."""
    table = {}
    inside = False
    for _, line in tree.lines("ARCHITECTURE.md"):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells == ["folder", "owns", "may include"]:
            inside = True
        elif inside and not line.startswith("|"):
            break
        elif inside and len(cells) == 3 and not set(line) <= set("|- "):
            names = [name.strip(" `") for name in cells[2].split(",")]
            allowed = None if "everything" in names else tuple(names)
            for folder in cells[0].split(","):
                table[folder.strip(" `")] = allowed
    return table


def _owner(table, path):
    """The row a path belongs to: the longest one that is the path or a folder above it."""
    rows = [row for row in table if path == row or path.startswith(row + "/")]
    return max(rows, key=len, default=None)


def _resolve_include(tree, path, name):
    """Path in the tree of an include written "name" or <name>, or None."""
    for base in ("include", "src", os.path.dirname(path), "tests", ""):
        candidate = os.path.normpath(os.path.join(base, name))
        if candidate in tree.texts:
            return candidate
    return None


def include_arrows(tree):
    table = folder_table(tree)
    if not table:
        yield "ARCHITECTURE.md", 1, "no table | folder | owns | may include |"
        return
    for path in tree.paths(C_SUFFIXES, ("src/", "tools/", "include/", "examples/")):
        row = _owner(table, path)
        if row is None:
            yield path, 1, "its folder is not in ARCHITECTURE.md's table"
            continue
        for number, line in tree.lines(path):
            match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
            if not match:
                continue
            target = _resolve_include(tree, path, match.group(2))
            if target is None:
                if match.group(1) == '"' and not _is_generated(tree, match.group(2)):
                    yield path, number, f'"{match.group(2)}" is no file of this repository'
            elif not _may_include(table, row, target):
                yield path, number, f"{row} may not include {target} (ARCHITECTURE.md)"


def _is_generated(tree, name):
    return any(f"'{name}'" in tree.texts[path] for path in tree.paths(("meson.build",)))


def _may_include(table, row, target):
    owner = _owner(table, target)
    allowed = table[row]
    if owner == row or owner == "include/zero" or allowed is None:
        return True
    # A row for a single file stands in its folder.
    if owner is not None and os.path.dirname(row) == owner:
        return True
    return owner is not None and (owner in allowed or owner.removeprefix("src/") in allowed)


def functions(tree, path):
    """(first line, last line) of each function body's definition, its signature included."""
    text = re.sub(
        r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
        lambda match: "\n" * match.group(0).count("\n"),
        tree.code(path),
        flags=re.MULTILINE,
    )
    depth = 0
    start = 0  # offset just behind the last thing that ended at depth 0
    opening = None
    for offset, char in enumerate(text):
        if char == "{":
            if depth == 0 and text[:offset].rstrip().endswith(")"):
                opening = start
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                if opening is not None:
                    head = opening + len(text[opening:]) - len(text[opening:].lstrip())
                    yield text.count("\n", 0, head) + 1, text.count("\n", 0, offset) + 1
                    opening = None
                start = offset + 1
        elif char == ";" and depth == 0:
            start = offset + 1


def function_length(tree):
    for path in tree.paths(C_SUFFIXES):
        for first, last in functions(tree, path):
            if last - first + 1 > FUNCTION_LINES_MAX:
                length = last - first + 1
                yield path, first, f"function of {length} lines, at most {FUNCTION_LINES_MAX}"


def file_length(tree):
    for path in tree.paths(C_SUFFIXES + (".py",)):
        count = tree.texts[path].count("\n")
        if count > FILE_LINES_MAX:
            yield path, count, f"file of {count} lines, at most {FILE_LINES_MAX}"


def line_length(tree):
    for path in tree.paths(C_SUFFIXES + (".py",)) + tree.paths(None, ("scripts/", ".ci/")):
        for number, line in tree.lines(path):
            if len(line) > LINE_COLUMNS_MAX:
                yield path, number, f"line of {len(line)} columns, at most {LINE_COLUMNS_MAX}"


# Calls refused in src/, and the files or folders that are excepted.
BANNED_CALLS = {
    "malloc": ("src/core/",),
    "calloc": ("src/core/",),
    "realloc": ("src/core/",),
    "free": ("src/core/",),
    "posix_memalign": ("src/core/",),
    "aligned_alloc": ("src/core/",),
    "strdup": (),
    "printf": (),
    "puts": (),
    "fprintf": ("src/core/check.c",),
    "sprintf": (),
    "vsprintf": (),
    "strcpy": (),
    "strcat": (),
    "gets": (),
    "atoi": (),
    "atol": (),
    "atof": (),
    "assert": (),
    "exit": (),
    "_exit": (),
    "abort": ("src/core/check.c",),
    "getenv": ("src/core/log.c", "src/comm/bootstrap.c"),
    "alloca": (),
}


def banned_calls(tree):
    calls = re.compile(r"(?<![\w.>])(" + "|".join(BANNED_CALLS) + r")\s*\(")
    for path in tree.paths(C_SUFFIXES, ("src/",)):
        for number, line in tree.code_lines(path):
            for match in calls.finditer(line):
                if not path.startswith(BANNED_CALLS[match.group(1)] or "\0"):
                    yield path, number, f"{match.group(1)}() is not for src/"


def unique_names(tree):
    """Public headers are named by their noun; zero/model.h may have a layout/model.h behind it."""
    seen = {}
    for path in [path for path in tree.paths(C_SUFFIXES) if not path.startswith("include/zero/")]:
        name = os.path.basename(path)
        if name in seen:
            yield path, 1, f"has the name of {seen[name]}"
        seen[name] = path


def stage_in_one_file(tree):
    for path in tree.paths(C_SUFFIXES, ("src/",)):
        if path == "src/layout/sharding.c":
            continue
        for number, line in tree.code_lines(path):
            match = re.search(r"\bZERO_STAGE_\w+", line)
            if match:
                yield path, number, f"{match.group(0)}: only src/layout/sharding.c reads the stage"


# What stands above backends, but for the files that say what the options' names stand for.
ABOVE_BACKENDS = (
    "src/engine/", "src/layout/", "src/offload/", "src/stage1/", "src/stage2/", "src/stage3/",
    "src/storage/", "src/comm/comm.h",
)
BACKENDS_NAMED_IN = (
    "src/engine/backend.c", "src/layout/capabilities.c",
    "src/layout/options_list.h", "src/layout/option_table.c",
)


def capabilities_not_names(tree):
    for path in tree.paths(C_SUFFIXES, ABOVE_BACKENDS):
        if path in BACKENDS_NAMED_IN:
            continue
        for number, line in tree.lines(path):
            match = re.search("cuda|nccl", line, re.IGNORECASE)
            if match:
                yield path, number, f"{match.group(0)}: ask for a capability (core/capabilities.h)"


def documented_api(tree):
    for path in tree.paths((".h",), ("include/",)):
        lines = tree.texts[path].split("\n")
        for index, line in enumerate(lines):
            if not line.startswith("ZERO_API"):
                continue
            block_end = lines[index - 1].rstrip().endswith("*/") if index > 0 else False
            opening = index - 1
            while block_end and opening > 0 and "/*" not in lines[opening]:
                opening -= 1
            if not block_end or not lines[opening].lstrip().startswith("/**"):
                yield path, index + 1, "no /** doc block right above"


def unfinished_words(tree):
    words = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3]) + r")\b")
    for path in tree.paths():
        for number, line in tree.lines(path):
            match = words.search(line)
            if match:
                yield path, number, f"{match.group(1)}: unfinished business lives in issues"


# Words of our own, as whole words or parts of names, and what of the field's words to say.
REPLACED_WORDS = {
    "shelf|shelves": "offload store",
    "trays?": "staging buffer",
    "rungs?|ladder": "I/O backend, fallback order",
    "dealt|dealing": "striped, striping",
    "parks?|parked|parking": "evict, keep",
    "announce[sd]?|announcing|announcement": "predict, speculative step",
    "drafts?|drafted|drafting|judgement|presume[sd]?": "speculative update, validate, predict",
}


def replaced_words(tree):
    """The vocabulary of ARCHITECTURE.md, not the words it replaced; what is past may keep them."""
    past = ("docs/decisions/", "CHANGELOG.md", "tests/tidy/", "bench/results/")
    words = {
        re.compile(rf"(?<![A-Za-z0-9])({old})(?![A-Za-z0-9])", re.IGNORECASE): new
        for old, new in REPLACED_WORDS.items()
    }
    for path in tree.paths():
        for number, line in tree.lines(path):
            if path.startswith(past) or "docs/decisions/" in line or "(decisions/" in line:
                continue
            for old, new in words.items():
                match = old.search(line)
                if match:
                    yield path, number, f"{match.group(1)}: say {new}"


def comment_openings(tree):
    """A comment names a thing or says what a function does; a noun clause does neither."""
    clause = re.compile(r"[/*!<\s]*(What|Where|Whether)\b")
    for path in tree.paths(C_SUFFIXES):
        for number, text in tree.comments(path):
            match = clause.match(text)
            if match:
                yield path, number, f"a comment opens with {match.group(1)}: name the thing"


def blanks(tree):
    for path in tree.paths():
        for number, line in tree.lines(path):
            if line != line.rstrip():
                yield path, number, "trailing blank"
            if "\t" in line and path != ".gitmodules":
                yield path, number, "tab"


def final_newline(tree):
    for path in tree.paths():
        text = tree.texts[path]
        if text and (not text.endswith("\n") or text.endswith("\n\n")):
            yield path, text.count("\n") + 1, "must end with exactly one newline"


def machine_paths(tree):
    places = re.compile("(?<![\\w.$}])/(?:" + "|".join(["work", "root", "home/[a-z]+"]) + ")/")
    for path in tree.paths():
        for number, line in tree.lines(path):
            if places.search(line):
                yield path, number, "path of a build machine"


def clang_format(tree):
    try:
        version = subprocess.run(
            ["clang-format", "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        raise Skipped("clang-format is not installed") from None
    major = re.search(r"version (\d+)", version)
    if not major or int(major.group(1)) != CLANG_FORMAT_MAJOR:
        raise Skipped(f"{version.strip()}: the layout is that of version {CLANG_FORMAT_MAJOR}")
    root = tree.root or os.path.dirname(os.path.abspath(__file__)) + "/../.."
    paths = list(tree.paths(C_SUFFIXES))
    if not paths:
        return
    # One run for all of them: most of a run of one file is its beginning.
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(f"{root}/.clang-format", folder)
        for path in paths:
            file = os.path.join(folder, path)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(file, "w", encoding="utf-8") as copy:
                copy.write(tree.texts[path])
        said = subprocess.run(["clang-format", "--dry-run", *paths], capture_output=True,
                              text=True, check=True, cwd=folder).stderr
    told = set()
    for path, line in re.findall(r"^(\S+?):(\d+):\d+: warning", said, re.MULTILINE):
        if path not in told:
            yield path, int(line), "clang-format would change this"
            told.add(path)


# 'test_' + name + '.c' in a meson.build, where name is one of the texts there.
_COMPOSED = re.compile(r"'([\w/]*)' \+ \w+ \+ '([\w/]*\.(?:cu|cpp|c))'")


def _names_source(text, path):
    """Whether a meson.build's text names a source of its folder, in full or composed."""
    if f"'{path}'" in text:
        return True
    for before, after in _COMPOSED.findall(text):
        middle = path[len(before) : len(path) - len(after)]
        if middle and path == before + middle + after and f"'{middle}'" in text:
            return True
    return False


def dead_files(tree):
    """A meson.build names every source, whatever it is that this machine's build compiles."""
    builds = {os.path.dirname(path): tree.texts[path] for path in tree.paths(("meson.build",))}
    for path in tree.paths((".c", ".cu", ".cpp"), ("src/", "tools/", "examples/", "tests/")):
        if not any(
            _names_source(text, os.path.relpath(path, folder or "."))
            for folder, text in builds.items()
        ):
            yield path, 1, "no meson.build names it"
    included = set()
    for path in tree.paths(C_SUFFIXES):
        for match in re.finditer(r'#\s*include\s*[<"]([^>"]+)[>"]', tree.texts[path]):
            included.add(_resolve_include(tree, path, match.group(1)))
    for path in tree.paths((".h", ".cuh"), ("src/", "tools/", "examples/", "tests/")):
        if path not in included:
            yield path, 1, "nothing includes it"


def readme_snippet(tree):
    """README's first C block is hello.c's training step, from zero_micro_begin to zero_step."""
    hello = "examples/01_hello/hello.c"
    lines = tree.texts.get(hello, "").split("\n")
    marks = [i for i, line in enumerate(lines) if re.search(r"zero_(micro_begin|step)\(", line)]
    if len(marks) != 2:
        yield hello, 1, "expected one zero_micro_begin( and one zero_step("
        return
    region = lines[marks[0] : marks[1] + 1]
    indent = len(region[0]) - len(region[0].lstrip())
    expected = "\n".join(line[indent:] for line in region)
    readme = tree.texts.get("README.md", "")
    block = re.search(r"^```c\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    if not block or block.group(1).rstrip("\n") != expected:
        yield "README.md", 1, f"its C block is not {hello}:{marks[0] + 1}-{marks[1] + 1}"


def _snippet(lines):
    """Lines without their common indent; empty ones stay."""
    filled = [line for line in lines if line.strip()]
    indent = min((len(line) - len(line.lstrip()) for line in filled), default=0)
    return "\n".join(line[indent:] for line in lines)


def _strangers_in(text, language, sources):
    """The lines of a page's blocks that are nowhere in the sources."""
    for block in re.finditer(rf"^```{language}\n(.*?)\n```", text, re.DOTALL | re.MULTILINE):
        wanted = block.group(1).split("\n")
        shown = _snippet(wanted)
        runs = (
            _snippet(lines[i : i + len(wanted)])
            for lines in sources
            for i in range(len(lines) - len(wanted) + 1)
        )
        if shown not in runs:
            yield text.count("\n", 0, block.start()) + 2


def doc_snippets(tree):
    """C and C++ in a document are runs of lines of a file in examples/, which are compiled. Python
    in README.md is lines of an example or of a document, which tests run."""
    sources = [tree.texts[p].split("\n") for p in tree.paths(C_SUFFIXES, ("examples/",))]
    pages = [tree.texts[p].split("\n") for p in tree.paths((".md",), ("docs/",))]
    scripts = [tree.texts[p].split("\n") for p in tree.paths((".py",), ("examples/",))]
    for path in tree.paths((".md",), ("docs/",)):
        for line in _strangers_in(tree.texts[path], "c(?:pp)?", sources):
            yield path, line, "this C is nowhere in examples/"
    for line in _strangers_in(tree.texts.get("README.md", ""), "python", scripts + pages):
        yield "README.md", line, "this Python is nowhere in examples/ and docs/"


def guides_readers(tree):
    """A page of docs says first, in italics, for whom it is."""
    for path in tree.paths((".md",), ("docs/",)):
        lines = tree.texts[path].split("\n")
        if path.count("/") == 1 and not (len(lines) > 2 and lines[2].startswith("*For ")):
            yield path, 3, 'it does not begin with "*For ...": its readers'


def decisions_index(tree):
    """docs/decisions.md has each decision once, by its title."""
    index = "docs/decisions.md"
    text = tree.texts.get(index, "")
    listed = re.findall(r"^- \[\d+\]\(decisions/(\S+)\) (.*)$", text, re.MULTILINE)
    texts = dict(listed)
    for path in tree.paths((".md",), ("docs/decisions/",)):
        title = re.match(r"# \d+: (.*)", tree.texts[path])
        if title is None:
            continue
        count = sum(name == os.path.basename(path) for name, _ in listed)
        text = texts.pop(os.path.basename(path), "")
        if count != 1 or not text.lower().startswith(title[1].lower()):
            yield index, 1, f"{path} is not there once, by its title"
    for name in texts:
        yield index, 1, f"{name} is no decision"


def comment_at_top(tree):
    for path in tree.paths((".c", ".cu"), ("src/",)):
        lines = tree.texts[path].split("\n")
        end = next((i for i, line in enumerate(lines) if line.rstrip().endswith("*/")), -1)
        if not lines[0].startswith("/*") or end < 0:
            yield path, 1, "does not open with what it owns"


ACTIONS = {
    "NOTHING": "",
    "GATHER": ": gather",
    "AWAIT": ": await",
    "GATHER_AWAIT": ": gather, await",
    "FREE": ": free",
}


def state_table(tree):
    """ARCHITECTURE.md shows the table of unit states as src/stage3/unit_state.c has it."""
    code = tree.texts.get("src/stage3/unit_state.c", "")
    rows = re.findall(r"\[ZI_UNIT_([A-Z_]+)\] = \{(CELL.*?)\},?\n", code, re.DOTALL)
    words = str.maketrans("_", " ")
    shown = tree.texts.get("ARCHITECTURE.md", "")
    if not rows:
        yield "src/stage3/unit_state.c", 1, "no table of states found"
    for state, cells in rows:
        expected = [state.lower().translate(words)]
        for _, following, action in re.findall(r"CELL\((\w+), (\w+), (\w+)\)", cells):
            following = following.lower().translate(words)
            expected.append("refused" if action == "REFUSE" else following + ACTIONS[action])
        row = "| " + " | ".join(expected) + " |"
        if row not in shown:
            yield "ARCHITECTURE.md", 1, f"its table of unit states lacks the row {row}"


NEEDS = {
    "ZI_NEEDS_NO_UNIT": "no unit is acquired",
    "ZI_NEEDS_GRAPH": "a step was captured",
    "ZI_NEEDS_ROLE": "the role is there",
}


def _list_rows(header, name):
    """{row's name: its two texts and its last argument} of an X-list."""
    found = re.search(r"#define " + name + r"\(X\)(.*?)\n\n", header, re.DOTALL)
    text = found.group(1).replace("\\\n", " ") if found else ""
    rows = re.findall(r'X\((\w+),\s*"([^"]*)",\s*"([^"]*)",\s*([^()]*)\)', text)
    return {row[0]: row[1:] for row in rows}


def engine_rows(header, code):
    """The rows that ARCHITECTURE.md has of an engine's calls, and of its states."""
    states = _list_rows(header, "ZI_ENGINE_STATES")
    calls = _list_rows(header, "ZI_ENGINE_CALLS")
    for text, functions, needs in calls.values():
        wants = [NEEDS[need.strip()] for need in needs.split("|") if need.strip() != "0"]
        yield [text, functions, ", ".join(wants)]
    table = re.findall(r"\n +ROW\((\w+),(.*?)\),(?=\n +ROW\(|\n\};)", code, re.DOTALL)
    for state, cells in table:
        moves = re.findall(r"MOVE\((\w+), (\w+)\)", cells)
        leads = [f"{calls[call][0]}: {states[following][0]}" for call, following in moves]
        stays = [calls[call][0] for call in re.findall(r"STAY\((\w+)\)", cells)]
        yield [states[state][0], "; ".join(leads), ", ".join(stays)]


def engine_table(tree):
    """ARCHITECTURE.md shows the table of engine states as src/engine/engine_state.c has it."""
    source = "src/engine/engine_state.c"
    rows = list(engine_rows(tree.texts.get(source[:-1] + "h", ""), tree.texts.get(source, "")))
    if not rows:
        yield source, 1, "no table of states found"
    for cells in rows:
        row = "| " + " | ".join(cell or "-" for cell in cells) + " |"
        if row not in tree.texts.get("ARCHITECTURE.md", ""):
            yield "ARCHITECTURE.md", 1, f"its table of engine states lacks the row {row}"


def engine_calls(tree):
    """Every public function on an engine has its column in the table of engine states, or is named
    among those that need none."""
    header = tree.texts.get("src/engine/engine_state.h", "")
    for path in tree.paths((".h",), ("include/",)):
        calls = re.finditer(r"(zero_\w+)\((?:const )?zero_engine \*engine\b", tree.texts[path])
        for match in calls:
            if not re.search(rf"\b{match.group(1)}\b", header):
                line = tree.texts[path].count("\n", 0, match.start()) + 1
                yield path, line, f"{match.group(1)} has no place in src/engine/engine_state.h"


def _definitions(tree, path):
    """Names with external linkage that a file of C defines, and inline functions of a header."""
    lines = tree.code(path).split("\n")
    for first, last in functions(tree, path):
        head = " ".join(lines[first - 1 : last]).split("{")[0]
        name = re.search(r"\b(z(?:i|ero)_\w+)\s*\(", head)
        if name and (path.endswith(".h") or not head.lstrip().startswith("static")):
            yield name.group(1)
    for line in lines:
        table = re.match(r"(?!static|extern|typedef)[a-z][\w *]*\b(z\w+)(?:\[.*\])? = ", line)
        if table:
            yield table.group(1)


def _calling_code(tree, path):
    """Where a file uses what others define: all of a source; of its header the inline functions.
    A header of several files has no place in their order."""
    stem, suffix = os.path.splitext(path)
    if suffix not in (".h", ".cuh"):
        return tree.code(path)
    if not {stem + ".c", stem + ".cu"} & tree.texts.keys():
        return ""
    lines = tree.code(path).split("\n")
    return "\n".join("\n".join(lines[a - 1 : b]) for a, b in functions(tree, path))


def _calls_between(tree, paths):
    """{file without suffix: those of the same folder that it uses}; a header goes with its file."""
    owners = {}
    for path in paths:
        for name in _definitions(tree, path):
            owners.setdefault(name, set()).add(os.path.splitext(path)[0])
    calls = {}
    for path in paths:
        user = os.path.splitext(path)[0]
        words = set(re.findall(r"\w+", _calling_code(tree, path)))
        used = set().union(*(owners[word] for word in words & owners.keys()))
        calls.setdefault(user, set()).update(used - {user})
    return calls


def _reached(calls, start):
    found, left = set(), list(calls[start])
    while left:
        file = left.pop()
        if file not in found:
            found.add(file)
            left += calls.get(file, ())
    return found


def file_cycles(tree):
    """Files of a folder stand in an order: none uses another that uses it, by whatever way."""
    folders = {}
    for path in tree.paths(C_SUFFIXES, ("src/",)):
        if not path.endswith("_none.c"):  # a stub, built in place of the others
            folders.setdefault(os.path.dirname(path), []).append(path)
    for folder, paths in folders.items():
        calls = _calls_between(tree, paths)
        cycle = sorted(file for file in calls if file in _reached(calls, file))
        names = ", ".join(os.path.basename(file) for file in cycle)
        if cycle:
            yield cycle[0], 1, f"files of {folder} use one another in a cycle: {names}"


def statics_of_one_file(tree):
    """A static function of the library has a name that no other file has, so that a backtrace
    without files says which it is. Files of an X-list paste theirs, and have others."""
    owners = {}
    for path in tree.paths(C_SUFFIXES, ("src/",)):
        pattern = r"^static (?!__global__)(?:inline )?(?:const )?[\w\s*]+?\b\*?([a-z]\w*)\("
        for match in re.finditer(pattern, tree.code(path), re.MULTILINE):
            line = tree.code(path).count("\n", 0, match.start()) + 1
            owners.setdefault(match.group(1), {}).setdefault(path, line)
    for name, lines in sorted(owners.items()):
        for path, line in sorted(lines.items())[1:]:
            if not name.startswith("zi_"):
                yield path, line, f"{name} is a static function of {sorted(lines)[0]} too"


def experimental_headers(tree):
    """A header is experimental where it says so and where docs/stability.md does."""
    page = tree.texts.get("docs/stability.md", "")
    listed = set(re.findall(r"^\| \[(zero/\w+\.h)\]", page, re.MULTILINE))
    for path in tree.paths((".h",), ("include/zero/",)):
        says = "Experimental: " in tree.texts[path].split("#ifndef")[0]
        if says != (path.removeprefix("include/") in listed):
            told = "says" if says else "does not say"
            yield path, 1, f"{told} that it is experimental, unlike docs/stability.md"


CHECKS = [
    include_arrows,
    function_length,
    file_length,
    line_length,
    banned_calls,
    unique_names,
    stage_in_one_file,
    capabilities_not_names,
    documented_api,
    unfinished_words,
    replaced_words,
    comment_openings,
    blanks,
    final_newline,
    machine_paths,
    clang_format,
    dead_files,
    readme_snippet,
    doc_snippets,
    guides_readers,
    decisions_index,
    comment_at_top,
    state_table,
    engine_table,
    engine_calls,
    experimental_headers,
    statics_of_one_file,
    file_cycles,
]

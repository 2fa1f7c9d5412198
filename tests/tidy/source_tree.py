"""The repository as the tidy checks see it: texts by path, C comments and strings blanked."""

import os
import re
import subprocess

C_SUFFIXES = (".c", ".h", ".cu", ".cuh", ".cpp", ".hpp")
TEXT_SUFFIXES = C_SUFFIXES + (".py", ".md", ".build", ".txt", ".map", ".sh", ".in")
TEXT_NAMES = ("meson.build", ".editorconfig", ".clang-format", ".gitignore", "Doxyfile")

# Comments, string and character constants, in one pass so that none hides in another.
_HIDDEN = re.compile(
    r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL
)


def blank_out(text):
    """Text of the same lines and columns with comments and the inside of constants blanked."""

    def blank(match):
        found = match.group(0)
        keep = found[0] if found[0] in "\"'" else ""
        inside = found[len(keep) : len(found) - len(keep)]
        return keep + re.sub(r"[^\n]", " ", inside) + keep

    return _HIDDEN.sub(blank, text)


class SourceTree:
    """Texts by path, relative to `root` (None for a tree made up by a self-test)."""

    def __init__(self, texts, root=None):
        self.texts = texts
        self.root = root
        self._code = {}

    def paths(self, suffixes=None, under=("",)):
        return [
            path
            for path in sorted(self.texts)
            if path.startswith(tuple(under)) and (suffixes is None or path.endswith(suffixes))
        ]

    def code(self, path):
        if path not in self._code:
            self._code[path] = blank_out(self.texts[path])
        return self._code[path]

    def code_lines(self, path):
        return enumerate(self.code(path).split("\n"), start=1)

    def comments(self, path):
        """(line, text) of each comment of a file of C."""
        text = self.texts[path]
        for match in _HIDDEN.finditer(text):
            if match.group(0)[0] == "/":
                yield text.count("\n", 0, match.start()) + 1, match.group(0)

    def lines(self, path):
        return enumerate(self.texts.get(path, "").split("\n"), start=1)


def _known_to_git(root):
    """Nothing where there is no git, or no repository: an unpacked archive."""
    try:
        git = subprocess.run(
            ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        return set()
    return set(git.stdout.decode().split("\0")) - {""} if git.returncode == 0 else set()


def _list_files(root):
    known = _known_to_git(root)
    if known:
        return sorted(known)
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith((".git", "build")) and f != "data"]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(found)


def _is_text(path):
    name = os.path.basename(path)
    return (
        path.endswith(TEXT_SUFFIXES)
        or name in TEXT_NAMES
        or path.startswith(("scripts/", ".ci/"))
        and "." not in name
    )


def read_tree(root):
    root = os.path.realpath(root)
    texts = {}
    for path in _list_files(root):
        full = os.path.join(root, path)
        if _is_text(path) and os.path.isfile(full):
            with open(full, encoding="utf-8") as file:
                texts[path] = file.read()
    return SourceTree(texts, root)

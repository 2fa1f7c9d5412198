#!/usr/bin/env python3
"""scripts/page_checks.py: marks in pages become scripts, and wrong marks are found.

Usage: test_page_checks.py SCRIPTS. The last line is "N passed, N failed, N skipped"."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from each_test import expect, expect_equal, run_tests  # noqa: E402

SCRIPTS = sys.argv[1]
sys.path.insert(0, SCRIPTS)
import page_checks  # noqa: E402

PAGE = """# A page

<!-- strangers: build files=a.c:src/a.c then='echo "$WORD" > said' -->
```sh
export WORD=one
cp a.c b.c    # a comment
```

<!-- strangers: - nobody runs this one -->
```sh
false
```

<!-- strangers: build in='other folder' as=made.txt then='cat made.txt' -->
```cmake
$(false) 'as it is' \\
```

```c
return 0;
```

<!-- strangers: use after=build -->
```sh
test "$WORD" = one && test -e ~/build/said
```
"""


def wrong_of(text):
    checks, wrong = page_checks.read_pages({"page.md": text})
    return wrong + list(page_checks.faults(checks, lambda path: path == "src/a.c"))


def test_the_repositorys_pages_are_marked_well(_folder):
    done = subprocess.run([sys.executable, f"{SCRIPTS}/page_checks.py", "--marks"],
                          capture_output=True, text=True, check=False)
    expect_equal((done.returncode, done.stderr), (0, ""), "--marks")


def test_the_repositorys_checks_begin_with_a_bare_system(_folder):
    done = subprocess.run([sys.executable, f"{SCRIPTS}/page_checks.py", "--list"],
                          capture_output=True, text=True, check=True)
    seen = {"-"}
    for line in done.stdout.splitlines():
        name, after, _page = line.split()
        expect(after in seen, f"{name} comes before {after}")
        seen.add(name)
    for name in ("embed", "find-package", "cpp", "python", "uninstall"):
        expect(name in seen, f"there is no check {name}")


def run_script(folder, checks, name):
    return subprocess.run(["bash", "-c", page_checks.script_of(checks[name])], text=True,
                          env={**os.environ, "HOME": folder}, capture_output=True, check=False)


def test_blocks_run_as_they_stand(folder):
    checks, wrong = page_checks.read_pages({"page.md": PAGE})
    expect_equal(wrong, [], "nothing is wrong")
    os.makedirs(f"{folder}/libzero/src")
    with open(f"{folder}/libzero/src/a.c", "w", encoding="utf-8") as file:
        file.write("text")
    done = run_script(folder, checks, "build")
    expect_equal(done.returncode, 0, done.stderr)
    for path, text in (("build/b.c", "text"), ("build/said", "one\n"),
                       ("other folder/made.txt", "$(false) 'as it is' \\\n")):
        with open(f"{folder}/{path}", encoding="utf-8") as file:
            expect_equal(file.read(), text, path)
    done = run_script(folder, checks, "use")
    expect_equal(done.returncode, 0, f"what build exported is there: {done.stderr}")


def test_a_line_that_fails_ends_the_check(folder):
    for lines in ("false\ntouch after", "false | true\ntouch after"):
        checks, _wrong = page_checks.read_pages(
            {"page.md": f"<!-- strangers: one -->\n```sh\n{lines}\n```\n"})
        expect(run_script(folder, checks, "one").returncode != 0, f"{lines} passed")
        expect(not os.path.exists(f"{folder}/one/after"), f"{lines} went on")


def test_what_shows_success_may_fail(folder):
    checks, _wrong = page_checks.read_pages(
        {"page.md": "<!-- strangers: one then='test -e made' -->\n```sh\ntrue\n```\n"})
    expect(run_script(folder, checks, "one").returncode != 0, "then was not looked at")


def test_wrong_marks_are_named(_folder):
    block = "```sh\ntrue\n```\n"
    for text, said in (
            (f"<!-- strangers: one -->\n{block}\n{block}", "page.md:6: this block of sh has no"),
            (f"<!-- strangers: one then='true; ! true' -->\n{block}", "cannot fail"),
            (f"<!-- strangers: one -->\n\n{block}", "right above a block"),
            (f"<!-- strangers: one colour=red -->\n{block}", "colour is not one of"),
            (f"<!-- strangers: -->\n{block}", "right above a block"),
            (f"<!-- strangers: - -->\n{block}", "and a reason"),
            (f"<!-- strangers: one after=two -->\n{block}", "one is after two, which is no check"),
            (f"<!-- strangers: one after=one -->\n{block}", "one is after itself"),
            (f"<!-- strangers: one files=b:src/b.c -->\n{block}", '"b:src/b.c", which is not in'),
            (f"<!-- strangers: one -->\n{block}<!-- strangers: one after=two -->\n{block}",
             "after belongs to the first block")):
        wrong = wrong_of(text)
        expect(any(said in line for line in wrong), f"{text!r}: no \"{said}\" in {wrong}")


if __name__ == "__main__":
    sys.exit(run_tests(globals()))

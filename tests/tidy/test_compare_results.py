"""scripts/compare_results.py: rows that moved, what it refuses, and the page of bench/results."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

counts = {True: 0, False: 0}


def check(name, holds, seen=""):
    counts[bool(holds)] += 1
    print(f"{'ok     ' if holds else 'FAILED '} {name}" + ("" if holds else f": {seen}"))


def report(rows, date="2026-01-01", cpu="some"):
    results = [{"metric": metric, "case": "a case", "value": value, "unit": "ms", "reference": 10.0,
                "ratio": 10.0 / value, "min": value * 0.99, "max": value * 1.01, "repetitions": 7}
               for metric, value in rows.items()]
    return {"machine": {"cpu": cpu, "cpu_model": "1", "cores": 2}, "date": date + "T00:00:00Z",
            "results": results}


def run(script, *words):
    return subprocess.run([sys.executable, script, *map(str, words)], capture_output=True,
                          text=True, timeout=30, check=False)


def main():
    root = Path(sys.argv[1])
    script = root / "scripts" / "compare_results.py"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {"before": report({"same": 10.0, "faster": 10.0, "slower": 10.0, "gone": 1.0}),
                 "after": report({"same": 10.1, "faster": 9.0, "slower": 11.0, "new": 1.0},
                                 "2026-01-02"),
                 "better": report({"faster": 9.0}),
                 "elsewhere": report({"same": 10.0}, cpu="other")}
        for stem, content in files.items():
            (folder / f"{stem}.json").write_text(json.dumps(content), encoding="utf-8")
        before = folder / "before.json"
        done = run(script, before, folder / "after.json")
        words = {line.split()[0]: line.split()[-1] for line in done.stdout.splitlines()}
        check("rows that moved are named", words["faster"] == "better" and
              words["slower"] == "worse", done.stdout)
        check("ranges that overlap have not moved", words["same"].endswith(")"), done.stdout)
        check("rows of one report are counted", "1 only before, 1 only after" in done.stdout,
              done.stdout)
        check("a worse row is status 1", done.returncode == 1, done.returncode)
        check("else it is 0", run(script, before, folder / "better.json").returncode == 0)
        check("another machine is said", "Of two machines" in
              run(script, before, folder / "elsewhere.json").stdout)
        (folder / "other.json").write_text("{}", encoding="utf-8")
        done = run(script, before, folder / "other.json")
        check("another JSON is refused by name",
              done.returncode == 2 and "other.json" in done.stderr, done.stderr)
        check("two files or a page", run(script, before).returncode == 2)
        text = run(script, "--page", folder).stdout
        check("a row of two days is on the page", "`same` | a case | 2026-01-01" in text and
              "2026-01-02" in text and "`gone`" not in text, text)
        (folder / "page.md").write_text(text + "x", encoding="utf-8")
        check("another page is told",
              run(script, "--page", folder, "--check", folder / "page.md").returncode == 1)
    bench = root / "bench"
    done = run(script, "--page", bench / "results", "--check", bench / "over-time.md")
    check("the page is that of bench/results", done.returncode == 0, done.stderr)
    print(f"{counts[True]} passed, {counts[False]} failed, 0 skipped")
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""What earlier versions have written is read by today's: values, sums, traces and reports.

Usage: test_golden.py GOLDEN_RUN ZERO GOLDEN_SEAL

The last line is "N passed, N failed, N skipped"."""

import json
import os
import shutil
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from each_test import expect, expect_equal, run_tests  # noqa: E402
from golden import (HERE, REPORTS, VALUES, hash_of, kept_lines, run,  # noqa: E402
                    saved_runs, summed_up, versions)

PROGRAM, ZERO, SEAL = sys.argv[1:4]
# Ranks and stages to load at, and whether state is on disk.
WORLDS = [(1, 0, False), (2, 3, True), (4, 1, False), (3, 2, False)]
LATER = 9  # of a format, that nobody has written yet


def copied(folder, scratch):
    return shutil.copytree(folder, os.path.join(scratch, "copy"))


def newest(run_folder):
    (name,) = [name for name in os.listdir(run_folder) if name.startswith("step-")]
    return os.path.join(run_folder, name)


# ---- checkpoints ----


def test_there_is_a_folder_for_this_version(_folder):
    version = run(ZERO, "--version").split()[1]
    expect(version in versions(), f"tests/golden has no files of {version}: run tests/golden/"
                                  f"make.py {PROGRAM} {ZERO}, and commit them")
    for version in versions():
        names = [name for at, name, _ in saved_runs() if at == version]
        expect(len(names) >= 5, f"{version} has {names} alone")


def test_values_at_other_ranks_and_stages(scratch):
    for version, name, folder in saved_runs():
        kept = kept_lines(folder)
        expect(len(kept) > 25, f"{folder}/{VALUES} has {len(kept)} lines")
        for ranks, stage, disk in WORLDS:
            said = run(PROGRAM, "read", name, folder, str(ranks), str(stage),
                       scratch if disk else "-")
            lines = summed_up(said, name.startswith("weights"))
            for mine, theirs in zip(lines, kept):
                expect_equal(mine, theirs, f"{version} {name}, {ranks} ranks at stage {stage}")
            expect_equal(len(lines), len(kept), f"lines of {version} {name}")


def widened(dtype, data):
    """Elements as the bits of fp32, in hexadecimal digits."""
    if dtype == "F32":
        return [f"{word[0]:08x}" for word in struct.iter_unpack("<I", data)]
    if dtype == "BF16":
        return [f"{word[0] << 16:08x}" for word in struct.iter_unpack("<H", data)]
    expect_equal(dtype, "F16", "the type of a golden file")
    return [struct.pack(">f", word[0]).hex() for word in struct.iter_unpack("<e", data)]


def tensors_of(path):
    """(name, elements) of a safetensors file."""
    with open(path, "rb") as file:
        text = file.read()
    (length,) = struct.unpack("<Q", text[:8])
    for name, about in json.loads(text[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = about["data_offsets"]
            yield name, widened(about["dtype"], text[8 + length + begin:8 + length + end])


def test_files_have_these_values_for_other_readers(_folder):
    """Of models in one part: boxes of others are joined by the library."""
    compared = 0
    for version, name, folder in saved_runs():
        kept = {tuple(line.split()[:2]): line.split()[-1] for line in kept_lines(folder)}
        for role in ("param", "master", "moment1", "moment2"):
            path = os.path.join(newest(folder), f"{role}.safetensors")
            for tensor, words in tensors_of(path) if os.path.exists(path) else ():
                expect_equal(hash_of(words), kept[tensor, role], f"{version} {name} {tensor}")
                compared += 1
    expect(compared >= 100 * len(versions()), f"{compared} tensors were compared")


def test_sums_hold_and_find_damage(scratch):
    for version, name, folder in saved_runs():
        run(ZERO, "ckpt", "verify", folder)
        copy = copied(folder, scratch)
        place = newest(copy)
        file = next(f for f in sorted(os.listdir(place)) if f.endswith("param.safetensors"))
        with open(os.path.join(place, file), "r+b") as data:
            data.seek(4096)
            byte = data.read(1)[0]
            data.seek(4096)
            data.write(bytes([byte ^ 1]))
        said = run(ZERO, "ckpt", "verify", copy, refused=True)
        expect(file in said, f"{version} {name}, with a wrong bit in {file}: {said}")
        shutil.rmtree(copy)


def test_a_later_format_is_refused_by_its_version(scratch):
    for version, name, folder in saved_runs():
        copy = copied(folder, scratch)
        path = os.path.join(newest(copy), "manifest.json")
        with open(path, "rb") as file:
            text = file.read()
        later = text.replace(b'\n"version": 1,' if b'\n"version": 1,' in text[:60]
                             else b'\n"version": 2,', b'\n"version": %d,' % LATER, 1)
        expect(later != text, f"{path} has no version")
        with open(path, "wb") as file:
            file.write(later)
        run(SEAL, path)
        place = newest(copy)
        for said in (run(PROGRAM, "read", name, place, "2", "1", "-", refused=True),
                     run(ZERO, "ckpt", "verify", place, refused=True)):
            expect(f"version {LATER}" in said, f"{version} {name} as version {LATER}: {said}")
        shutil.rmtree(copy)


# ---- traces ----


def traced():
    for version in versions():
        yield version, os.path.join(HERE, version, "traced")


def files_of(folder, kind):
    return [os.path.join(folder, f"{kind}.{rank}.json") for rank in (0, 1)]


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def test_a_later_timeline_is_refused_by_its_version(scratch):
    for version, folder in traced():
        path = os.path.join(scratch, "later.json")
        trace = read_json(files_of(folder, "timeline")[0])
        trace["otherData"]["version"] = LATER
        with open(path, "w", encoding="utf-8") as file:
            json.dump(trace, file)
        said = run(ZERO, "trace", "summary", path, refused=True)
        expect(f"version {LATER}" in said, f"{version}'s timeline as version {LATER}: {said}")


def expect_kept(mine, kept, where):
    """All that was said is said; more may be."""
    if isinstance(kept, dict):
        for key, value in kept.items():
            expect(key in mine, f"{where} lacks {key}")
            expect_kept(mine[key], value, f"{where}.{key}")
    elif isinstance(kept, list):
        expect_equal(len(mine), len(kept), where)
        for i, value in enumerate(kept):
            expect_kept(mine[i], value, f"{where}[{i}]")
    else:
        expect_equal(mine, kept, where)


def test_traces_say_the_same(_folder):
    for version, folder in traced():
        for command, kind in (("summary", "timeline"), ("hang", "collectives")):
            kept = read_json(os.path.join(folder, f"{command}.json"))
            said = json.loads(run(ZERO, "trace", command, *files_of(folder, kind), "--json", "-"))
            expect_kept(said, kept, f"{version} {command}")
            expect(kept["findings" if command == "hang" else "steps"], f"{version}: nothing found")


def test_timelines_are_merged(scratch):
    for version, folder in traced():
        out = os.path.join(scratch, f"{version}.json")
        files = files_of(folder, "timeline")
        run(ZERO, "trace", "merge", out, *files)

        def spans(path):
            return [event for event in read_json(path)["traceEvents"] if event["ph"] == "X"]

        merged = spans(out)
        expect_equal(len(merged), sum(len(spans(path)) for path in files), f"{version}: spans")
        expect_equal(len({event["pid"] for event in merged}), 2, f"{version}: ranks")


def test_later_collectives_are_refused_by_their_version(scratch):
    for version, folder in traced():
        files = files_of(folder, "collectives")
        later = read_json(files[1])
        later["version"] = LATER
        path = os.path.join(scratch, "later.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(later, file)
        said = run(ZERO, "trace", "hang", files[0], path, refused=True)
        expect(f"version {LATER}" in said, f"{version}: {said}")


# ---- reports ----


def expect_shape(mine, kept, where):
    """All members are there, and of their types. Figures may become better."""
    expect(isinstance(mine, type(kept)) or {type(mine), type(kept)} <= {int, float},
           f"{where} is {mine!r}, and was {kept!r}")
    if isinstance(kept, dict):
        for key, value in kept.items():
            expect(key in mine, f"{where} lacks {key}")
            expect_shape(mine[key], value, f"{where}.{key}")
    elif isinstance(kept, list) and kept:
        expect(mine, f"{where} is empty")
        expect_shape(mine[0], kept[0], f"{where}[0]")


def test_reports_keep_their_members(_folder):
    for name, words in REPORTS.items():
        said = json.loads(run(ZERO, *words, "--json", "-"))
        for version in versions():
            kept = read_json(os.path.join(HERE, version, f"{name}.json"))
            expect_shape(said, kept, f"{version} {name}")


def test_clusters_are_read(scratch):
    """A cluster's fields in a report are those of a file of a cluster."""
    for version in versions():
        kept = read_json(os.path.join(HERE, version, "plan.json"))["cluster"]
        fields = {key: value for key, value in kept.items() if key != "name"}
        path = os.path.join(scratch, f"{version}.json")
        with open(path, "w", encoding="ascii") as file:
            json.dump(fields, file)
        said = json.loads(run(ZERO, "plan", "gpt2", path, "--json", "-"))
        expect_kept(said["cluster"], fields, f"{version} cluster")


if __name__ == "__main__":
    sys.exit(run_tests(globals()))

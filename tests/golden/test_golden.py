#!/usr/bin/env python3
"""What earlier versions have written is read by today's: values, sums, traces and reports.

Usage: test_golden.py GOLDEN_RUN ZERO GOLDEN_SEAL

The last line is "N passed, N failed, N skipped"."""

import importlib.util
import json
import math
import os
import re
import shutil
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from each_test import Skip, expect, expect_equal, run_tests  # noqa: E402
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


# Of the types in a file of safetensors.
ELEMENTS = {"F32": "<I", "BF16": "<H", "F16": "<e", "U16": "<h", "U8": "<B", "I8": "<b"}
# What codes of a kind are multiplied with, beside their block's scale.
CODES = {"i8": 127, "companded8": 29.5, "u8root": 255**2}


def rounded(value):
    """To fp32: a product or quotient of two such is rounded once by this."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def expanded(code):
    """Steps of a companded code: a sign, and the upper bits of an fp32 number from 2 on."""
    (level,) = struct.unpack("<f", struct.pack("<I", 0x40000000 | (code & 0x7F) << 18))
    return math.copysign(level - 2, -1 if code & 0x80 else 1)


def decoded(kind, codes, scales):
    for i, code in enumerate(codes):
        (scale,) = struct.unpack("<f", struct.pack("<I", scales[i // 32] << 16))
        steps = {"i8": float, "companded8": expanded, "u8root": lambda q: q * q}[kind](code)
        yield struct.pack(">f", steps * rounded(scale / CODES[kind])).hex()


def joined(kind, rests, params):
    for rest, param in zip(rests, params):
        if kind == "remainder8":
            rest = (rest - (rest >> 7 << 8)) << 8
        rest = 0 if rest < 0 and param & 0x7FFF == 0 else rest
        yield f"{(param << 16) + rest & 0xFFFFFFFF:08x}"


def widened(kind, elements, others):
    """Elements as the bits of fp32, in hexadecimal digits; others: the scales of codes, the
    parameters of remainders."""
    if kind in CODES:
        return list(decoded(kind, elements, others))
    if kind in ("remainder16", "remainder8"):
        return list(joined(kind, elements, others))
    return [{"f32": lambda word: f"{word:08x}", "bf16": lambda word: f"{word << 16:08x}",
             "f16": lambda value: struct.pack(">f", value).hex()}[kind](word)
            for word in elements]


def tensors_of(place, role):
    """{name: elements} of a role's file, which may not be there."""
    path = os.path.join(place, f"{role}.safetensors")
    if not os.path.exists(path):
        return {}
    with open(path, "rb") as file:
        text = file.read()
    (length,) = struct.unpack("<Q", text[:8])
    tensors = {}
    for name, about in json.loads(text[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + at for at in about["data_offsets"])
            tensors[name] = [word for (word,) in struct.iter_unpack(ELEMENTS[about["dtype"]],
                                                                    text[begin:end])]
    return tensors


def test_files_have_these_values_for_other_readers(_folder):
    """Of models in one part: boxes of others are joined by the library."""
    compared = 0
    for version, name, folder in saved_runs():
        kept = {tuple(line.split()[:2]): line.split()[-1] for line in kept_lines(folder)}
        place = newest(folder)
        kinds = {(tensor["name"], role): where[0]
                 for tensor in read_json(os.path.join(place, "manifest.json"))["tensors"]
                 for role, where in tensor["places"].items()}
        for role, other in (("param", ""), ("master", "param"), ("moment1", "scale1"),
                            ("moment2", "scale2")):
            others = tensors_of(place, other)
            for tensor, elements in tensors_of(place, role).items():
                beside = others.get(tensor + ".scale" * other.startswith("scale"))
                words = widened(kinds[tensor, role], elements, beside)
                expect_equal(hash_of(words), kept[tensor, role], f"{version} {name} {tensor}")
                compared += 1
    expect(compared >= 100 * len(versions()), f"{compared} tensors were compared")


def test_the_page_s_lines_read_small_states(_folder):
    """docs/checkpoint-format.md has lines that do so with numpy alone."""
    if importlib.util.find_spec("numpy") is None:
        raise Skip("Python has no numpy here")
    with open(os.path.join(HERE, "../../docs/checkpoint-format.md"), encoding="utf-8") as page:
        (lines,) = re.findall(r"```python\n(.*?)```", page.read(), re.DOTALL)
    given = {}
    exec(lines, given)
    compared = 0
    for version, name, folder in saved_runs():
        place = newest(folder)
        files = {role: given["read"](os.path.join(place, f"{role}.safetensors"))
                 for role in ("param", "master", "moment1", "moment2", "scale1", "scale2")
                 if os.path.exists(os.path.join(place, f"{role}.safetensors"))}
        kept = {tuple(line.split()[:2]): line.split()[-1] for line in kept_lines(folder)}
        for tensor in read_json(os.path.join(place, "manifest.json"))["tensors"]:
            own, kinds = tensor["name"], {role: at[0] for role, at in tensor["places"].items()}
            values = {role: given["moment"](files[role][own], files[scale][own + ".scale"],
                                            kinds[role])
                      for role, scale in (("moment1", "scale1"), ("moment2", "scale2"))
                      if scale in kinds}
            if kinds.get("master", "").startswith("remainder"):
                values["master"] = given["master"](files["param"][own], files["master"][own])
            for role, array in values.items():
                words = [f"{word:08x}" for word in array.reshape(-1).view("u4").tolist()]
                expect_equal(hash_of(words), kept[own, role], f"{version} {name} {own}")
                compared += 1
    expect(compared >= 30, f"{compared} tensors were compared")


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
        later = re.sub(rb'\n"version": [123],', b'\n"version": %d,' % LATER, text, count=1)
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

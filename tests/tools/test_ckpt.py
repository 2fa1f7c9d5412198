#!/usr/bin/env python3
"""Has `zero ckpt` list, check, compare and convert checkpoints that are whole, torn, damaged and
hostile. What it writes is read again here, by a reader of safetensors that knows nothing of ours.

Usage: test_ckpt.py ZERO WRITE_CHECKPOINT

The last line is "N passed, N failed, N skipped"."""

import fcntl
import json
import os
import pty
import random
import re
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ckpt_rig import (BYTES, COLUMNS, ZERO, done, expect_located, flip, make,  # noqa: E402
                      read_tensors, refused, run, tensor_at)
from each_test import expect, expect_equal, run_tests  # noqa: E402

COMMANDS = ("ls", "show", "verify", "diff", "export", "import", "prune", "reshard")


def write_tensors(path, tensors):
    header = {}
    at = 0
    for name, (kind, shape, values) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(values)]}
        at += len(values)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def some_tensors(seed=3):
    """Weights of all types that there are, one empty, one of several pieces."""
    rng = random.Random(seed)
    shapes = {"wte": ("F32", [300, 1000]), "h.0.attn": ("BF16", [33, 7]), "ln \"é\"": ("F16", [5]),
              "scale": ("F32", []), "empty": ("BF16", [0, 4])}
    tensors = {}
    for name, (kind, shape) in shapes.items():
        count = 1
        for extent in shape:
            count *= extent
        tensors[name] = (kind, shape, rng.randbytes(count * BYTES[kind]))
    return tensors


def widened(kind, values):
    """Elements as bits of fp32."""
    if kind == "F32":
        return list(struct.unpack(f"<{len(values) // 4}I", values))
    halves = struct.unpack(f"<{len(values) // 2}H", values)
    if kind == "BF16":
        return [half << 16 for half in halves]
    floats = struct.unpack(f"<{len(values) // 2}e", values)
    return list(struct.unpack(f"<{len(floats)}I", struct.pack(f"<{len(floats)}f", *floats)))


def to_bf16(bits):
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16


# ---- the line ----


def test_help(_):
    text = done("--help")
    for command in COMMANDS:
        expect(re.search(rf"^  {command} ", text, re.MULTILINE), f"{command} is not in: {text}")
        own = done(command, "--help")
        expect(own.startswith(f"usage: zero ckpt {command} "), own)
        text += own
    expect_equal([row for row in text.split("\n") if len(row) > COLUMNS], [], "too wide")
    expect("ckpt" in subprocess.run([ZERO, "--help"], capture_output=True, text=True,
                                    check=True).stdout, "zero --help lacks it")


def test_lines_that_are_refused(folder):
    path = make(folder, "a")
    expect('did you mean "verify"?' in refused(1, "verfiy", path), "no suggestion")
    expect('did you mean "--tensors"?' in refused(1, "show", "--tensor-s", path), "no suggestion")
    expect("zero ckpt --help" in refused(1), "no help")
    expect("CKPT" in refused(1, "show"), "which words?")
    expect("one word too many" in refused(1, "show", path, "b"), "a word too many")
    expect("A B" in refused(2, "diff", path), "a refused line is no difference")
    expect("in [1, 65536]" in refused(1, "reshard", path, folder + "/b", "--world", "0"), "bounds")
    expect("--world N" in refused(1, "reshard", path, folder + "/b"), "it is needed")
    expect("--keep N" in refused(1, "prune", folder), "it is needed")
    expect("f32, bf16 or f16" in refused(1, "export", path, folder, "--dtype", "f64"), "types")
    expect("param, master or best" in refused(1, "export", path, folder, "--role", "grad"), "roles")
    expect("[1, 4G]" in refused(1, "export", path, folder, "--shard-bytes", "5G"), "bytes")
    missing = os.path.join(folder, "no such run")
    for command in ("ls", "show", "verify"):
        expect(missing in refused(1, command, missing), f"{command} does not name it")
    expect(missing in refused(2, "diff", path, missing), "diff does not name it")


# ---- ls, show, prune ----


def test_ls(folder):
    run_folder = os.path.join(folder, "run")
    expect(folder in refused(1, "ls", run_folder), "a directory that is not there")
    os.mkdir(run_folder)
    expect("no checkpoint" in done("ls", run_folder), "an empty directory")
    make(folder, "step-00000010")
    damaged = make(folder, "step-00000011", step=11)
    make(folder, "step-00000020", world=3, step=20)
    flip(os.path.join(damaged, "manifest.json"), 40)
    shutil.copytree(damaged, run_folder + "/step-00000030.part")
    os.mkdir(run_folder + "/logs")
    os.symlink("step-00000010", run_folder + "/link")
    text = done("ls", run_folder)
    rows = text.strip().split("\n")
    expect_equal([row.split()[0] for row in rows],
                 ["name", "step-00000010", "step-00000020", "step-00000011", "step-00000030.part"],
                 "rows")
    expect_equal([row.split()[-1] == "latest" for row in rows], [False, False, True, False, False],
                 "latest")
    for row in rows[3:]:
        expect(" torn: " in row, row)
    expect_equal([row for row in rows[:3] if len(row) > COLUMNS], [], "too wide")
    listed = json.loads(done("ls", run_folder, "--json", "-"))
    expect_equal([(row["name"], row["step"], row["world"], row["latest"])
                  for row in listed["checkpoints"]],
                 [("step-00000010", 10, 2, False), ("step-00000020", 20, 3, True)], "JSON")
    size = sum(entry.stat().st_size for entry in os.scandir(run_folder + "/step-00000020")
               if entry.name != "manifest.json")
    expect_equal(listed["checkpoints"][1]["bytes"], size, "bytes")
    expect_equal([row["name"] for row in listed["torn"]], ["step-00000011", "step-00000030.part"],
                 "torn")


def test_ls_of_kinds_links_and_lost_files(folder):
    run_folder = os.path.join(folder, "run")
    for step in (1, 2, 3):
        make(folder, f"step-0000000{step}", step=step)
    write_tensors(folder + "/weights.safetensors", some_tensors())
    done("import", folder + "/weights.safetensors", run_folder + "/weights")
    os.rename(run_folder + "/step-00000003", folder + "/archive")
    os.symlink("../archive", run_folder + "/step-00000003")
    os.symlink("../gone", run_folder + "/step-00000004")
    os.unlink(run_folder + "/step-00000002/moment1.safetensors")
    rows = done("ls", run_folder).strip().split("\n")
    expect_equal([row.split()[0] for row in rows],
                 ["name", "step-00000001", "step-00000003", "weights", "step-00000002",
                  "step-00000004"], "rows")
    expect_equal([row.split()[-1] for row in rows[2:4]], ["latest", "weights"], "kinds")
    expect_equal([row for row in rows[:4] if len(row) > COLUMNS], [], "too wide")
    expect("moment1.safetensors is not there" in rows[4], rows[4])
    expect("a link to nothing" in rows[5], rows[5])
    listed = json.loads(done("ls", run_folder, "--json", "-"))
    expect_equal([row["kind"] for row in listed["checkpoints"]], ["full", "full", "weights"],
                 "JSON")
    expect("step-00000003: whole" in done("verify", run_folder), "the newest")
    removed = done("prune", run_folder, "--keep", "1")
    expect_equal(removed, "removed step-00000001\n", "weights do not count")
    os.unlink(folder + "/archive/sums.bin")
    ran = run("show", run_folder)
    expect("weights is taken: " in ran.stderr and "sums.bin is not there" in ran.stderr, ran.stderr)


def test_a_run_that_has_an_owner(folder):
    path = make(folder, "a")
    run_folder = os.path.dirname(path)
    make(folder, "b", step=11)
    lock = run_folder + "/zero-run.lock"
    with open(lock, "w", encoding="utf-8") as file:
        file.write("process 7 on here since now\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        for words in (("prune", run_folder, "--keep", "1"),
                      ("reshard", path, run_folder + "/c", "--world", "3")):
            expect("process 7 on here since now" in refused(1, *words), words)
        expect_equal(sorted(os.listdir(run_folder)), ["a", "b", "latest", "zero-run.lock"], "all")
        done("ls", run_folder)  # readers need no owner
        expect_equal(done("prune", run_folder, "--keep", "1", "--dry-run"), "would remove a\n",
                     "a plan changes nothing")
    done("prune", run_folder, "--keep", "1")
    expect_equal(sorted(os.listdir(run_folder)), ["b", "latest"], "its owner is gone")


def test_show(folder):
    path = make(folder, "step-00000010")
    text = done("show", os.path.join(folder, "run"), "--tensors")
    expect_equal([row for row in text.split("\n") if len(row) > COLUMNS and folder not in row], [],
                 "too wide")
    for word in ("778858", "param.safetensors", "0.0003", "700x1000", "moment1", "frozen"):
        expect(word in text, f"{word} is not in: {text}")
    shown = json.loads(done("show", path, "--tensors", "--json", "-"))
    expect_equal((shown["step"], shown["world"], shown["parameters"], shown["user_bytes"]),
                 (10, 2, 778858, 10), "numbers")
    expect_equal((shown["data_position"], shown["random_position"]),
                 (str(2**64 - 11), str(2**53 + 1)), "the caller's")
    expect_equal([round(group["lr"] * 1e7) for group in shown["hyper_parameters"]],
                 [1000, 2000, 3000], "groups")
    expect_equal({t["name"]: t["types"] for t in shown["tensors"]}["norm.weight"],
                 {"param": "f32", "moment1": "f32", "moment2": "f32"}, "types")
    for file in shown["files"]:
        expect_equal(file["bytes"], os.path.getsize(os.path.join(path, file["name"])), "a file")


def test_a_loss_scale_that_never_changes(folder):
    cases = [("--dynamic", "unchanged for", True), ("--static", "which never changes", False)]
    paths = [make(folder, f"a{scaler}".replace("--", "-"), scaler=scaler) for scaler, _, _ in cases]
    for path, (_, words, dynamic) in zip(paths, cases):
        expect(words in done("show", path), words)
        expect_equal(json.loads(done("show", path, "--json", "-"))["loss_scale_dynamic"], dynamic,
                     "JSON")
    compared = run("diff", paths[1], paths[0]).stdout
    expect(re.search("^loss scale is +static +dynamic$", compared, re.MULTILINE), compared)


def test_manifests_that_are_none(folder):
    path = make(folder, "a")
    manifest = os.path.join(path, "manifest.json")
    os.rename(manifest, os.path.join(folder, "elsewhere"))
    expect(path in refused(1, "show", path), "without a manifest")
    os.symlink(os.path.join(folder, "elsewhere"), manifest)
    expect("manifest.json" in refused(1, "show", path), "a link")
    os.remove(manifest)
    with open(manifest, "w", encoding="utf-8") as file:
        file.write("[" * 100000)
    expect("manifest.json" in refused(1, "verify", path), "no object")
    os.remove(manifest)
    os.mkfifo(manifest)
    expect("manifest.json" in refused(1, "show", path), "a pipe")


def test_files_that_are_links(folder):
    path = make(folder, "a")
    for name in ("param.safetensors", "sums.bin"):
        os.rename(os.path.join(path, name), os.path.join(folder, name))
        os.symlink(os.path.join(folder, name), os.path.join(path, name))
        expect(name in refused(1, "verify", path), name)
        os.replace(os.path.join(folder, name), os.path.join(path, name))
    done("verify", path)


def test_prune(folder):
    run_folder = os.path.join(folder, "run")
    for step in (10, 20, 30):
        make(folder, f"step-{step:08}", step=step)
    for name in ("step-00000015.part", "step-00000016.part", "step-00000040.part"):
        os.mkdir(os.path.join(run_folder, name))
    os.utime(run_folder + "/step-00000015.part", (1000, 1000))  # the others may still be written
    before = sorted(os.listdir(run_folder))
    gone = ["step-00000010", "step-00000015.part"]
    planned = done("prune", run_folder, "--keep", "2", "--dry-run")
    expect_equal(sorted(os.listdir(run_folder)), before, "a dry run")
    removed = done("prune", run_folder, "--keep", "2")
    for name in gone:
        expect(f"would remove {name}\n" in planned and f"removed {name}\n" in removed,
               f"{name}: {planned}{removed}")
    expect_equal(sorted(os.listdir(run_folder)), [name for name in before if name not in gone],
                 "what is left")
    expect("nothing" in done("prune", run_folder, "--keep", "2"), "again")
    done("verify", run_folder)


# ---- verify ----


def test_verify(folder):
    path = make(folder, "a", world=3)
    expect("a: whole" in done("verify", path), "whole")
    sound = os.path.join(folder, "sound")
    shutil.copytree(path, sound)
    size = {name: os.path.getsize(os.path.join(path, name)) for name in os.listdir(path)}
    rng = random.Random(5)
    for name in sorted(size):
        places = [0, 9, size[name] // 2, size[name] - 1, rng.randrange(size[name])]
        for at in places:
            flip(os.path.join(path, name), at, rng.randrange(8))
            text = refused(1, "verify", path)
            expect(name in text, f"{name} at {at}: {text}")
            tensor = tensor_at(os.path.join(sound, name), at)
            if tensor is not None:
                expect_located(text, name, tensor, at)
            shutil.copyfile(os.path.join(sound, name), os.path.join(path, name))
    done("verify", path)
    for name in sorted(size):
        os.truncate(os.path.join(path, name), size[name] - 1)
        expect(name in refused(1, "verify", path), f"{name} is shorter")
        shutil.copyfile(os.path.join(sound, name), os.path.join(path, name))


def test_verify_names_tensors_and_offsets(folder):
    path = make(folder, "a")
    damaged = []
    for role, tensor in (("param", "frozen"), ("master", "scale")):
        file = os.path.join(path, f"{role}.safetensors")
        at = os.path.getsize(file) - 4
        damaged.append((file, tensor_at(file, at), at))
        expect_equal(damaged[-1][1][0], tensor, f"the last of {role}")
        flip(file, at)
    text = refused(1, "verify", path)
    expect_equal(len(text.strip().split("\n")), 2, "a line each")
    for file, tensor, at in damaged:
        expect_located(text, file, tensor, at)
    report = json.loads(run("verify", path, "--json", "-").stdout)
    expect_equal((report["whole"], report["damaged_ranges"], len(report["damaged"])), (False, 2, 2),
                 "JSON")
    for file, tensor, at in damaged:
        expect_located("\n".join(report["damaged"]), file, tensor, at)


def test_verify_names_each_piece(folder):
    path = make(folder, "a", world=3)
    file = os.path.join(path, "moment1.safetensors")
    name, _, begin, end = tensor_at(file, 8192)
    expect_equal((name, end - begin), ("embed", 2800000), "a tensor of several pieces")
    for at in range(begin, end, 123457):
        flip(file, at)
        expect_located(refused(1, "verify", path), file, (name, 4, begin, end), at)
        flip(file, at)
    done("verify", path)


def test_verify_draws_on_terminals_only(folder):
    path = make(folder, "a")
    ran = run("verify", path)
    expect_equal(ran.stderr, "", "no terminal")
    master, slave = pty.openpty()
    with os.fdopen(master, "rb", buffering=0) as screen:
        child = subprocess.Popen([ZERO, "ckpt", "verify", path], stdout=slave, stderr=slave)
        os.close(slave)
        drawn = b""
        try:
            while more := screen.read(4096):
                drawn += more
        except OSError:
            pass  # the other end is closed
        expect_equal(child.wait(timeout=60), 0, "verify on a terminal")
    expect(b" %" in drawn and b"[" in drawn, f"no bar: {drawn!r}")
    expect(b"whole" in drawn, f"no result: {drawn!r}")


# ---- diff ----


def test_diff(folder):
    first = make(folder, "a", world=1)
    third = make(folder, "b", world=3)
    text = done("diff", first, third)
    expect("the same state" in text and "by 1 ranks" in text and "by 3 ranks" in text, text)
    other = make(folder, "c", world=3, step=11, seed=2)
    ran = run("diff", first, other)
    expect_equal((ran.returncode, ran.stderr), (1, ""), "another state")
    expect(re.search(r"^steps +10 +11$", ran.stdout, re.MULTILINE), ran.stdout)
    expect(re.search(r"^param +6 +6$", ran.stdout, re.MULTILINE), ran.stdout)
    expect_equal([row for row in ran.stdout.split("\n") if len(row) > COLUMNS
                  and folder not in row], [], "too wide")
    compared = json.loads(run("diff", first, other, "--json", "-").stdout)
    expect_equal(compared["values_that_differ"],
                 {"param": 6, "master": 4, "moment1": 5, "moment2": 5}, "JSON")
    expect_equal((compared["same"], compared["worlds"]), (False, [1, 3]), "JSON")
    for path in (first, third):  # no tensor is read
        flip(os.path.join(path, "param.safetensors"), -1)
    done("diff", first, third)
    flip(os.path.join(first, "sums.bin"), 3)
    expect("sums.bin" in refused(2, "diff", first, third), "damaged sums")


def test_diff_of_other_models(folder):
    tensors = some_tensors()
    write_tensors(folder + "/a.safetensors", tensors)
    tensors["h.0.attn"] = ("F16", *tensors["h.0.attn"][1:])
    tensors["wte"] = ("F32", [1000, 300], tensors["wte"][2])
    tensors["new"] = tensors.pop("scale")
    write_tensors(folder + "/b.safetensors", tensors)
    for name in "ab":
        done("import", f"{folder}/{name}.safetensors", f"{folder}/{name}")
    ran = run("diff", folder + "/a", folder + "/b")
    expect_equal(ran.returncode, 1, "status")
    for words in (r"h\.0\.attn +param bf16 and f16", r"wte +shapes 300x1000 and 1000x300",
                  "scale +only in A", "new +only in B"):
        expect(re.search(f"^{words}$", ran.stdout, re.MULTILINE), f"{words}: {ran.stdout}")
    expect("without sums" in refused(2, "diff", folder + "/a.safetensors", folder + "/b"), "sums")


def test_names_that_draw_on_terminals(folder):
    for name in "ab":
        write_tensors(f"{folder}/{name}.safetensors",
                      {f"{name}\x1b[2J": ("F32", [64], bytes(256)), "w": ("F32", [], bytes(4))})
        done("import", f"{folder}/{name}.safetensors", f"{folder}/{name}")
    flip(folder + "/b/param.safetensors", -100)
    for words in (("show", folder + "/a", "--tensors"), ("diff", folder + "/a", folder + "/b"),
                  ("verify", folder + "/b")):
        ran = run(*words)
        expect("?[2J" in ran.stdout + ran.stderr, f"{words}: {ran.stdout}{ran.stderr}")
        expect("\x1b" not in ran.stdout + ran.stderr, f"{words} let it through")


# ---- export, import ----


def test_export(folder):
    path = make(folder, "a", world=3)
    saved = read_tensors(path + "/param.safetensors")
    masters = read_tensors(path + "/master.safetensors")
    done("export", path, folder + "/same")
    expect_equal(os.listdir(folder + "/same"), ["model.safetensors"], "one file")
    expect_equal(read_tensors(folder + "/same/model.safetensors"), saved, "as saved")
    expect("there already" in refused(1, "export", path, folder + "/same"), "it is not overwritten")
    done("export", path, folder + "/wide", "--dtype", "f32")
    wide = read_tensors(folder + "/wide/model.safetensors")
    for name, (kind, shape, values) in saved.items():
        expect_equal(wide[name][:2], ("F32", shape), name)
        expect(widened("F32", wide[name][2]) == widened(kind, values), f"{name} is another")
    done("export", path, folder + "/best", "--role", "best", "--dtype", "bf16")
    best = read_tensors(folder + "/best/model.safetensors")
    for name, (kind, shape, values) in {**saved, **masters}.items():
        rounded = [to_bf16(bits) for bits in widened(kind, values)]
        expect(best[name] == ("BF16", shape, struct.pack(f"<{len(rounded)}H", *rounded)),
               f"{name} is not rounded to nearest even")
    text = refused(1, "export", path, folder + "/masters", "--role", "master")
    expect("has no master" in text and "--role best" in text, text)
    expect(not os.path.exists(folder + "/masters"), "it left a folder")


def test_export_in_several_files(folder):
    path = make(folder, "a")
    saved = read_tensors(path + "/param.safetensors")
    out = folder + "/out"
    done("export", path, out, "--shard-bytes", "160K")
    with open(out + "/model.safetensors.index.json", encoding="utf-8") as file:
        index = json.load(file)
    expect_equal(index["metadata"]["total_size"], sum(len(t[2]) for t in saved.values()), "size")
    found = {}
    for name in sorted(set(index["weight_map"].values())):
        tensors = read_tensors(os.path.join(out, name))
        expect(len(tensors) == 1 or sum(len(t[2]) for t in tensors.values()) <= 160 << 10, name)
        expect(all(index["weight_map"][tensor] == name for tensor in tensors), name)
        found.update(tensors)
    expect_equal(len(os.listdir(out)), 1 + len(set(index["weight_map"].values())), "files")
    expect(len(os.listdir(out)) > 2, "several")
    expect(found == saved, "not the same tensors")
    done("import", out, folder + "/again")
    done("import", out + "/model.safetensors.index.json", folder + "/index")
    done("diff", folder + "/again", folder + "/index")
    done("export", folder + "/again", folder + "/once")
    expect(read_tensors(folder + "/once/model.safetensors") == saved, "not the same tensors")


def test_export_beyond_the_range(folder):
    """65519 rounds to the largest value of f16, and an infinity is no finite value."""
    values = [0.0] * 700
    values[5:8] = float("inf"), 65519.0, 65520.0
    values[600] = -1e6
    write_tensors(folder + "/w.safetensors", {
        "v": ("F32", [3], struct.pack("<3f", 1, 2, 3)),
        "w": ("F32", [700], struct.pack("<700f", *values))})
    done("import", folder + "/w.safetensors", folder + "/w")
    ran = run("export", folder + "/w", folder + "/half", "--dtype", "f16")
    expect_equal(ran.returncode, 0, ran.stderr)
    expect('2 finite values are beyond the range of f16, first element 7 of "w"' in ran.stderr,
           ran.stderr)
    done("export", folder + "/w", folder + "/brain", "--dtype", "bf16", "--strict")
    text = refused(1, "export", folder + "/w", folder + "/strict", "--dtype", "f16", "--strict")
    expect("2 finite values" in text and "nothing was exported" in text, text)
    expect_equal(os.listdir(folder + "/strict"), [], "what it left")


def test_export_of_damage(folder):
    path = make(folder, "a", world=3)
    flip(path + "/param.safetensors", -600000)
    text = refused(1, "export", path, folder + "/out")
    expect("param.safetensors" in text and "embed" in text, text)
    expect_equal(os.listdir(folder + "/out"), [], "what it left")


def test_import(folder):
    tensors = some_tensors()
    source = folder + "/w.safetensors"
    write_tensors(source, tensors)
    out = folder + "/run/step-00000000"
    done("import", source, out)
    done("verify", folder + "/run")
    expect_equal(sorted(os.listdir(out)), ["manifest.json", "param.safetensors", "sums.bin"],
                 "files")
    expect(read_tensors(out + "/param.safetensors") == tensors, "not the same tensors")
    shown = json.loads(done("show", out, "--json", "-"))
    expect_equal(shown["step"], 0, "step")
    expect("step-00000000" in refused(1, "import", source, out), "it is there")
    expect("a checkpoint already" in refused(1, "import", out, folder + "/run/b"), "no weights")
    for name in (".hidden", "a.part", "with blank"):
        refused(1, "import", source, os.path.join(folder, "run", name))
    expect_equal(sorted(os.listdir(folder + "/run")), ["step-00000000"], "what it left")
    expect("weights alone" in refused(1, "verify", source), "nothing to verify")


def write_header(path, header, data):
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def test_import_beside_buffers(folder):
    source = folder + "/buffers.safetensors"
    write_header(source, {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                          "position_ids": {"dtype": "I64", "shape": [1], "data_offsets": [8, 16]}},
                 bytes(16))
    said = refused(1, "import", source, folder + "/step-00000000")
    for word in (source, "position_ids", "--skip-others"):
        expect(word in said, said)
    said = done("import", source, folder + "/step-00000000", "--skip-others")
    expect("left out: position_ids" in said and "1 tensors" in said, said)
    expect_equal(list(read_tensors(folder + "/step-00000000/param.safetensors")), ["w"], "tensors")


def test_import_of_pointers_and_empty_indexes(folder):
    pointer = folder + "/model.safetensors"
    with open(pointer, "w", encoding="utf-8") as file:
        file.write("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n")
    said = refused(1, "import", pointer, folder + "/out")
    expect(pointer in said and "git lfs pull" in said, said)
    index = folder + "/model.safetensors.index.json"
    with open(index, "w", encoding="utf-8") as file:
        file.write('{"weight_map": {}}')
    said = refused(1, "import", index, folder + "/out")
    expect(index in said and "empty" in said, said)


def test_what_cannot_be_written_leaves_nothing(folder):
    out = folder + "/run.json"
    limit = ("import resource, signal, os, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
             "resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)); "
             "os.execv(sys.argv[1], sys.argv[1:])")
    for words in (("plan", "gpt2", "--json", out), ("plan", "gpt2", "--html", out),
                  ("sim", "gpt2", "--json", out)):
        run = subprocess.run([sys.executable, "-c", limit, ZERO, *words], capture_output=True,
                             text=True, check=False)
        expect_equal(run.returncode, 1, words)
        expect(out in run.stderr and "File too large" in run.stderr, run.stderr)
        expect(not os.path.exists(out), f"{words} left half a file")


def test_import_of_what_is_hostile(folder):
    good = some_tensors()
    write_tensors(folder + "/good.safetensors", good)
    write_tensors(folder + "/long.safetensors", {"ids": ("I64", [2], bytes(16)), **good})
    index = folder + "/model.safetensors.index.json"
    cases = {"a path": {name: "../good.safetensors" for name in good},
             "an absolute path": {name: folder + "/good.safetensors" for name in good},
             "a missing file": {name: "none.safetensors" for name in good},
             "a missing tensor": {**{name: "good.safetensors" for name in good},
                                  "more": "good.safetensors"}}
    refused(1, "import", folder + "/long.safetensors", folder + "/out")
    for what, names in cases.items():
        with open(index, "w", encoding="utf-8") as file:
            json.dump({"metadata": {}, "weight_map": names}, file)
        refused(1, "import", index, folder + "/out")
        expect(not os.path.exists(folder + "/out"), what)
    with open(folder + "/good.safetensors", "rb") as file:
        data = file.read()
    for what, text in {"a length": struct.pack("<Q", 2**63) + data[8:], "its end": data[:-1],
                       "a byte more": data + b"x", "nothing": b""}.items():
        with open(folder + "/bad.safetensors", "wb") as file:
            file.write(text)
        expect("bad.safetensors" in refused(1, "import", folder + "/bad.safetensors",
                                            folder + "/out"), what)
        expect(not os.path.exists(folder + "/out"), what)


def test_disks_that_are_full(folder):
    path = make(folder, "a")
    for words in (("export", path, folder + "/out"),
                  ("import", path + "/param.safetensors", folder + "/run/b"),
                  ("reshard", path, folder + "/run/b", "--world", "5")):
        ran = run(*words, file_bytes=1 << 20)
        expect_equal(ran.returncode, 1, f"{words}: {ran.stdout}")
        expect("safetensors" in ran.stderr and "File too large" in ran.stderr, ran.stderr)
    expect_equal(os.listdir(folder + "/out"), [], "export left something")
    expect_equal(sorted(os.listdir(folder + "/run")), ["a", "latest"], "what is left")


# ---- reshard ----


def test_reshard(folder):
    run_folder = os.path.join(folder, "run")
    path = make(folder, "a", world=3)
    for world in (1, 2, 5, 8):
        out = f"{folder}/to {world}/x"
        done("reshard", path, out, "--world", str(world))
        done("verify", out)
        expect("the same state" in done("diff", path, out), f"to {world}")
        for role in ("param", "master", "moment1", "moment2"):
            with open(f"{path}/{role}.safetensors", "rb") as left, \
                    open(f"{out}/{role}.safetensors", "rb") as right:
                expect(left.read() == right.read(), f"{role} differs")
        saved = make(folder, "b", world=world)
        with open(f"{saved}/sums.bin", "rb") as left, open(f"{out}/sums.bin", "rb") as right:
            expect(left.read() == right.read(), f"{world} ranks would have made other sums")
        shutil.rmtree(saved)
    expect_equal(sorted(os.listdir(run_folder))[0], "a", "what is left")


def test_reshard_of_damage(folder):
    path = make(folder, "a", world=3)
    size = os.path.getsize(path + "/moment1.safetensors")
    for at in (8192, size // 2, size - 200000, size - 1):  # sums of 3 ranks span those of 5
        tensor = tensor_at(path + "/moment1.safetensors", at)
        flip(path + "/moment1.safetensors", at)
        text = refused(1, "reshard", path, folder + "/run/b", "--world", "5")
        expect_located(text, "moment1.safetensors", tensor, at)
        expect_equal(sorted(os.listdir(folder + "/run")), ["a", "latest"], "what it left")
        flip(path + "/moment1.safetensors", at)
    expect("there already" in refused(1, "reshard", path, path, "--world", "5"), "onto itself")


# ---- a model in parts ----


def test_parts_are_shown(folder):
    path = make(folder, "a", world=2, parts=(3,))
    shown = json.loads(done("show", path, "--tensors", "--json", "-"))
    expect_equal((shown["world"], len(shown["parts"])), (6, 3), "ranks and parts")
    boxes = [t for t in shown["tensors"] if t["name"] == "embed"]
    expect_equal([(t["part"], t["shape"], t["global_shape"], t["box_first"]) for t in boxes],
                 [(0, [700, 333], [700, 1000], [0, 0]), (1, [700, 333], [700, 1000], [0, 333]),
                  (2, [700, 334], [700, 1000], [0, 666])], "boxes")
    text = done("show", path, "--tensors")
    expect("3, of 2 ranks each" in text and "part 1, [700, 333] at [0, 333] of [700, 1000]" in text,
           text)
    expect(re.search(r"^a +10 .* 6  latest$", done("ls", folder + "/run"), re.M), "ls")
    expect("whole" in done("verify", path), "verify")


def test_parts_are_the_whole(folder):
    whole = make(folder, "whole", world=3)
    for parts in (2, 3, 4):
        path = make(folder, f"in {parts}".replace(" ", "-"), world=2, parts=(parts,))
        expect("the same state" in done("diff", path, whole), f"{parts} parts and one")
        expect("the same state" in done("diff", whole, path), f"one and {parts} parts")
        done("export", path, f"{folder}/{parts}", "--shard-bytes", "500K")
        done("export", path, f"{folder}/{parts}best", "--role", "best")
        out = f"{folder}/to/{parts}"
        done("reshard", path, out, "--world", "5")
        done("verify", out)
        expect("the same state" in done("diff", out, whole), f"resharded from {parts}")
        manifest = json.load(open(out + "/manifest.json", encoding="utf-8"))
        expect_equal((manifest["version"], manifest["world"]), (1, 5), "what reshard made")
    done("export", whole, f"{folder}/1")
    done("export", whole, f"{folder}/1best", "--role", "best")
    for parts in (2, 3, 4):
        index = json.load(open(f"{folder}/{parts}/model.safetensors.index.json", encoding="utf-8"))
        joined = {}
        for name in set(index["weight_map"].values()):
            joined.update(read_tensors(f"{folder}/{parts}/{name}"))
        expect(joined == read_tensors(f"{folder}/1/model.safetensors"), f"weights of {parts}")
        expect(read_tensors(f"{folder}/{parts}best/model.safetensors") ==
               read_tensors(f"{folder}/1best/model.safetensors"), f"the best of {parts}")


def test_parts_that_differ(folder):
    one = make(folder, "a", parts=(2,))
    for other, told in ((make(folder, "b", parts=(2,), seed=2), "embed"),
                        (make(folder, "c", parts=(3,), seed=2), "embed"),
                        (make(folder, "d", parts=(2, 0.25)), "beta products")):
        ran = run("diff", one, other)
        expect_equal(ran.returncode, 1, ran.stdout + ran.stderr)
        expect(told in ran.stdout, ran.stdout)
    text = refused(1, "reshard", other, folder + "/to/x", "--world", "2")
    expect("of part 1" in text and "other betas" in text, text)


def test_damage_of_parts(folder):
    path = make(folder, "a", parts=(3,))
    whole = make(folder, "whole")
    name = path + "/part-00002.moment1.safetensors"
    size = os.path.getsize(name)
    for at in (8192, size // 2, size - 1):
        tensor = tensor_at(name, at)
        flip(name, at)
        for words in (("verify", path), ("reshard", path, folder + "/to/x", "--world", "2")):
            expect_located(refused(1, *words), name, tensor, at)
        expect_located(refused(2, "diff", whole, path), name, tensor, at)
        flip(name, at)
    name = path + "/part-00003.param.safetensors"
    at = os.path.getsize(name) - 1
    tensor = tensor_at(name, at)
    flip(name, at)
    expect_located(refused(1, "export", path, folder + "/out"), name, tensor, at)


os.umask(0o077)
sys.exit(run_tests(globals(), prefix="zero ckpt é "))

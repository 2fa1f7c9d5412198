#!/usr/bin/env python3
"""Has `zero ckpt` show, check, compare and convert checkpoints whose states are in few bits:
masters in remainders, moments in codes.

Usage: test_ckpt_small.py ZERO WRITE_CHECKPOINT

The last line is "N passed, N failed, N skipped"."""

import json
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ckpt_rig import (COLUMNS, done, flip, make, read_tensors, refused, run,  # noqa: E402
                      tensor_at)
from each_test import expect, expect_equal, run_tests  # noqa: E402


def masters_of(params, rests, kinds):
    """The bits of masters of which these are the parameters and remainders."""
    masters = {}
    for name, (_, shape, data) in rests.items():
        words = []
        wide = kinds[name]["master"] == "remainder16"
        for i, (param,) in enumerate(struct.iter_unpack("<H", params[name][2])):
            rest = int.from_bytes(data[2 * i:2 * i + 2] if wide else data[i:i + 1], "little",
                                  signed=True)
            rest = 0 if rest < 0 and param & 0x7fff == 0 else rest
            words.append((param << 16) + (rest if wide else rest << 8))
        masters[name] = ("F32", shape, struct.pack(f"<{len(words)}I", *words))
    return masters


def test_small_states(folder):
    path = make(folder, "a", world=3, scaler="--small")
    text = done("show", path, "--tensors")
    expect_equal([row for row in text.split("\n") if len(row) > COLUMNS and folder not in row], [],
                 "too wide")
    shown = json.loads(done("show", path, "--tensors", "--json", "-"))
    kinds = {tensor["name"]: tensor["types"] for tensor in shown["tensors"]}
    for kind in ("remainder16", "remainder8", "companded8", "u8root", "scale1.safetensors"):
        expect(kind in text, f"{kind} is not in: {text}")
    expect_equal(kinds["embed"].get("scale1"), "bf16", "a role of scales")
    expect("whole" in done("verify", path), "verify")
    expect("the same state" in done("diff", path, make(folder, "b", scaler="--small")), "diff")
    done("export", path, folder + "/best", "--role", "best")
    params = read_tensors(path + "/param.safetensors")
    masters = masters_of(params, read_tensors(path + "/master.safetensors"), kinds)
    expect(read_tensors(folder + "/best/model.safetensors") == {**params, **masters}, "masters")
    done("reshard", path, folder + "/to/x", "--world", "5")
    expect("the same state" in done("diff", path, folder + "/to/x"), "resharded")


def test_damage_of_small_states(folder):
    path = make(folder, "a", world=3, scaler="--small")
    for role in ("master", "moment1", "moment2", "scale1", "scale2"):
        file = f"{path}/{role}.safetensors"
        at = os.path.getsize(file) - 1
        (name, _, _, _) = tensor_at(file, at)
        flip(file, at)
        tensor = name.removesuffix(".scale")
        expect(f'{role}.safetensors, tensor "{tensor}": elements' in refused(1, "verify", path),
               f"verify says nothing of {role}")
        flip(file, at)
    done("verify", path)


def test_small_states_of_parts(folder):
    whole = make(folder, "whole", world=3, scaler="--small")
    path = make(folder, "parts", world=2, parts=(3,), scaler="--small")
    out = folder + "/to/x"
    done("reshard", path, out, "--world", "2")
    done("verify", out)
    # Codes of boxes become fp32, since blocks of the whole would be others.
    compared = json.loads(run("diff", path, out, "--json", "-").stdout)
    expect_equal(set(compared["values_that_differ"].values()), {0}, "values")
    expect(any("of the same values" in text for _, text in compared["tensors"]), compared)
    compared = json.loads(run("diff", whole, path, "--json", "-").stdout)
    expect_equal([compared["values_that_differ"][role] for role in ("param", "master")], [0, 0],
                 "what does not depend on blocks")
    expect(compared["values_that_differ"]["moment1"] > 0, "scales of other blocks")
    file = path + "/part-00002.scale1.safetensors"
    flip(file, os.path.getsize(file) - 1)
    for status, words in ((1, ("reshard", path, folder + "/to/y", "--world", "2")),
                          (2, ("diff", whole, path))):
        text = refused(status, *words)
        expect(os.path.basename(file) in text, text)


os.umask(0o077)
sys.exit(run_tests(globals(), prefix="zero ckpt "))

#!/usr/bin/env python3
"""The GPT-2 example reads and writes the public GPT-2's files: logits of weights that transformers
saved are those that transformers computes, and the reverse; what does not fit is refused by name.

Usage: test_gpt2_weights.py GPT2_LOGITS GPT2_TRAIN

ZERO_TEST_PYTHON names a python that has torch and transformers; without it, what transformers
computed once (weights/, by make_weights.py) is the reference. The last line is "N passed, N failed,
N skipped"."""

import json
import os
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from each_test import Skip, expect, run_tests  # noqa: E402

LOGITS, TRAIN = sys.argv[1], sys.argv[2]
HERE = os.path.dirname(os.path.abspath(__file__))
WEIGHTS = os.path.join(HERE, "weights")
PYTHON = os.environ.get("ZERO_TEST_PYTHON", sys.executable)
TOLERANCE = 1e-4
SIZES = ["2", "2", "8", "8", "16"]  # layers, heads, width, seq, vocab of weights/
MODEL = "--layers 2 --heads 2 --width 8 --seq 8 --vocab 256"


def run(*words, code=0):
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    expect(done.returncode == code,
           f"{' '.join(words)}: status {done.returncode}: {done.stdout[-600:]}{done.stderr[-600:]}")
    return done


def our_logits(path, ranks, sizes, tokens):
    lines = run(LOGITS, path, str(ranks), *sizes, *map(str, tokens)).stdout.splitlines()
    return [[float(word) for word in line.split()] for line in lines]


def expect_near(left, right, what):
    expect(len(left) == len(right) and all(len(a) == len(b) for a, b in zip(left, right)),
           f"{what}: {len(left)} and {len(right)} rows")
    worst = max(abs(a - b) for rows in zip(left, right) for a, b in zip(*rows))
    expect(worst < TOLERANCE, f"{what}: logits differ by {worst:g}")
    return worst


def refused(path, text, sizes=None):
    error = run(LOGITS, path, "2", *(sizes or SIZES), "1", code=1).stderr
    expect(text in error and error.count("\n") == 1, f'no "{text}" in: {error}')


# ---- safetensors by hand ----


def read_tensors(path):
    """{name: (dtype, shape, bytes)}"""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    body = data[8 + size:]
    return {name: (t["dtype"], t["shape"], body[slice(*t["data_offsets"])])
            for name, t in header.items()}


def write_tensors(path, tensors):
    header = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


def variant(folder, change, config=True):
    """A copy of weights/ whose tensors `change` got to change; returns its file's path."""
    tensors = read_tensors(os.path.join(WEIGHTS, "model.safetensors"))
    os.makedirs(folder)
    path = os.path.join(folder, "model.safetensors")
    write_tensors(path, change(tensors) or tensors)
    if config:
        shutil.copy(os.path.join(WEIGHTS, "config.json"), folder)
    return path


def without_prefix(tensors):
    return {name.removeprefix("transformer."): t for name, t in tensors.items()}


# ---- weights in ----


def recorded():
    with open(os.path.join(WEIGHTS, "logits.json"), encoding="utf-8") as file:
        reference = json.load(file)
    return reference["tokens"], reference["logits"]


def test_logits_of_recorded_weights(_folder):
    tokens, logits = recorded()
    for ranks in (1, 2, 3):
        expect_near(our_logits(WEIGHTS, ranks, SIZES, tokens), logits, f"{ranks} ranks")
    expect_near(our_logits(os.path.join(WEIGHTS, "model.safetensors"), 1, SIZES, tokens), logits,
                "by the file's name")


def test_names_without_prefix_masks_and_a_second_head(folder):
    tokens, logits = recorded()

    def old_files(tensors):
        mask = ("F32", [1, 1, 8, 8], bytes(256))
        tensors = without_prefix(tensors)
        for layer in range(2):
            tensors[f"h.{layer}.attn.bias"] = mask
            tensors[f"h.{layer}.attn.masked_bias"] = ("F32", [1], bytes(4))
        tensors["lm_head.weight"] = tensors["wte.weight"]
        return tensors

    def with_head(tensors):
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"]

    for i, change in enumerate((without_prefix, old_files, with_head)):
        path = variant(f"{folder}/{i}", change)
        expect_near(our_logits(path, 2, SIZES, tokens), logits, change.__name__)


def test_an_index_of_several_files(folder):
    tokens, logits = recorded()
    tensors = list(read_tensors(os.path.join(WEIGHTS, "model.safetensors")).items())
    shutil.copy(os.path.join(WEIGHTS, "config.json"), folder)
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    write_tensors(f"{folder}/{names[0]}", dict(tensors[:9]))
    write_tensors(f"{folder}/{names[1]}", dict(tensors[9:]))
    index = {"metadata": {}, "weight_map": {name: names[i >= 9] for i, (name, _)
                                            in enumerate(tensors)}}
    with open(f"{folder}/model.safetensors.index.json", "w", encoding="utf-8") as file:
        json.dump(index, file)
    expect_near(our_logits(folder, 2, SIZES, tokens), logits, "two files")


def test_weights_that_do_not_fit_are_refused(folder):
    def other_head(tensors):
        dtype, shape, data = tensors["transformer.wte.weight"]
        tensors["lm_head.weight"] = (dtype, shape, data[:-4] + struct.pack("<f", 9.0))

    def one_missing(tensors):
        del tensors["transformer.h.1.mlp.c_fc.bias"]

    def one_more(tensors):
        tensors["transformer.h.0.attn.rotary.weight"] = ("F32", [1], bytes(4))

    def one_turned(tensors):
        dtype, shape, data = tensors["transformer.h.0.mlp.c_fc.weight"]
        tensors["transformer.h.0.mlp.c_fc.weight"] = (dtype, shape[::-1], data)

    refused(variant(f"{folder}/head", other_head), "lm_head.weight differs from wte.weight")
    refused(variant(f"{folder}/missing", one_missing), "mlp.c_fc.bias")
    refused(variant(f"{folder}/more", one_more), "h.0.attn.rotary.weight")
    refused(variant(f"{folder}/turned", one_turned), "h.0.mlp.c_fc.weight")
    refused(WEIGHTS, "this model has --heads 4, and ", ["2", "4", "8", "8", "16"])
    refused(WEIGHTS, "give --vocab 16", ["2", "2", "8", "8", "32"])
    refused(WEIGHTS, "give --seq 8", ["2", "2", "8", "16", "16"])
    refused(f"{folder}/none", "none")


# ---- weights out ----


def export(folder, model=MODEL, more=""):
    """Trains a few steps; more: options. Returns the folders of the run and of what it exported."""
    with open(f"{folder}/text", "w", encoding="utf-8") as file:
        file.write("and the light of the day was said. " * 40)
    run(TRAIN, "--data", f"{folder}/text", "--ranks", "2", "--batch", "4", "--steps", "5",
        "--val-every", "0", "--lr", "0.01", "--dtype", "f32", "--threads", "1", *model.split(),
        "--save", f"{folder}/run", "--export", f"{folder}/out", *more.split())
    return f"{folder}/run", f"{folder}/out"


EXPORT_SIZES = ["2", "2", "8", "8", "256"]


def test_an_export_is_the_same_from_every_stage(folder):
    whole = None
    for stage in range(4):
        place = f"{folder}/{stage}"
        os.mkdir(place)
        _, out = export(place, more=f"--stage {stage}")
        with open(f"{out}/model.safetensors", "rb") as file:
            data = file.read()
        whole = whole or data
        expect(data == whole, f"stage {stage} exports other bytes than stage 0")


def test_an_export_is_weights_and_config(folder):
    _, out = export(folder)
    expect(sorted(os.listdir(out)) == ["config.json", "model.safetensors"], str(os.listdir(out)))
    tensors = read_tensors(f"{out}/model.safetensors")
    expect(len(tensors) == 28, f"{len(tensors)} tensors")
    expect(tensors["h.0.attn.c_attn.weight"][:2] == ("F32", [8, 24]), "h.0.attn.c_attn.weight")
    expect(tensors["wte.weight"][:2] == ("F32", [256, 8]), "wte.weight")
    with open(f"{out}/config.json", encoding="utf-8") as file:
        config = json.load(file)
    expect((config["n_head"], config["n_positions"], config["vocab_size"]) == (2, 8, 256),
           f"{config}")
    with open(f"{WEIGHTS}/config.json", encoding="utf-8") as file:
        theirs = json.load(file)
    same = ("architectures", "model_type", "n_inner", "activation_function", "scale_attn_weights",
            "layer_norm_epsilon", "tie_word_embeddings")
    expect([config[key] for key in same] == [theirs[key] for key in same], f"{config}")


def test_an_export_has_the_logits_of_the_checkpoint(folder):
    run_folder, out = export(folder)
    left = our_logits(run_folder, 3, EXPORT_SIZES, [1, 2, 3])
    right = our_logits(out, 1, EXPORT_SIZES, [1, 2, 3])
    expect_near(left, right, "checkpoint and export")
    refused(run_folder, "this model has --heads 4, and the checkpoint ",
            ["2", "4", "8", "8", "256"])


# ---- transformers ----


def transformers(*words):
    done = subprocess.run([PYTHON, "-c", "import torch, transformers, safetensors"],
                          capture_output=True, timeout=120, check=False)
    if done.returncode != 0:
        raise Skip(f"{PYTHON} has no transformers (ZERO_TEST_PYTHON names another)")
    return run(PYTHON, os.path.join(HERE, "compare_transformers.py"), *words).stdout


def test_transformers_reads_an_export(folder):
    """Of a run that began with larger weights than a new one has: another GELU is seen."""
    sizes = ["3", "4", "32", "16", "256"]
    transformers("save", f"{folder}/hf", *sizes)
    run_folder, out = export(folder, f"--init-from {folder}/hf --layers 3 --heads 4 --width 32 "
                                     "--seq 16 --vocab 256")
    tokens = [5, 255, 0, 17, 17, 80, 3, 9]
    report = json.loads(transformers("logits", out, *map(str, tokens)))
    expect(report["bad"] == {}, f"transformers says {report['bad']}")
    worst = expect_near(our_logits(run_folder, 2, sizes, tokens), report["logits"], "export")
    print(f"  logits of transformers and of the checkpoint differ by {worst:.2g} at most")


def test_safetensors_reads_a_checkpoint(folder):
    run_folder, _ = export(folder)
    for role in ("param", "moment1", "moment2"):
        names = json.loads(transformers("names", f"{run_folder}/step-00000005/{role}.safetensors"))
        expect(len(names) == 28 and names["wpe.weight"] == [[8, 8], "torch.float32"], f"{names}")


def test_weights_of_transformers_are_read(folder):
    tokens = [5, 49, 0, 17, 17, 30, 3, 9, 8, 8, 1]
    sizes = ["3", "4", "32", "16", "50"]
    transformers("save", f"{folder}/hf", *sizes)
    expect(os.path.exists(f"{folder}/hf/model.safetensors.index.json"), "several files are meant")
    report = json.loads(transformers("logits", f"{folder}/hf", *map(str, tokens)))
    worst = expect_near(our_logits(f"{folder}/hf", 2, sizes, tokens), report["logits"], "import")
    print(f"  logits of transformers and of its weights here differ by {worst:.2g} at most")


sys.exit(run_tests(globals()))

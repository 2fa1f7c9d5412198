#!/usr/bin/env python3
"""A reader of checkpoints made from docs/checkpoint-format.md alone: what it reads are the values
that were written, places are those that the page says, and the sums too where Python has xxhash.

Usage: read_checkpoint.py MAKE_CHECKPOINT. One line per check; the last is "N passed, N failed,
N skipped"."""

import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile

try:
    import xxhash
except ImportError:
    xxhash = None

counts = {True: 0, False: 0}
MASK = (1 << 64) - 1
ROLES = ("param", "master", "moment1", "moment2", "scale1", "scale2")
# How the kinds of values are named in safetensors, and their bytes.
TYPES = {"f32": "F32", "bf16": "BF16", "f16": "F16", "remainder16": "U16", "remainder8": "U8",
         "i8": "I8", "companded8": "U8", "u8root": "U8"}
WIDTH = {kind: {"F32": 4, "BF16": 2, "F16": 2, "U16": 2, "U8": 1, "I8": 1}[name]
         for kind, name in TYPES.items()}
BLOCK = 32


def check(name, holds, detail=""):
    counts[bool(holds)] += 1
    print(f"{'ok' if holds else 'FAILED':8}{name}{'' if holds else ': ' + str(detail)}")


# ---- the page ----


def read_manifest(folder):
    with open(os.path.join(folder, "manifest.json"), "rb") as file:
        text = file.read()
    head = re.match(rb'\{\n"format": "libzero checkpoint",\n"version": ([123]),\n'
                    rb'"updates": "(\d+)",\n"skipped": "(\d+)",\n', text)
    tail = re.search(rb',\n"xxh3": "([0-9a-f]{16})"\n\}\n\Z', text)
    manifest = json.loads(text)
    check("first lines and end are laid out as the page says", head and tail)
    check("the first lines say the same to who parses them",
          head.group(2).decode() == manifest["updates"]
          and head.group(3).decode() == manifest["skipped"])
    count = re.match(rb'"commit": "([1-9]\d*)",\n"kind": "(full|weights)",\n', text[head.end():])
    check("then come the commit's number and kind", count and
          (count.group(1).decode(), count.group(2).decode())
          == (manifest["commit"], manifest["kind"]))
    small = any(place[0] not in ("f32", "bf16", "f16") for tensor in manifest["tensors"]
                for place in tensor["places"].values())
    check("version 3 is of states in remainders or codes, else 2 of a model in several parts",
          head.group(1) == (b"3" if small else b"2" if "parts" in manifest else b"1"))
    return manifest, text[:tail.start()], tail.group(1).decode()


def parts_of(manifest):
    """The tensors of each part; a model in one part has one list."""
    lists = [[] for _ in manifest.get("parts", [None])]
    for tensor in manifest["tensors"]:
        lists[tensor.get("part", 0)].append(tensor)
    return lists


def global_of(tensor):
    """The global tensor's shape, and where in it this one begins."""
    shape = tensor["shape"]
    return tensor.get("global_shape", shape), tensor.get("box_first", [0] * len(shape))


def elements_of(tensor, begin, end):
    """Which elements of the global tensor the box's elements [begin, end) are."""
    shape, first = global_of(tensor)
    for element in range(begin, end):
        index, stride = 0, 1
        for d in reversed(range(len(shape))):
            element, at = divmod(element, tensor["shape"][d])
            index += (first[d] + at) * stride
            stride *= shape[d]
        yield index


def count_of(tensor):
    return math.prod(tensor["shape"])


def size_of(role, dtype, count):
    """Bytes of elements, of scales from a block on."""
    return (-(-count // BLOCK) if role.startswith("scale") else count) * WIDTH[dtype]


def files_of(tensors, role):
    """Lists of tensors, by file."""
    files, size = [], 0
    for tensor in tensors:
        if role in tensor["places"]:
            more = size_of(role, tensor["places"][role][0], count_of(tensor))
            if not files or size + more > 2**32 or len(files[-1]) == 65536:
                files.append([])
                size = 0
            files[-1].append(tensor)
            size += more
    return files


def header_of(tensors, role):
    """The header's JSON, and where each tensor begins behind it."""
    text, at, begins = '{"__metadata__":{"format":"pt"}', 0, []
    ordered = [t for w in (4, 2, 1) for t in tensors if WIDTH[t["places"][role][0]] == w]
    for tensor in ordered:
        dtype = tensor["places"][role][0]
        end = at + size_of(role, dtype, count_of(tensor))
        name = re.sub(r'["\\]', lambda found: "\\" + found.group(0), tensor["name"])
        shape = ",".join(map(str, tensor["shape"]))
        if role.startswith("scale"):
            name, shape = name + ".scale", str(-(-count_of(tensor) // BLOCK))
        text += f',"{name}":{{"dtype":"{TYPES[dtype]}","shape":[{shape}],' \
                f'"data_offsets":[{at},{end}]}}'
        begins.append((tensor, at))
        at = end
    return (text + "}").encode(), begins, at


def pieces_of(tensor):
    """(first, count) of each piece."""
    total, (cut, every) = count_of(tensor), tensor["cuts"]
    begin, pieces = 0, []
    while begin < total:
        end = min(cut, total)
        pieces += [(at, min(262144, end - at)) for at in range(begin, end, 262144)]
        begin, cut = end, cut + every
    return pieces


def sum_of(data, first, granule):
    total = 0
    for at in range(0, len(data), granule):
        number = first // 256 + at // granule
        z = xxhash.xxh3_64_intdigest(data[at:at + granule])
        z ^= (number + 1) * 0x9E3779B97F4A7C15 & MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        total += z ^ z >> 31
    return total & MASK


def model_hash(tensors):
    total = 0
    for tensor in tensors:
        shape, first = global_of(tensor)
        if any(first):
            continue
        h = 0xCBF29CE484222325
        for byte in tensor["name"].encode() + b"\0" + struct.pack(f"<{1 + len(shape)}Q",
                                                                  len(shape), *shape):
            h = (h ^ byte) * 0x100000001B3 & MASK
        total += h ^ h >> 32
    return f"{total & MASK:016x}"


def find_latest(run):
    with open(os.path.join(run, "latest"), encoding="ascii") as file:
        return file.read().splitlines()


# ---- what was written ----


def expected(tensor, role, seed, elements):
    """These values of tests/checkpoint/checkpoint_case.h."""
    key = seed + {"param": 0, "master": 2, "moment1": 3, "moment2": 4, "scale1": 5,
                  "scale2": 6}[role]
    dtype = tensor["places"][role][0]
    for byte in tensor["name"].encode():
        key = key * 31 + byte & MASK
    data = bytearray()
    for index in elements:
        x = key * 0xD1342543DE82EF95 + (index + 1) * 0x9E3779B97F4A7C15 & MASK
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
        x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
        x ^= x >> 31
        x >>= role.startswith("scale")
        value = struct.pack("<f", float(x - (x >> 63 << 64)) * 2.0**-66)
        byte = bytes([0 if x & 255 == 0x80 else x & 255])
        data += {"f32": value, "bf16": value[2:], "f16": struct.pack("<H", x & 0xB7FF),
                 "remainder16": struct.pack("<H", x & 0xFFFF)}.get(dtype, byte)
    return bytes(data)


def has_values(tensor, role, seed, data):
    """Those at both ends and on both sides of each cut: Python takes too long for all."""
    dtype = tensor["places"][role][0]
    each = BLOCK if role.startswith("scale") else 1
    for first, count in pieces_of(tensor):
        end = first + count
        for begin in (first, max(first, (end - 100) // BLOCK * BLOCK)):
            part = range(begin, min(begin + 128, end))
            firsts = (next(elements_of(tensor, element, element + 1)) for element in part[::each])
            wanted = expected(tensor, role, seed, firsts)
            at = size_of(role, dtype, begin)
            if data[at:at + len(wanted)] != wanted:
                return False
    return len(data) == size_of(role, dtype, count_of(tensor))


# ---- checks ----


def check_files(folder, manifest):
    """Every file has the bytes that follow from the tensors; {(role, part, name): bytes} of
    tensors."""
    index, data = 0, {}
    lists = parts_of(manifest)
    for part, role in ((part, role) for part in range(len(lists)) for role in ROLES):
        files = files_of(lists[part], role)
        for number, tensors in enumerate(files):
            name = f"{role}.safetensors" if len(files) == 1 else \
                f"{role}-{number + 1:05}-of-{len(files):05}.safetensors"
            name = name if len(lists) == 1 else f"part-{part + 1:05}.{name}"
            text, begins, size = header_of(tensors, role)
            data_at = (8 + len(text) + 4095) // 4096 * 4096
            said = manifest["files"][index]
            with open(os.path.join(folder, name), "rb") as file:
                found = file.read()
            check(f"{name} has its name, length and header",
                  (said["name"], said["role"], said["data_at"], said["bytes"])
                  == (name, role, data_at, data_at + size) and len(found) == data_at + size
                  and found[:data_at] == struct.pack("<Q", data_at - 8) + text.ljust(data_at - 8),
                  said)
            if xxhash:
                check(f"{name} has the hash of its header",
                      xxhash.xxh3_64_hexdigest(found[:data_at]) == said["header_xxh3"])
            for tensor, at in begins:
                dtype, where, begin, _ = tensor["places"][role]
                end = begin + size_of(role, dtype, count_of(tensor))
                if (where, begin) != (index, data_at + at):
                    check(f"{role} of {tensor['name']} is in its place", False,
                          tensor["places"][role])
                data[role, part, tensor["name"]] = found[begin:end]
            index += 1
    check("there are no other files", index == len(manifest["files"])
          and len(os.listdir(folder)) == index + 2)
    return data


def check_sums(folder, manifest, data):
    with open(os.path.join(folder, "sums.bin"), "rb") as file:
        text = file.read()
    sums = struct.unpack(f"<{len(text) // 8}Q", text)
    piece, whole = 0, {}
    lists = parts_of(manifest)
    for part, role in ((part, role) for part in range(len(lists)) for role in ROLES):
        for tensor in lists[part]:
            if role not in tensor["places"]:
                continue
            dtype, _, _, first_piece = tensor["places"][role]
            pieces = pieces_of(tensor)
            if first_piece != piece:
                check(f"{role} of {tensor['name']} has its first sum", False, first_piece)
            whole[role, part, tensor["name"]] = sum(sums[piece:piece + len(pieces)]) & MASK
            for number, (first, count) in enumerate(pieces):
                values = data[role, part, tensor["name"]][size_of(role, dtype, first):
                                                          size_of(role, dtype, first + count)]
                if xxhash and sum_of(values, first, size_of(role, dtype, 256)) \
                        != sums[piece + number]:
                    check(f"{role} of {tensor['name']}: sum of piece {number}", False)
            piece += len(pieces)
    check("there are as many sums as pieces",
          piece == len(sums) == manifest["sums"]["pieces"], (piece, len(sums)))
    if xxhash:
        check("sums.bin has its hash", xxhash.xxh3_64_hexdigest(text) == manifest["sums"]["xxh3"])
    return whole


def check_checkpoint(folder, seed):
    manifest, body, text_hash = read_manifest(folder)
    data = check_files(folder, manifest)
    wrong = [(role, t["name"]) for t in manifest["tensors"] for role in t["places"]
             if not has_values(t, role, seed, data[role, t.get("part", 0), t["name"]])]
    check(f"{len(data)} tensors have the bytes that were written", not wrong and data, wrong)
    check("the model's hash is that of names and shapes",
          manifest["model_hash"] == model_hash(manifest["tensors"]))
    if xxhash:
        check("the text has its hash", xxhash.xxh3_64_hexdigest(body) == text_hash)
    check("reals and numbers of 64 bits are exact",
          manifest["groups"][0]["carried"][0]
          == 0.9**(int(manifest["updates"]) + int(manifest["skipped"]))
          and int(manifest["seed"]) == MASK - seed
          and bytes.fromhex(manifest["user"]) == b"any\0thing\0")
    for number, part in enumerate(manifest.get("parts", [])):
        first = [[group["carried"][0] for group in groups]
                 for groups in (part["groups"], manifest["groups"])]
        check(f"part {number} has its number and its products of betas",
              part["part"] == number and len(first[0]) == 64 and first[0] == first[1])
    return check_sums(folder, manifest, data), joined(manifest, data), manifest["model_hash"]


def joined(manifest, data):
    """{(role, name): bytes} of whole tensors, put together from boxes."""
    whole = {}
    for tensor in manifest["tensors"]:
        shape, _ = global_of(tensor)
        runs = tensor["shape"][-1] if tensor["shape"] else 1
        for role, (dtype, _, _, _) in tensor["places"].items():
            if role.startswith("scale"):
                continue
            width = WIDTH[dtype]
            part = data[role, tensor.get("part", 0), tensor["name"]]
            target = whole.setdefault((role, tensor["name"]), bytearray(math.prod(shape) * width))
            for first in range(0, count_of(tensor), max(runs, 1)):
                at = next(elements_of(tensor, first, first + 1)) * width
                target[at:at + runs * width] = part[first * width:(first + runs) * width]
    return whole


def main():
    seed = 11
    with tempfile.TemporaryDirectory() as home:
        run = os.path.join(home, "ein Lauf")
        subprocess.run([sys.argv[1], run, str(seed)], check=True)
        name, manifest_hash = find_latest(run)
        check("latest names the newest", name == "step-00000049", name)
        steps = (41, 43, 45, 47, 49)
        read = [check_checkpoint(os.path.join(run, f"step-{step:08}"), seed) for step in steps]
        check("commits are counted", [json.load(open(os.path.join(
            run, f"step-{step:08}", "manifest.json"), encoding="utf-8"))["commit"]
            for step in steps] == ["1", "2", "3", "4", "5"])
        check("sums of tensors do not depend on cuts", read[0][0] == read[1][0])
        check("boxes of several parts are the tensors of one",
              read[0][1] == read[1][1] == read[2][1] and read[3][1] == read[4][1])
        check("the model's hash does not depend on parts", read[0][2] == read[1][2] == read[2][2])
        if xxhash:
            with open(os.path.join(run, name, "manifest.json"), "rb") as file:
                check("latest has the manifest's hash",
                      xxhash.xxh3_64_hexdigest(file.read()) == manifest_hash)
        else:
            print("skip    sums and hashes: Python has no xxhash here")
    print(f"{counts[True]} passed, {counts[False]} failed, {int(xxhash is None)} skipped")
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""What nvcc made of the kernels: the arithmetic that the CPU has too, no memory of a thread's own,
wide accesses, code for every GPU asked for.

Usage: kernel_code.py [ROOT NVCC ARCHS FLAG... -- OBJECT...]
ARCHS: as -Dgpu_archs has them. FLAG: of the build, without targets.

Each check first proves itself on made-up listings (kernel_code_fixtures.py); without arguments that
is all. What only cuobjdump (with nvdisasm) shows is skipped where it is missing; PTX is then
compiled anew."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from kernel_code_fixtures import FIXTURES
from kernel_listing import (
    ANY,
    CODES,
    F32,
    NARROW,
    find_cuobjdump,
    function_body,
    read_ptx,
    read_resources,
    read_sass,
)

# All that PTX may do with floating point: rounded once, to nearest, or exact. Without a rounding
# whoever translates PTX may fuse an operation with its neighbour.
EXACT = re.compile(
    r"(?:add|sub|mul|div|rcp|sqrt|fma)\.rn\.f(?:32|64)"
    r"|cvt\.(?:f64\.f32|rn\.f32\.f64|rn\.f64\.u(?:32|64)|rzi\.s32\.f32|rn\.f32\.[su](?:16|32))"
    r"|cvt\.rn\.b?f16x2\.f32"
    r"|(?:mov|neg|abs|min|max|selp|setp\.\w+|(?:ld|st)\.[\w.]+)\.f(?:32|64)"
)
FLOAT = re.compile(r"\.(?:b?f16|f32|f64|tf32|e\dm\d)|\.ftz|\.approx|\.sat")

# What roots and quotients begin with that are corrected to the rounded ones (quick.h).
SEEDS = dict.fromkeys(("update_kernel", "measure_kernel"),
                      ("rsqrt.approx.ftz.f32", "rcp.approx.ftz.f32"))

# Lane functions in which a kernel's fused operations, divisions and roots are written. Where an
# element can be computed in two ways: those of each.
OF_ADAMW = "../optimizer/adamw.h"
ADAMW = [(OF_ADAMW, f"zi_adamw_{part}") for part in ("moments", "denominator", "param")]
OF_LAMB = "../optimizer/lamb.h"
LAMB = [(OF_LAMB, f"zi_lamb_{part}") for part in
        ("moments", "numerator", "denominator", "decayed", "param")]
QUICK = [("cuda/quick.h", "zi_quick_sqrt"), ("cuda/quick.h", "zi_quick_quotient")]
LANES = {
    "update_kernel lamb": [[*LAMB, (OF_LAMB, "zi_lamb_lane")], [*LAMB, *QUICK]],
    "update_kernel lars": [[("../optimizer/lars.h", "zi_lars_lane")]],
    "update_kernel lion": [[("../optimizer/lion.h", "zi_lion_lane")]],
    "update_kernel sgd": [[("../optimizer/sgd.h", "zi_sgd_lane")]],
    "update_kernel": [
        [*ADAMW, (OF_ADAMW, "zi_adamw_lane")],
        [*ADAMW, *QUICK],
    ],
    "square_sum_kernel": [[("cuda/norm_body.h", "zi_norm_half_add")]],
    "fold_squares_kernel": [[("cuda/fold_body.h", "zi_fold_column")]],
}
OPTIMIZERS = {3: "lion", 4: "sgd", 5: "lamb", 6: "lars"}  # values of zero_optimizer
BLOCK_KERNELS, INT8_BLOCK = ("encode_kernel", "decode_kernel"), 11
PACKED_KERNEL, PACKED_TYPES = "packed_fold_kernel", (11, 12)

# The same of updates whose moments are codes, and how often each is written out: a lane has eight
# elements of a tile, and looks after one block of codes. Two places update a block by an element a
# lane: for arguments that are not usual, and for what is left behind the tiles.
STEP, CODE = ("math/code.h", "zi_code_step"), ("math/code.h", "zi_code_word")
GAIN, MEASURE = ("math/code.h", "zi_code_gain"), ("math/code.h", "zi_code_measure")
# Of codes that are not linear in a root.
NO_ROOT = "no root"
PLAIN = [STEP, (*GAIN, NO_ROOT), CODE]

# Folds of packed granules: of the two quads of a tile a step each for a source, of which four are
# loaded ahead and then one after the other; a gain each, and a code of each element.
PACKED_STEPS, PACKED_CODES = (10, [STEP]), [(2, [(*GAIN, NO_ROOT)]), (8, [CODE])]

# Only INT8_BLOCK has quotients and fused operations: a gain or a step of each quad, and a code of
# each element.
LANES["encode_kernel int8"] = [[(*GAIN, NO_ROOT)], [("math/block.h", "zi_block_code")]]
LANES["decode_kernel int8"] = [[STEP]]


def of_two_moments(parts, lane):
    return [
        (8, [*parts, *QUICK]),
        (8, [CODE, CODE]),
        (1, [STEP, GAIN]),
        (2, [*parts, lane, *PLAIN, STEP, GAIN, MEASURE, CODE]),
    ]


def of_one_moment(lane):
    return [(8, [lane, CODE]), (1, PLAIN[:2]), (2, [lane, *PLAIN])]


CODED_LANES = {
    "update_kernel lion": of_one_moment(("../optimizer/lion.h", "zi_lion_lane")),
    "update_kernel sgd": of_one_moment(("../optimizer/sgd.h", "zi_sgd_lane")),
    "update_kernel lars": of_one_moment(("../optimizer/lars.h", "zi_lars_lane")),
    "update_kernel lamb": of_two_moments(LAMB, (OF_LAMB, "zi_lamb_lane")),
    "update_kernel": of_two_moments(ADAMW, (OF_ADAMW, "zi_adamw_lane")),
    "packed_fold_kernel to numbers": [PACKED_STEPS],
    "packed_fold_kernel of numbers": PACKED_CODES,
    "packed_fold_kernel of codes": [PACKED_STEPS, *PACKED_CODES],
}
WRITTEN = {
    "fma.rn.f32": r"\bfmaf\(",
    "fma.rn.f64": r"\bfma\(",
    "sqrt.rn.f32": r"\bsqrtf\(",
    "div.rn.f32": r"/ [a-z(]",  # by a variable or a term; integers are divided by constants
    "rsqrt.approx.ftz.f32": r"rsqrt\.approx\.ftz\.f32",
    "rcp.approx.ftz.f32": r"rcp\.approx\.ftz\.f32",
}

SHOWN_MAX = 20

# One thread of each looks limbs up by their index.
MAY_HAVE_STACK = ("decide_kernel", "merge_kernel")

# What it does to an element is in one lane function but in several places, for whole quads and for
# others, which share what is alike. A product that is fused shows among `products`.
NOT_COUNTED = ("measure_kernel", "merge_kernel")


def label(kernel):
    return f"{kernel.family}{list(kernel.types)} ({kernel.target})"


def complete(ptx, listings, archs):
    """The listings were understood: each has all kernels, for every target."""
    wanted = {(kernel.family, kernel.types) for kernel in ptx}
    families = {lanes.split()[0] for lanes in LANES}
    others = {"decide_kernel", "measure_kernel", "pack_kernel", "merge_kernel", PACKED_KERNEL}
    for family in sorted({*families, *others, "fold_kernel", "cast_kernel"}):
        if family not in {name for name, _ in wanted}:
            yield f"no {family} in PTX"
    for listing in listings:
        for arch in archs:
            seen = {(k.family, k.types) for k in listing if k.target == f"sm_{arch}"}
            for family, types in sorted(wanted - seen):
                yield f"{family}{list(types)} is not there for sm_{arch}"


def rounding(ptx):
    """Floating point is rounded to nearest, once, by name."""
    for kernel in ptx:
        for op in kernel.ops:
            seed = op in SEEDS.get(kernel.family, ())
            if FLOAT.search(op) and not EXACT.fullmatch(op) and not seed:
                yield f"{label(kernel)} has {op}"


def evaluations(kernel, ways):
    """ways: of each, {operation: how often it is written}. How often each is evaluated, by the
    operations that no other way has."""
    for way in ways:
        own = [op for op in way if way[op] and sum(bool(other[op]) for other in ways) == 1]
        yield max((kernel.ops[op] // way[op] for op in own), default=0)


def lanes_of(kernel):
    """The key of LANES: updates by AdamW have no name of their own there."""
    if kernel.family in BLOCK_KERNELS and INT8_BLOCK in kernel.types:
        return f"{kernel.family} int8"
    if kernel.family == PACKED_KERNEL:
        dst, source = (number in PACKED_TYPES for number in kernel.types)
        way = ("of codes" if source else "of numbers") if dst else "to numbers"
        return f"{kernel.family} {way}"
    optimizer = OPTIMIZERS.get(kernel.types[4]) if len(kernel.types) > 4 else None
    return f"{kernel.family} {optimizer}" if optimizer else kernel.family


def written(text):
    return {op: len(re.findall(pattern, text)) for op, pattern in WRITTEN.items()}


def has_codes(kernel):
    updates_codes = kernel.family == "update_kernel" and kernel.types[2:3] == (CODES,)
    return updates_codes or kernel.family == PACKED_KERNEL


def fusion(ptx, lanes, coded_lanes):
    """lanes: key of LANES -> of each way the text of its lane functions. Each evaluation has what
    is written there. coded_lanes: of CODED_LANES, with how often in front."""
    for kernel in (one for one in ptx if one.family not in NOT_COUNTED):
        if has_codes(kernel):
            times, texts = zip(*coded_lanes[lanes_of(kernel)])
            ways = [written(text) for text in texts]
        else:
            ways = [written(text) for text in lanes.get(lanes_of(kernel), [])]
            times = list(evaluations(kernel, ways))
        if 0 in times:
            yield f"{label(kernel)} has nothing of a lane function"
        for op in WRITTEN:
            wanted = sum(count * way[op] for count, way in zip(times, ways))
            if kernel.ops[op] != wanted:
                yield f"{label(kernel)} has {kernel.ops[op]} of {op} instead of {wanted}"


def machine_arithmetic(sass, ptx):
    """What PTX keeps apart the assembler keeps apart; what it has no need for is not there."""
    for kernel in sass:
        alike = [p for p in ptx if (p.family, p.types) == (kernel.family, kernel.types)]
        if not alike:
            yield f"{label(kernel)} has no PTX"
            continue
        ops = alike[0].ops
        if any(re.match(r"(?:div|rcp|sqrt)\.", op) for op in ops):
            continue  # made of approximations, and of fused operations that correct them
        forbidden = [r"MUFU.*", r".*\.FTZ.*"]
        forbidden += [] if ops["fma.rn.f32"] else [r"FFMA.*"]
        forbidden += [] if ops["fma.rn.f64"] else [r"DFMA.*"]
        for op in kernel.ops:
            if re.fullmatch("|".join(forbidden), op):
                yield f"{label(kernel)} has {op}"


def products(sass, ptx, target):
    """On the target that PTX was made for: no product was lost in a fused operation."""
    for kernel in (one for one in sass if one.target == target):
        for alike in (p for p in ptx if (p.family, p.types) == (kernel.family, kernel.types)):
            for op, machine in (("mul.rn.f32", "FMUL"), ("mul.rn.f64", "DMUL")):
                seen = kernel.ops[machine] + 2 * kernel.ops[machine + "2"]
                if seen < alike.ops[op]:
                    yield f"{label(kernel)} has {seen} of {machine} for {alike.ops[op]} of {op}"


def own_memory(resources):
    for kernel in resources:
        if kernel.ops["bytes"] != 0 and kernel.family not in MAY_HAVE_STACK:
            yield f"{label(kernel)}: {kernel.ops['bytes']} bytes of stack or spills for each thread"


def wanted_widths(kernel):
    """{"load" or "store": bits that some access must have}."""

    def bits(dtype):
        return {128} if dtype == F32 else {64} if dtype in NARROW else set()

    if kernel.family == "update_kernel":
        grad, param, moment, master = kernel.types[:4]
        grads = {64, 128} if grad == ANY else bits(grad)
        state = bits(moment) | bits(master) | (set() if master == F32 else bits(param))
        return {"load": grads | state, "store": bits(param) | state}
    if kernel.family == "measure_kernel":
        param, moment, master, optimizer = kernel.types[1:]
        state = bits(master) | (set() if master == F32 else bits(param))
        moments = bits(moment) if OPTIMIZERS[optimizer] == "lamb" else set()
        return {"load": {64, 128} | state | moments, "store": set()}
    if kernel.family == "square_sum_kernel":
        return {"load": {128}, "store": set()}  # two narrow quads at once
    if kernel.types:
        target, source = kernel.types
        return {"load": bits(source), "store": bits(target)}
    return {"load": set(), "store": set()}


WIDE_OPS = {
    ("load", 128): r"ld\.global[\w.]*\.v4\.[buf]32|LDG\.[\w.]*128",
    ("load", 64): r"ld\.global[\w.]*\.v2\.[buf]32|LDG\.[\w.]*64",
    ("store", 128): r"st\.global[\w.]*\.v4\.[buf]32|STG\.[\w.]*128",
    ("store", 64): r"st\.global[\w.]*\.v2\.[buf]32|STG\.[\w.]*64",
}


def wide_accesses(kernels):
    """Quads are single accesses: of 16 bytes, or 8 where a type has 16 bits."""
    for kernel in kernels:
        for way, widths in wanted_widths(kernel).items():
            for width in sorted(widths):
                if not any(re.fullmatch(WIDE_OPS[way, width], op) for op in kernel.ops):
                    yield f"{label(kernel)} has no {way} of {width} bits"


def images(listed, archs):
    """listed: cuobjdump's list of one object's code."""
    for arch in archs:
        if not re.search(rf"^ELF file.*\bsm_{arch}\b", listed, re.M):
            yield f"no code for sm_{arch}"
    if not re.search(rf"^PTX file.*\bsm_{archs[-1]}\b", listed, re.M):
        yield f"no PTX of compute_{archs[-1]}, for later GPUs"


CHECKS = (complete, rounding, fusion, machine_arithmetic, products, own_memory, wide_accesses)
CHECKS += (images,)


class Toolkit:
    """Listings of the objects."""

    def __init__(self, nvcc, flags, objects):
        self.nvcc, self.flags, self.objects = nvcc, flags, objects
        # The toolkit's own before others.
        self.cuobjdump = find_cuobjdump([os.path.dirname(os.path.realpath(nvcc))])

    def _each(self, command_of):
        def run(pair):
            done = subprocess.run(command_of(pair), check=True, stdout=subprocess.PIPE, text=True)
            return done.stdout

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(run, self.objects))

    def listing(self, *options):
        """Of each object what cuobjdump prints."""
        return self._each(lambda pair: [self.cuobjdump, *options, pair[1]])

    def ptx(self, arch):
        if self.cuobjdump:
            return self.listing("-ptx")
        compile_only = [*self.flags, f"-arch=compute_{arch}", "--ptx", "-o", "-"]
        return self._each(lambda pair: [self.nvcc, *compile_only, pair[0]])


def gpu_body(root, path, name, kind=None):
    """The body of a lane function as a GPU gets it."""
    with open(os.path.join(root, "src/kernels", path), encoding="utf-8") as file:
        body = function_body(file.read(), name)
    body = body.replace("sqrtf(", "(") if kind == NO_ROOT else body
    return re.sub(r"^#else.*?^#endif", "", body, flags=re.S | re.M)


def inputs(root, toolkit, archs):
    """{check: its arguments}, of the checks that can be made here."""
    ptx = [kernel for text in toolkit.ptx(archs[-1]) for kernel in read_ptx(text)]
    lanes = {}
    for family, ways in LANES.items():
        lanes[family] = ["".join(gpu_body(root, *place) for place in way) for way in ways]
    coded = {
        key: [(times, "".join(gpu_body(root, *place) for place in places))
              for times, places in ways]
        for key, ways in CODED_LANES.items()
    }
    made = {"complete": (ptx, [], archs), "rounding": (ptx,), "fusion": (ptx, lanes, coded)}
    made["wide_accesses"] = (ptx,)
    if toolkit.cuobjdump:
        sass = [kernel for text in toolkit.listing("-sass") for kernel in read_sass(text)]
        usage = [k for text in toolkit.listing("-res-usage") for k in read_resources(text)]
        made["complete"] = (ptx, [sass, usage], archs)
        made["machine_arithmetic"] = (sass, ptx)
        made["products"] = (sass, ptx, f"sm_{archs[-1]}")
        made["own_memory"] = (usage,)
        made["wide_accesses"] = (ptx + sass,)
        made["images"] = (toolkit.listing("-lelf", "-lptx"), archs)
    return made


def run_check(check, arguments):
    if check is not images:
        return list(check(*arguments))
    return [what for listed in arguments[0] for what in check(listed, arguments[1])]


def prove(check):
    """Complaints about the check itself."""
    clean, bad = FIXTURES[check.__name__]
    for number, arguments in enumerate(clean):
        for what in check(*arguments):
            yield f"fires on clean fixture {number}: {what}"
    for number, arguments in enumerate(bad):
        if not list(check(*arguments)):
            yield f"is silent on bad fixture {number}"


def build_inputs():
    root, nvcc, archs = sys.argv[1:4]
    end = sys.argv.index("--")
    objects = {path: os.path.basename(path).removesuffix(".o") for path in sys.argv[end + 1 :]}
    pairs = [(f"{root}/src/kernels/cuda/{name}", path) for path, name in objects.items()]
    return inputs(root, Toolkit(nvcc, sys.argv[4:end], pairs), archs.split(","))


def main():
    built = len(sys.argv) > 1
    made = build_inputs() if built else {}
    counts = {"ok": 0, "FAILED": 0, "skip": 0}
    for check in CHECKS:
        arguments = made.get(check.__name__)
        results = [("proves itself", list(prove(check)))]
        results.append(("kernels", None if arguments is None else run_check(check, arguments)))
        for what, found in results:
            verdict = "skip" if found is None else "FAILED" if found else "ok"
            counts[verdict] += 1
            print(f"{verdict:8}{check.__name__}, {what}")
            missing = "no cuobjdump and nvdisasm" if built else "this build has no CUDA"
            for line in [f"skipped: {missing}"] if found is None else found[:SHOWN_MAX]:
                print(f"  {line}")
    print(f"{counts['ok']} passed, {counts['FAILED']} failed, {counts['skip']} skipped")
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())

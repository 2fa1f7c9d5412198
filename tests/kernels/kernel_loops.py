#!/usr/bin/env python3
"""Instructions of the CUDA kernels' loops as the assembler made them, for one build or two.

Usage: kernel_loops.py [--arch 90] BUILD [AFTER]

BUILD, AFTER: build folders, or folders with *.cu.o. The table has of each kernel how many
instructions it has, and of its main loop, which is the one with most of its own: how many are in no
inner loop, how many there are with inner loops, and how many calls these make. The long ways of an
update, for arguments that are not usual, are inner loops and calls. Needs cuobjdump and nvdisasm:
of the toolkit, or `pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm`. Without arguments it
proves itself."""

import argparse
import glob
import os
import subprocess
import sys

from kernel_listing import find_cuobjdump, loops_of, read_code

TYPES = {0: "any", 1: "f32", 2: "bf16", 3: "f16", 4: "none", 7: "i8", 10: "mxfp8", 11: "int8",
         12: "int4"}
MASTERS = {0: "without a master", 1: "with a master", 5: "with remainder16", 6: "with remainder8"}
OPTIMIZERS = {1: "adamw", 3: "lion", 4: "sgd", 5: "lamb", 6: "lars"}

# A loop over tiles with a long way in it and a call, in a kernel that returns early or not at all.
LISTED = """
arch = sm_90
\t\tFunction : _Z13update_kernelIL10zero_dtype2ELS0_4ELS0_1ELi1EL14zero_optimizer3EEvi
        /*0000*/                   LDC R1, c[0x0][0x28] ;        /* 0x0 */
                                                                 /* 0x1 */
        /*0010*/               @P0 EXIT ;                        /* 0x0 */
        /*0020*/                   LDG.E.128 R4, [R2.64] ;       /* 0x0 */
        /*0030*/                   BSSY B0, 0x80 ;               /* 0x0 */
        /*0040*/                   BRA.U !UP0, 0x70 ;            /* 0x0 */
        /*0050*/                   CALL.REL.NOINC 0xb0 ;         /* 0x0 */
        /*0060*/              @!P1 BRA 0x50 ;                    /* 0x0 */
        /*0070*/                   BSYNC B0 ;                    /* 0x0 */
        /*0080*/                   STG.E.128 [R2.64], R4 ;       /* 0x0 */
        /*0090*/               @P1 BRA 0x20 ;                    /* 0x0 */
        /*00a0*/                   EXIT ;                        /* 0x0 */
        /*00b0*/                   MUFU.RSQ R4, R4 ;             /* 0x0 */
        /*00c0*/                   RET.REL.NODEC R6 0x0 ;        /* 0x0 */
        /*00d0*/                   BRA 0xd0;                     /* 0x0 */
        /*00e0*/                   NOP;                          /* 0x0 */
\t\tFunction : _Z13decide_kernel13zi_decide_job
        /*0000*/                   EXIT ;                        /* 0x0 */
"""
# Without inner loops 6, with the one of two instructions 8.
PROOF = {"update lion bf16, none, f32, with a master": (15, 6, 8, 1), "decide": (1, 0, 0, 0)}


def named(kernel):
    """As the table calls it: an update by gradient, parameter and moments."""
    words = [kernel.family.removesuffix("_kernel")]
    if kernel.family in ("update_kernel", "measure_kernel"):
        types = ", ".join(TYPES[number] for number in kernel.types[:3])
        words.append(OPTIMIZERS[kernel.types[4]])
        words.append(f"{types}, {MASTERS[kernel.types[3]]}")
    else:
        words.append(", ".join(TYPES[number] for number in kernel.types))
    return " ".join(words).strip()


def counted(instructions):
    """(all, those of the main loop in no inner loop, with inner loops, calls of these)"""
    main = max(loops_of(instructions), key=lambda loop: len(loop.own), default=None)
    if main is None:
        return len(instructions), 0, 0, 0
    inside = [one for one in instructions if one.address in main.addresses]
    calls = sum(one.op.startswith("CALL") for one in inside)
    return len(instructions), len(main.own), len(inside), calls


def read_counts(text, target):
    return {
        named(kernel): counted(instructions)
        for kernel, instructions in read_code(text)
        if kernel.target == target
    }


def counts_of(folder, target, cuobjdump):
    objects = []
    for pattern in ("*.cu.o", "src/kernels/*.cu.o"):
        objects += sorted(glob.glob(os.path.join(folder, pattern)))
    if not objects:
        sys.exit(f"{folder} has no *.cu.o: give the folder of a build with -Dcuda=enabled")
    counts = {}
    for path in objects:
        command = [cuobjdump, "-sass", path]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        counts.update(read_counts(done.stdout, target))
    if not counts:
        sys.exit(f"{folder} has no code for {target}: see --arch, and -Dgpu_archs of the build")
    return counts


def table(builds):
    """builds: counts of each, in the order of columns."""
    yield "| kernel | instructions | main loop | with inner loops | calls in it |"
    yield "|---|---|---|---|---|"
    for name in sorted(set().union(*builds)):
        columns = zip(*(build.get(name, ("-",) * 4) for build in builds))
        cells = [" -> ".join(str(value) for value in column) for column in columns]
        yield f"| {name} | {' | '.join(cells)} |"


def prove():
    found = read_counts(LISTED, "sm_90")
    lines = list(table([found, {}]))
    right = found == PROOF and not read_counts(LISTED, "sm_80")
    right = right and "| decide | 1 -> - | 0 -> - | 0 -> - | 0 -> - |" in lines
    print("ok      proves itself" if right else f"FAILED  proves itself: {found}\n  {lines}")
    print(f"{int(right)} passed, {int(not right)} failed, 0 skipped")
    return 0 if right else 1


def main():
    if len(sys.argv) == 1:
        return prove()
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--arch", default="90", help="compute capability (default 90)")
    parser.add_argument("build", nargs="+", help="a build's folder, or two: before and after")
    asked = parser.parse_args()
    if len(asked.build) > 2:
        parser.error(f"{len(asked.build)} folders given, one or two are taken")
    cuobjdump = find_cuobjdump()
    if cuobjdump is None:
        sys.exit("cuobjdump or nvdisasm is missing: install the CUDA toolkit's, or "
                 "`pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm`")  # fmt: skip
    builds = [counts_of(folder, f"sm_{asked.arch}", cuobjdump) for folder in asked.build]
    print("\n".join(table(builds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Takes each wait between streams away in turn and expects the tests of order to notice: on the
CPU, on a device with memory of its own, and over the CUDA double where the toolkit is there.

Usage: take_away_waits.py SOURCE FOLDER

SOURCE is the project; FOLDER is made and takes a copy and a build of it (some minutes). One line
for each wait; the last line is "N passed, N failed, 0 skipped". A wait that can be taken away
unnoticed is either not needed or not tested."""

import os
import shutil
import subprocess
import sys

# Programs, their arguments, and what the environment says besides.
TESTS = [("tests/engine/test_checked_engine", "engine_order.", {}),
         ("tests/engine/test_checked_engine", "engine_order.", {"CHECKED_OWN_MEMORY": "1"}),
         ("tests/engine/test_cuda_order", "cuda_order.", {})]
PARAMS = "src/stage3/params.c"
SLOTS = "src/stage3/param_slots.c"
VIEWS = "src/stage3/param_views.c"
GATHER = "src/stage3/gather.c"
GRADS = "src/stage2/grads.c"
REDUCE = "src/stage2/reduce.c"
STEP = "src/engine/outcome.c"
OFFLOAD_GRADS = "src/stage2/offload_grads.c"

# What waits, where, the text that is taken away and what stands in its place.
WAIT = "device->ops->stream_wait(device->self, stream, "
OPS = "    ZI_TRY(ops_of({0})->stream_wait(self_of({0}), stream, {1}, NULL));\n"

WAITS = [
    ("acquire for gathered and updated", PARAMS,
     """    ZI_TRY(ops_of(params)->stream_wait(self_of(params), stream,
                                       params->slotted ? target->gathered : target->updated,
                                       &params->desc.stats->acquire_wait_ns));
""", ""),
    ("a view's copy for released", VIEWS, OPS.format("params", "target->released"), ""),
    ("another acquire for shown", VIEWS,
     OPS.format("params", "target->shown").replace("ZI_TRY(", "return ").replace("));", ");")
     .replace("    return", "        return"), "        return ZERO_OK;\n"),
    ("a slot's reuse for released", SLOTS, OPS.format("params", "holder->released"), ""),
    ("a gather for updated", GATHER, OPS.format("params", "target->updated"), ""),
    ("a step for the gathers before it", PARAMS,
     OPS.format("params", "params->gathers_done")
     .replace("ZI_TRY(", "return ").replace("));", ");"),
     "    (void)stream;\n    return ZERO_OK;\n"),
    ("a slot's reuse for reduced", GRADS,
     """        ZI_TRY(ops_of(grads)->stream_wait(self_of(grads), stream,
                                          grads->buckets[held->last].reduced,
                                          &grads->desc.stats->grad_wait_ns));
""", ""),
    ("a reduction for ready", REDUCE, OPS.format("grads", "bucket->ready"), ""),
    ("a reduction for consumed", REDUCE, OPS.format("grads", "grads->consumed"), ""),
    ("a step for the reductions", STEP,
     "    ZI_TRY(zi_grads_wait_reduced(engine->grads, stream));\n", ""),
    ("a step for the caller's stream", STEP, f"    ZI_TRY({WAIT}engine->caller, NULL));\n", ""),
    ("backward for the sum in its slot", OFFLOAD_GRADS,
     """    return ops_of(grads)->stream_wait(self_of(grads), stream, grads->buckets[bucket].filled,
                                      &grads->desc.stats->grad_wait_ns);
""", "    (void)stream;\n    return ZERO_OK;\n"),
    ("a speculative update for its reductions", "src/engine/speculate.c",
     "    ZI_TRY(zi_grads_wait_bucket(engine->grads, index, engine->step_stream));\n", ""),
    ("ranks for one another's fences", "src/comm/peer/peer_barrier.c",
     "        return follow(batch, parity);\n", "        return ZERO_OK;\n"),
]


def not_source(folder, names):
    """Build folders and what git keeps."""
    return [name for name in names
            if name == ".git" or os.path.exists(os.path.join(folder, name, "build.ninja"))]


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          check=False, **options).returncode


def failing(build, tests):
    """Those of the programs that fail, or None where one cannot be built."""
    if run(["ninja", "-C", build, *sorted({program for program, _, _ in tests})]) != 0:
        return None
    return [test for test in tests
            if run([os.path.join(build, test[0]), test[1]], timeout=300,
                   env={**os.environ, **test[2]}) != 0]


def unnoticed(tree, build, tests, wait):
    """Why taking this away did not show, or nothing."""
    _, path, text, instead = wait
    name = os.path.join(tree, path)
    with open(name, encoding="utf-8") as file:
        whole = file.read()
    if whole.count(text) != 1:
        return f"the text stands {whole.count(text)} times in {path}"
    with open(name, "w", encoding="utf-8") as file:
        file.write(whole.replace(text, instead))
    failed = failing(build, tests)
    with open(name, "w", encoding="utf-8") as file:
        file.write(whole)
    if failed is None:
        return "it does not compile without"
    return ", ".join(f"{' '.join(test[:2])} passes without" for test in tests if test not in failed)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, folder = sys.argv[1:]
    tree = os.path.join(folder, "tree")
    build = os.path.join(folder, "build")
    shutil.copytree(source, tree, ignore=not_source)
    if run(["meson", "setup", build, tree, "--buildtype=release"]) != 0:
        sys.exit(f"meson setup {build} {tree} fails")
    with open(os.path.join(build, "build.ninja"), encoding="utf-8") as file:
        built = file.read()
    tests = [test for test in TESTS if f"build {test[0]}:" in built]
    if failing(build, tests) != []:
        sys.exit(f"{', '.join(test[0] for test in tests)}: not all pass as they are")
    failed = 0
    for wait in WAITS:
        why = unnoticed(tree, build, tests, wait)
        failed += why != ""
        print(f"FAILED  {wait[0]}: {why}" if why else f"ok      {wait[0]}", flush=True)
    print(f"{len(WAITS) - failed} passed, {failed} failed, 0 skipped")
    sys.exit(failed != 0)


main()

#!/usr/bin/env python3
"""scripts/gpu-check and scripts/bench_torch.py with stand-ins for all that they start: a stage
that fails or hangs costs no other its results, nothing goes on when it is ended, and no clock
counts what Python does.

Usage: test_gpu_check.py ROOT"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

ROW = {"metric": "adamw_vs_copy", "case": "of a stand-in", "ratio": 0.75}
LISTED = [
    {"name": name, "suite": ["libzero:gpu"], "cmd": [f"BUILD/{program}", name]}
    for program, name in (("test_gpu_bodies", "cuda_bodies."), ("test_gpu_engine", "one."),
                          ("test_gpu_engine", "two."))
]
NVIDIA_SMI = """case "$*" in
*compute_cap*) echo 9.0 ;;
*clocks.sm*) while :; do echo "1500, 2600, [N/A]"; touch FOLDER/sampled; sleep 1; done ;;
*driver_version*) echo "NVIDIA H200, 580.1, 1980 MHz, 3201 MHz, 700 W" ;;
*) echo "NVIDIA H200" ;;
esac"""
ZERO = """echo $$ > PID
while [ "$1" != --json ]; do shift; done
echo '{"results": [ROW]}' > "$2"
THEN"""
# Its loss is the stage where that is to differ, else the same.
GPT2_TRAIN = """[ "$1" != --help ] || { echo --device; exit 0; }
for word; do
    [ "$last" != --json ] || json=$word
    [ "$last" != --stage ] || stage=$word
    last=$word
done
loss=1.5
[ DIFFER = 0 ] || loss=$stage
step='{"loss": '$loss', "norm": 1, "tokens_per_second": 100, "mfu": 0.4}'
echo '{"steps": ['"$step, $step"']}' > "$json"
"""
# Of two that train for long one is killed, and the other says so.
CUDA_HOOKS = """[ "$3" = 1000000 ] || exit 0
[ "$RANK" = 0 ] || kill -KILL $$
exit 1"""
MESON = """case $1 in
setup) mkdir -p "$2" && touch "$2/build.ninja" ;;
introspect) echo 'LISTED' ;;
esac"""

# What bench_torch.py calls. A step takes the GPU 2 ms; a clock wants one on the queue before it.
TORCH = """from types import SimpleNamespace as Space
__version__ = "stand-in"
queued = 0
class Event:
    def __init__(self, enable_timing):
        assert enable_timing
    def record(self):
        assert queued > 0, "the GPU is idle when its clock is started"
        self.at = queued
    def synchronize(self): pass
    def elapsed_time(self, end): return 2.0 * (end.at - self.at)
class Tensor:
    def __mul__(self, factor): return self
    def all(self): return True
class AdamW:
    def __init__(self, params, **options): assert options.get("fused") or options.get("foreach")
    def step(self):
        global queued
        queued += 1
def synchronize():
    global queued
    queued = 0
cuda = Space(Event=Event, synchronize=synchronize, is_available=lambda: True,
             empty_cache=lambda: None)
nn = Space(Parameter=lambda tensor: Tensor())
optim = Space(AdamW=AdamW)
manual_seed = lambda seed: None
randn = lambda count, device: Tensor()
randn_like = lambda tensor: Tensor()
isfinite = lambda tensor: Tensor()
"""
OURS = {
    "machine": {"cpu": "some"}, "date": "today", "commit": "abc", "build": {},
    "results": [{"metric": "adamw_vs_copy", "case": "f32 throughout, GPU", "value": 1.6}],
}  # fmt: skip
# What bench_torch_adam.py calls. A step takes 4 ms, that of the 2^24 parameters of a quick round.
TORCH_CPU = """import time
from types import SimpleNamespace as Space
threads = []
class Tensor:
    def __mul__(self, factor): return self
    def to(self, dtype): return self
    def all(self): return threads == [3]
class AdamW:
    def __init__(self, params, fused, **numbers): assert fused and len(params) == 16
    def step(self): time.sleep(0.004)
set_num_threads = threads.append
manual_seed = lambda seed: None
float32 = bfloat16 = None
nn = Space(Parameter=lambda tensor: Tensor())
optim = Space(AdamW=AdamW)
randn = lambda count: Tensor()
isfinite = lambda tensor: Tensor()
"""
OURS_CPU = {
    "commit": "abc",
    "results": [{"metric": "adamw_ns_per_parameter", "case": "all fp32", "value": 0.1},
                {"metric": "adamw_vs_limit", "case": "all fp32", "value": 7}],
}  # fmt: skip


def write_program(folder, path, text):
    path = os.path.join(folder, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\n" + text + "\n")
    os.chmod(path, 0o755)
    return path


def make_stage(folder, then, differ):
    """The programs, and the environment that finds them and no others."""
    for test in LISTED:
        program = test["cmd"][0].removeprefix("BUILD/")
        write_program(folder, f"build/{program}", "echo '1 passed, 0 failed, 0 skipped'")
    listed = json.dumps(LISTED).replace("BUILD", f"{folder}/build")
    zero = ZERO.replace("PID", f"{folder}/pid").replace("ROW", json.dumps(ROW))
    write_program(folder, "bin/nvidia-smi", NVIDIA_SMI.replace("FOLDER", folder))
    write_program(folder, "bin/meson", MESON.replace("LISTED", listed))
    write_program(folder, "bin/ninja", "exit 0")
    write_program(folder, "bin/nvcc", "exit 0")
    write_program(folder, "build/tools/zero", zero.replace("THEN", then))
    write_program(
        folder, "build/examples/gpt2/gpt2_train", GPT2_TRAIN.replace("DIFFER", str(differ))
    )
    write_program(folder, "build/examples/02_cuda_hooks/cuda_hooks", CUDA_HOOKS)
    return {
        "PATH": f"{folder}/bin:/usr/bin:/bin",
        "HOME": folder,
        "CUDA_HOME": folder,
        "PYTHONPATH": folder,
        "GPU_CHECK_BUILD": f"{folder}/build",
    }


def start(root, folder, then="exit 0", differ=0, **more):
    env = {**make_stage(folder, then, differ), **more}
    with open(f"{folder}/said", "w", encoding="utf-8") as said:
        return subprocess.Popen(
            [f"{root}/scripts/gpu-check", f"{folder}/out"],
            env=env,
            stdout=said,
            stderr=subprocess.STDOUT,
        )


def stages(folder):
    with open(f"{folder}/out/summary.json", encoding="utf-8") as file:
        report = json.load(file)
    return report, {stage["stage"]: stage for stage in report["stages"]}


def is_gone(folder):
    """The process of `zero`, soon."""
    with open(f"{folder}/pid", encoding="utf-8") as file:
        pid = int(file.read())
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def all_is_well(root, folder):
    process = start(root, folder, then=f"until [ -e {folder}/sampled ]; do sleep 0.1; done")
    process.wait()
    report, by_name = stages(folder)
    assert process.returncode == 0, process.returncode
    assert report["gpus"][0]["driver"] == "580.1" and report["commit"] and report["date"]
    assert all(by_name[name]["status"] == "ok" for name in ("build", "kernels", "bench", "tests"))
    assert by_name["bench"]["figures"]["adamw_vs_copy, of a stand-in"] == 0.75
    assert by_name["bench"]["figures"]["SM clock, MHz"]["median"] == 1500
    trained = by_name["gpt2"]["figures"]
    for stage in range(4):
        assert trained[f"124M, bf16, 2 ranks, stage {stage}, tokens/s"]["median"] == 100
    assert trained["124M, bf16, 2 ranks, same losses at all stages"] is True
    tests = by_name["tests"]["figures"]
    assert tests["passed"] == 2 and tests["failed"] == tests["skipped"] == 0
    assert by_name["kernels"]["figures"]["passed"] == 1


def a_stage_fails(root, folder):
    process = start(root, folder, then="exit 3", differ=1)
    process.wait()
    _, by_name = stages(folder)
    assert process.returncode == 1, process.returncode
    assert by_name["bench"]["status"] == "failed" and "3" in by_name["bench"]["reason"]
    assert by_name["bench"]["figures"]["adamw_vs_copy, of a stand-in"] == 0.75
    assert by_name["gpt2"]["figures"]["124M, bf16, 2 ranks, same losses at all stages"] is False
    assert by_name["gpt2"]["status"] == "failed" and by_name["tests"]["status"] == "ok"


def a_stage_hangs(root, folder):
    process = start(root, folder, then="exec sleep 1000", GPU_CHECK_SECONDS="14")
    process.wait()
    _, by_name = stages(folder)
    assert by_name["bench"]["status"] == "failed" and "end within" in by_name["bench"]["reason"]
    assert by_name["bench"]["figures"]["adamw_vs_copy, of a stand-in"] == 0.75
    assert by_name["sanitizer"]["status"] == "skipped"
    assert is_gone(folder)


def from_a_bundle(root, folder):
    """Beside a bundle nothing is built, and what is in it runs."""
    env = make_stage(folder, "exit 0", 0)
    for name in ("meson", "ninja", "nvcc"):
        write_program(folder, f"bin/{name}", "exit 1")
    with open(f"{folder}/build/gpu_tests", "w", encoding="utf-8") as file:
        file.write("".join(f"{' '.join(test['cmd']).removeprefix('BUILD/')}\n" for test in LISTED))
    for name, text in (("text", "some words"), ("commit", "abc")):
        with open(f"{folder}/build/{name}", "w", encoding="utf-8") as file:
            file.write(text + "\n")
    os.mkdir(f"{folder}/there")
    with tarfile.open(f"{folder}/there/bundle.tar.xz", "w:xz") as bundle:
        bundle.add(f"{folder}/build", ".")
    for name in ("gpu-check", "bench_torch.py", "bench_torch_gpt.py"):
        shutil.copy(f"{root}/scripts/{name}", f"{folder}/there")
    shutil.rmtree(f"{folder}/build")
    del env["GPU_CHECK_BUILD"]
    command = [f"{folder}/there/gpu-check", f"{folder}/out"]
    env["GPU_CHECK_STEPS"] = "kernels bench nccl tests ncu sanitizer"
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=False)
    report, by_name = stages(folder)
    assert done.returncode == 0, done.stdout
    assert list(by_name) == ["kernels", "bench", "nccl", "tests", "ncu", "sanitizer"]
    assert report["commit"] == "abc"
    assert by_name["ncu"]["status"] == by_name["sanitizer"]["status"] == "skipped"
    assert by_name["bench"]["figures"]["adamw_vs_copy, of a stand-in"] == 0.75
    assert by_name["tests"]["figures"]["passed"] == 2


def some_steps_only(root, folder):
    process = start(root, folder, GPU_CHECK_STEPS="nccl bench")
    process.wait()
    report, by_name = stages(folder)
    assert process.returncode == 0, process.returncode
    assert [stage["stage"] for stage in report["stages"]] == ["bench", "nccl"]
    assert all(by_name[name]["status"] == "ok" for name in ("bench", "nccl"))
    assert by_name["nccl"]["figures"]["two processes, NCCL"] == "ok"
    process = start(root, folder, GPU_CHECK_STEPS="bench", GPU_CHECK_BUILD=f"{folder}/elsewhere")
    process.wait()
    _, by_name = stages(folder)
    assert by_name["bench"]["status"] == "skipped" and "step build" in by_name["bench"]["reason"]
    process = start(root, folder, GPU_CHECK_STEPS="bench all")
    process.wait()
    with open(f"{folder}/said", encoding="utf-8") as said:
        assert process.returncode == 1 and "names a step all" in said.read()


def it_is_ended(root, folder):
    process = start(root, folder, then="exec sleep 1000")
    while not os.path.exists(f"{folder}/out/bench-gpu.json"):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=20)
    _, by_name = stages(folder)
    assert by_name["build"]["status"] == "ok"
    assert is_gone(folder)


def torch_beside_ours(root, folder):
    zero = write_program(folder, "zero", f"echo '{json.dumps(OURS)}'")
    with open(f"{folder}/torch.py", "w", encoding="utf-8") as file:
        file.write(TORCH)
    command = [sys.executable, f"{root}/scripts/bench_torch.py", "--zero", zero]
    with open(f"{folder}/said", "w", encoding="utf-8") as said:
        subprocess.run(
            command + ["--json", f"{folder}/report"],
            env={**os.environ, "PYTHONPATH": folder},
            stdout=said,
            stderr=subprocess.STDOUT,
            check=False,
        )
    with open(f"{folder}/report", encoding="utf-8") as file:
        report = json.load(file)
    assert report["commit"] == "abc" and report["machine"]["torch"] == "stand-in"
    assert [row["reference"] for row in report["results"]] == [2.0, 2.0]
    assert all(abs(row["ratio"] - 1.25) < 1e-9 for row in report["results"])
    assert report["results"][0]["repetitions"] == 3


def peers_beside_ours_on_the_cpu(root, folder):
    zero = write_program(folder, "zero", f"echo '{json.dumps(OURS_CPU)}'")
    with open(f"{folder}/torch.py", "w", encoding="utf-8") as file:
        file.write(TORCH_CPU)
    command = [sys.executable, f"{root}/scripts/bench_torch_adam.py", "--zero", zero, "--quick"]
    with open(f"{folder}/said", "w", encoding="utf-8") as said:
        subprocess.run(
            command + ["--threads", "3", "--rounds", "2", "--json", f"{folder}/report"],
            env={**os.environ, "PYTHONPATH": folder},
            stdout=said,
            stderr=subprocess.STDOUT,
            check=False,
        )
    with open(f"{folder}/report", encoding="utf-8") as file:
        report = json.load(file)
    (row,) = report["results"]
    assert row["case"] == "all fp32, against torch fused, f32" and row["repetitions"] == 2
    assert 0.004e9 / (1 << 24) <= row["reference"] < 0.1e9 / (1 << 24), row
    assert abs(row["ratio"] - row["reference"] / 0.1) < 1e-9
    assert [each["case"][:9] for each in report["skipped"]] == ["deepspeed", "deepspeed"]
    assert "deepspeed" in report["skipped"][0]["reason"]


def main():
    failed = 0
    cases = (all_is_well, a_stage_fails, a_stage_hangs, from_a_bundle, some_steps_only,
             it_is_ended, torch_beside_ours, peers_beside_ours_on_the_cpu)  # fmt: skip
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            try:
                case(sys.argv[1], folder)
                print(f"ok      {case.__name__}")
            except (AssertionError, LookupError, OSError, ValueError) as reason:
                failed += 1
                line = reason.__traceback__.tb_next.tb_lineno
                print(f"FAILED  {case.__name__}: {reason!r} at line {line}")
                if os.path.exists(f"{folder}/said"):
                    with open(f"{folder}/said", encoding="utf-8") as said:
                        print(said.read())
    print(f"{len(cases) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

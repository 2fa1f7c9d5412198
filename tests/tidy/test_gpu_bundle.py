#!/usr/bin/env python3
"""A rehearsal of scripts/gpu-check from a bundle: a mount namespace whose root has what every Linux
has, Python and the bundle, a stand-in for nvidia-smi, and nothing else: no toolkit, no compiler, no
headers, no driver, and none of the libraries that programs are linked with. All programs are found
and can be loaded there, and every step begins, ends in its time and is in the summary.

Usage: test_gpu_bundle.py ROOT BUILD"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile

# Of Debian's packages that are always there: bash, coreutils, findutils, grep, mawk, sed and
# util-linux.
ALWAYS = """awk bash basename cat chmod cp cut date dirname env find grep head ls mkdir mktemp mv
nproc paste rm sed setsid sh sleep sort stat tail tee timeout touch tr true uname xargs""".split()
# What comes with the driver and with Python's packages.
ELSEWHERE = re.compile(r"libcuda\.so|libcublasLt\.so")
# glibc, and what Debian's depends on.
GLIBC = re.compile(r"(ld-linux[\w-]*|libc|libm|libdl|libpthread|librt|libgcc_s)\.so")
PROGRAMS = ("tools/zero", "examples/gpt2/gpt2_train", "examples/02_cuda_hooks/cuda_hooks")
NVIDIA_SMI = """#!/bin/sh
case "$*" in
*compute_cap*) echo 9.0 ;;
*clocks.sm*) while :; do echo "1500, 2600, [N/A]"; sleep 1; done ;;
*driver_version*) echo "NVIDIA H200, 580.1, 1980 MHz, 3201 MHz, 700 W" ;;
*) echo "NVIDIA H200" ;;
esac
"""
# In the root, before the check: what the loader does not find, and a library that is opened late.
LOADED = """mkdir /unpacked
python3 -c 'import tarfile; tarfile.open("/there/bundle.tar.xz").extractall("/unpacked")'
cd /unpacked
export LD_LIBRARY_PATH=/unpacked/lib
for program in tools/zero examples/gpt2/gpt2_train examples/02_cuda_hooks/cuda_hooks \
    $(cut -d ' ' -f 1 gpu_tests | sort -u); do
    LD_TRACE_LOADED_OBJECTS=1 ./$program | sed "s,^,$program: ,"
done > /loaded 2>&1
echo '{"name": 1}' > /cluster.json
tools/zero plan gpt2 /cluster.json > /late 2>&1
cd /
rm -r /unpacked
unset LD_LIBRARY_PATH
exec /there/gpu-check /out > /said 2>&1
"""
# The caller's own /proc and a few devices. Nothing that is mounted here is seen outside.
ENTER = """set -e
mount --make-rprivate /
mount --rbind /proc "$1/proc"
for device in null zero full random urandom; do
    mount --bind "/dev/$device" "$1/dev/$device"
done
mount -t tmpfs tmpfs "$1/dev/shm"
mount --bind "$2" "$1$2"
exec chroot "$1" /bin/env -i PATH=/bin HOME=/ LC_ALL=C PYTHONDONTWRITEBYTECODE=1 \
    /bin/bash /inside
"""


def skip(reason):
    print(f"skip    rehearsal\n  skipped: {reason}\n0 passed, 0 failed, 1 skipped")
    sys.exit(0)


def libraries(paths):
    """What the loader takes for these, itself included."""
    done = subprocess.run(
        ["ldd", *paths], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False
    )
    return set(re.findall(r"(?:=>\s|^\t)(/\S+) \(0x", done.stdout, re.M))


def copy_into(root, path, name=None):
    target = root + (name or path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if not os.path.lexists(target):
        shutil.copy(path, target)


def write(path, text, mode=0o644):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)


def make_root(root):
    """A machine that has nothing of ours but the bundle in /there."""
    found = {name: shutil.which(name) for name in ALWAYS}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        skip(f"this machine lacks {', '.join(missing)}")
    python = os.path.realpath(sys.executable)
    stdlib = sysconfig.get_path("stdlib")
    modules = os.path.join(stdlib, "lib-dynload")
    modules = [f"{modules}/{name}" for name in os.listdir(modules) if "tkinter" not in name]
    os.makedirs(f"{root}/bin")
    os.mkdir(f"{root}/usr")
    os.symlink("../bin", f"{root}/usr/bin")
    for name, path in found.items():
        copy_into(root, os.path.realpath(path), f"/bin/{name}")
    copy_into(root, python)
    os.symlink(python, f"{root}/bin/python3")
    programs = libraries([*found.values(), python, *modules])
    linked = libraries([f"{sys.argv[2]}/{name}" for name in ("libzero.so.0", PROGRAMS[1])])
    glibc = {path for path in linked if GLIBC.match(os.path.basename(path))}
    for library in programs | glibc:
        copy_into(root, library)
    for folder in ("proc", "dev/shm", "tmp", "there", stdlib.lstrip("/")):
        os.makedirs(f"{root}/{folder}", exist_ok=True)
    for device in ("null", "zero", "full", "random", "urandom"):
        write(f"{root}/dev/{device}", "")
    os.symlink("/proc/self/fd", f"{root}/dev/fd")  # <(...) of bash
    write(f"{root}/bin/nvidia-smi", NVIDIA_SMI, 0o755)
    write(f"{root}/inside", LOADED)
    return stdlib


def make_bundle(folder):
    """Of what the build has, compressed in less time."""
    quick = f"{folder}/bin"
    os.mkdir(quick)
    write(f"{quick}/xz", f"#!/bin/sh\nexec {shutil.which('xz')} -T0 -0\n", 0o755)
    env = {**os.environ, "PATH": f"{quick}:{os.environ['PATH']}"}
    env.update(GPU_BUNDLE_BUILD=sys.argv[2], GPU_BUNDLE_AS_IS="1")
    done = subprocess.run(
        [f"{sys.argv[1]}/scripts/gpu-bundle", f"{folder}/root/there"],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def entered(arguments, **options):
    """A command in a mount namespace of its own, as root of it."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return subprocess.Popen(["unshare", *user, "--mount", *arguments], **options)


def need(build):
    """Skips where there is nothing to rehearse with."""
    for program in ("unshare", "chroot", "xz", "strip", "meson", "git", "ldconfig"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            skip(f"{program} is not installed")
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    for program in PROGRAMS:
        if not os.path.exists(f"{build}/{program}"):
            skip(f"this build has no {program}")
    with tempfile.TemporaryDirectory() as folder:
        probe = f"mount --make-rprivate / && mount -t tmpfs tmpfs {folder} && chroot / true"
        process = entered(["sh", "-c", probe], stderr=subprocess.PIPE, text=True)
        said = process.communicate()[1]
        if process.returncode != 0:
            skip(f"no mount namespaces for this user here: {said.strip()}")


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def check_loaded(root):
    lines = read(f"{root}/loaded").splitlines()
    programs = {line.split(":")[0] for line in lines}
    listed = len(re.findall(r"libc\.so\.6 => /", "\n".join(lines)))
    assert listed == len(programs) >= 4, f"{listed} of {len(programs)} were loaded: {lines}"
    missing = [line for line in lines if "not found" in line and not ELSEWHERE.search(line)]
    assert not missing, f"the loader lacks {missing}"
    late = read(f"{root}/late")
    assert "/cluster.json" in late and "jansson" not in late, late


def check_steps(root):
    """Each ended by itself, and for no want of a program or a library."""
    limits = dict(re.findall(r"\brun_step (\w+) (\d+) ", read(f"{root}/there/gpu-check")))
    stages = json.loads(read(f"{root}/out/summary.json"))["stages"]
    names = [stage["stage"] for stage in stages]
    assert names == [name for name in limits if name != "build"], names
    for stage in stages:
        assert stage["status"] in ("ok", "failed", "skipped"), stage
        assert stage["seconds"] <= int(limits[stage["stage"]]), stage
        assert "did not end" not in stage["reason"] and "no time" not in stage["reason"], stage
    by_name = {stage["stage"]: stage for stage in stages}
    for name in ("kernels", "tests"):
        figures = by_name[name]["figures"]
        assert figures["skipped"] > 0 and figures["passed"] == figures["failed"] == 0, figures
    for name in ("torch", "ncu", "sanitizer"):
        assert by_name[name]["status"] == "skipped", by_name[name]
    if re.search(r"gpt2_train:.*libcublasLt.* not found", read(f"{root}/loaded")):
        assert "libcublasLt" in by_name["gpt2"]["reason"], by_name["gpt2"]
    said = "\n".join(read(f"{root}/out/{name}") for name in os.listdir(f"{root}/out"))
    said += read(f"{root}/said")
    lines = said.splitlines()
    for i, line in enumerate(lines):
        unknown = re.search(r"command not found|ModuleNotFound|status 12[67]\b|Traceback", line)
        unloaded = "loading shared libraries" in line and not ELSEWHERE.search(line)
        assert not unknown and not unloaded, "\n".join(lines[i : i + 30])


def rehearse(folder):
    root = f"{folder}/root"
    os.mkdir(root)
    stdlib = make_root(root)
    make_bundle(folder)
    command = ["sh", "-c", ENTER, "enter", root, stdlib]
    process = entered(command, start_new_session=True)
    try:
        process.wait(timeout=280)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError("gpu-check did not end") from None
    assert os.path.exists(f"{root}/out/summary.json"), read(f"{root}/said")
    check_loaded(root)
    check_steps(root)


def main():
    need(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        try:
            rehearse(folder)
        except (AssertionError, LookupError, OSError, ValueError) as reason:
            print(f"FAILED  rehearsal: {reason!r}\n0 passed, 1 failed, 0 skipped")
            return 1
    print("ok      rehearsal\n1 passed, 0 failed, 0 skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""README's section "Embed it", line by line as it stands there, in a copy of the source.

Usage: test_readme.py SOURCE CC

The home folder that the lines name is a scratch one. CUDA and optimising are left out, which would
take minutes. One line per check; the last line is "N passed, N failed, N skipped"."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

from checks import Fail, Skip, Tally, hasty_compiler

# In place of meson: the real one, with what takes long left out.
MESON = """#!/bin/sh
case $1 in
setup) shift; exec {meson} setup "$@" -Dcuda=disabled -Doptimization=0 ;;
*) exec {meson} "$@" ;;
esac
"""


class Scratch:
    """Where everything happens."""

    def __init__(self, source, compiler, folder):
        self.readme = open(f"{source}/README.md", encoding="utf-8").read()
        self.home = folder
        self.copy = f"{folder}/libzero"
        self.prefix = f"{folder}/zero"
        self.meson = shutil.which("meson")
        self.hello = f"{source}/examples/01_hello/hello.c"
        self.cpp_hello = f"{source}/examples/cpp_hello/cpp_hello.cpp"
        # Neither builds nor git: what the build needs is there without them.
        leave = shutil.ignore_patterns(".git", "build", "build-*", "data", "tests", "__pycache__")
        shutil.copytree(source, self.copy, ignore=leave, symlinks=True)
        os.mkdir(f"{folder}/bin")
        with open(f"{folder}/bin/meson", "w", encoding="utf-8") as file:
            file.write(MESON.format(meson=shlex.quote(self.meson)))
        os.chmod(f"{folder}/bin/meson", 0o755)
        path = f"{folder}/bin:{os.environ['PATH']}"
        self.env = {**os.environ, "HOME": folder, "PATH": path,
                    "CC": hasty_compiler(folder, compiler)}
        for name in ("LD_LIBRARY_PATH", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR", "DESTDIR"):
            self.env.pop(name, None)

    def run(self, command, folder, **more):
        """Standard output of a command that must succeed."""
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=folder,
            env={**self.env, **more}, stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            said = "\n".join((done.stdout + done.stderr).strip().split("\n")[-40:])
            raise Fail(f"{shlex.join(command)}: exit {done.returncode}\n{said}")
        return done.stdout

    def block(self, language, word):
        """README's block in this language that has the word in it."""
        blocks = re.findall(rf"^```{language}\n(.*?)^```$", self.readme, re.DOTALL | re.MULTILINE)
        found = [block for block in blocks if word in block]
        if len(found) != 1:
            raise Fail(f'README.md has {len(found)} blocks of {language} with "{word}", not 1')
        return found[0]

    def lines(self):
        """The shell's lines by what they begin with."""
        lines = self.block("sh", "meson install").strip().split("\n")
        kinds = {"build": [], "cc": [], "c++": []}
        for line in lines:
            kinds[line.split()[0] if line.split()[0] in kinds else "build"].append(line)
        return kinds

    def path(self):
        return {"PKG_CONFIG_PATH": f"{self.prefix}/lib/pkgconfig"}


def need(program):
    if shutil.which(program) is None:
        raise Skip(f"{program} is not installed")


def learns(output):
    losses = [float(text) for text in re.findall(r"^step +\d+ +loss (\S+)$", output, re.MULTILINE)]
    if len(losses) < 100 or not losses[-1] < losses[0] / 100:
        raise Fail(f"{len(losses)} losses, first {losses[:1]}, last {losses[-1:]}")


def installs(scratch):
    """The first lines; what comes after begins with the variables they set."""
    scratch.run(["sh", "-ec", "\n".join(scratch.lines()["build"])], scratch.copy)
    for name in ("lib/libzero.so", "lib/pkgconfig/zero.pc", "include/zero/zero.h", "bin/zero",
                 "lib/zero/python/start.py", "lib/libzero-plan.so",
                 "lib/pkgconfig/zero-plan.pc", "include/zero/planner.h"):
        if not os.path.exists(f"{scratch.prefix}/{name}"):
            raise Fail(f"$HOME/zero/{name} was not installed")


def compiles(scratch, compiler, name, text):
    """README's line of this compiler, and the program it makes, with nothing else set."""
    need(compiler)
    need("pkg-config")
    folder = tempfile.mkdtemp(dir=scratch.home)
    with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
        file.write(text)
    exports = [line for line in scratch.lines()["build"] if line.startswith("export ")]
    lines = scratch.lines()[compiler]
    if len(lines) != 1:
        raise Fail(f"README.md has {len(lines)} lines that begin with {compiler}, not 1")
    scratch.run(["sh", "-ec", "\n".join(exports + lines)], folder)
    return scratch.run(["./trainer"], folder)


def c_trainer(scratch):
    learns(compiles(scratch, "cc", "trainer.c", open(scratch.hello, encoding="utf-8").read()))


def cpp_trainer(scratch):
    with open(scratch.cpp_hello, encoding="utf-8") as file:
        learns(compiles(scratch, "c++", "trainer.cpp", file.read()))


def project(scratch, name, text):
    """A folder with hello.c as trainer.c and a file for a build system."""
    folder = tempfile.mkdtemp(dir=scratch.home)
    shutil.copy(scratch.hello, f"{folder}/trainer.c")
    with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
        file.write(text)
    return folder


def cmake_trainer(scratch):
    need("cmake")
    folder = project(scratch, "CMakeLists.txt", scratch.block("cmake", "PkgConfig"))
    scratch.run(["cmake", "-G", "Ninja", "-S", ".", "-B", "out"], folder, **scratch.path())
    scratch.run(["cmake", "--build", "out"], folder)
    learns(scratch.run(["out/trainer"], folder))


def meson_trainer(scratch):
    folder = project(scratch, "meson.build", scratch.block("meson", "fallback"))
    scratch.run([scratch.meson, "setup", "out"], folder, **scratch.path())
    scratch.run(["ninja", "-C", "out"], folder)
    learns(scratch.run(["out/trainer"], folder))


def none_of(listed, folders):
    """No target of what meson lists is defined in these folders of ours."""
    found = [target["name"] for target in listed
             if re.search(rf"/(?:{folders})/(?:\w+/)?meson\.build$", target["defined_in"])]
    if found:
        raise Fail(f"there is more than wanted: {' '.join(found)}")


def meson_subproject(scratch):
    """No installed copy: the source is a subproject, and only the library of it is built."""
    folder = project(scratch, "meson.build", scratch.block("meson", "fallback"))
    os.mkdir(f"{folder}/subprojects")
    os.symlink(scratch.copy, f"{folder}/subprojects/zero")
    # For time: neither optimised nor with MPI.
    scratch.run([scratch.meson, "setup", "--wrap-mode=forcefallback", "-Dbuildtype=plain",
                 "-Dzero:cuda=disabled", "-Dzero:mpi=disabled", "out"], folder)
    listed = json.loads(scratch.run([scratch.meson, "introspect", "--targets", "out"], folder))
    none_of(listed, "tests|tools|examples")
    scratch.run(["ninja", "-C", "out"], folder)
    learns(scratch.run(["out/trainer"], folder))


def asks_for_nothing(scratch):
    """What the shared library needs is no business of who compiles against it."""
    need("pkg-config")
    # Nothing but zero.pc can be found.
    alone = {"PKG_CONFIG_LIBDIR": f"{scratch.prefix}/lib/pkgconfig"}
    cflags = scratch.run(["pkg-config", "--cflags", "zero"], scratch.home, **alone).split()
    libs = scratch.run(["pkg-config", "--libs", "zero"], scratch.home, **alone).split()
    library = f"{scratch.prefix}/lib"
    if cflags != [f"-I{scratch.prefix}/include"]:
        raise Fail(f"--cflags: {cflags}")
    if libs != [f"-L{library}", f"-Wl,-rpath,{library}", "-lzero"]:
        raise Fail(f"--libs: {libs}")


PLANNER = """
#include <stdio.h>
#include <zero/planner.h>
int main(void)
{
    zero_transformer model = zero_transformer_init();
    return zero_transformer_preset("no such model", &model) == ZERO_ERR_INVALID_ARGUMENT &&
           puts(zero_last_error()->message) >= 0 &&
           zero_transformer_preset("gpt2", &model) == ZERO_OK ? 0 : 1;
}
"""


def planner(scratch):
    """A program that plans: one call of pkg-config, and one record of errors in both libraries."""
    need("pkg-config")
    flags = scratch.run(["pkg-config", "--cflags", "--libs", "zero-plan"], scratch.home,
                        **scratch.path()).split()
    program, source = f"{scratch.home}/planner", f"{scratch.home}/planner.c"
    with open(source, "w", encoding="utf-8") as file:
        file.write(PLANNER)
    scratch.run([*scratch.env["CC"].split(), source, "-o", program, *flags], scratch.home)
    if "no such model" not in scratch.run([program], scratch.home):
        raise Fail("the message of libzero-plan's failure is not libzero's last error")


def static_trainer(scratch):
    """pkg-config --static names what the static library needs beside itself."""
    need("pkg-config")
    need("readelf")
    flags = scratch.run(["pkg-config", "--static", "--cflags", "--libs", "zero"], scratch.home,
                        **scratch.path()).split()
    flags = [flag.replace("-lzero", "-l:libzero.a") for flag in flags]
    program = f"{scratch.home}/static_trainer"
    scratch.run([*scratch.env["CC"].split(), scratch.hello, "-o", program, *flags], scratch.home)
    learns(scratch.run([program], scratch.home))
    if "libzero.so" in scratch.run(["readelf", "-d", program], scratch.home):
        raise Fail("linked with libzero.so")
    scratch.run([*scratch.env["CC"].split(), "-static", scratch.hello, "-o", program, *flags],
                scratch.home)
    learns(scratch.run([program], scratch.home))
    if "NEEDED" in scratch.run(["readelf", "-d", program], scratch.home):
        raise Fail("-static links shared libraries")


def demo_needs_little(scratch):
    """scripts/demo installs and builds what its run uses, not MPI for ranks that are threads."""
    say = '. scripts/packages.sh; missing=(); {}; printf "%s\\n" "${{{}[@]}}"'
    bash = shutil.which("bash")
    packages = scratch.run([bash, "-c", say.format("PATH=/nowhere; need_example", "missing")],
                           scratch.copy).split()
    beside = [name for name in packages if re.search("mpi", name)]
    if "libopenblas-dev" not in packages or beside:
        raise Fail(f"it would install {packages}")
    options = scratch.run([bash, "-c", say.format(":", "example_options")], scratch.copy).split()
    scratch.run([scratch.meson, "setup", *options, "-Dcuda=disabled", "demo"], scratch.copy)
    listed = json.loads(scratch.run([scratch.meson, "introspect", "--targets", "demo"],
                                    scratch.copy))
    names = {target["name"] for target in listed}
    if "gpt2_train" not in names or "zero" not in names:
        raise Skip("OpenBLAS is not installed (Debian: libopenblas-dev)")
    none_of(listed, "tests")
    steps = scratch.run(["ninja", "-C", "demo", "-n", "examples/gpt2/gpt2_train", "tools/zero"],
                        scratch.copy)
    built = len(re.findall(r"^\[\d+/\d+\] ", steps, re.MULTILINE))
    if not 20 < built < 400:
        raise Fail(f"it would build {built} targets:\n{steps[-2000:]}")


def packages_are_named_first(scratch):
    """What is to be installed is said before anything is, and a script is not asked."""
    tools = f"{scratch.home}/tools"
    os.makedirs(tools)
    for name in ("apt-get", "sudo"):
        with open(f"{tools}/{name}", "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\n[ "${0##*/}" != sudo ] || shift\necho "$@"\n')
        os.chmod(f"{tools}/{name}", 0o755)
    line = '. scripts/packages.sh; PATH="$0:$PATH"; missing=(one two); install_missing'
    said = scratch.run([shutil.which("bash"), "-c", line, tools], scratch.copy).splitlines()
    if len(said) < 2 or "as root: one two" not in said[0] or "apt-get update" not in said[1]:
        raise Fail("\n".join(said))


CHECKS = {
    "README's lines build and install": installs,
    "pkg-config asks for nothing but the library": asks_for_nothing,
    "README's line for C": c_trainer,
    "README's line for C++17": cpp_trainer,
    "README's CMake": cmake_trainer,
    "README's meson, installed": meson_trainer,
    "README's meson, as a subproject": meson_subproject,
    "the installed static library": static_trainer,
    "the installed planner": planner,
    "the demo's packages and targets": demo_needs_little,
    "packages are named before they are installed": packages_are_named_first,
}


def main():
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Scratch(sys.argv[1], sys.argv[2], folder)
        for name, check in CHECKS.items():
            tally.run(name, check, scratch)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""What `meson install` puts into a folder that is moved afterwards: find_package(zero CONFIG).

The lines of docs/install.md are tried as they stand there.

Usage: test_cmake.py SOURCE BUILD PREFIX LIBDIR VERSION CUDA   (CUDA: yes or no)

One line per check; the last line is "N passed, N failed, N skipped"."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

from checks import Fail, Skip, Tally, hasty_compiler

CXX = """#include <cstdio>
#include <zero/zero.h>
int main()
{
    zero_world *world = nullptr;
    if (zero_world_create_self(&world) != ZERO_OK) {
        return 1;
    }
    std::printf("%u ranks\\n", zero_world_size(world));
    zero_world_destroy(world);
}
"""

# Of libzero it calls nothing, so a linker that drops idle libraries drops libzero.so.
PLANNER = """#include <stdio.h>
#include <zero/planner.h>
int main(void)
{
    zero_transformer model = zero_transformer_init();
    return zero_transformer_preset("gpt2", &model) == ZERO_OK && puts("planned") >= 0 ? 0 : 1;
}
"""

MPI = """#include <stdio.h>
#include <zero/mpi.h>
int main(void)
{
    zero_world *world = NULL;
    int level = 0;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    if (zero_world_create_mpi(MPI_COMM_WORLD, 10000, &world) != ZERO_OK) {
        printf("%s\\n", zero_last_error()->message);
        return 1;
    }
    printf("%u of %s\\n", zero_world_size(world), zero_world_backend(world));
    zero_world_destroy(world);
    return MPI_Finalize();
}
"""

CUDA = """#include <stdio.h>
#include <zero/cuda.h>
int main(void)
{
    return zero_stream_cuda(0).native != NULL && puts("a stream") >= 0 ? 0 : 1;
}
"""

HEAD = """cmake_minimum_required(VERSION 3.16)
project(trainer {languages})
"""

CONSUMERS = HEAD.format(languages="C CXX") + """
find_package(zero 0.2 CONFIG REQUIRED COMPONENTS plan static)
add_link_options(-Wl,--as-needed)
add_executable(hello hello.c)
target_link_libraries(hello PRIVATE zero::zero)
add_executable(hello_static hello.c)
target_link_libraries(hello_static PRIVATE zero::static)
add_executable(hello_whole hello.c)
target_link_libraries(hello_whole PRIVATE zero::static)
target_link_options(hello_whole PRIVATE -static)
add_executable(cxx main.cpp)
target_link_libraries(cxx PRIVATE zero::zero)
add_executable(cxx_static main.cpp)
target_link_libraries(cxx_static PRIVATE zero::static)
add_executable(planner planner.c)
target_link_libraries(planner PRIVATE zero::plan)
add_executable(planner_static planner.c)
target_link_libraries(planner_static PRIVATE zero::plan_static)
"""

# What is asked of releases, and which of it each serves: the promise of docs/stability.md.
ASKED = ("0", "0.1", "0.2", "0.2.0", "0.2.0.1", "0.2.99", "0.3", "0.3.1", "0.4", "1", "1.1",
         "0.2...<1", "0.2...<0.3", "0.0...0.2.0", "0.0...<0.2.0", "0.3...0.9")
SERVED = {
    "0.2.0": {"0", "0.1", "0.2", "0.2.0", "0.2...<1", "0.2...<0.3", "0.0...0.2.0"},
    "0.3.1": {"0", "0.1", "0.2", "0.2.0", "0.2.0.1", "0.2.99", "0.3", "0.3.1", "0.2...<1",
              "0.3...0.9"},
    "1.0.0": {"1"},
}
VERSIONS = """
foreach(version {asked})
  unset(zero_DIR CACHE)
  find_package(zero ${{version}} CONFIG QUIET)
  message("version ${{version}} ${{zero_FOUND}}")
endforeach()
"""


# In place of meson: the real one, without what takes long.
MESON = """#!/bin/sh
[ "$1" != setup ] || set -- "$@" -Dcuda=disabled -Dmpi=disabled -Doptimization=0 -Ddebug=false
exec {meson} "$@"
"""


class Scratch:
    """An installation, moved, and folders for projects."""

    def __init__(self, folder, source, build, prefix, libdir):
        self.folder = folder
        self.source = source
        self.libdir = libdir
        self.hello = f"{source}/examples/01_hello/hello.c"
        # CMake learns it from a compiler, which projects without a language do not have.
        self.architecture = os.path.basename(libdir) if "/" in libdir else ""
        self.env = {name: value for name, value in os.environ.items()
                    if name not in ("LD_LIBRARY_PATH", "CMAKE_PREFIX_PATH", "DESTDIR")}
        stage = f"{folder}/stage"
        self.run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", stage])
        self.prefix = f"{folder}/moved to"
        os.rename(stage + prefix, self.prefix)

    def start(self, command, folder=None, **more):
        return subprocess.run(command, capture_output=True, text=True, check=False,
                              cwd=folder or self.folder, env={**self.env, **more},
                              stdin=subprocess.DEVNULL)

    def run(self, command, folder=None, **more):
        """Standard output of a command that must succeed."""
        done = self.start(command, folder, **more)
        if done.returncode != 0:
            raise Fail(f"{command}: exit {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout

    def project(self, cmake, **files):
        """A new folder with CMakeLists.txt and these files, whose names have _ for their dot."""
        folder = tempfile.mkdtemp(dir=self.folder)
        for name, text in {"CMakeLists_txt": cmake, **files}.items():
            with open(f"{folder}/{name.replace('_', '.')}", "w", encoding="utf-8") as file:
                file.write(text)
        shutil.copy(self.hello, folder)
        return folder

    def configure(self, folder, prefix=None):
        return self.start(["cmake", "-G", "Ninja", "-S", ".", "-B", "out",
                           f"-DCMAKE_LIBRARY_ARCHITECTURE={self.architecture}",
                           f"-DCMAKE_PREFIX_PATH={prefix or self.prefix}"], folder)

    def build(self, folder):
        done = self.configure(folder)
        if done.returncode != 0:
            raise Fail((done.stdout + done.stderr)[-3000:])
        self.run(["cmake", "--build", "out"], folder)

    def refused(self, cmake, wanted, prefix=None, languages="NONE"):
        """find_package fails, and what it says has these words."""
        folder = self.project(HEAD.format(languages=languages) + cmake)
        done = self.configure(folder, prefix=prefix)
        said = " ".join(done.stderr.split())
        if done.returncode == 0 or wanted not in said:
            raise Fail(f'exit {done.returncode}, without "{wanted}": {said}')

    def without(self, *names):
        """A copy of the installation that lacks these files."""
        copy = f"{tempfile.mkdtemp(dir=self.folder)}/copy"
        shutil.copytree(self.prefix, copy, symlinks=True)
        for name in names:
            os.unlink(f"{copy}/{name}")
        return copy


def learns(scratch, program):
    losses = re.findall(r"loss (\S+)$", scratch.run([program]), re.MULTILINE)
    if len(losses) < 100 or not float(losses[-1]) < float(losses[0]) / 100:
        raise Fail(f"{program}: {len(losses)} losses, last {losses[-1:]}")


def page_block(scratch, word):
    """The page's block of CMake that has this word."""
    with open(f"{scratch.source}/docs/install.md", encoding="utf-8") as file:
        blocks = re.findall(r"^```cmake\n(.*?)^```$", file.read(), re.DOTALL | re.MULTILINE)
    found = [block for block in blocks if word in block]
    if len(found) != 1:
        raise Fail(f'{len(found)} blocks have "{word}", not 1')
    return found[0]


def page(scratch):
    folder = scratch.project(page_block(scratch, "zero 0.2"))
    os.rename(f"{folder}/hello.c", f"{folder}/trainer.c")
    scratch.build(folder)
    learns(scratch, f"{folder}/out/trainer")


def page_builds(scratch):
    """No installation: CMake builds the source."""
    folder = scratch.project(page_block(scratch, "FetchContent"))
    os.rename(f"{folder}/hello.c", f"{folder}/trainer.c")
    os.symlink(scratch.source, f"{folder}/libzero")
    os.mkdir(f"{folder}/bin")
    with open(f"{folder}/bin/meson", "w", encoding="utf-8") as file:
        file.write(MESON.format(meson=shlex.quote(shutil.which("meson"))))
    os.chmod(f"{folder}/bin/meson", 0o755)
    quick = {"PATH": f"{folder}/bin:{os.environ['PATH']}",
             "CC": hasty_compiler(folder, os.environ.get("CC", "cc"))}
    scratch.run(["cmake", "-G", "Ninja", "-S", ".", "-B", "out"], folder, **quick)
    scratch.run(["cmake", "--build", "out"], folder, **quick)
    learns(scratch, f"{folder}/out/trainer")


def pages_and_completions(scratch):
    """Where `man` and shells look for them."""
    if shutil.which("python3") is None:
        raise Skip("python3 is not installed, which makes them")
    names = ["man/man3/zero_step.3", "man/man3/zero_unit.h.3"]
    if os.path.exists(f"{scratch.prefix}/bin/zero"):
        names += ["man/man1/zero-plan.1", "bash-completion/completions/zero",
                  "zsh/site-functions/_zero", "fish/vendor_completions.d/zero.fish"]
    for name in names:
        if not os.path.getsize(f"{scratch.prefix}/share/{name}"):
            raise Fail(f"share/{name} is empty")


def needed(scratch, program):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", scratch.run(["readelf", "-d", program]))


def consumers(scratch):
    folder = scratch.project(CONSUMERS, main_cpp=CXX, planner_c=PLANNER)
    scratch.build(folder)
    for name in ("hello", "hello_static", "hello_whole"):
        learns(scratch, f"{folder}/out/{name}")
    for name, text in (("cxx", "1 ranks\n"), ("cxx_static", "1 ranks\n"),
                       ("planner", "planned\n"), ("planner_static", "planned\n")):
        said = scratch.run([f"{folder}/out/{name}"])
        if said != text:
            raise Fail(f"{name} printed {said}")
    for name, library in (("hello", "libzero.so.0"), ("planner", "libzero-plan.so.0"),
                          ("hello_static", None), ("planner_static", None), ("hello_whole", None)):
        found = needed(scratch, f"{folder}/out/{name}")
        ours = [entry for entry in found if entry.startswith("libzero")]
        if ours != ([library] if library else []) or (name == "hello_whole" and found):
            raise Fail(f"{name} needs {found}")


def of_release(scratch, own, release):
    """A copy of the installation whose package says that it is of this release."""
    copy = scratch.without()
    path = f"{copy}/{scratch.libdir}/cmake/zero/zero-config-version.cmake"
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for old, new in ((f'PACKAGE_VERSION "{own}"', f'PACKAGE_VERSION "{release}"'),
                     (f'MAJOR STREQUAL "{own.partition(".")[0]}"',
                      f'MAJOR STREQUAL "{release.partition(".")[0]}"')):
        if text.count(old) != 1:
            raise Fail(f"{path} does not have {old} once")
        text = text.replace(old, new)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return copy


def versions(scratch, own):
    folder = scratch.project(HEAD.format(languages="NONE") + VERSIONS.format(asked=" ".join(ASKED)))
    for release, wanted in SERVED.items():
        shutil.rmtree(f"{folder}/out", ignore_errors=True)
        done = scratch.configure(folder, prefix=of_release(scratch, own, release))
        found = dict(re.findall(r"^version (\S+) (\S+)$", done.stderr, re.MULTILINE))
        served = {version for version, flag in found.items() if flag == "1"}
        if served != wanted or len(found) != len(ASKED):
            raise Fail(f"{release} serves {sorted(served ^ wanted)} otherwise than it should, of "
                       f"{list(found)}\n{done.stderr}")


def wrong_version(scratch, own):
    scratch.refused("find_package(zero 0.9 CONFIG REQUIRED)\n",
                    f'compatible with requested version "0.9". The following configuration files '
                    f"were considered but not accepted: {scratch.prefix}")
    scratch.refused("find_package(zero 0.9 CONFIG REQUIRED)\n", f"version: {own}")
    scratch.refused("set(CMAKE_SIZEOF_VOID_P 2)\nfind_package(zero CONFIG REQUIRED)\n",
                    "of other pointers than this project's")


def components(scratch, libdir, own):
    ask = "find_package(zero CONFIG REQUIRED COMPONENTS {})\n".format
    scratch.refused(ask("planner"), "component planner: there is none of that name; there are "
                    "plan, static, cuda, mpi")
    lacking = scratch.without(f"{libdir}/libzero-plan.so.{own}", f"{libdir}/libzero.a",
                              "share/zero/mpi_plugin.c")
    scratch.refused(ask("plan"), f"component plan: this installation has no libzero-plan.so.{own}",
                    lacking)
    scratch.refused(ask("static"), "component static: this installation has no libzero.a", lacking)
    scratch.refused(ask("mpi"), "component mpi: this installation has no "
                    f"{lacking}/share/zero/mpi_plugin.c", lacking, languages="C")
    scratch.refused("set(CMAKE_FIND_LIBRARY_PREFIXES none)\n" + ask("static"),
                    "which libzero.a needs, is not found; install it (Debian: lib")
    broken = scratch.without(f"{libdir}/libzero.so.{own}")
    scratch.refused("find_package(zero CONFIG REQUIRED)\n",
                    f"libzero.so.{own} is not there; install libzero {own} again", broken)
    optional = scratch.project(HEAD.format(languages="NONE") + """
find_package(zero CONFIG REQUIRED OPTIONAL_COMPONENTS plan)
message("found ${zero_FOUND}, plan ${zero_plan_FOUND}")
""")
    said = scratch.configure(optional, prefix=lacking).stderr
    if said != "found 1, plan FALSE\n":
        raise Fail(said)


def cuda(scratch, has_cuda):
    ask = "find_package(zero CONFIG REQUIRED COMPONENTS cuda)\n"
    if not has_cuda:
        scratch.refused(ask, "component cuda: this libzero was built without CUDA; build it with "
                        "-Dcuda=enabled", languages="C")
        return
    folder = scratch.project(HEAD.format(languages="C") + ask + """
add_executable(stream stream.c)
target_link_libraries(stream PRIVATE zero::cuda)
""", stream_c=CUDA)
    done = scratch.configure(folder)
    if "no CUDA toolkit is found" in done.stderr:
        raise Skip("CMake finds no CUDA toolkit here, and says so")
    scratch.build(folder)
    if scratch.run([f"{folder}/out/stream"]) != "a stream\n":
        raise Fail("no stream")


def mpi(scratch, libdir):
    """The plug-in of an installation that has none is compiled by its user."""
    if shutil.which("mpicc") is None:
        raise Skip("mpicc is not installed (Debian: libopenmpi-dev)")
    plugins = [name for name in os.listdir(f"{scratch.prefix}/{libdir}") if "zero-mpi-" in name]
    bare = scratch.without(*(f"{libdir}/{name}" for name in plugins))
    folder = scratch.project(HEAD.format(languages="C") + """
find_package(zero CONFIG REQUIRED COMPONENTS mpi)
zero_add_mpi_plugin(plugin)
add_executable(ranks ranks.c)
target_link_libraries(ranks PRIVATE zero::mpi)
""", ranks_c=MPI)
    done = scratch.configure(folder, prefix=bare)
    if done.returncode != 0:
        raise Fail(done.stderr)
    scratch.run(["cmake", "--build", "out"], folder)
    alone = scratch.start([f"{folder}/out/ranks"])
    if alone.returncode != 1 or "libzero-mpi" not in alone.stdout:
        raise Fail(f"without a plug-in: exit {alone.returncode}, {alone.stdout}{alone.stderr}")
    said = scratch.run([f"{folder}/out/ranks"], LD_LIBRARY_PATH=f"{folder}/out")
    if not said.startswith("1 of "):
        raise Fail(said)
    scratch.refused("find_package(zero CONFIG REQUIRED)\nzero_add_mpi_plugin(plugin)\n",
                    "zero_add_mpi_plugin(plugin): the plug-in is C and calls MPI", languages="C")


def main():
    source, build, prefix, libdir, own, has_cuda = sys.argv[1:]
    tally = Tally()
    if shutil.which("cmake") is None:
        tally.note("find_package", "skip", "skipped: cmake is not installed (Debian: cmake)")
        return tally.close()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Scratch(os.path.realpath(folder), source, build, prefix, libdir)
        tally.run("C and C++, shared, static and -static", consumers, scratch)
        tally.run("the lines of docs/install.md", page, scratch)
        tally.run("its lines that build libzero", page_builds, scratch)
        tally.run("man pages and completion", pages_and_completions, scratch)
        tally.run("versions", versions, scratch, own)
        tally.run("a wrong version is refused", wrong_version, scratch, own)
        tally.run("components that lack something are refused", components, scratch, libdir, own)
        tally.run("component cuda", cuda, scratch, has_cuda == "yes")
        tally.run("component mpi, and a plug-in", mpi, scratch, libdir)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())

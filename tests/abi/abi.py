#!/usr/bin/env python3
"""What a user of the library meets: headers, symbols, documentation.

Usage: abi.py --source DIR --shared FILE --static FILE --stages FILE --cc CC --version TEXT
       [--cxx CXX]
       [--mpi FLAGS] [--cuda FOLDER] [--nccl FOLDER] [--hardened yes] [--shares LIBRARY,...]
One line per check; the last line is "N passed, N failed, N skipped"."""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile

from checks import Fail, Skip, Tally

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def run(command, **options):
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()
        raise Fail(f"{shlex.join(command)}: exit {done.returncode}\n{said}")
    return done.stdout


def have(program):
    try:
        subprocess.run([program, "--version"], capture_output=True, check=False)
    except OSError:
        raise Skip(f"{program} is not installed") from None


def equal(what, left, right):
    left, right = set(left), set(right)
    if left != right:
        raise Fail(f"{what}: only left {sorted(left - right)}, only right {sorted(right - left)}")


def headers(args):
    names = sorted(os.listdir(f"{args.source}/include/zero"))
    return [name for name in names if name.endswith(".h")]


def compiles_alone(args, name, compiler, standard):
    """The header twice and nothing else: also shows that it can be included again."""
    if not compiler:
        raise Skip("no C++ compiler")
    flags = []
    if name == "mpi.h":
        if not args.mpi:
            raise Skip("no MPI")
        # MPI's own headers are somebody else's: no warnings out of them.
        flags = [re.sub(r"^-I", "-isystem", flag) for flag in args.mpi.split()]
    if name == "cuda.h":
        if not args.cuda:
            raise Skip("the CUDA toolkit is not in this build")
        flags = [f"-isystem{args.cuda}"]
    if name == "nccl.h":
        if not args.nccl:
            raise Skip("NCCL is not in this build")
        flags = [f"-isystem{folder}" for folder in (args.nccl, args.cuda) if folder]
    language = "c++" if standard.startswith("c++") else "c"
    text = f"#include <zero/{name}>\n" * 2 + "int main(void) { return 0; }\n"
    command = [*compiler.split(), f"-std={standard}", *WARNINGS, f"-I{args.source}/include"]
    run(command + flags + ["-x", language, "-fsyntax-only", "-"], input=text)


PLAN_HEADERS = ("cluster.h", "estimate.h", "footprint.h", "planner.h", "run.h", "search.h",
                "sim.h", "transformer.h")
PRIVATE = "ZERO_PRIVATE"


def declared(args, everything=False, plan=False):
    """Functions that the headers of libzero or of libzero-plan export: in this build, or in any."""
    names = []
    for name in headers(args):
        if (name in PLAN_HEADERS) != plan:
            continue
        needs = {"cuda.h": args.cuda, "nccl.h": args.nccl}
        if not everything and not needs.get(name, "nothing"):
            continue
        with open(f"{args.source}/include/zero/{name}", encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", " ", file.read(), flags=re.DOTALL)
        for line in re.findall(r"^ZERO_API\b([^;]*);", text, flags=re.MULTILINE):
            names.append(re.search(r"(\w+)\s*\(", line).group(1))
    if len(names) != len(set(names)):
        raise Fail("declared twice: " + " ".join(n for n in names if names.count(n) > 1))
    return names


def exported_symbols(args, library, plan):
    lines = run(["nm", "-D", "--with-symbol-versions", "--defined-only", library]).splitlines()
    symbols = [line.split() for line in lines]
    # "A" is the version node itself; private ones are the maps' matter.
    found = [name.split("@")[0] for _, kind, name in symbols
             if kind != "A" and PRIVATE not in name]
    equal(f"declared in the headers and exported by {library}", declared(args, plan=plan), found)


def read_map(args, name):
    """The texts of a map's nodes, by their names."""
    with open(f"{args.source}/src/{name}", encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/|#[^\n]*", "", file.read(), flags=re.DOTALL)
    return dict(re.findall(r"(\S+)\s*\{(.*?)\};", text, re.DOTALL))


def map_names(args, name, plan):
    for node, text in read_map(args, name).items():
        if PRIVATE in node:
            continue
        public = re.search(r"global:(.*?)local:", text, re.DOTALL)
        # A pattern such as zero_* would be a name that no header declares.
        equal(f"declared in the headers and named in src/{name}",
              declared(args, everything=True, plan=plan), re.findall(r"[\w*?]+", public.group(1)))
        if not re.search(r"local:\s*\*;", text):
            raise Fail(f"src/{name} does not hide the rest")


def private_names(args):
    """What libzero-plan.so needs of libzero.so beside its public functions is all in one version,
    of this very release, and nothing else is."""
    node = f"{PRIVATE}_{args.version}"
    lines = run(["nm", "-D", "--with-symbol-versions", "--undefined-only", args.plan]).splitlines()
    wanted = [line.split()[-1] for line in lines if line.split()[-1].startswith("zi_")]
    elsewhere = [name for name in wanted if not name.endswith(f"@{node}")]
    if elsewhere:
        raise Fail(f"{args.plan} finds no {' '.join(elsewhere)} in {node}")
    wanted = [name.split("@")[0] for name in wanted]
    named = re.findall(r"\bzi_\w+", read_map(args, "zero.map").get(node, ""))
    equal(f"needed by {args.plan} and named in {node}", wanted, named)


def versions_agree(args):
    """The version's text, its numbers, and what the library says of itself."""
    program = """
#include <stdio.h>
#include <zero/version.h>
#if ZERO_VERSION < 100
#error "the preprocessor cannot compare versions"
#endif
int main(void)
{
    printf("%d.%d.%d %s %s %d %u\\n", ZERO_VERSION_MAJOR, ZERO_VERSION_MINOR, ZERO_VERSION_PATCH,
           ZERO_VERSION_TEXT, zero_version(), ZERO_VERSION, (unsigned)zero_version_number());
    return 0;
}
"""
    with tempfile.TemporaryDirectory() as folder:
        command = [*args.cc.split(), "-std=c11", *WARNINGS, f"-I{args.source}/include"]
        command += ["-x", "c", "-", "-x", "none", args.shared, "-o", f"{folder}/version"]
        command += [f"-Wl,-rpath,{os.path.dirname(args.shared)}"]
        run(command, input=program)
        numbers, header, library, number, linked = run([f"{folder}/version"]).split()
    major, minor, patch = (int(part) for part in numbers.split("."))
    equal("the version's numbers, its text and meson's", [numbers], [header, library, args.version])
    equal("ZERO_VERSION", [str(major * 10000 + minor * 100 + patch)], [number, linked])


def internal_prefix(args):
    """In the static library every symbol that could clash with a user's has one of our prefixes."""
    lines = run(["nm", "-g", "--defined-only", args.static]).splitlines()
    symbols = [line.split() for line in lines if len(line.split()) == 3]
    # NVTX's header defines its own weakly in every program that includes it.
    names = [name for _, kind, name in symbols
             if not (kind in "VW" and ("nvtx" in name or "Nvtx" in name))]
    if not names:
        raise Fail(f"no symbol in {args.static}")
    # Thunks that 32-bit or hardened builds emit are the compiler's.
    odd = [n for n in names if not n.startswith(("zero_", "zi_", "__x86."))]
    if odd:
        raise Fail("neither zero_ nor zi_: " + " ".join(sorted(odd)))


def documented(args):
    have("doxygen")
    with open(f"{args.source}/Doxyfile", encoding="utf-8") as file:
        settings = file.read()
    with tempfile.TemporaryDirectory() as folder:
        settings += f"\nOUTPUT_DIRECTORY = {folder}\n"
        run(["doxygen", "-"], input=settings, cwd=args.source)
        pages = f"{folder}/html"
        dead = set()
        for name in sorted(os.listdir(pages)):
            if name.endswith(".html"):
                with open(f"{pages}/{name}", encoding="utf-8") as page:
                    links = re.findall(r'href="([^"#:]+)(?:#[^"]*)?"', page.read())
                dead |= {link for link in links if not os.path.exists(f"{pages}/{link}")}
        if dead:
            raise Fail("links to pages that the site lacks: " + " ".join(sorted(dead)))


def hardened(args):
    """The program loader's protection is on, and the compiler's checks are in the code."""
    have("readelf")
    if args.hardened != "yes":
        raise Skip("this build is not optimised, or has a sanitizer")
    segments = run(["readelf", "-lW", args.shared])
    dynamic = run(["readelf", "-dW", args.shared])
    wanted = run(["nm", "-D", "--undefined-only", args.shared])
    stack = re.search(r"GNU_STACK(?: +0x\w+){5} +(\w+)", segments)
    missing = []
    if "GNU_RELRO" not in segments or not re.search(r"BIND_NOW|FLAGS_1.*NOW", dynamic):
        missing.append("full RELRO (-z relro -z now)")
    if not stack or "E" in stack.group(1):
        missing.append("a stack that is not executable (-z noexecstack)")
    if "__stack_chk_fail" not in wanted:
        missing.append("-fstack-protector-strong")
    if not re.search(r"__(?!stack)\w+_chk\b", wanted):
        missing.append("_FORTIFY_SOURCE")
    if missing:
        raise Fail(f"{args.shared} lacks {', '.join(missing)}")


def loads_anywhere(args):
    """libzero.so needs jansson, and what the build shares, beside a bare system."""
    have("readelf")
    needed = re.findall(r"NEEDED.*\[(.*)\]", run(["readelf", "-dW", args.shared]))
    system = r"(libc|libm|libpthread|libdl|librt|libgcc_s)\.so|ld-linux|ld-musl"
    odd = [name for name in needed if not re.match(system, name)]
    odd = [name for name in odd if name.split(".so")[0] not in args.shares.split(",")]
    if odd or not needed:
        raise Fail(f"{args.shared} is not loaded without {', '.join(odd) or 'what it needs'}")


def stages_are_numbers(args, compiler, standard):
    """The program of every stage against the shared library of the build."""
    if not compiler:
        raise Skip("no C++ compiler")
    language = "c++" if standard.startswith("c++") else "c"
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/stages"
        command = [*compiler.split(), f"-std={standard}", *WARNINGS, f"-I{args.source}/include"]
        command += ["-x", language, args.stages, "-x", "none", args.shared]
        run([*command, f"-Wl,-rpath,{os.path.dirname(args.shared)}", "-o", program])
        run([program])


def checks(args):
    for name in headers(args):
        yield f"zero/{name} alone as C11", compiles_alone, (name, args.cc, "c11")
        yield f"zero/{name} alone as C++17", compiles_alone, (name, args.cxx, "c++17")
    libraries = ((args.shared, "zero.map", False), (args.plan, "zero_plan.map", True))
    for library, name, plan in libraries:
        file = os.path.basename(library)
        yield f"{file} exports what is declared", exported_symbols, (library, plan)
        yield f"{name} names the declared functions and no others", map_names, (name, plan)
    yield "libzero-plan.so has what it needs of libzero.so", private_names, ()
    yield "numbers and texts of the version agree", versions_agree, ()
    yield "internal symbols carry our prefix", internal_prefix, ()
    yield "doxygen has nothing to complain of, and no link of its pages is dead", documented, ()
    yield "a bare 0 to 3 is that stage, C11", stages_are_numbers, (args.cc, "c11")
    yield "a bare 0 to 3 is that stage, C++17", stages_are_numbers, (args.cxx, "c++17")
    yield "the shared library is hardened", hardened, ()
    yield "the shared library is loaded on a bare system", loads_anywhere, ()


def main():
    parser = argparse.ArgumentParser()
    for name in ("source", "shared", "plan", "static", "stages", "cc", "version"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--cxx", default="")
    parser.add_argument("--mpi", default="")
    parser.add_argument("--cuda", default="")
    parser.add_argument("--nccl", default="")
    parser.add_argument("--hardened", default="")
    parser.add_argument("--shares", default="")
    args = parser.parse_args()
    tally = Tally()
    for name, check, arguments in checks(args):
        tally.run(name, check, args, *arguments)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())

"""The binary interface as lines of text: symbols, signatures, values of enumerations, and the sizes
and fields of structs, of all public headers that are not experimental (docs/stability.md).

    symbol zero_step ZERO_0.2               in this version of src/zero.map
    function zero_status zero_step(...)     its declaration
    enum ZERO_STAGE_1 1                     a value
    callback typedef void (*zero_x)(...)    the type of a function of the caller's
    struct zero_step_params 168 grows       bytes; grows: at its end; fixed: never
    field zero_step_params.max_norm 148 4   offset and bytes"""

import os
import re
import subprocess
import tempfile

# They need headers of others; their functions are symbols all the same.
OTHERS = ("cuda.h", "mpi.h", "nccl.h")


class Broken(Exception):
    """A compiler's complaint."""


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def stable_headers(source):
    folder = os.path.join(source, "include/zero")
    names = sorted(name for name in os.listdir(folder) if name.endswith(".h"))
    return [name for name in names if name not in OTHERS
            and "Experimental:" not in read(os.path.join(folder, name))]


def includes(source):
    names = ["stddef.h", "stdint.h", "stdio.h"]
    names += [f"zero/{name}" for name in stable_headers(source)]
    return "".join(f"#include <{name}>\n" for name in names)


def compile_c(command, source, text, *arguments):
    line = [*command.split(), "-std=c11", f"-I{source}/include", "-x", "c", "-", *arguments]
    done = subprocess.run(line, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Broken(done.stderr.strip())
    return done.stdout


# ---- declarations ----


def preprocessed(command, source):
    """What the stable headers declare, without comments and macros."""
    kept, inside = [], False
    stable = stable_headers(source)
    for line in compile_c(command, source, includes(source), "-E").splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            folder, _, name = marker.group(1).rpartition("/")
            inside = folder.endswith("include/zero") and name in stable
        elif inside:
            kept.append(line)
    text = re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)", " ", "\n".join(kept))
    return re.sub(r"\s+", " ", text)


def bodies(text, keyword):
    """(name, what stands between the braces) of each typedef."""
    for match in re.finditer(rf"typedef {keyword}(?: \w+)? \{{", text):
        depth, at = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        yield re.match(r"\s*(\w+)", text[at:]).group(1), text[match.end():at - 1]


def split(text, mark):
    """Its parts at marks that are in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"{": 1, "(": 1, "[": 1, "}": -1, ")": -1, "]": -1}.get(letter, 0)
        if letter == mark and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def field_names(body):
    for member in split(body, ";"):
        inner = re.fullmatch(r"(?:union|struct) \{(.*)\}\s*(\w*)", member)
        if inner and not inner.group(2):
            yield from field_names(inner.group(1))
            continue
        for part in split(member, ","):
            pointer = re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", part)
            name = pointer or re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", part)
            # What is reserved becomes something else.
            if not name.group(1).startswith("reserved"):
                yield name.group(1)


def growing(source):
    """The structs whose documentation says so."""
    found = set()
    for name in stable_headers(source):
        text = read(os.path.join(source, "include/zero", name))
        for comment, struct in re.findall(
                r"/\*\*((?:(?!\*/).)*)\*/\s*typedef struct (\w+) \{", text, re.DOTALL):
            if "at its end" in re.sub(r"[\s*]+", " ", comment):
                found.add(struct)
    return found


def functions(text):
    text = re.sub(r"\{[^{}]*\}", "{}", re.sub(r"\{[^{}]*\}", "{}", text))
    for part in re.split(r"[;}]", text):
        match = re.match(r"\s*(?:extern )?((?:const )?\w+(?: \*| )?\s*\*?)(zero_\w+)\s*(\(.*\))$",
                         part.strip())
        if match and not re.match(r"\s*(typedef|static|inline)", part):
            kind, name, arguments = match.groups()
            yield f"{re.sub(r' +', ' ', kind)}{name}{re.sub(r' +', ' ', arguments)}"


def callbacks(text):
    for kind, name, arguments in re.findall(
            r"typedef ([\w ]+?\s*\*?)\s*\(\s*\*\s*(zero_\w+)\s*\)\s*(\([^()]*\))\s*;", text):
        yield f"typedef {kind.strip()} (*{name}){arguments}"


# ---- the list ----


def symbols(source):
    text = re.sub(r"/\*.*?\*/", "", read(os.path.join(source, "src/zero.map")), flags=re.DOTALL)
    for node, body in re.findall(r"(ZERO_(?!PRIVATE)\S+) \{(.*?)\}", text, re.DOTALL):
        for name in re.findall(r"\b(zero_\w+);", body):
            yield f"symbol {name} {node}"


def experimental_functions(source):
    """Of libzero.so: they are no part of the promise."""
    folder = os.path.join(source, "include/zero")
    headers = {name for name in os.listdir(folder) if name.endswith(".h")}
    for name in sorted(headers - set(stable_headers(source)) - set(OTHERS)):
        yield from re.findall(r"\b(zero_\w+)\(", read(os.path.join(folder, name)))


def numbers(command, source, text):
    """Values, sizes and offsets, as a program prints them."""
    grows = growing(source)
    lines = []
    for _, body in bodies(text, "enum"):
        for entry in split(body, ","):
            name = entry.split("=")[0].strip()
            lines.append(f'printf("enum {name} %lld\\n", (long long){name});')
    for struct, body in bodies(text, "struct"):
        sized = body.split(";")[0].endswith(" struct_bytes")
        how = "grows" if struct in grows or sized else "fixed"
        lines.append(f'printf("struct {struct} %zu {how}\\n", sizeof({struct}));')
        for name in field_names(body):
            lines.append(f'printf("field {struct}.{name} %zu %zu\\n", offsetof({struct}, {name}), '
                         f"sizeof((({struct} *)0)->{name}));")
    program = includes(source) + "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n"
    with tempfile.TemporaryDirectory() as folder:
        compile_c(command, source, program, "-o", f"{folder}/numbers", "-Wl,--unresolved-symbols="
                  "ignore-all")
        return subprocess.run([f"{folder}/numbers"], capture_output=True, text=True,
                              check=True).stdout.splitlines()


def abi_lines(command, source):
    text = preprocessed(command, source)
    unsettled = set(experimental_functions(source))
    lines = [line for line in symbols(source) if line.split()[1] not in unsettled]
    lines += [f"function {line}" for line in functions(text)]
    lines += [f"callback {line}" for line in callbacks(text)]
    return sorted(lines) + numbers(command, source, text)

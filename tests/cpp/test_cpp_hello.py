#!/usr/bin/env python3
"""examples/cpp_hello trains as examples/01_hello does: the same bits at every stage. Its cpp_plan
prints a plan, and errors without exceptions.

Usage: test_cpp_hello.py HELLO CPP_HELLO CPP_PLAN. One line per check; the last one has the sums."""

import os
import re
import subprocess
import sys

sys.path.insert(0, f"{os.path.dirname(os.path.abspath(__file__))}/../abi")

from checks import Tally  # pylint: disable=wrong-import-position,import-error


def run(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120,
                          check=False)
    return done.returncode, done.stdout, done.stderr


def param_bytes(cpp_plan, stage):
    """The bytes of the row "param" of a plan of 8 ranks."""
    code, output, _ = run(cpp_plan, stage, "8")
    found = re.search(r"^param +device +\d+ +(\d+) ", output, re.MULTILINE)
    return int(found.group(1)) if code == 0 and found else 0


def main():
    hello, cpp_hello, cpp_plan = sys.argv[1:]
    tally = Tally()
    for stage in "0123":
        wanted, found = run(hello, stage), run(cpp_hello, stage)
        lines = found[1].count("\n")
        tally.check(f"stage {stage} trains", found[0] == 0 and lines == 500, found)
        tally.check(f"stage {stage} has the losses of C", found == wanted, f"{lines} lines differ")
    tally.check("the default is stage 3", run(cpp_hello) == run(hello), "it is not")
    code, output, said = run(cpp_hello, "7")
    tally.check("stage 7 is refused with a reason", code == 1 and "stage" in said and not output,
                (code, output, said))
    whole, shared = param_bytes(cpp_plan, "0"), param_bytes(cpp_plan, "3")
    tally.check("an eighth of the parameters, and padding",
                whole > 0 and 0 <= shared * 8 - whole < whole / 1000, (whole, shared))
    for arguments, wanted in ((("9", "8"), "stage"), (("3", "0"), "a world of 0 ranks")):
        code, output, said = run(cpp_plan, *arguments)
        tally.check(f"cpp_plan {' '.join(arguments)} is refused with a reason",
                    code == 1 and wanted in said and not output, (code, output, said))
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())

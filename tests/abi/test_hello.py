#!/usr/bin/env python3
"""examples/01_hello as a newcomer runs it. Usage: test_hello.py PROGRAM"""

import re
import subprocess
import sys

from checks import Tally


def hello(program, *arguments):
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout, done.stderr


def losses_of(output):
    return re.findall(r"^step +\d+ +loss (\S+)$", output, re.MULTILINE)


def main():
    program = sys.argv[1]
    tally = Tally()
    check = tally.check
    runs = {stage: hello(program, str(stage)) for stage in range(4)}
    reference = losses_of(runs[0][1])
    for stage, (code, output, said) in runs.items():
        losses = losses_of(output)
        check(f"stage {stage} runs, silent on stderr", code == 0 and not said, (code, said))
        check(
            f"stage {stage} learns",
            len(losses) >= 100 and float(losses[-1]) < float(losses[0]) / 100,
            f"{len(losses)} losses: {losses[:1]} to {losses[-1:]}",
        )
        if stage > 0:
            check(f"stage {stage} has the losses of stage 0", losses == reference, losses)
    code, output, _ = hello(program)
    check("the default is stage 3", code == 0 and output == runs[3][1], output[:400])
    code, output, said = hello(program, "7")
    check("stage 7 is refused with a reason", code == 1 and "stage" in said, (code, output, said))
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())

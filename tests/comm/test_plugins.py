#!/usr/bin/env python3
"""One libzero.so in the worlds of two MPIs, and without any.

Usage: test_plugins.py PROGRAM [NAME=MPIRUN ...]
PROGRAM is launched.c; each MPIRUN is an MPI's own."""

import os
import shutil
import subprocess
import sys
import tempfile

ABI = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "abi")
sys.path.insert(0, ABI)
from checks import Fail, Tally  # noqa: E402

RANKS = 3
# As root, and more ranks than cores: as Open MPI 4 reads it, and 5.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_rmaps_base_oversubscribe": "1",
           "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


def launch(mpirun, program, **env):
    done = subprocess.run([mpirun, "-n", str(RANKS), program], env={**os.environ, **AS_ROOT, **env},
                          capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, sorted(done.stdout.splitlines())


def joins(mpirun, program):
    wanted = [f"rank {rank} of {RANKS} over mpi" for rank in range(RANKS)]
    status, lines = launch(mpirun, program)
    if status != 0 or lines != wanted:
        raise Fail(f"exit {status}: {lines}")


def says_what_is_missing(mpirun, program):
    """Where only the library was copied, every rank names the plug-in and what to do."""
    with tempfile.TemporaryDirectory() as folder:
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        library = next(line.split()[2] for line in listed.splitlines() if "libzero.so" in line)
        shutil.copy(library, folder)
        status, lines = launch(mpirun, program, LD_LIBRARY_PATH=folder)
    told = [line for line in lines if "libzero-mpi-" in line and "mpicc" in line]
    if status == 0 or not lines or told != lines:
        raise Fail(f"exit {status}: {lines}")


def main():
    program, *launchers = sys.argv[1:]
    tally = Tally()
    for launcher in launchers:
        name, mpirun = launcher.split("=", 1)
        tally.run(f"ranks of {name}", joins, mpirun, program)
        tally.run(f"ranks of {name} without its plug-in", says_what_is_missing, mpirun, program)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())

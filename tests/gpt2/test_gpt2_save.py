#!/usr/bin/env python3
"""gpt2_train saves while it trains, goes on from a checkpoint with the losses of a run that never
stopped, at other ranks, stages, tiers and types, and is not hurt by being stopped, killed or
refused the disk.

Usage: test_gpt2_save.py GPT2_TRAIN

The last line is "N passed, N failed, N skipped"."""

import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from each_test import expect, expect_equal, run_tests  # noqa: E402

TRAIN = sys.argv[1]
STEPS = 8
MODEL = ("--layers 2 --heads 2 --width 32 --seq 32 --batch 12 --threads 1 --val-every 0 "
         "--losses-exact").split()


def command(folder, options):
    text = f"{folder}/text"
    if not os.path.exists(text):
        words = ["the ", "light ", "and ", "earth ", "of ", "water ", "was ", "day ", "he said "]
        with open(text, "w", encoding="utf-8") as file:
            file.writelines(words[(i * 2654435761 >> 20 ^ i) % 9] for i in range(1200))
    return [TRAIN, "--data", text, *MODEL, *options.format(folder=folder).split()]


def limit_files(most):
    """At the start of a process: no file of it grows beyond so many bytes."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def run(folder, options, code=0, most=None):
    done = subprocess.run(command(folder, options), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
                          preexec_fn=None if most is None else limit_files(most))
    expect(done.returncode == code, f"{options}: status {done.returncode}: {done.stdout[-1500:]}")
    return done.stdout


def losses(output):
    """{step: its line}, exact to the bit."""
    lines = [line.split() for line in output.splitlines() if line.startswith("exact ")]
    return {int(line[1]): " ".join(line) for line in lines}


def loss(line):
    return float.fromhex(line.split()[3])


def expect_goes_on(whole, resumed, exactly=True):
    expect_equal(sorted(resumed), list(range(min(resumed), STEPS + 1)), "steps")
    for step, line in resumed.items():
        if exactly:
            expect_equal(line, whole[step], "a resumed step")
        else:
            expect(abs(loss(line) - loss(whole[step])) < 2e-5, f"{line} is not near {whole[step]}")


def checkpoints(folder):
    return sorted(name for name in os.listdir(folder) if not name.endswith(".part")
                  and name != "latest")


def check_resume(folder, saved, resumed, exactly=True):
    """Of a run with the options `saved`, one with `resumed` goes on from its middle."""
    whole = run(folder, f"--steps {STEPS} --save {{folder}}/run --save-every 3 --keep 0 {saved}")
    expect_equal(checkpoints(f"{folder}/run"),
                 ["step-00000003", "step-00000006", "step-00000008"], "checkpoints")
    expect_equal(losses(whole), losses(run(folder, f"--steps {STEPS} {saved}")), "saves change it")
    rest = run(folder, f"--steps {STEPS} --resume {{folder}}/run:step-00000003 {resumed}"
                       " --save {folder}/again")
    expect("run/step-00000003: 3 steps, saved by " in rest, rest)
    expect_goes_on(losses(whole), losses(rest), exactly)
    if exactly and saved == resumed:
        for name in ("param", "moment1", "moment2"):
            states = []
            for place in ("run", "again"):
                with open(f"{folder}/{place}/step-00000008/{name}.safetensors", "rb") as file:
                    states.append(file.read())
            expect(states[0] == states[1], f"{name} at the end differs")


# ---- resuming ----


def test_one_rank_goes_on_exactly(folder):
    check_resume(folder, "--ranks 1 --dtype f32", "--ranks 1 --dtype f32")


def test_two_ranks_go_on_exactly(folder):
    check_resume(folder, "--ranks 2", "--ranks 2")


def test_other_ranks_only_round_differently(folder):
    check_resume(folder, "--ranks 2 --dtype f32", "--ranks 3 --dtype f32", exactly=False)


def test_another_stage_goes_on_exactly(folder):
    check_resume(folder, "--ranks 2 --stage 3", "--ranks 2 --stage 1")


def test_state_on_disk_goes_on_in_memory(folder):
    tiers = ("--ranks 2 --master-tier disk --moment-tier disk --param-tier disk --grad-tier disk "
             "--extent-bytes 16K --disk {folder}")
    check_resume(folder, tiers, "--ranks 2")


SPECULATIVE = ("--ranks 2 --master-tier disk --moment-tier disk --extent-bytes 16K --speculative "
               "--disk {folder}")


def test_speculative_steps_go_on_exactly(folder):
    check_resume(folder, SPECULATIVE, SPECULATIVE)


def test_speculative_steps_and_others_go_on_as_one_another(folder):
    check_resume(folder, SPECULATIVE, "--ranks 2")


def test_saves_and_evictions_take_turns(folder):
    options = "--steps 8 --ranks 2 --evict disk --disk {folder} --val-every 1"
    whole = losses(run(folder, options))
    expect_equal(losses(run(folder, f"{options} --save {{folder}}/run --save-every 1 --keep 0")),
                 whole, "saves change it")
    rest = run(folder, f"{options} --resume {{folder}}/run:step-00000002")
    expect_goes_on(whole, losses(rest))


def test_another_type_goes_on_nearby(folder):
    whole = losses(run(folder, "--steps 8 --ranks 2 --save {folder}/run --save-every 4 --keep 0"))
    rest = losses(run(folder, "--steps 8 --ranks 2 --dtype f32 --save {folder}/f32 "
                              "--resume {folder}/run:step-00000004"))
    back = losses(run(folder, "--steps 10 --ranks 2 --resume {folder}/f32"))
    expect_equal(sorted(rest) + sorted(back), [5, 6, 7, 8, 9, 10], "steps")
    for step, line in rest.items():
        expect(abs(loss(line) - loss(whole[step])) < 0.02, f"{line} is far from {whole[step]}")
    expect(loss(back[9]) < loss(whole[8]) + 0.1, f"{back[9]} is far from {whole[8]}")


def test_a_checkpoint_is_named_in_several_ways(folder):
    run(folder, "--steps 6 --ranks 2 --save {folder}/run --save-every 2 --keep 2")
    expect_equal(checkpoints(f"{folder}/run"), ["step-00000004", "step-00000006"], "kept")
    newest = run(folder, "--steps 7 --ranks 2 --resume {folder}/run")
    expect("step-00000006: 6 steps, saved by 2 ranks" in newest, newest)
    done = run(folder, "--steps 5 --ranks 2 --resume {folder}/run")
    expect("nothing to train: --steps 5 are done" in done, done)
    for name in ("run/step-00000004", "run:step-00000004"):
        older = run(folder, f"--steps 7 --ranks 2 --resume {{folder}}/{name}")
        expect_equal(sorted(losses(older)), [5, 6, 7], name)


def test_the_log_goes_on(folder):
    logs = "--csv {folder}/csv --json {folder}/json"
    run(folder, f"--steps 8 --ranks 2 --save {{folder}}/run --save-every 3 --keep 0 {logs}")
    with open(f"{folder}/csv", encoding="utf-8") as file:
        whole = [line.split(",")[:3] for line in file]
    run(folder, f"--steps 8 --ranks 2 --resume {{folder}}/run:step-00000003 {logs}")
    with open(f"{folder}/csv", encoding="utf-8") as file:
        expect_equal([line.split(",")[:3] for line in file], whole, "CSV")
    with open(f"{folder}/json", encoding="utf-8") as file:
        document = json.load(file)
    expect_equal([row["step"] for row in document["steps"]], list(range(1, 9)), "JSON")
    expect_equal([row.get("resumed_by_ranks") for row in document["steps"]],
                 [None] * 3 + [2] + [None] * 4, "ranks")
    expect_equal(document["ended_by"], "steps", "end")


def test_parameters_of_a_checkpoint_begin_a_run(folder):
    trained = losses(run(folder, f"--steps {STEPS} --ranks 2 --save {{folder}}/run"))
    output = run(folder, "--steps 1 --ranks 3 --init-from {folder}/run")
    expect("goes on from" not in output, output)
    expect(abs(loss(losses(output)[1]) - loss(trained[STEPS])) < 0.5 *
           (loss(trained[1]) - loss(trained[STEPS])), f"{losses(output)} after {trained}")


def test_nothing_to_resume_begins_anew(folder):
    fresh = losses(run(folder, "--steps 3 --ranks 2"))
    for options in ("--resume-if-any {folder}/run", "--resume-if-any {folder}/run "
                    "--save {folder}/run"):
        anew = run(folder, f"--steps 3 --ranks 2 {options}")
        expect_equal(losses(anew), fresh, options)
        expect("goes on from" not in anew, anew)
    again = run(folder, "--steps 4 --ranks 2 --resume-if-any {folder}/run")
    expect_equal(sorted(losses(again)), [4], "steps")


# ---- endings ----


def start(folder, options, rank=None, port=None):
    env = dict(os.environ)
    if rank is not None:
        env.update(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", RANK=str(rank), LOCAL_RANK=str(rank),
                   MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return subprocess.Popen(command(folder, options), stdout=subprocess.PIPE, text=True, env=env,
                            stderr=subprocess.STDOUT)


def rows(path):
    """Whole lines of a CSV, its head left out."""
    try:
        with open(path, encoding="utf-8") as file:
            return [line.split(",")[:2] for line in file.readlines()[1:]]
    except FileNotFoundError:
        return []


def wait_for_rows(child, path, count):
    while len(rows(path)) < count:
        if child.poll() is not None:
            raise AssertionError(f"it ended early: {child.stdout.read()}")
        time.sleep(0.002)


FOREVER = "--steps 100000 --csv {folder}/csv --save {folder}/run"


def test_a_signal_saves(folder):
    for number in (signal.SIGINT, signal.SIGTERM):
        options = f"{FOREVER} --ranks 2 --resume-if-any {{folder}}/run"
        before = len(rows(f"{folder}/csv"))
        child = start(folder, options)
        wait_for_rows(child, f"{folder}/csv", before + 3)
        child.send_signal(number)
        output = child.communicate(timeout=60)[0]
        expect_equal(child.returncode, 128 + number, output)
        last = int(rows(f"{folder}/csv")[-1][0])
        expect_equal(checkpoints(f"{folder}/run")[-1], f"step-{last:08}", "checkpoint")
        expect(f"stopped by {signal.Signals(number).name} after step {last} " in output, output)


def test_a_signal_to_one_process_saves(folder):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = [start(folder, FOREVER, rank, port) for rank in range(2)]
    wait_for_rows(children[0], f"{folder}/csv", 2)
    children[1].send_signal(signal.SIGTERM)
    for child in children:
        output = child.communicate(timeout=60)[0]
        expect_equal(child.returncode, 128 + signal.SIGTERM, output)
    last = int(rows(f"{folder}/csv")[-1][0])
    expect_equal(checkpoints(f"{folder}/run"), [f"step-{last:08}"], "checkpoints")
    rest = run(folder, f"--ranks 3 --resume {{folder}}/run --steps {last + 1}")
    expect_equal(sorted(losses(rest)), [last + 1], "steps")


def newest_whole(directory):
    """The name of the newest checkpoint, or None."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return max((name for name in names if re.fullmatch("step-[0-9]+", name) and
                os.path.exists(f"{directory}/{name}/manifest.json")), default=None)


def expect_start_from(newest, output):
    """A run that began anew would have the same losses."""
    found = re.findall(r"goes on from \S*/(\S+):", output)
    expect_equal(found, [newest] if newest else [], "the checkpoint that a run goes on from")


def test_killed_at_any_moment_it_goes_on(folder):
    steps, kills = 100, 20
    options = (f"--ranks 2 --steps {steps} --save {{folder}}/run --save-every 1 "
               "--resume-if-any {folder}/run --csv {folder}/csv --json {folder}/json")
    run(folder, f"--ranks 2 --steps {steps} --csv {{folder}}/whole")
    chance = random.Random(1)
    done = 0
    for _ in range(kills):
        newest = newest_whole(f"{folder}/run")
        child = start(folder, options)
        wait_for_rows(child, f"{folder}/csv", done + 1)
        time.sleep(chance.random() * 0.02)
        child.kill()
        expect_start_from(newest, child.communicate(timeout=60)[0])
        kept = [int(step) for step, _ in rows(f"{folder}/csv")]
        done = len(kept)
        expect_equal(kept, list(range(1, done + 1)), "steps in the CSV")
        expect(done < steps, "all steps were done before the kills were")
    newest = newest_whole(f"{folder}/run")
    expect_start_from(newest, run(folder, options))
    expect_equal(rows(f"{folder}/csv"), rows(f"{folder}/whole"), "losses")
    with open(f"{folder}/json", encoding="utf-8") as file:
        expect_equal([row["step"] for row in json.load(file)["steps"]],
                     list(range(1, steps + 1)), "steps in the JSON")
    expect_equal(checkpoints(f"{folder}/run")[-1], f"step-{steps:08}", "checkpoint")


def test_a_full_disk_does_not_end_training(folder):
    run(folder, "--steps 4 --ranks 2 --save {folder}/run")
    output = run(folder, "--steps 8 --ranks 2 --save {folder}/run --save-every 6 "
                         "--resume {folder}/run", code=1, most=16384)
    expect("warning: not saved, training goes on: " in output, output)
    expect_equal(sorted(losses(output)), [5, 6, 7, 8], "steps")
    expect("gpt2_train: " in output.splitlines()[-1] and "run" in output.splitlines()[-1], output)
    rest = run(folder, "--steps 8 --ranks 2 --resume {folder}/run")
    expect_equal(sorted(losses(rest)), [5, 6, 7, 8], "steps from the checkpoint before")


# ---- refusals ----


def refused(folder, options, text):
    output = run(folder, options, code=1)
    expect(text in output, f"{options}: no \"{text}\" in {output}")
    expect(output.startswith("gpt2_train: ") and output.count("\n") == 1, output)


def test_wrong_options_are_refused(folder):
    run(folder, "--steps 2 --ranks 2 --save {folder}/run")
    for options, text in (
            ("--save-every 2", "--save-every 2 needs a directory: give --save DIR"),
            ("--save {folder}/no/where", "no/where: cannot make this directory: No such file"),
            ("--save {folder}/text", "text: it is no directory"),
            ("--export {folder}/text", "--export"),
            ("--resume {folder}/none", "none"),
            ("--resume {folder}", folder),
            ("--resume {folder}/run:step-00000009", "step-00000009"),
            ("--resume {folder}/run --resume-if-any {folder}/run", "are both given"),
            ("--resume {folder}/run --init-from {folder}/run", "leave one out"),
            ("--resume {folder}/run --heads 4", "this model has --heads 4, and "),
            ("--resume {folder}/run --layers 3", "2; give --layers 2"),
            ("--resume {folder}/run --width 64", "32; give --width 32"),
            ("--resume {folder}/run --seq 16", "32; give --seq 32"),
            ("--resume {folder}/run --vocab 512", "256; give --vocab 256"),
            ("--resume-if-any {folder}/run --width 64", "32; give --width 32"),
            ("--resume-if-any {folder}/run:step-00000009", "step-00000009"),
            ("--resume {folder}/run --seed 2", "1; give --seed 1"),
            ("--init-from {folder}/run --heads 4", "this model has --heads 4, and the checkpoint "),
            ("--init-from {folder}/run --heads 4", "step-00000002 2; give --heads 2"),
            ("--init-from {folder}/run --width 64", "32; give --width 32"),
            ("--resume-if-any {folder}/none --init-from {folder}/run --heads 1",
             "2; give --heads 2")):
        refused(folder, f"--steps 3 --ranks 2 {options}", text)


def test_other_data_are_refused(folder):
    run(folder, "--steps 2 --ranks 2 --save {folder}/run")
    path = f"{folder}/text"
    with open(path, "rb") as file:
        text = file.read()
    more = "--steps 3 --ranks 2 --resume {folder}/run"

    def trained_on(changed):
        with open(path, "wb") as file:
            file.write(changed)

    for changed in (b"T" + text[1:], text + text, text[:-100]):
        trained_on(changed)
        output = run(folder, more, code=1)
        count = len(changed) - len(changed) // 10
        expect(f"{path} has {count} tokens to train on (hash " in output, output)
        expect(f"is of {len(text) - len(text) // 10} (hash " in output, output)
        expect("--data-changed" in output and output.count("\n") == 1, output)
    expect(3 in losses(run(folder, more + " --data-changed")), "--data-changed does not go on")
    trained_on(text[:-1] + b"?")  # the last tenth is for validation
    expect(3 in losses(run(folder, more)), "validation data are not what was trained on")
    os.rename(path, f"{folder}/moved")
    os.symlink(f"{folder}/moved", path)
    trained_on(text)
    expect(3 in losses(run(folder, more)), "the same data elsewhere")


def test_a_checkpoint_that_cannot_be_read_is_not_taken_for_none(folder):
    run(folder, "--steps 2 --ranks 2 --save {folder}/run")
    os.truncate(f"{folder}/run/step-00000002/manifest.json", 700)
    refused(folder, "--steps 3 --ranks 2 --resume-if-any {folder}/run --save {folder}/run",
            "step-00000002")
    expect_equal(checkpoints(f"{folder}/run"), ["step-00000002"], "checkpoints")


def test_damage_is_refused_by_name(folder):
    run(folder, "--steps 2 --ranks 2 --save {folder}/run")
    path = f"{folder}/run/step-00000002/moment1.safetensors"
    with open(path, "r+b") as file:
        file.seek(-100, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 16]))
    refused(folder, "--steps 3 --ranks 2 --resume {folder}/run", "moment1.safetensors")


sys.exit(run_tests(globals(), sys.argv[2] if len(sys.argv) > 2 else ""))

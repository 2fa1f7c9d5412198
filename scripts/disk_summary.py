#!/usr/bin/env python3
"""Prints what a run with optimizer state on disk came to, from what gpt2_train --json wrote.

Usage: disk_summary.py FILE"""

import json
import sys


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        run = json.load(file)
    settings, memory, steps = run["settings"], run["memory"], run["steps"]
    tiers = {"master": "master-tier", "moment1": "moment-tier", "moment2": "moment-tier"}
    on_disk = [role for role, tier in tiers.items() if settings[tier] == "disk"]
    state = sum(memory[role]["measured"] for role in on_disk)
    window = memory["io window"]["measured"]
    moved = sum(step["disk_bytes"] for step in steps) / 1e9
    seconds = sum(step["ms"] for step in steps) / 1e3
    losses = [step["val_loss"] for step in steps if step["val_loss"] is not None]
    times = state / window
    print(f"\nstate on disk: {state} bytes a rank, {times:.1f} times its I/O window of {window}")
    print(f"moved to and from disk: {moved:.2f} GB a rank, {moved * run['world']:.2f} GB in all, "
          f"in {len(steps)} steps, {seconds:.0f} s")
    if losses and run["bigram"] is not None:
        print(f"validation loss {losses[-1]:.4f} nats/byte, a bigram model's {run['bigram']:.4f}")


if __name__ == "__main__":
    main()

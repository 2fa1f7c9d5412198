"""Runs a file's cases and ends as every program of the suites does."""

import unittest


def main():
    """N passed, N failed, N skipped; the status of failures."""
    outcome = unittest.main(exit=False).result
    failed = len(outcome.failures) + len(outcome.errors)
    skipped = len(outcome.skipped)
    passed = outcome.testsRun - failed - skipped
    print(f"{max(passed, 0)} passed, {failed} failed, {skipped} skipped")
    raise SystemExit(0 if outcome.wasSuccessful() else 1)

#!/usr/bin/env python3
"""Count the tests in JUnit XML reports, as GoogleTest, CTest and pytest write them.

As a program: print one closing line over all reports given, the reason of every skipped test before it, and fail if a test
failed or none ran.
"""
import argparse
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: dict[str, str] = field(default_factory=dict)  # test -> reason

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped.update(other.skipped)


def outcomes(report):
    """(testcase, "passed", "failed" or "skipped") of every test in one XML report."""
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            yield case, "failed"
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            yield case, "skipped"
        else:
            yield case, "passed"


def count(report):
    """The counts of one XML report."""
    counts = Counts()
    for case, outcome in outcomes(report):
        if outcome == "failed":
            counts.failed += 1
        elif outcome == "passed":
            counts.passed += 1
        else:
            name = f"{Path(report).stem}: {case.get('classname', '')}.{case.get('name')}"
            skipped = case.find("skipped")
            reason = "" if skipped is None else (skipped.get("message") or skipped.text or "")
            counts.skipped[name] = " ".join(reason.split()) or "disabled"
    return counts


def count_all(reports):
    total = Counts()
    for report in reports:
        total.add(count(report))
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path, help="JUnit XML files")
    total = count_all(parser.parse_args().reports)
    for name, reason in sorted(total.skipped.items()):
        print(f"skipped {name}: {reason}")
    print(f"{total.passed} passed, {total.failed} failed, {len(total.skipped)} skipped")
    return 0 if total.passed > 0 and total.failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())

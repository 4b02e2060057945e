#!/usr/bin/env python3
"""Fill the result column of docs/cases.md from the JUnit reports of the C++ tests, one report a build, named after it.

A test belongs to the case whose id its name holds (C15_...). With --check nothing is written: it is an error if a cell is not what
the reports say. Always an error: a test of a case that failed, and a name on the page that no test has.
"""
import argparse
import re
import sys
from pathlib import Path

import records
import test_reports

PAGE = records.ROOT / "docs" / "cases.md"
TESTS = records.ROOT / "tests"
NO_TEST = "–"


def results_of(reports):
    """{id: cell}"""
    builds = {}  # id -> outcome -> {build: None}, in the order of the reports
    for report in reports:
        for case, outcome in test_reports.outcomes(report):
            for name in re.findall(r"(?<![A-Za-z0-9])(C\d\d)_", case.get("name")):
                builds.setdefault(name, {}).setdefault(outcome, {})[Path(report).stem] = None
    return {name: "; ".join(f"{outcome}: {', '.join(by_outcome[outcome])}"
                            for outcome in ("failed", "passed", "skipped") if outcome in by_outcome)
            for name, by_outcome in builds.items()}


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def fill(page, results):
    """The page with the cells of every table that has a column `result`."""
    lines, column = [], None
    for line in page.splitlines(keepends=True):
        cells = cells_of(line) if line.startswith("|") else []
        if cells and cells[0] == "id":
            column = cells.index("result") if "result" in cells else None
        elif column is not None and cells and re.fullmatch(r"C\d\d", cells[0]):
            cells[column] = results.get(cells[0], NO_TEST)
            line = f"| {' | '.join(cells)} |\n"
        lines.append(line)
    return "".join(lines)


def unknown_names(page, sources):
    """Names of tests on the page (`Suite.C15_Name`, `C28_...`) that no test source has, and ids whose last column says "same"
    where no source of the GPU suite has the id. `sources`: path -> text."""
    unknown = [name for code in re.findall(r"`([^`]+)`", page) for name in re.findall(r"\bC\d\d_\w*|(?<=\.)[A-Z]\w+", code)
               if not any(name in text for text in sources.values())]
    for line in page.splitlines():
        cells = cells_of(line) if line.startswith("| C") else []
        if cells and re.match(r"same\b", cells[-1]):
            if not any(f"{cells[0]}_" in text for path, text in sources.items() if "cuda" in path.parts):
                unknown.append(f"{cells[0]}_ in tests/cuda")
    return unknown


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path, help="JUnit XML files")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if missing := [str(report) for report in arguments.reports if not report.exists()]:
        parser.error(f"{', '.join(missing)}: missing, accepted are the reports of ./dev test")
    page, results = PAGE.read_text(), results_of(arguments.reports)
    sources = {path: path.read_text() for path in TESTS.rglob("*") if path.suffix in (".cpp", ".cu", ".py", ".txt")}
    faults = [f"{PAGE.name}: no test is named {name}" for name in unknown_names(page, sources)]
    faults += [f"{name}: {cell}" for name, cell in sorted(results.items()) if "failed" in cell]
    filled = fill(page, results)
    if not arguments.check:
        PAGE.write_text(filled)
    elif filled != page:
        faults += [f"{PAGE.name}: has\n  {old}\nthe tests say\n  {new}"
                   for old, new in zip(page.splitlines(), filled.splitlines(), strict=True) if old != new]
        faults.append("run ./dev cases after ./dev test")
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(results)} cases have tests that ran")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Merge what a GPU run left in a folder into a verification record, records/<gpu>.json.

The folder, as `./dev gpu` fills it:

    info.json          `flashkda info --json` of the binary that ran: its source digest, its CUDA version
    device.json        {"device": ..., "driver": ..., "date": "YYYY-MM-DD"}
    tests/*.xml        JUnit reports of GoogleTest, CTest and pytest
    sanitizer/TOOL.log compute-sanitizer's output, for each of memcheck, racecheck, synccheck, initcheck
    accuracy/*.json    {"accuracy": [row, ...]}
    benchmarks/*.json  {"copy_tb_s": ..., "versions": {package: version}, "benchmarks": [row, ...]}; the first two in one of them,
                       the versions optional (`flashkda bench --json` has none)

A missing part, a failed test, a sanitizer finding or a binary built from other sources than the checkout's is refused; nothing is
written then.
"""
import argparse
import json
import re
import sys
from pathlib import Path

import digest
import records
import test_reports

ACCURACY_KEYS = {"name", "path", "output", "state"}
BENCHMARK_KEYS = {"name", "path", "ms", "floor_ms"}
SHARED_KEYS = {"fla_output", "fla_state", "floor_ms", "peers_ms"}


class RecordError(Exception):
    """The folder does not make a record; the message says which part and why."""


def read_json(path):
    try:
        return json.loads(path.read_text())
    except OSError:
        raise RecordError(f"{path}: missing") from None
    except ValueError as error:
        raise RecordError(f"{path}: not JSON: {error}") from None


def files_of(folder, pattern):
    files = sorted(folder.glob(pattern))
    if not files:
        raise RecordError(f"{folder / pattern}: no such file")
    return files


def sanitizer_findings(log):
    """The number of findings in one compute-sanitizer log; a log without a summary is an unfinished run."""
    try:
        text = log.read_text()
    except OSError:
        raise RecordError(f"{log}: missing") from None
    summaries = re.findall(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", text)
    if not summaries:
        raise RecordError(f"{log}: no summary line, the run did not finish")
    return sum(int(errors or hazards) for errors, hazards in summaries)


def shared(row):
    """What is not the path's own: the same in all rows of a name, which come from one run, and shown once by tables."""
    return {key: value for key, value in row.items() if key in SHARED_KEYS}


def rows_of(folder, section, required):
    """All rows of `section` in the folder's files, each checked for the keys that readers rely on, a row for each path of a
    name."""
    rows = []
    for path in files_of(folder / section, "*.json"):
        for row in read_json(path).get(section, []):
            if missing := required - row.keys():
                raise RecordError(f"{path}: row {row.get('name')} lacks {', '.join(sorted(missing))}")
            row["path"] = row["path"].removeprefix("cuda/")  # `flashkda bench` names the backend too
            for other in (other for other in rows if other["name"] == row["name"]):
                if other["path"] == row["path"]:
                    raise RecordError(f"{path}: row {row['name']} on path {row['path']} is there twice")
                if shared(other) != shared(row):
                    raise RecordError(f"{path}: row {row['name']} has {shared(row)} on path {row['path']}, "
                                      f"{shared(other)} on path {other['path']}; accepted are paths of one run")
            rows.append(row)
    if not rows:
        raise RecordError(f"{folder / section}: no rows")
    return rows


def run_of(folder):
    """The benchmark file that tells about the whole run: the speed of a copy, and the versions of what ran beside this library."""
    contents = [read_json(path) for path in files_of(folder / "benchmarks", "*.json")]
    runs = [content for content in contents if "copy_tb_s" in content]
    if len(runs) != 1:
        raise RecordError(f"{folder / 'benchmarks'}: copy_tb_s is in {len(runs)} files, accepted is one")
    return runs[0]


def merge(folder, expected_digest):
    """The record of what `folder` holds, for sources with `expected_digest`."""
    build = read_json(folder / "info.json")["build"]
    if build["source_digest"] != expected_digest:
        raise RecordError(f"{folder / 'info.json'}: the binary was built from {build['source_digest']}, "
                          f"the sources here are {expected_digest}")
    device = read_json(folder / "device.json")
    tests = test_reports.count_all(files_of(folder / "tests", "*.xml"))
    if tests.failed or not tests.passed:
        raise RecordError(f"{folder / 'tests'}: {tests.failed} failed, {tests.passed} passed")
    sanitizer = {tool: sanitizer_findings(folder / "sanitizer" / f"{tool}.log") for tool in records.SANITIZER_TOOLS}
    if any(sanitizer.values()):
        raise RecordError(f"{folder / 'sanitizer'}: findings {sanitizer}")
    run = run_of(folder)
    return {
        "source_digest": expected_digest,
        "device": device["device"],
        "driver": device["driver"],
        "cuda": build["cuda"],
        "date": device["date"],
        "versions": run.get("versions", {}),
        "tests": {"passed": tests.passed, "failed": tests.failed, "skipped": len(tests.skipped), "skip_reasons": tests.skipped},
        "sanitizer": sanitizer,
        "copy_tb_s": run["copy_tb_s"],
        "accuracy": rows_of(folder, "accuracy", ACCURACY_KEYS),
        "benchmarks": [{"peers_ms": {}} | row for row in rows_of(folder, "benchmarks", BENCHMARK_KEYS)],
    }


def text(record):
    """JSON with a row a line."""
    def value(content):
        if not isinstance(content, list):
            return json.dumps(content)
        return "[\n" + ",\n".join(f"    {json.dumps(row)}" for row in content) + "\n  ]"

    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {value(content)}" for key, content in record.items()) + "\n}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, default=records.RECORDS, help="folder of the record (default: records/)")
    arguments = parser.parse_args()
    try:
        record = merge(arguments.folder, digest.digest())
    except RecordError as error:
        print(f"no record written: {error}", file=sys.stderr)
        return 1
    path = arguments.output / records.file_name(record["device"])
    path.write_text(text(record))
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Write README.md's tables from the verification records, between `<!-- table: NAME -->` and `<!-- /table -->`, and the pictures
that it shows (figures.py).

NAME is devices, accuracy, benchmarks, shapes, calls, host or figures. With --check nothing is written, and what differs is an error.
"""
import argparse
import math
import re
import statistics
import sys

import figures
import records

README = records.ROOT / "README.md"
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- /table -->)", re.DOTALL)
EMPTY = "no record yet\n"
MISSING = "–"
ERRORS = ("output", "state")
# What the names of rows with a table of their own begin with: the host's cost of a call, random shapes, ways to make one call.
HOST, SHAPES, CALLS = "host/", "shapes/", "calls/"
PLAIN = "plain"  # ends the name of the call that the other ways are compared with


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def devices(all_records):
    def state(record):
        tests = record["tests"]
        counts = f"{tests['passed']} passed, {tests['failed']} failed, {tests['skipped']} skipped"
        return counts + (f"; unverified: {record['unverified']}" if "unverified" in record else "")

    header = ["GPU", "CUDA", "driver", "date", "tests", "sanitizer findings"]
    return table(header, [[r["device"], r["cuda"], r["driver"], r["date"], state(r), str(sum(r["sanitizer"].values()))]
                          for r in all_records])


def paths_of(rows):
    return records.known_first(records.PATHS, (row["path"] for row in rows))


def error(value):
    return MISSING if value is None else f"{value:.1e}"


def accuracy(all_records):
    """A line a case: the errors of each path, then those of fla on the same inputs."""
    paths = paths_of(row for r in all_records for row in r["accuracy"])
    header = ["GPU", "case", *(f"{name} {key}" for name in (*map(records.title, paths), "fla") for key in ERRORS)]

    def errors(by_path):
        fla = {key: row[f"fla_{key}"] for row in by_path.values() for key in ERRORS if f"fla_{key}" in row}
        return [error(row.get(key)) for row in (*(by_path.get(path, {}) for path in paths), fla) for key in ERRORS]

    return table(header, [[r["device"], name, *errors(by_path)]
                          for r in all_records for name, by_path in records.by_name(r["accuracy"]).items()])


def device_rows(record):
    return [row for row in record["benchmarks"] if not row["name"].startswith((HOST, SHAPES, CALLS))]


def rows_named(record, prefix):
    return [row for row in record["benchmarks"] if row["name"].startswith(prefix)]


def milliseconds(ms):
    """Three digits, zeros included."""
    return f"{ms:.{max(0, 2 - math.floor(math.log10(ms)))}f}"


def ratio(ms, reference_ms):
    return f"{ms / reference_ms:.2f}×" if reference_ms else MISSING


def benchmarks(all_records):
    """A line a case: the time of each path and its ratio to the floor, the floor, the time of each peer and its ratio to each
    path's."""
    rows = [row for r in all_records for row in device_rows(r)]
    paths = paths_of(rows)
    peers = records.known_first(records.PEERS, (peer for row in rows for peer in row.get("peers_ms", {})))

    def path_cell(row):
        return f"{milliseconds(row['ms'])} ({ratio(row['ms'], row.get('floor_ms'))})" if row else MISSING

    def peer_cell(ms, by_path):
        ratios = ", ".join(ratio(ms, by_path[path]["ms"]) if path in by_path else MISSING for path in paths)
        return f"{milliseconds(ms)} ({ratios})"

    def cells(by_path):
        floors = [row["floor_ms"] for row in by_path.values() if row.get("floor_ms")]
        peers_ms = {peer: ms for row in by_path.values() for peer, ms in row.get("peers_ms", {}).items()}
        return [*(path_cell(by_path.get(path)) for path in paths), milliseconds(floors[0]) if floors else MISSING,
                *(peer_cell(peers_ms[peer], by_path) if peer in peers_ms else MISSING for peer in peers)]

    return table(["GPU", "case", *map(records.title, paths), "floor", *peers],
                 [[r["device"], name, *cells(by_path)]
                  for r in all_records for name, by_path in records.by_name(device_rows(r)).items()])


def shapes(all_records):
    """A line a record: the ratios of each path to the floor, and how the fused kernel compares with the two kernels."""
    paths = paths_of(row for r in all_records for row in rows_named(r, SHAPES))

    def to_floor(cases, path):
        ratios = {name: by_path[path]["ms"] / by_path[path]["floor_ms"] for name, by_path in cases.items() if path in by_path}
        if not ratios:
            return [MISSING, MISSING]
        worst = max(ratios, key=ratios.get)
        return [f"{statistics.median(ratios.values()):.2f}×", f"{ratios[worst]:.2f}× ({worst.split('/', 2)[2]})"]

    def compared(cases):
        both = [by_path for by_path in cases.values() if records.PATHS.keys() <= by_path.keys()]
        gains = [by_path["two_kernel"]["ms"] / by_path["fused"]["ms"] for by_path in both]
        return [f"{min(gains):.2f}×", f"{sum(gain < 1 for gain in gains)} of {len(gains)}"] if gains else [MISSING, MISSING]

    header = ["GPU", "shapes", *(f"{records.title(path)}, {which}" for path in paths for which in ("median", "worst")),
              "least two kernels / fused", "fused slower"]
    cases = {r["device"]: records.by_name(rows_named(r, SHAPES)) for r in all_records}
    return table(header, [[device, str(len(c)), *(cell for path in paths for cell in to_floor(c, path)), *compared(c)]
                          for device, c in cases.items() if c])


def calls(all_records):
    """A line a way to make a call: the time of each path and its ratio to the plain call's."""
    paths = paths_of(row for r in all_records for row in rows_named(r, CALLS))

    def cell(by_name, name, path):
        row, plain = (by_name.get(n, {}).get(path) for n in (name, f"{name.rpartition('/')[0]}/{PLAIN}"))
        return f"{milliseconds(row['ms'])} ({ratio(row['ms'], plain and plain['ms'])})" if row else MISSING

    cases = {r["device"]: records.by_name(rows_named(r, CALLS)) for r in all_records}
    return table(["GPU", "call", *map(records.title, paths)],
                 [[device, name.removeprefix(CALLS), *(cell(by_name, name, path) for path in paths)]
                  for device, by_name in cases.items() for name in by_name])


def host(all_records):
    """A line a language: what a call on each path costs the host."""
    paths = paths_of(row for r in all_records for row in rows_named(r, HOST))

    def cell(row):
        return f"{row['ms'] * 1e3:.1f}" if row else MISSING

    return table(["GPU", "call from", *map(records.title, paths)],
                 [[r["device"], name.removeprefix(HOST), *(cell(by_path.get(path)) for path in paths)]
                  for r in all_records for name, by_path in records.by_name(rows_named(r, HOST)).items()])


TABLES = {"devices": devices, "accuracy": accuracy, "benchmarks": benchmarks, "shapes": shapes, "calls": calls, "host": host,
          "figures": figures.markdown}


def render(text, all_records):
    """`text` with every table's content made from the records."""
    def content(match):
        if match[2] not in TABLES:
            raise ValueError(f"README table {match[2]}: accepted is {', '.join(TABLES)}")
        return match[1] + (TABLES[match[2]](all_records) if all_records else EMPTY) + match[4]

    rendered, count = BLOCK.subn(content, text)
    if count == 0:
        raise ValueError("no table markers found")
    return rendered


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    all_records = [record for _, record in records.load_all()]
    wanted = {README: render(README.read_text(), all_records)}
    wanted |= {figures.FIGURES / name: text for name, text in figures.draw_all(all_records).items()}
    existing = {README, *figures.FIGURES.glob("*.svg")}
    stale = [path for path, text in wanted.items() if path not in existing or path.read_text() != text]
    superfluous = sorted(existing - wanted.keys())
    if arguments.check:
        for path in stale + superfluous:
            print(f"{path.relative_to(records.ROOT)}: differs from the records: run ./dev readme", file=sys.stderr)
        if stale or superfluous:
            return 1
        print("README.md: tables and pictures match the records")
        return 0
    figures.FIGURES.mkdir(exist_ok=True)
    for path in superfluous:
        path.unlink()
    for path in stale:
        path.write_text(wanted[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())

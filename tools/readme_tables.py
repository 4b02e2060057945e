#!/usr/bin/env python3
"""Write README.md's tables from the verification records, between `<!-- table: NAME -->` and `<!-- /table -->`, and the pictures
that it shows (figures.py).

NAME is devices, accuracy, benchmarks or figures. With --check nothing is written, and what differs is an error.
"""
import argparse
import re
import sys

import figures
import records

README = records.ROOT / "README.md"
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- /table -->)", re.DOTALL)
EMPTY = "no record yet\n"


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


def figure(value):
    return "" if value is None else f"{value:.1e}"


def accuracy(all_records):
    header = ["GPU", "case", "path", "output", "state", "fla output", "fla state"]
    keys = ("output", "state", "fla_output", "fla_state")
    return table(header, [[r["device"], row["name"], row["path"], *(figure(row.get(key)) for key in keys)]
                          for r in all_records for row in r["accuracy"]])


def benchmarks(all_records):
    def peers(row):
        return ", ".join(f"{name} {ms / row['ms']:.2f}×" for name, ms in sorted(row["peers_ms"].items()))

    header = ["GPU", "case", "path", "ms", "time / floor", "peers' time / ours"]
    return table(header, [[r["device"], row["name"], row["path"], f"{row['ms']:.4g}",
                           f"{row['ms'] / row['floor_ms']:.2f}" if row["floor_ms"] else "–", peers(row)]
                          for r in all_records for row in r["benchmarks"]])


TABLES = {"devices": devices, "accuracy": accuracy, "benchmarks": benchmarks, "figures": figures.markdown}


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

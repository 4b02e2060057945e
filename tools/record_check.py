#!/usr/bin/env python3
"""Check that every verification record belongs to the sources of this checkout.

A record passes if its source_digest is the one of tools/digest.py, or if it carries "unverified": "<reason>".
"""
import sys

import digest
import records


def verdict(record, current_digest):
    """(passes, text) of one record."""
    if record.get("source_digest") == current_digest:
        return True, "matches the sources"
    if reason := record.get("unverified"):
        return True, f"unverified: {reason}"
    return False, (f'source_digest is {record.get("source_digest")}, the sources have {current_digest}: '
                   'run ./dev gpu on that device, or add "unverified": "<reason>"')


def main():
    passes = True
    all_records = records.load_all()
    for path, record in all_records:
        good, text = verdict(record, digest.digest())
        passes &= good
        print(f"{path.name}: {text}")
    print(f"{len(all_records)} records checked")
    return 0 if passes else 1


if __name__ == "__main__":
    sys.exit(main())

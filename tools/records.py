"""Verification records: what ran on which GPU. records/README.md describes the schema."""
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "records"
SANITIZER_TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")


def file_name(device):
    """The record's file for a device: "NVIDIA H200" -> "nvidia-h200.json"."""
    return "-".join(device.lower().split()) + ".json"


# Paths of the CUDA backend and peers that tables and pictures always have, in this order; what else a record holds follows.
PATHS = {"fused": "fused", "two_kernel": "two kernels"}  # path -> its name in tables and pictures
PEERS = ("fla", "published")


def title(path):
    return PATHS.get(path, path)


def known_first(known, found):
    """`known`, then what else was found, sorted."""
    return [*known, *sorted(set(found) - set(known))]


def by_name(rows):
    """{name: {path: row}} in the order of the rows: a case has one row for each path that ran it."""
    cases = {}
    for row in rows:
        cases.setdefault(row["name"], {})[row["path"]] = row
    return cases


def load_all(folder=RECORDS):
    """[(path, record)], sorted by name."""
    return [(path, json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]

"""Verification records: what ran on which GPU. records/README.md describes the schema."""
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "records"
SANITIZER_TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")


def file_name(device):
    """The record's file for a device: "NVIDIA H200" -> "nvidia-h200.json"."""
    return "-".join(device.lower().split()) + ".json"


def load_all(folder=RECORDS):
    """[(path, record)], sorted by name."""
    return [(path, json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]

#!/usr/bin/env python3
"""Print the digest of everything the GPU binary is built from.

Hashed are the sources of the library, its build files (they hold the compile flags) and those rows of dependencies.txt that pin
what is compiled in: the header libraries and the CUDA toolkit. Verification records carry this digest; CI compares.
"""
import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HASHED = ("CMakeLists.txt", "cmake", "include", "src")
COMPILED_IN = ("debian", "toolkit")  # roles of dependencies.txt


def hashed_files(root):
    for name in HASHED:
        path = root / name
        yield from [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def pinned_rows(root):
    rows = (line.split() for line in (root / "dependencies.txt").read_text().splitlines())
    return sorted(" ".join(row) for row in rows if row and row[0] in COMPILED_IN)


def digest(root=ROOT):
    h = hashlib.sha256()
    for row in pinned_rows(root):
        h.update(f"{row}\n".encode())
    for path in hashed_files(root):
        content = path.read_bytes()
        h.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        h.update(content)
    return h.hexdigest()


if __name__ == "__main__":
    print(digest())

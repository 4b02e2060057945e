#!/usr/bin/env python3
"""Print the digest of everything the GPU binary is built from.

Hashed are the sources of the library, its build files (they hold the compile flags) and dependencies.txt (it pins the versions of
the header libraries and of the CUDA toolkit). Verification records carry this digest; CI compares.
"""
import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HASHED = ("CMakeLists.txt", "dependencies.txt", "cmake", "include", "src")


def hashed_files():
    for name in HASHED:
        path = ROOT / name
        yield from [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def digest():
    h = hashlib.sha256()
    for path in hashed_files():
        content = path.read_bytes()
        h.update(f"{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode())
        h.update(content)
    return h.hexdigest()


if __name__ == "__main__":
    print(digest())

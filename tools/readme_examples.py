#!/usr/bin/env python3
"""Compile and run the C, C++ and Python examples of README.md against a build folder and an installed package."""
import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import records

COMPILERS = {"c": ["cc", "-std=c11"], "cpp": ["c++", "-std=c++17"]}


def examples(text):
    """[(language, source)] of the fenced blocks in a language that can be run."""
    return re.findall(r"^```(c|cpp|python)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def command_for(language, source, folder, build, python):
    """Write and compile the example in `folder`; returns the command that runs it."""
    path = folder / f"example.{'py' if language == 'python' else language}"
    path.write_text(source)
    if language == "python":
        return [python, path]
    program, library = folder / f"example_{language}", build.resolve() / "src"
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{records.ROOT / 'include'}", f"-L{library}", f"-Wl,-rpath,{library}"]
    subprocess.run([*COMPILERS[language], *flags, path, "-lflash_kda", "-o", program], check=True)
    return [program]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help="build folder with src/libflash_kda.so")
    parser.add_argument("--python", required=True, help="interpreter that has the package flash_kda")
    arguments = parser.parse_args()
    found = examples((records.ROOT / "README.md").read_text())
    for language, source in found:
        with tempfile.TemporaryDirectory() as folder:
            print(f"README.md, {language} example:", flush=True)
            subprocess.run(command_for(language, source, Path(folder), arguments.build, arguments.python), check=True, cwd=folder)
    missing = {"c", "cpp", "python"} - {language for language, _ in found}
    if missing:
        print(f"README.md has no example in {', '.join(sorted(missing))}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())

"""Tests marked gpu run where there is a GPU; elsewhere they are left out, and the verification record holds them."""

import shutil
import subprocess


def has_gpu():
    return shutil.which("nvidia-smi") is not None and subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU")


def pytest_collection_modifyitems(config, items):
    if has_gpu():
        return
    left_out = [item for item in items if item.get_closest_marker("gpu")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


def pytest_report_header():
    return "GPU: there" if has_gpu() else "GPU: none, tests marked gpu are left out"

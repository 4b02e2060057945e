"""The command line tool, from outside. FLASHKDA_CLI is the binary."""

import contextlib
import json
import math
import os
import pty
import resource
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest

BINARY = os.environ["FLASHKDA_CLI"]
TEXT_INPUT = Path(__file__).parent.parent / "data" / "kda_text.safetensors"


def flashkda(*arguments, code=0):
    """Run the tool; returns stdout, or stderr where it is expected to fail."""
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    if code == 2:
        assert done.stdout == ""
        assert done.stderr.startswith("flashkda: ") and done.stderr.count("\n") == 1
        return done.stderr
    assert done.stderr == ""  # no progress where there is no terminal
    return done.stdout


def read(path):
    """name -> (dtype, shape, bytes), metadata."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    body = data[8 + length :]
    return {n: (t["dtype"], t["shape"], body[slice(*t["data_offsets"])]) for n, t in header.items()}, metadata


def write(path, tensors, metadata=None):
    header, body = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + body)


def floats(data):
    return struct.unpack(f"<{len(data) // 4}f", data)


@pytest.fixture
def inputs(tmp_path):
    path = tmp_path / "in.safetensors"
    flashkda("generate", path, "--tokens", 40, "--heads", 2, "--key-dim", 16, "--value-dim", 8, "--dtype", "float32")
    return path


# ---- generate ---------------------------------------------------------------------------------------------------------------


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


class Random:
    """What cli/generator.cpp says its numbers are. fp64 holds sums and products of two fp32 numbers well enough to round once."""

    MASK, STEP = 2**64 - 1, 0x9E3779B97F4A7C15

    def __init__(self, seed, stream):
        self.key = self.mix(self.mix(seed + self.STEP) + stream * self.STEP)

    @classmethod
    def mix(cls, z):
        z &= cls.MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & cls.MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & cls.MASK
        return z ^ z >> 31

    def bits(self, i):
        return self.mix(self.key + (i + 1) * self.STEP)

    def uniform(self, i, first, last):
        return f32(first + f32(f32(last - first) * (self.bits(2 * i) >> 40) * 2.0**-24))

    def normal(self, i):
        words = (self.bits(2 * i), self.bits(2 * i + 1))
        total = sum(word >> shift & 0xFFFF for word in words for shift in range(0, 64, 16))
        return f32((2 * total - 8 * 65535) * f32(0.5 / f32(53509.88)))


def test_generated_bytes_follow_from_the_seed_alone(tmp_path):
    """Every machine must give these bytes: they are computed here from the description, not by the tool."""
    seed, H, K, tokens = 3, 2, 5, 17
    path = tmp_path / "in.safetensors"
    options = ["--lengths", "5,0,12", "--heads", H, "--key-dim", K, "--value-dim", 3, "--dtype", "float32", "--seed", seed]
    stream = {name: i for i, name in enumerate(["q", "k", "v", "g", "beta", "A_log", "dt_bias", "initial_state", "common key"])}

    def expected(name, count, value):
        numbers = Random(seed, stream[name])
        return [value(numbers, i) for i in range(count)]

    flashkda("generate", path, *options, "--family", "F5", "--initial-state", "float16", "--gate-strength", "0.1")
    tensors, _ = read(path)
    for name in ("q", "k"):
        assert list(floats(tensors[name][2])) == expected(name, tokens * H * K, lambda r, i: r.normal(i))
    assert list(floats(tensors["v"][2])) == expected("v", tokens * H * 3, lambda r, i: r.normal(i))
    assert list(floats(tensors["g"][2])) == expected("g", tokens * H * K, lambda r, i: f32(f32(0.1) + 0.5 * r.normal(i)))
    assert list(floats(tensors["beta"][2])) == expected("beta", tokens * H, lambda r, i: r.normal(i))
    assert list(floats(tensors["A_log"][2])) == [0, 0]
    assert list(floats(tensors["dt_bias"][2])) == expected("dt_bias", H * K, lambda r, i: r.uniform(i, -8, 8))
    assert tensors["initial_state"][2] == struct.pack("<90e", *expected("initial_state", 90, lambda r, i: r.normal(i)))

    flashkda("generate", path, *options, "--family", "F6")
    common = expected("common key", H * K, lambda r, i: r.normal(i))
    for name in ("q", "k"):
        near = expected(name, tokens * H * K, lambda r, i: f32(common[i % (H * K)] + f32(f32(0.3) * r.normal(i))))
        assert list(floats(read(path)[0][name][2])) == near


def test_generate_shapes_types_and_metadata(tmp_path):
    path = tmp_path / "in.safetensors"
    flashkda("generate", path, "--lengths", "3x7", "--heads", 2, "--value-heads", 4, "--key-dim", 16, "--value-dim", 8,
             "--initial-state", "bfloat16", "--family", "softplus", "--seed", 9, "--gate-strength", "-1.5")  # fmt: skip
    tensors, metadata = read(path)
    assert {n: (d, s) for n, (d, s, _) in tensors.items()} == {
        "q": ("BF16", [1, 21, 2, 16]),
        "k": ("BF16", [1, 21, 2, 16]),
        "v": ("BF16", [1, 21, 4, 8]),
        "g": ("BF16", [1, 21, 4, 16]),
        "beta": ("BF16", [1, 21, 4]),
        "A_log": ("F32", [4]),
        "dt_bias": ("F32", [4, 16]),
        "cu_seqlens": ("I32", [4]),
        "initial_state": ("BF16", [3, 4, 8, 16]),
    }
    assert struct.unpack("<4i", tensors["cu_seqlens"][2]) == (0, 7, 14, 21)
    assert metadata["gate"] == "softplus" and metadata["seed"] == "9" and metadata["gate_strength"] == "-1.5"


def test_generated_numbers_are_standard_normal(tmp_path):
    path = tmp_path / "in.safetensors"
    flashkda("generate", path, "--tokens", 500, "--heads", 1, "--dtype", "float32", "--gate-strength", "-3")
    tensors, _ = read(path)
    for name, mean in (("q", 0), ("v", 0), ("g", -3)):
        x = floats(tensors[name][2])
        average = sum(x) / len(x)
        deviation = math.sqrt(sum((e - average) ** 2 for e in x) / len(x))
        assert abs(average - mean) < 0.02 and abs(deviation - 1) < 0.02, name
    a, b = floats(tensors["q"][2]), floats(tensors["k"][2])
    assert abs(sum(x * y for x, y in zip(a, b, strict=True))) / len(a) < 0.02


def test_a_gate_strength_below_fp32s_normal_range(tmp_path):
    for name, strength in (("a", "1e-40"), ("b", "0")):
        flashkda("generate", tmp_path / name, "--tokens", 3, "--heads", 1, "--gate-strength", strength)
    assert read(tmp_path / "a")[0] == read(tmp_path / "b")[0]


def test_another_seed_gives_other_numbers(tmp_path):
    for seed in (0, 1):
        flashkda("generate", tmp_path / str(seed), "--tokens", 8, "--heads", 1, "--seed", seed)
    one, other = read(tmp_path / "0")[0], read(tmp_path / "1")[0]
    for name in ("q", "k", "v", "g", "beta", "A_log", "dt_bias"):
        assert one[name][2] != other[name][2], name


def test_family_f7_has_one_key(tmp_path):
    path = tmp_path / "in.safetensors"
    flashkda("generate", path, "--tokens", 3, "--heads", 2, "--family", "F7")
    tensors, _ = read(path)
    row = 2 * 128 * 2
    q, k = tensors["q"][2], tensors["k"][2]
    assert q == q[:row] * 3 and k == q
    assert q[: row // 2] != q[row // 2 : row]


# ---- run --------------------------------------------------------------------------------------------------------------------


def test_run_writes_the_results(inputs, tmp_path):
    out = tmp_path / "out.safetensors"
    text = flashkda("run", inputs, "--device", "cpu", "-o", out)
    assert "tokens/s" in text and " ms" in text and str(out) in text
    tensors, metadata = read(out)
    assert {n: (d, s) for n, (d, s, _) in tensors.items()} == {
        "final_state": ("F32", [1, 2, 8, 16]),
        "out": ("F32", [1, 40, 2, 8]),
    }
    assert any(floats(tensors["out"][2])) and any(floats(tensors["final_state"][2]))
    assert metadata["device"] == "cpu" and metadata["plan"].startswith("path=cpu/")
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith("tmp")] == []


def test_run_types_and_json(inputs, tmp_path):
    out = tmp_path / "out.safetensors"
    result = json.loads(
        flashkda("run", inputs, "--device", "reference", "-o", out, "--out-dtype", "bfloat16", "--state-dtype", "float16", "--json")
    )
    assert result["device"] == "reference" and result["path"] == "reference"
    assert result["tokens"] == 40 and result["sequences"] == 1 and result["output"] == str(out)
    assert result["ms"] > 0 and result["tokens_per_s"] == pytest.approx(40e3 / result["ms"])
    tensors, _ = read(out)
    assert tensors["out"][0] == "BF16" and tensors["final_state"][0] == "F16"


def test_run_matches_the_delta_rule_by_hand(tmp_path):
    """One token from a zero state: u = beta v, S = u k^T, o = scale (k . q) u; beta = 1/2, no norm, scale 2."""
    path, out = tmp_path / "in", tmp_path / "out"
    pack = lambda *x: struct.pack(f"<{len(x)}f", *x)  # noqa: E731
    tensors = {
        "q": ("F32", [1, 1, 1, 2], pack(3, 4)),
        "k": ("F32", [1, 1, 1, 2], pack(1, 2)),
        "v": ("F32", [1, 1, 1, 2], pack(5, -6)),
        "g": ("F32", [1, 1, 1, 2], pack(-1, -2)),
        "beta": ("F32", [1, 1, 1], pack(0)),
    }
    write(path, tensors, {"gate": "log", "l2norm": "off", "scale": "2", "unrelated": "x"})
    for device in ("cpu", "reference"):
        flashkda("run", path, "-o", out, "--device", device)
        assert floats(read(out)[0]["out"][2]) == pytest.approx([2 * 11 * 2.5, 2 * 11 * -3])
        assert floats(read(out)[0]["final_state"][2]) == pytest.approx([2.5, 5, -3, -6])
    flashkda("run", path, "-o", out, "--device", "cpu", "--scale", "-1", "--beta-form", "twice_sigmoid")  # flags win
    assert floats(read(out)[0]["out"][2]) == pytest.approx([-11 * 5, -11 * -6])


def test_run_state_gather_and_checkpoints(tmp_path):
    path, out = tmp_path / "in", tmp_path / "out"
    flashkda("generate", path, "--lengths", "70,3", "--heads", 1, "--key-dim", 4, "--value-dim", 4, "--initial-state", "float32")
    tensors, metadata = read(path)
    tensors["checkpoints"] = ("I32", [2, 2], struct.pack("<4i", 0, 64, 1, 0))
    tensors["read_index"] = ("I32", [2], struct.pack("<2i", 1, 0))
    tensors["has_initial_state"] = ("BOOL", [2], b"\x00\x01")
    write(path, tensors, metadata)
    flashkda("run", path, "-o", out, "--device", "cpu")
    results = read(out)[0]
    assert results["checkpoint_state"][:2] == ("F32", [2, 1, 4, 4])
    assert results["checkpoint_state"][2][64:] == tensors["initial_state"][2][:64]  # sequence 1 began with slot 0
    assert flashkda("check", path, "--device", "cpu").count("ok:") == 3


def usable_gpus():
    return [gpu["device"] for gpu in json.loads(flashkda("info", "--device", "cpu", "--json"))["cuda"]["devices"] if gpu["usable"]]


def test_device_auto_takes_a_usable_gpu():
    """Else the CPU, where asking for a GPU says what is missing."""
    gpus = usable_gpus()
    assert json.loads(flashkda("run", TEXT_INPUT, "--json"))["device"] == (f"cuda:{gpus[0]}" if gpus else "cpu")
    if not gpus:
        assert "device: got CUDA device 0, but" in flashkda("run", TEXT_INPUT, "--device", "cuda", code=2)


# ---- check ------------------------------------------------------------------------------------------------------------------


def test_check_of_the_text_input():
    result = json.loads(flashkda("check", TEXT_INPUT, "--device", "cpu", "--json"))
    assert result["passed"] and result["tolerance"] == 5e-6
    for name in ("out", "final_state"):
        part = result[name]
        assert part["passed"] and part["nan"] == part["inf"] == part["mismatched"] == 0
        assert 0 <= part["error_beyond_rounding"] <= 5e-6
    assert 1e-3 < result["out"]["error"] < 2e-3  # bfloat16's rounding
    assert len(result["out"]["worst"]["at"]) == 4


@pytest.mark.parametrize("family", [f"F{i}" for i in range(1, 9)] + ["softplus"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_check_of_every_family(tmp_path, family, dtype):
    path = tmp_path / "in.safetensors"
    flashkda("generate", path, "--lengths", "33,0,100", "--heads", 1, "--value-heads", 2, "--family", family, "--dtype", dtype,
             "--initial-state", "float32")  # fmt: skip
    result = json.loads(flashkda("check", path, "--device", "cpu", "--json"))
    assert result["passed"]
    assert result["tolerance"] == (5e-5 if family in ("F6", "F7") else 5e-6)


@pytest.mark.parametrize("tolerance", [0, "1e-310"])
def test_check_fails_with_exit_code_1(inputs, tolerance):
    text = flashkda("check", inputs, "--device", "cpu", "--tolerance", tolerance, code=1)
    assert "verdict          FAILED" in text and "worst at [" in text


def check_with(value, token, inputs, path):
    """The check of inputs with `value` in v of `token`, head 1, column 5."""
    tensors, metadata = read(inputs)
    v = bytearray(tensors["v"][2])
    struct.pack_into("<f", v, 4 * (token * 2 * 8 + 8 + 5), value)
    tensors["v"] = (*tensors["v"][:2], bytes(v))
    write(path, tensors, metadata)
    return json.loads(flashkda("check", path, "--device", "cpu", "--json"))


def test_check_counts_nan_and_inf_apart(inputs, tmp_path):
    """A NaN in v of head 1 stays in head 1, and is no failure: the reference has it, too."""
    result = check_with(math.nan, 38, inputs, tmp_path / "nan.safetensors")
    assert result["passed"]
    assert (result["out"]["nan"], result["out"]["inf"], result["out"]["mismatched"]) == (2, 0, 0)
    assert result["final_state"]["nan"] == 16


def test_check_of_an_infinite_value(inputs, tmp_path):
    """The recurrence and the chunked form sum infinities in different orders; what is finite in one is in the other."""
    result = check_with(math.inf, 20, inputs, tmp_path / "inf.safetensors")
    assert result["passed"] and result["out"]["mismatched"] == 0
    assert result["out"]["nan"] + result["out"]["inf"] == 20
    assert result["final_state"]["nan"] + result["final_state"]["inf"] == 16


# ---- on a GPU ---------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_gpu_run_writes_the_results(tmp_path):
    """The file that a GPU writes, against the CPU's."""
    tensors = {}
    for device in ("cuda", "cpu"):
        out = tmp_path / device
        text = flashkda("run", TEXT_INPUT, "--device", device, "-o", out)
        assert "tokens/s" in text and str(out) in text
        tensors[device], metadata = read(out)
        assert metadata["device"] == {"cuda": "cuda:0", "cpu": "cpu"}[device]
        assert metadata["plan"].startswith(f"path={device}/")
    gpu, cpu = tensors["cuda"], tensors["cpu"]
    assert {n: (d, s) for n, (d, s, _) in gpu.items()} == {"final_state": ("F32", [1, 4, 128, 128]), "out": ("BF16", [1, 950, 4, 128])}
    ours, theirs = floats(gpu["final_state"][2]), floats(cpu["final_state"][2])
    difference = math.sqrt(sum((a - b) ** 2 for a, b in zip(ours, theirs, strict=True)))
    assert 0 < difference <= 5e-3 * math.sqrt(sum(b * b for b in theirs))


@pytest.mark.gpu
def test_gpu_run_says_where(tmp_path):
    result = json.loads(flashkda("run", TEXT_INPUT, "--device", "cuda:0", "--json"))
    assert result["device"] == "cuda:0" and result["path"].startswith("cuda/")
    assert result["tokens"] == 950 and result["ms"] > 0 and result["tokens_per_s"] == pytest.approx(950e3 / result["ms"])


@pytest.mark.gpu
@pytest.mark.parametrize("family", [f"F{i}" for i in range(1, 9)])
@pytest.mark.parametrize("state", ["float32", "bfloat16"])
def test_gpu_check_of_every_family(tmp_path, family, state):
    path = tmp_path / "in.safetensors"
    flashkda("generate", path, "--lengths", "33,0,100,1,256", "--heads", 2, "--family", family, "--initial-state", state)
    result = json.loads(flashkda("check", path, "--device", "cuda", "--state-dtype", state, "--json"))
    assert result["passed"] and result["device"] == "cuda:0"
    parallel_keys = 1.8e-2 if "path=cuda/fused " in result["plan"] else 1.2e-2
    assert result["tolerance"] == (parallel_keys if family in ("F6", "F7") else 5e-3)
    assert result["out"]["elements"] == 390 * 2 * 128 and result["final_state"]["elements"] == 5 * 2 * 128 * 128


@pytest.mark.gpu
def test_gpu_check_fails_with_exit_code_1():
    assert "verdict          FAILED" in flashkda("check", TEXT_INPUT, "--device", "cuda", "--tolerance", 0, code=1)


@pytest.mark.gpu
def test_gpu_bench_table_and_json(tmp_path):
    path = tmp_path / "bench.json"
    text = flashkda("bench", "--device", "cuda", "--heads", 2, "--lengths", "3x200", "--gate", "mixed", "--json", path)
    assert text.startswith("cuda:0: NVIDIA") and "forward/H2/3x200/mixed" in text and "x copy" in text
    result = json.loads(path.read_text())
    (row,) = result["benchmarks"]
    assert row["name"] == "forward/H2/3x200/mixed" and row["path"].startswith("cuda/")
    assert 0 < row["min_ms"] <= row["ms"] and 0 < row["floor_ms"] and 0 < result["copy_tb_s"] < 100


@pytest.mark.gpu
def test_gpu_info_has_a_plan():
    result = json.loads(flashkda("info", "--device", "cuda", "--heads", 12, "--lengths", "4x16", "--json"))
    assert result["forward"]["device"] == "cuda:0" and result["forward"]["plan"].startswith("path=cuda/")
    assert result["cuda"]["available"] and result["cuda"]["devices"][0]["usable"]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "cuda:99"], "device: got"),
        (["--device", "cuda", "--gate", "softplus"], "gate: got 2 (softplus), accepted by the CUDA kernels is"),
        (["--device", "cuda", "--out-dtype", "float32"], "out: got dtype float32, accepted by the CUDA kernels is bfloat16"),
    ],
)
def test_gpu_refusals_name_the_argument(options, message):
    assert message in flashkda("run", TEXT_INPUT, *options, code=2)


@pytest.mark.gpu
def test_gpu_checks_the_lengths_of_a_file(tmp_path):
    """A file is untrusted: its cu_seqlens is looked at on the device, too."""
    path = tmp_path / "in.safetensors"
    flashkda("generate", path, "--lengths", "5,7", "--heads", 1)
    tensors, metadata = read(path)
    dtype, shape, data = tensors["cu_seqlens"]
    code = {"I32": "i", "I64": "q"}[dtype]
    tensors["cu_seqlens"] = (dtype, shape, struct.pack(f"<3{code}", 0, 9, 5))
    write(path, tensors, metadata)
    assert "cu_seqlens" in flashkda("run", path, "--device", "cuda", code=2)


# ---- bench, info ------------------------------------------------------------------------------------------------------------


def test_bench_table_and_json(tmp_path):
    path = tmp_path / "bench.json"
    text = flashkda("bench", "--device", "cpu", "--tokens", 32, "--heads", 2, "--gate", "slow", "--threads", 1, "--repeats", 3,
                    "--warmup", 1, "--json", path)  # fmt: skip
    assert "forward/H2/fixed32/slow" in text and "fp32 peak with 1 thread" in text
    result = json.loads(path.read_text())
    (row,) = result["benchmarks"]
    assert row["name"] == "forward/H2/fixed32/slow" and row["path"].startswith("cpu/") and row["threads"] == 1
    assert 0 < row["min_ms"] <= row["ms"]
    assert row["us_per_token_head"] == pytest.approx(row["ms"] * 1e3 / 64)
    assert row["tokens_per_s"] == pytest.approx(32e3 / row["ms"])
    peak = result["fp32_peak_gflops"]["1"]
    assert row["peak_share"] == pytest.approx(6 * 128 * 128 * 64 / (row["ms"] * 1e-3) / (peak * 1e9))
    assert 0 < row["peak_share"] < 1


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--lengths", "1300,547,2048,963,271,3063"], "forward/H1/ragged8192/random"),
        (["--lengths", "8x4"], "forward/H1/8x4/random"),
        (["--tokens", "5", "--value-heads", "2"], "forward/H1-HV2/fixed5/random"),
        (["--tokens", "5", "--key-dim", "64", "--value-dim", "32"], "forward/H1-K64-V32/fixed5/random"),
        (["--operator", "decode", "--lengths", "3x1"], "decode/H1/B3/fp32 "),
        (["--operator", "decode", "--lengths", "3x2", "--gate", "slow"], "decode/H1/3x2/fp32/slow"),
    ],
)
def test_bench_names(options, name):
    text = flashkda("bench", "--device", "cpu", "--heads", 1, "--threads", 1, "--repeats", 1, "--warmup", 0, *options)
    assert name in text


def test_info():
    text = flashkda("info", "--device", "cpu", "--heads", 12, "--lengths", "4x16")
    assert text.startswith("flashkda " + flashkda("--version").strip())
    assert "forward/H12/4x16 K=128 V=128 bfloat16 on cpu" in text and "path=cpu/" in text and "reason=" in text
    result = json.loads(flashkda("info", "--device", "reference", "--json"))
    assert result["forward"]["plan"].startswith("path=reference") and result["cpu"]["threads"] >= 1


# ---- progress ---------------------------------------------------------------------------------------------------------------


def stages(*arguments, code=0):
    """What the tool shows on a terminal, one line after the other, and its output."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([BINARY, *map(str, arguments)], stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # what reading from a terminal that nobody has open ends with
            while data := os.read(ours, 1024):
                shown += data
        output = process.stdout.read()
    os.close(ours)
    assert process.returncode == code
    *lines, last = shown.decode().split("\r\x1b[K")
    return [line for line in lines if line], last, output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["generate", "OUT"], ["generating", "writing"]),
        (["run", "IN"], ["reading the input", "running on cpu"]),
        (["run", "IN", "-o", "OUT", "--json"], ["reading the input", "running on cpu", "writing the results"]),
        (["check", "IN"], ["reading the input", "running on cpu", "running the fp64 reference", "comparing"]),
        (["bench", "--tokens", 8, "--heads", 1, "--threads", 1], ["measuring the fp32 peak", "[1/1] forward/H1/fixed8/random"]),
    ],
)
def test_a_terminal_shows_the_stages(inputs, tmp_path, arguments, expected):
    names = {"IN": inputs, "OUT": tmp_path / "out"}
    device = [] if arguments[0] == "generate" else ["--device", "cpu"]
    lines, last, output = stages(*[names.get(a, a) for a in arguments], *device)
    assert lines == expected
    assert last == "" and output != ""  # the line is gone once there are results


def test_an_error_replaces_the_stage(tmp_path):
    lines, last, output = stages("run", tmp_path / "missing", "--device", "cpu", code=2)
    assert lines == ["reading the input"] and last.startswith("flashkda: ") and output == ""


# ---- help and errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [[], ["run"], ["check"], ["bench"], ["generate"], ["info"]])
def test_help_teaches_with_examples(command):
    text = flashkda(*command, "--help")
    assert "Usage: flashkda" in text
    assert "  flashkda " in text.split("\n", 3)[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "got none, accepted is run, check, bench, generate, info"),
        (["frobnicate"], "got frobnicate, accepted is run, check, bench, generate, info"),
        (["run"], "INPUT is required"),
        (["run", "IN", "--frob"], "--frob"),
        (["run", "missing.safetensors"], "missing.safetensors: cannot be opened"),
        (["run", "IN", "-o", "no/such/folder/x"], "the folder"),
        (["run", "IN", "-o", "/dev/null"], "not a regular file"),
        (["run", "IN", "-o", "IN"], "which is the input, accepted is another file"),
        (["run", "IN", "-o", ""], "--output: got an empty name, accepted is the name of a file"),
        (["generate", ""], "OUTPUT: got an empty name"),
        (["run", "IN", "--device", "tpu"], "--device: got tpu, accepted is auto, cpu, cuda, cuda:N or reference"),
        (["check", "IN", "--device", "reference"], "--device: got reference, accepted is auto, cpu, cuda or cuda:N"),
        (["run", "IN", "--threads", "-1"], "--threads: got -1, accepted is a whole number from 0 to 1024"),
        (["run", "IN", "--gate", "relu"], "--gate: got relu, accepted is bounded, softplus, log"),
        (["run", "IN", "--lower-bound", "-6"], "--lower-bound: got -6, accepted is a number x with -5 <= x < 0"),
        (["run", "IN", "--lower-bound", "0"], "--lower-bound: got 0,"),
        (["run", "IN", "--scale", "nan"], "--scale: got nan, accepted is a finite number"),
        (["run", "IN", "--beta-form", "x"], "--beta-form: got x, accepted is logits, probabilities, twice_sigmoid"),
        (["run", "IN", "--l2norm", "yes"], "--l2norm: got yes, accepted is on, off"),
        (["run", "IN", "--out-dtype", "int8"], "--out-dtype: got int8, accepted is bfloat16, float16, float32"),
        (["run", "IN", "--gate", "log"], "A_log: given with the log gate"),
        (["check", "IN", "--tolerance", "x"], "--tolerance: got x, accepted is a number from 0 to 1000"),
        (["generate", "OUT", "--tokens", "1.5"], "--tokens: got 1.5, accepted is a whole number"),
        (["generate", "OUT", "--tokens", "010"], "--tokens: got 010, accepted is a whole number"),
        (["generate", "OUT", "--heads", "0"], "--heads: got 0, accepted is a whole number from 1"),
        (["generate", "OUT", "--key-dim", "257"], "--key-dim: got 257, accepted is a whole number from 1 to 256"),
        (["generate", "OUT", "--heads", "2", "--value-heads", "3"], "--value-heads: got 3, accepted is a multiple of --heads 2"),
        (["generate", "OUT", "--lengths", "4,,5"], "--lengths: got 4,,5, accepted are lengths"),
        (["generate", "OUT", "--lengths", "-4"], "--lengths"),
        (["generate", "OUT", "--lengths", "4", "--tokens", "4"], "excludes"),
        (["generate", "OUT", "--family", "F9"], "--family: got F9, accepted is F1, F2"),
        (["generate", "OUT", "--initial-state", "yes"], "--initial-state: got yes, accepted is none, bfloat16"),
        (["generate", "OUT", "--seed", "-1"], "--seed: got -1"),
        (["bench", "--device", "cpu", "--tokens", "0"], "--tokens: got 0, accepted by bench is 1 or more"),
        (["bench", "--device", "cpu", "--json", "no/such/folder/x"], "the folder"),
        (["bench", "--repeats", "0"], "--repeats: got 0"),
        (["bench", "--operator", "x"], "--operator: got x, accepted is forward, decode"),
        (["info", "--dtype", "float64"], "--dtype: got float64"),
    ],
)
def test_errors_name_the_argument(inputs, tmp_path, arguments, message):
    names = {"IN": str(inputs), "OUT": str(tmp_path / "out")}
    assert message in flashkda(*[names.get(a, a) for a in arguments], code=2)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, m: t.pop("q"), "q: required, but absent"),
        (lambda t, m: t.pop("v"), "v: required, but absent"),
        (lambda t, m: t.update(extra=("F32", [1], bytes(4))), "tensor 'extra': not an argument, accepted are q, k, v"),
        (lambda t, m: t.update(q=("F32", [1, 40, 1, 2, 16], t["q"][2])), "tensor 'q': got shape [1, 40, 1, 2, 16]"),
        (lambda t, m: t.update(q=("F32", [], bytes(4))), "tensor 'q': got shape []"),
        (lambda t, m: t.update(k=("F32", [1, 40, 4, 8], t["k"][2])), "k: got shape [1, 40, 4, 8]"),
        (lambda t, m: t.update(v=("F32", [40, 2, 8], t["v"][2])), "v: got shape [40, 2, 8]"),
        (lambda t, m: t.update(q=("I32", *t["q"][1:])), "q: got dtype int32"),
        (lambda t, m: t.update(cu_seqlens=("I32", [2], struct.pack("<2i", 0, 41))), "cu_seqlens[1]: got 41, accepted is at most T = 40"),
        (lambda t, m: t.update(cu_seqlens=("I32", [0], b"")), "cu_seqlens: got shape [0]"),
        (lambda t, m: m.update(gate="relu"), "gate: got relu, accepted is bounded, softplus, log"),
        (lambda t, m: m.update(lower_bound="-7"), "lower_bound: got -7, accepted is a number x with -5 <= x < 0"),
    ],
)  # fmt: skip
def test_errors_in_the_input_file(inputs, tmp_path, change, message):
    tensors, metadata = read(inputs)
    change(tensors, metadata)
    path = tmp_path / "bad.safetensors"
    write(path, tensors, metadata)
    assert message in flashkda("run", path, "--device", "cpu", "-o", tmp_path / "out", code=2)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "NAME", "--tokens", 1],
        ["run", "IN", "--device", "cpu", "-o", "NAME"],
        ["bench", "--device", "cpu", "--tokens", 1, "--threads", 1, "--repeats", 1, "--json", "NAME"],
    ],
)
def test_a_result_that_cannot_be_written(inputs, tmp_path, arguments):
    """It shows before anything is computed."""
    for path, message in (("/proc/new", "cannot be written ("), (tmp_path / ("x" * 256), "(File name too long), accepted is")):
        names = {"IN": inputs, "NAME": path}
        assert message in flashkda(*(names.get(a, a) for a in arguments), code=2)
    assert list(tmp_path.iterdir()) == [inputs]


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "out.safetensors"
    path.write_text("old")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # noqa: E731
    command = [BINARY, "generate", str(path), "--tokens", "8", "--heads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, restore_signals=False, timeout=300)
    assert done.returncode == 2 and f"{path}: cannot be written (File too large), accepted is a file in" in done.stderr
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_the_input_is_never_the_output(inputs, tmp_path):
    """By whatever name: a link of either kind, or a path with a detour."""
    before = inputs.read_bytes()
    (tmp_path / "symbolic").symlink_to(inputs)
    (tmp_path / "hard").hardlink_to(inputs)
    for name in ("symbolic", "hard", f"../{tmp_path.name}/{inputs.name}"):
        assert "is the input" in flashkda("run", inputs, "--device", "cpu", "-o", tmp_path / name, code=2)
    assert inputs.read_bytes() == before


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["info"], ["run", "IN"], ["check", "IN", "--json"]])
def test_a_full_standard_output_is_an_error(inputs, arguments):
    with open("/dev/full", "w") as full:
        command = [BINARY, *(str(inputs) if a == "IN" else a for a in arguments)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (2, "flashkda: standard output: cannot be written in full\n")


def with_closed_streams(*arguments):
    """Run the tool by a shell that closes all its standard streams."""
    return subprocess.run(["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', BINARY, *map(str, arguments)], check=False, timeout=300)


def test_closed_streams_do_not_become_files(tmp_path):
    path = tmp_path / "bench.json"
    done = with_closed_streams("bench", "--device", "cpu", "--tokens", 8, "--heads", 1, "--threads", 1, "--json", path)
    assert done.returncode == 2  # the table is lost
    assert [row["name"] for row in json.loads(path.read_text())["benchmarks"]] == ["forward/H1/fixed8/random"]


@pytest.mark.parametrize("command", ["run", "check"])
def test_json_of_a_file_whose_name_is_not_text(inputs, command):
    name = os.fsencode(inputs) + b"\xff"
    os.rename(inputs, name)
    done = subprocess.run([BINARY, command, name, "--device", "cpu", "--json"], capture_output=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["input"] == f"{inputs}\ufffd"


def test_an_interruption_leaves_nothing(tmp_path):
    """Whatever it meets: the generation of 3 GB or the writing of it."""
    path = tmp_path / "large.safetensors"
    with subprocess.Popen([BINARY, "generate", str(path), "--tokens", "65536", "--heads", "64"]) as process:
        time.sleep(0.5)
        process.kill()
    assert process.returncode == -signal.SIGKILL and list(tmp_path.iterdir()) == []


def test_names_in_a_file_do_not_reach_the_terminal_raw(inputs, tmp_path):
    tensors, metadata = read(inputs)
    tensors["\x1b[2Jq\n"] = tensors["q"]
    path = tmp_path / "bad.safetensors"
    write(path, tensors, metadata)
    assert "tensor '\\x1b[2Jq\\x0a': not an argument" in flashkda("run", path, code=2)


def test_a_cut_file_is_refused_by_name(inputs, tmp_path):
    path = tmp_path / "cut.safetensors"
    path.write_bytes(inputs.read_bytes()[:-1])
    assert str(path) in flashkda("run", path, code=2)

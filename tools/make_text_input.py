#!/usr/bin/env python3
"""Make data/kda_text.safetensors: the inputs of one Kimi Delta Attention layer that reads English text.

The layer is built as the published one is (Kimi Linear, arXiv:2510.26692, section 4), with fresh weights: byte embedding, RMS
norm, projections to q, k and v, each followed by a causal depthwise convolution of width 4 and SiLU, a low-rank projection to the
raw gate g, a projection to the logits beta, and the published initialisation of A_log and dt_bias. The operator itself normalises
q and k and applies the gate.

The text is the King James Version of the Bible (1611, public domain) as Debian's packages bible-kjv and bible-kjv-text print it.

    pip install numpy
    python3 tools/make_text_input.py data/kda_text.safetensors

The same options give the same file: everything is computed in fp64 from a fixed seed and rounded once.
"""

import argparse
import hashlib
import json
import re
import struct
import subprocess

import numpy as np

VERSES = "Ge1:1-Ge1:31"
CONVOLUTION_WIDTH = 4


def read_text(verses: str) -> bytes:
    """The verses as running text, without references and line breaks."""
    lines = subprocess.run(["bible", "-f", verses], check=True, capture_output=True, text=True).stdout.splitlines()
    return " ".join(re.sub(r"^\S+:\d+ ", "", line).strip() for line in lines if line.strip()).encode("ascii")


def rms_norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def causal_convolution(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x [T, C], weight [C, width]; channel by channel, the last tap on the current token."""
    width = weight.shape[1]
    padded = np.concatenate([np.zeros((width - 1, x.shape[1])), x])
    return sum(padded[tap : tap + len(x)] * weight[:, tap] for tap in range(width))


def make_layer_inputs(text: bytes, heads: int, dim: int, hidden: int, seed: int) -> dict[str, np.ndarray]:
    """q, k, v, g [1, T, H, dim], beta [1, T, H], A_log [H], dt_bias [H, dim], all fp64."""
    random = np.random.default_rng(seed)
    tokens, width = len(text), heads * dim

    def linear(inputs: int, outputs: int) -> np.ndarray:
        return random.standard_normal((inputs, outputs)) / np.sqrt(inputs)

    def convolution(channels: int) -> np.ndarray:
        bound = 1 / np.sqrt(CONVOLUTION_WIDTH)
        return random.uniform(-bound, bound, (channels, CONVOLUTION_WIDTH))

    embedding = random.standard_normal((256, hidden))
    x = rms_norm(embedding[np.frombuffer(text, np.uint8)])
    q, k, v = (silu(causal_convolution(x @ linear(hidden, width), convolution(width))) for _ in range(3))
    g = x @ linear(hidden, dim) @ linear(dim, width)
    beta = x @ linear(hidden, heads)
    a_log = np.log(random.uniform(1, 16, heads))
    dt = np.exp(random.uniform(np.log(0.001), np.log(0.1), (heads, dim)))
    dt_bias = dt + np.log(-np.expm1(-dt))  # softplus(dt_bias) = dt
    shape = (1, tokens, heads, dim)
    return {
        "q": q.reshape(shape),
        "k": k.reshape(shape),
        "v": v.reshape(shape),
        "g": g.reshape(shape),
        "beta": beta.reshape(1, tokens, heads),
        "A_log": a_log,
        "dt_bias": dt_bias,
    }


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """The bits of finite numbers, rounded to nearest even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def write_safetensors(path: str, tensors: dict[str, tuple[str, np.ndarray]], metadata: dict[str, str]) -> None:
    header: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(array.tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", help="safetensors file to write")
    parser.add_argument("--tokens", type=int, default=950, help="bytes of text (default: %(default)s)")
    parser.add_argument("--heads", type=int, default=4, help="H (default: %(default)s)")
    parser.add_argument("--dim", type=int, default=128, help="K = V (default: %(default)s)")
    parser.add_argument("--hidden", type=int, default=512, help="width of the layer's input (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=20260101, help="of the weights (default: %(default)s)")
    parser.add_argument("--verses", default=VERSES, help="what bible-kjv prints (default: %(default)s)")
    options = parser.parse_args()

    text = read_text(options.verses)
    if len(text) < options.tokens:
        parser.error(f"--tokens: got {options.tokens}, accepted is at most {len(text)}, the bytes of {options.verses}")
    text = text[: options.tokens]
    inputs = make_layer_inputs(text, options.heads, options.dim, options.hidden, options.seed)
    parameters = ("A_log", "dt_bias")  # first: 4-byte elements stay aligned
    tensors = {name: ("F32", inputs[name].astype(np.float32)) for name in parameters}
    tensors |= {name: ("BF16", to_bfloat16(array)) for name, array in inputs.items() if name not in parameters}
    write_safetensors(
        options.output,
        tensors,
        {
            "gate": "bounded",
            "lower_bound": "-5",
            "beta_form": "logits",
            "l2norm": "on",
            "description": "Inputs of one Kimi Delta Attention layer with fresh weights, run over English text: byte embedding, "
            "RMS norm, q/k/v projections with causal depthwise convolution (width 4) and SiLU, low-rank gate projection, "
            "beta projection; A_log = log U(1, 16), softplus(dt_bias) log-uniform in 0.001..0.1",
            "made_by": f"tools/make_text_input.py --tokens {options.tokens} --heads {options.heads} --dim {options.dim} "
            f"--hidden {options.hidden} --seed {options.seed} --verses {options.verses}",
            "shape": f"B=1 T={options.tokens} H={options.heads} K=V={options.dim}, one token a byte",
            "seed": str(options.seed),
            "text": f"King James Version of the Bible, {options.verses}, first {options.tokens} bytes, from Debian's bible-kjv-text",
            "text_sha256": hashlib.sha256(text).hexdigest(),
            "licence": "public domain",
        },
    )


if __name__ == "__main__":
    main()

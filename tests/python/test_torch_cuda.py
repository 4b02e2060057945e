"""torch on a GPU: results, streams, CUDA graphs, torch.compile, workspace, refusals."""

import re

import flash_kda
import numpy as np
import pytest
from problem import relative_error
from recurrence import kda

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.gpu

H, K = 4, 128
CU = [0, 300, 301, 301, 640]
# 1.15 times the emulated error of random inputs (row F1), output and state
OUTPUT_ERROR, STATE_ERROR = 1.15 * 3.9e-3, 1.15 * 2.8e-3


def inputs(T=640, seed=0):
    """bfloat16 q, k, v, g, beta and float32 A_log, dt_bias on the GPU."""
    generator = torch.Generator().manual_seed(seed)
    x = {name: torch.randn(1, T, H, K, generator=generator).bfloat16() for name in ("q", "k", "v", "g")}
    x["beta"] = torch.randn(1, T, H, generator=generator).bfloat16()
    x["A_log"], x["dt_bias"] = torch.rand(H, generator=generator), torch.rand(H, K, generator=generator)
    return {name: value.cuda() for name, value in x.items()}


def lengths(values=CU, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device="cuda")


def states(N, dtype=torch.float32, seed=1):
    return torch.randn(N, H, K, K, generator=torch.Generator().manual_seed(seed)).to("cuda", dtype)


def as_numpy(tensor):
    return None if tensor is None else tensor.detach().float().cpu().numpy()


def assert_right(out, final_state, x, cu=None, initial_state=None, final_rounding=0.0):
    arrays = {name: as_numpy(value) for name, value in x.items()}
    cu = None if cu is None else cu.cpu().numpy()
    expected, state, _ = kda(**arrays, cu_seqlens=cu, initial_state=as_numpy(initial_state))
    used = ~np.isnan(expected)
    assert relative_error(as_numpy(out)[used], expected[used]) <= OUTPUT_ERROR
    if final_state is not None:
        assert relative_error(as_numpy(final_state), state) <= STATE_ERROR + final_rounding


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("final", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("initial", [torch.float32, torch.bfloat16])
def test_packed(initial, final, index):
    x, cu = inputs(), lengths(dtype=index)
    state, out = states(4, initial), torch.full_like(x["v"], torch.nan)
    final_state = torch.full_like(state, torch.nan, dtype=final)
    flash_kda.fwd(
        **x, scale=None, out=out, lower_bound=-5.0, initial_state=state, final_state=final_state, cu_seqlens=cu
    )
    assert_right(out, final_state, x, cu, state, 2.0**-9 if final is torch.bfloat16 else 0.0)


def test_serving_call():
    """Slices of a fused projection, beta with a row stride of 6288, flat dt_bias, no A_log."""
    x = inputs()
    fused = torch.cat([x[name].flatten(2) for name in ("q", "k", "v")], dim=-1)
    x |= {name: part.unflatten(-1, (H, K)) for name, part in zip(("q", "k", "v"), fused.chunk(3, -1), strict=True)}
    wide = torch.zeros(1, 640, 6288, dtype=torch.bfloat16, device="cuda")
    wide[..., 16 : 16 + H] = x["beta"]
    x |= {"beta": wide[..., 16 : 16 + H], "dt_bias": x["dt_bias"].flatten(), "A_log": None}
    cu = lengths()
    out, final = flash_kda.forward(**x, cu_seqlens=cu)
    assert_right(out, final, x, cu)


def test_state_pool():
    x, cu, pool = inputs(), lengths(), states(9)
    before = pool.clone()
    index = torch.tensor([7, 0, -1, 3], dtype=torch.int32, device="cuda")
    out, _ = flash_kda.forward(
        **x, cu_seqlens=cu, initial_state=pool, final_state=pool, read_index=index, write_index=index
    )
    initial = before[index.long()] * (index >= 0)[:, None, None, None]
    rows = [0, 1, 3]
    arrays = {name: as_numpy(value) for name, value in x.items()}
    expected, state, _ = kda(**arrays, cu_seqlens=CU, initial_state=as_numpy(initial))
    assert relative_error(as_numpy(out), expected) <= OUTPUT_ERROR
    assert relative_error(as_numpy(pool)[[7, 0, 3]], state[rows]) <= STATE_ERROR
    untouched = [1, 2, 4, 5, 6, 8]
    assert torch.equal(pool[untouched], before[untouched])


@pytest.mark.parametrize("path", ["two_kernel", "fused"])
def test_a_path_can_be_asked_for(path):
    """A pool, for the C++ tests hold each path to everything else."""
    if path == "fused" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the fused path is for compute capability 9.0")
    x, cu, state = inputs(), lengths(), states(4)
    out, final = flash_kda.forward(**x, cu_seqlens=cu, initial_state=state, backend=f"cuda/{path}")
    assert_right(out, final, x, cu, state)


def test_runs_on_the_current_stream():
    """The inputs are written late on a side stream; only work on that stream sees them."""
    x, late = inputs(seed=1), inputs(seed=2)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        for name, value in late.items():
            x[name].copy_(value)
        out, final = flash_kda.forward(**x)
    stream.synchronize()
    assert_right(out, final, late)


def test_given_stream():
    x = inputs()
    expected = flash_kda.forward(**x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    actual = flash_kda.forward(**x, stream=stream.cuda_stream)
    stream.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_graph_replays_with_changed_contents():
    """Every device tensor changes between replays, cu_seqlens included."""
    x, cu, state = inputs(seed=3), lengths(), states(4)
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        flash_kda.forward(**x, cu_seqlens=cu, initial_state=state)
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, final = flash_kda.forward(**x, cu_seqlens=cu, initial_state=state)
    for seed, ends in ((4, CU), (5, [0, 1, 100, 639, 640]), (6, [0, 0, 0, 0, 512])):
        for name, value in inputs(seed=seed).items():
            x[name].copy_(value)
        cu.copy_(lengths(ends))
        state.copy_(states(4, seed=seed))
        graph.replay()
        torch.cuda.synchronize()
        assert_right(out, final, x, cu, state)


def test_C40_torch_sees_no_synchronisation():
    x, cu = inputs(), lengths()
    out, final = torch.empty_like(x["v"]), states(4)
    torch.cuda.set_sync_debug_mode("error")
    try:
        flash_kda.fwd(**x, scale=None, out=out, lower_bound=-5.0, final_state=final, cu_seqlens=cu)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_right(out, final, x, cu)


def test_compile():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.project = torch.nn.Linear(K, K)

        def forward(self, x, cu):
            out, state = flash_kda.forward(**{**x, "q": self.project(x["q"])}, cu_seqlens=cu)
            return out + 1, state

    layer, x, cu = Layer().to("cuda", torch.bfloat16), inputs(), lengths()
    with torch.inference_mode():
        expected = layer(x, cu)
        for mode in ("default", "reduce-overhead"):
            compiled = torch.compile(layer, fullgraph=True, mode=mode)
            for _ in range(3):
                for actual, wanted in zip(compiled(x, cu), expected, strict=True):
                    torch.testing.assert_close(actual, wanted, rtol=1e-2, atol=1e-2)


def workspace_needed(arguments):
    """Bytes, from the error that too small a workspace gets."""
    too_small = torch.empty(256, dtype=torch.uint8, device="cuda")
    with pytest.raises(ValueError, match="workspace: got 256 bytes") as error:
        flash_kda.forward(**arguments, workspace=too_small)
    return int(re.findall(r"\d+", str(error.value))[-1])


def test_workspace_belongs_to_the_given_stream():
    """What the current stream allocates after the call must not be the memory that the call still has to use."""
    x = inputs() | {"backend": "cuda/two_kernel"}  # the path that needs one
    out = torch.empty(1, 640, H, K, dtype=torch.bfloat16, device="cuda")
    expected = flash_kda.forward(**x)[0]
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
    flash_kda.forward(**x, out=out, output_final_state=False, stream=stream.cuda_stream)
    size = workspace_needed(x)
    _ = [torch.full((size,), 255, dtype=torch.uint8, device="cuda") for _ in range(4)]
    torch.cuda.synchronize()
    assert torch.equal(out, expected)


def test_workspace():
    """Of the path that needs one."""
    x, cu = inputs() | {"backend": "cuda/two_kernel"}, lengths()
    size = workspace_needed(x | {"cu_seqlens": cu})
    expected = flash_kda.forward(**x, cu_seqlens=cu)
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
    actual = flash_kda.forward(**x, cu_seqlens=cu, workspace=workspace)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    with pytest.raises(ValueError, match="workspace: got .* bytes"):
        flash_kda.forward(**x, cu_seqlens=cu, workspace=workspace[: size - 256])


def test_C37_C38_outputs_are_fresh_and_inputs_unchanged():
    x = inputs()
    before = {name: value.clone() for name, value in x.items()}
    first, _ = flash_kda.forward(**x)
    copy = first.clone()
    flash_kda.forward(**inputs(seed=8))
    assert torch.equal(first, copy)
    assert all(torch.equal(x[name], before[name]) for name in x)


def test_mixed_devices_are_refused_by_name():
    x = inputs()
    with pytest.raises(RuntimeError, match="k: on cpu, accepted is the device of q, cuda:0"):
        flash_kda.forward(**{**x, "k": x["k"].cpu()})
    with pytest.raises(RuntimeError, match="cu_seqlens: on cpu, accepted is the device of q, cuda:0"):
        flash_kda.forward(**x, cu_seqlens=lengths().cpu())
    accepted = "accepted there is one of 'cuda', 'cuda/two_kernel', 'cuda/fused'"
    with pytest.raises(RuntimeError, match=f"backend: got 'cpu' for tensors on cuda:0, {accepted}"):
        flash_kda.forward(**x, backend="cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gate": "softplus"}, "gate: got 2 .softplus., accepted by the CUDA kernels is"),
        ({"gate": "log", "A_log": None, "dt_bias": None}, "gate: got 3 .log., accepted by the CUDA kernels is"),
        ({"checkpoints": True}, "checkpoints: got 1 of them, accepted by the CUDA kernels is none"),
        ({"D": 64}, "q: got K = 64, accepted by the CUDA kernels is K = 128"),
        ({"dtype": torch.float16}, "q: got dtype float16, accepted by the CUDA kernels is bfloat16"),
    ],
)
def test_what_the_kernels_lack_is_refused_by_name(changes, message):
    x, changes = inputs(), dict(changes)
    if changes.pop("checkpoints", False):
        changes["checkpoints"] = torch.zeros(1, 2, dtype=torch.int32, device="cuda")
        changes["checkpoint_state"] = states(1)
    if "D" in changes:
        D = changes.pop("D")
        x |= {name: x[name][..., :D].contiguous() for name in ("q", "k", "v", "g", "dt_bias")}
    if "dtype" in changes:
        dtype = changes.pop("dtype")
        x |= {name: x[name].to(dtype) for name in ("q", "k", "v")}
    with pytest.raises((TypeError, ValueError), match=message):
        flash_kda.forward(**{**x, **changes})


def test_decode_is_refused_by_name():
    x = {name: value for name, value in inputs(T=1).items()}
    with pytest.raises(ValueError, match="operator: got decode, accepted by the CUDA kernels is forward"):
        flash_kda.decode(**x, state=states(1))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_C39_the_tensors_device_is_used_and_the_current_one_restored():
    x = {name: value.to("cuda:1") for name, value in inputs().items()}
    torch.cuda.set_device(0)
    out, final = flash_kda.forward(**x)
    assert torch.cuda.current_device() == 0
    assert out.device == torch.device("cuda:1")
    assert_right(out, final, x)


def test_cupy():
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    x = inputs()
    expected = flash_kda.forward(**x)
    torch.cuda.synchronize()
    arrays = {name: cupy.from_dlpack(value) for name, value in x.items()}
    out, final = flash_kda.forward(**arrays)
    cupy.cuda.get_current_stream().synchronize()
    assert isinstance(out, cupy.ndarray)
    assert torch.equal(torch.from_dlpack(out), expected[0])
    assert torch.equal(torch.from_dlpack(final), expected[1])

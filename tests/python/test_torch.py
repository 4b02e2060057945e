"""torch on the CPU: results, autograd, torch.compile. The CUDA side is in test_torch_cuda.py."""

import subprocess
import sys

import flash_kda
import numpy as np
import pytest
from problem import assert_close, assert_matches, gate_parameters, states, tensors
from recurrence import kda

torch = pytest.importorskip("torch", reason="torch is not installed")


def to_torch(arrays, dtype=None):
    return {name: torch.from_numpy(value).to(dtype) for name, value in arrays.items()}


def as_numpy(tensor):
    return tensor.float().numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_results(dtype):
    x = to_torch(tensors(), dtype)
    out, final = flash_kda.forward(**x, **to_torch(gate_parameters()))
    assert out.dtype == dtype and final.dtype == torch.float32
    expected, state, _ = kda(**{name: as_numpy(value) for name, value in x.items()}, **gate_parameters())
    assert torch.linalg.norm(out.double() - torch.from_numpy(expected)) <= (
        5e-6 + {torch.float32: 0, torch.float16: 2**-11, torch.bfloat16: 2**-9}[dtype]
    ) * np.linalg.norm(expected)
    assert_close(final.numpy(), state)


def test_inference_mode_and_views():
    fused = torch.from_numpy(np.random.default_rng(4).standard_normal((1, 30, 3 * 256)).astype(np.float32))
    q, k, v = (part.unflatten(-1, (2, 128)) for part in fused.chunk(3, dim=-1))
    x = to_torch(tensors(T=30)) | {"q": q, "k": k, "v": v}
    with torch.inference_mode():
        out, final = flash_kda.forward(**x)
    assert_matches((out.numpy(), final.numpy()), {name: value.numpy() for name, value in x.items()})


class TensorBefore210(torch.Tensor):
    """As in torch before 2.10: without the C exchange API."""

    __dlpack_c_exchange_api__ = None


protocols = pytest.mark.parametrize("kind", [torch.Tensor, TensorBefore210])


@protocols
def test_gradients_are_refused_by_name(kind):
    x = to_torch(tensors())
    x["k"] = x["k"].as_subclass(kind).requires_grad_()
    with pytest.raises(NotImplementedError, match="k: requires grad, but flash_kda has no backward pass yet"):
        flash_kda.forward(**x)
    with torch.no_grad():
        out, _ = flash_kda.forward(**x)
    x["k"] = x["k"].detach()
    assert torch.equal(flash_kda.forward(**x)[0], out)


@pytest.mark.parametrize("name", ["q", "k"])
@protocols
def test_tangents_are_refused_by_name(kind, name):
    """A tensor of another type than torch's own as q takes the way through the torch operators."""
    x = to_torch(tensors())
    with torch.autograd.forward_ad.dual_level():
        flash_kda.forward(**x)
        x[name] = torch.autograd.forward_ad.make_dual(x[name], torch.ones_like(x[name])).as_subclass(kind)
        with torch.no_grad(), pytest.raises(NotImplementedError, match=f"{name}: has a tangent, but flash_kda has no"):
            flash_kda.forward(**x)


@protocols
def test_negated_views_are_refused_by_name(kind):
    x = to_torch(tensors())
    x["beta"] = torch.complex(x["beta"], x["beta"]).conj().imag.as_subclass(kind)
    assert x["beta"].is_neg()
    with pytest.raises(TypeError, match=r"beta: got a view that torch negates.*accepted is beta.resolve_neg\(\)"):
        flash_kda.forward(**x)
    x["beta"] = x["beta"].resolve_neg().as_subclass(torch.Tensor)
    assert_matches(
        [result.numpy() for result in flash_kda.forward(**x)], {name: value.numpy() for name, value in x.items()}
    )


def test_mixed_devices_are_refused_by_name():
    x = to_torch(tensors())
    x["g"] = torch.empty_like(x["g"], device="meta")
    with pytest.raises((TypeError, RuntimeError), match="g: ") as caught:
        flash_kda.forward(**x)
    assert "\n" not in str(caught.value)


def test_layout_of_memory_that_is_none():
    x = to_torch(tensors())
    x["v"] = torch.zeros(1, 40, 2, 128).to_sparse()
    with pytest.raises(TypeError, match="v: its memory cannot be read"):
        flash_kda.forward(**x, out=torch.empty(1, 40, 2, 128), output_final_state=False)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(128, 128)
        self.A_log = torch.nn.Parameter(torch.zeros(2))
        self.dt_bias = torch.nn.Parameter(torch.randn(2, 128))

    def forward(self, x, state):
        parameters = {"A_log": self.A_log, "dt_bias": self.dt_bias}
        out, state = flash_kda.forward(**{**x, "q": self.project(x["q"])}, **parameters, initial_state=state)
        return out * 2, state


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_compile_whole_module(backend, mode):
    torch.manual_seed(0)
    layer, x, state = Layer(), to_torch(tensors()), torch.from_numpy(states())
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    with mode():
        for actual, expected in zip(compiled(x, state), layer(x, state), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compile_refuses_gradients(fullgraph):
    """With fullgraph torch raises its own error, with this one's text in it."""
    torch._dynamo.reset()  # what it has learned about this function with the other parameter
    x = to_torch(tensors())
    x["q"].requires_grad_()
    compiled = torch.compile(lambda x: flash_kda.forward(**x)[0], backend="aot_eager", fullgraph=fullgraph)
    error = torch._dynamo.exc.Unsupported if fullgraph else NotImplementedError
    with pytest.raises(error, match="q: requires grad, but flash_kda has no backward pass yet"):
        compiled(x)


class Exported(torch.nn.Module):
    def forward(self, q, k, v, g, beta):
        return flash_kda.forward(q, k, v, g, beta)[0]


def test_an_exported_program_finds_the_operators(tmp_path):
    x = to_torch(tensors())
    with torch.no_grad():
        torch.export.save(torch.export.export(Exported(), tuple(x.values())), tmp_path / "program.pt2")
    torch.save((tuple(x.values()), flash_kda.forward(**x)[0]), tmp_path / "expected.pt")
    code = """
import sys, torch, flash_kda
program = torch.export.load(sys.argv[1] + "/program.pt2").module()
inputs, expected = torch.load(sys.argv[1] + "/expected.pt")
assert torch.equal(program(*inputs), expected)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_compile_in_place():
    """The drop-in's outputs, and a pool that is read and written in one call."""
    x, gate, index = to_torch(tensors()), to_torch(gate_parameters()), torch.tensor([2], dtype=torch.int32)
    one = {name: value[:, :1] for name, value in x.items()}

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(out, pool):
        flash_kda.fwd(**x, scale=None, out=out, **gate, lower_bound=-5.0)
        pooled, _ = flash_kda.forward(**x, initial_state=pool, final_state=pool, read_index=index, write_index=index)
        token = flash_kda.decode(**one, state=pool, read_index=index)
        return out + 1, pooled, token

    def eager(out, pool):
        out.copy_(flash_kda.forward(**x, **gate)[0])
        pooled, _ = flash_kda.forward(**x, initial_state=pool, final_state=pool, read_index=index, write_index=index)
        return out + 1, pooled, flash_kda.decode(**one, state=pool, read_index=index)

    results = []
    for function in (run, eager):
        out, pool = torch.empty_like(x["v"]), torch.from_numpy(states(N=4))
        results.append([*function(out, pool), out, pool])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-7)


def test_fake_tensors_have_the_right_shapes():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = {name: torch.empty(1, 9, 4, 64) for name in ("q", "k", "g")}
        x |= {"v": torch.empty(1, 9, 4, 32, dtype=torch.bfloat16), "beta": torch.empty(1, 9, 4)}
        out, final = flash_kda.forward(**x)
        assert out.shape == (1, 9, 4, 32) and out.dtype == torch.bfloat16
        assert final.shape == (1, 4, 32, 64) and final.dtype == torch.float32


def test_operators_are_registered_as_torch_wants_them():
    x = to_torch(tensors(T=3))
    flash_kda.forward(**{name: torch.nn.Buffer(value) for name, value in x.items()})  # a subclass: registers them
    options = (None, -5.0, "bounded", "logits", True, False, False, None, 0, None, None)
    absent = (None,) * 11
    torch.library.opcheck(
        torch.ops.flash_kda.forward.default, (*x.values(), *absent, torch.empty_like(x["v"]), *options)
    )
    torch.library.opcheck(
        torch.ops.flash_kda.decode.default,
        (
            *x.values(),
            None,
            None,
            None,
            torch.from_numpy(states()),
            None,
            None,
            None,
            torch.empty_like(x["v"]),
            *options,
        ),
    )


def test_C37_C38_outputs_are_fresh_and_inputs_unchanged():
    x = to_torch(tensors())
    before = {name: value.clone() for name, value in x.items()}
    first, _ = flash_kda.forward(**x)
    copy = first.clone()
    flash_kda.forward(**{**x, "v": x["v"] + 1})
    assert torch.equal(first, copy)
    assert all(torch.equal(x[name], before[name]) for name in x)

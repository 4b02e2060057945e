"""Arrays of any library, without copies and without importing one that the caller does not use."""

import subprocess
import sys

import flash_kda
import numpy as np
import pytest
from problem import assert_matches, gate_parameters, tensors
from recurrence import kda


class Exporter:
    """An array of a library that only knows __dlpack__, `versioned` (DLPack 1.0 on) or not."""

    def __init__(self, array, versioned):
        self.array, self.versioned, self.shape = array, versioned, array.shape

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **arguments):
        if not self.versioned and "max_version" in arguments:
            raise TypeError("unexpected keyword max_version")
        return self.array.__dlpack__(**arguments)


@pytest.mark.parametrize("versioned", [False, True])
def test_plain_dlpack(versioned):
    x, gate = tensors(), gate_parameters()
    out, final = np.empty_like(x["v"]), np.empty((1, 2, 128, 128), np.float32)
    arrays = {
        name: Exporter(value, versioned) for name, value in {**x, **gate, "out": out, "final_state": final}.items()
    }
    flash_kda.fwd(**arrays, scale=None, lower_bound=-5.0)
    assert_matches((out, final), x, **gate)


def test_read_only_arrays_are_inputs_but_no_outputs():
    x = tensors()
    for value in x.values():
        value.flags.writeable = False
    assert_matches(flash_kda.forward(**x), x)
    out = np.empty_like(x["v"])
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out: its memory is read-only"):
        flash_kda.forward(**x, out=Exporter(out, True))


def test_masked_arrays_are_refused():
    x = tensors()
    masked = np.ma.masked_array(x["k"], mask=False)
    with pytest.raises(TypeError, match=r"k: got a masked array, accepted is .*k\.filled"):
        flash_kda.forward(**{**x, "k": masked})
    assert_matches(flash_kda.forward(**{**x, "k": masked.filled(0)}), x)


def test_a_failing_export_is_named():
    class Broken(Exporter):
        def __dlpack__(self, **arguments):
            raise BufferError("on strike")

    x = tensors()
    with pytest.raises(TypeError, match="k: its memory cannot be read.*on strike"):
        flash_kda.forward(**{**x, "k": Broken(x["k"], True)})


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_no_library_is_imported(library):
    code = f"import flash_kda, sys; flash_kda.info(); assert {library!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_memory_is_given_back():
    """An exported capsule is destroyed with the call: the array's reference count is what it was."""
    x = tensors()
    out = np.empty_like(x["v"])
    arrays = {name: Exporter(value, True) for name, value in x.items()}
    counts = [sys.getrefcount(value) for value in [*x.values(), out]]
    for _ in range(3):
        flash_kda.forward(**arrays, out=Exporter(out, False), output_final_state=False)
        with pytest.raises(ValueError):
            flash_kda.forward(**arrays, out=Exporter(out, False), output_final_state=False, lower_bound=1.0)
    assert [sys.getrefcount(value) for value in [*x.values(), out]] == counts


class TestJax:
    jax = None

    @pytest.fixture(autouse=True)
    def import_jax(self):
        self.jax = pytest.importorskip("jax", reason="jax is not installed")
        if self.jax.default_backend() != "cpu":
            pytest.skip("jax is on an accelerator")

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_fresh_jax_arrays(self, dtype):
        x, gate = tensors(), gate_parameters()
        arrays = {name: self.jax.numpy.asarray(value, dtype) for name, value in x.items()}
        gate = {name: self.jax.numpy.asarray(value) for name, value in gate.items()}
        out, final = flash_kda.forward(**arrays, **gate)
        assert isinstance(out, self.jax.Array) and isinstance(final, self.jax.Array)
        assert out.dtype == dtype and final.dtype == "float32"
        rounded = {name: np.asarray(value) for name, value in arrays.items()}
        assert_matches((np.asarray(out), np.asarray(final)), rounded, **gate)

    def test_waits_for_pending_work(self):
        pending = self.jax.numpy.ones((2000, 2000))
        for _ in range(8):
            pending = pending @ pending / 2000
        x = tensors()
        q = self.jax.numpy.asarray(x["q"]) + pending[0, 0]
        out, _ = flash_kda.forward(**{**x, "q": q})
        expected, _, _ = kda(**{**x, "q": np.asarray(q)})
        np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-5)

    def test_immutable_outputs_are_refused(self):
        x = tensors()
        with pytest.raises(TypeError, match="out: got a JAX array, which is immutable"):
            flash_kda.forward(**x, out=self.jax.numpy.zeros(x["v"].shape))

    def test_deleted_arrays_are_named(self):
        x = tensors()
        deleted = self.jax.numpy.asarray(x["k"])
        deleted.delete()
        with pytest.raises(TypeError, match="k: its memory cannot be read"):
            flash_kda.forward(**{**x, "k": deleted})

    def test_inside_jit_through_a_callback(self):
        x = tensors()
        arrays = {name: self.jax.numpy.asarray(value) for name, value in x.items()}

        @self.jax.jit
        def layer(arrays):
            shape = self.jax.ShapeDtypeStruct(arrays["v"].shape, arrays["v"].dtype)
            return self.jax.pure_callback(lambda a: np.asarray(flash_kda.forward(**a)[0]), shape, arrays) * 2

        assert_matches((np.asarray(layer(arrays)) / 2, None), x)
        with pytest.raises(TypeError, match="inside jax.jit"):
            self.jax.jit(lambda a: flash_kda.forward(**a)[0])(arrays)

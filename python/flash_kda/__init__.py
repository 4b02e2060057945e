"""FlashKDA: Kimi Delta Attention (KDA) on CPUs and CUDA GPUs, for the arrays of NumPy, torch, JAX, CuPy and others.

The operator, per sequence and value head, with a state S of shape [V, K]::

    a_t = exp(gamma_t)                  per-channel decay, gamma_t <= 0 from the gate form
    S   = S * diag(a_t)
    u_t = beta_t * (v_t - S k_t)        what the state gets wrong about k_t
    S   = S + u_t k_t^T
    o_t = scale * S q_t

Source of the formula: Kimi Linear (Moonshot AI, arXiv:2510.26692), section 3.

``fwd`` and ``get_workspace_size`` have the names, order and meaning of the published FlashKDA package. ``forward`` is
the same operator with every option by keyword and results that are returned; ``decode`` is for up to eight tokens on a
state pool. Tensors in host memory run the CPU backend, tensors on a GPU run CUDA on the current stream of their
framework.
"""

import sys

from ._operators import decode, forward, fwd, get_workspace_size, info

# An exported program finds this package by its torch operators. custom_op came with torch 2.4.
if hasattr(getattr(sys.modules.get("torch"), "library", None), "custom_op"):
    from . import _torch as _torch

__all__ = ["decode", "forward", "fwd", "get_workspace_size", "info"]

__version__: str


def __getattr__(name: str) -> str:
    if name == "__version__":
        from ._extension import native

        return native.version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

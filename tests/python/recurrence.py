"""Kimi Delta Attention in fp64 NumPy, one token at a time: what the package is held to. It shares nothing with the
library."""

from __future__ import annotations

import numpy as np


def _sigmoid(x):
    return np.exp(-np.logaddexp(0.0, -x))


def log_gate(g, A_log, dt_bias, gate, lower_bound):
    """gamma [B, T, HV, K], natural logarithm."""
    g = np.asarray(g, np.float64)
    if gate == "log":
        return g
    heads, K = g.shape[2:]
    bias = 0.0 if dt_bias is None else np.asarray(dt_bias, np.float64).reshape(heads, K)
    with np.errstate(over="ignore"):
        factor = np.ones(heads) if A_log is None else np.exp(np.asarray(A_log, np.float64))
    factor = np.minimum(factor, np.finfo(np.float32).max)[:, None]
    if gate == "softplus":
        return -factor * np.logaddexp(0.0, g + bias)
    return lower_bound * _sigmoid(factor * (g + bias))


def strength(beta, beta_form):
    beta = np.asarray(beta, np.float64)
    return {"logits": _sigmoid(beta), "probabilities": beta, "twice_sigmoid": 2.0 * _sigmoid(beta)}[beta_form]


def kda(
    q,
    k,
    v,
    g,
    beta,
    *,
    A_log=None,
    dt_bias=None,
    scale=None,
    lower_bound=-5.0,
    gate="bounded",
    beta_form="logits",
    l2norm=True,
    initial_state=None,
    cu_seqlens=None,
    checkpoints=(),
):
    """out [B, T, HV, V] (NaN in rows of no sequence), final state [N, HV, V, K], states after `checkpoints`' (sequence,
    offset)."""
    q, k, v = (np.array(x, np.float64) for x in (q, k, v))
    B, T, H, K = q.shape
    HV, V = v.shape[2:]
    if l2norm:
        q /= np.sqrt((q * q).sum(-1, keepdims=True) + 1e-6)
        k /= np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
    q, k = (np.repeat(x, HV // H, axis=2) for x in (q, k))
    decay = np.exp(log_gate(g, A_log, dt_bias, gate, lower_bound))
    b = strength(beta, beta_form)
    scale = K**-0.5 if scale is None else scale
    spans = [(n, 0, T) for n in range(B)]
    if cu_seqlens is not None:
        spans = [(0, int(begin), int(end)) for begin, end in zip(cu_seqlens[:-1], cu_seqlens[1:])]
    states = np.zeros((len(spans), HV, V, K))
    if initial_state is not None:
        states += np.asarray(initial_state, np.float64)
    out = np.full((B, T, HV, V), np.nan)
    marks = {}
    for n, (row, begin, end) in enumerate(spans):
        S = states[n]
        for t in range(begin, end + 1):
            for m, (sequence, offset) in enumerate(checkpoints):
                if sequence == n and offset == t - begin:
                    marks[m] = S.copy()
            if t == end:
                break
            S *= decay[row, t][:, None, :]
            u = b[row, t][:, None] * (v[row, t] - np.einsum("hvk,hk->hv", S, k[row, t]))
            S += u[:, :, None] * k[row, t][:, None, :]
            out[row, t] = scale * np.einsum("hvk,hk->hv", S, q[row, t])
    return out, states, marks

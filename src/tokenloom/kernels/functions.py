"""The kernels as functions of tensors with gradients; None where torch has to do the work.

They serve contiguous float32 tensors on a CPU while gradients are recorded, outside of modes that inspect operations
(compiling, tracing, counting, autocast, function transforms). A result does not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenloom.kernels import loader, threads

# Longer sequences and wider heads are left to torch's fused kernel, which is as fast there.
MAX_TOKENS, HEAD_DIMS = 256, (8, 16, 24, 32)
# The same for longer sequences without a mask, unless heads have 8 features, which torch's kernel pads.
MAX_UNMASKED = 50
# Weights of a wider MLP do not fit into the L2 cache: there the library's products are as fast.
MAX_MLP_WIDTH = 192
# Rows of the matrices that Muon orthogonalizes: larger ones are few, and parallelize better within a product.
MAX_ROWS = 256

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
_TYPES: dict[str, dict[str, list[Any]]] = {
    "gelu": {
        "gelu_forward": [*[_POINTER] * 3, _LONG, _LONG, _INT],
        "gelu_backward": [*[_POINTER] * 4, _LONG, _LONG, _INT],
        "gelu_rows": [],
    },
    "mlp": {
        "mlp_forward": [*[_POINTER] * 9, *[_LONG] * 3, _INT, _INT],
        "mlp_backward": [*[_POINTER] * 10, *[_LONG] * 3, _INT],
        "mlp_groups": [_LONG],
        "mlp_scratch": [_LONG],
    },
    "norm": {
        "rms_forward": [*[_POINTER] * 3, _LONG, _LONG, _FLOAT, _INT],
        "rms_backward": [*[_POINTER] * 5, _LONG, _LONG, _FLOAT, _INT],
        "rms_rows": [],
    },
    "newton_schulz": {"newton_schulz": [_POINTER, *[_LONG] * 3, *[_FLOAT] * 3, _INT, _INT]},
    "attention": {
        "attention_forward": [*[_POINTER] * 7, *[_LONG] * 6, _INT, _FLOAT, _INT],
        "attention_backward": [*[_POINTER] * 11, *[_LONG] * 6, _INT, _FLOAT, _INT],
    },
}


@functools.cache
def _typed(name: str) -> ctypes.CDLL:
    """Return an available library, with the argument types of its functions set."""
    library = loader.library(name)
    assert library is not None
    library.use_threads.argtypes = [_POINTER]
    library.use_threads(threads.entry())
    for function, types in _TYPES[name].items():
        getattr(library, function).argtypes = types
    return library


def _usable(name: str, *tensors: Tensor | None) -> bool:
    """Return whether a kernel may be used for these tensors in the current mode."""
    needs_gradient = False
    for tensor in tensors:
        if tensor is None:
            continue
        if (
            type(tensor) not in (Tensor, nn.Parameter)  # no shards, no fake tensors
            or tensor.dtype is not torch.float32
            or tensor.device.type != "cpu"
            or tensor.layout is not torch.strided
        ):
            return False
        needs_gradient = needs_gradient or tensor.requires_grad
    return (
        needs_gradient
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and not torch.is_autocast_enabled("cpu")
        and not _inspected()
        and _available(name)
    )


def _available(name: str) -> bool:
    """Return whether there is such a library, which can use all threads that torch uses."""
    return loader.library(name) is not None and (torch.get_num_threads() == 1 or threads.entry() != 0)


def _inspected() -> bool:
    """Return whether a mode inspects each operation: a FLOP counter, a transform such as func.grad."""
    return bool(torch._C._len_torch_dispatch_stack()) or torch._C._functorch.maybe_current_level() is not None


def _double_backward(
    function: Callable[..., Tensor], inputs: Sequence[Tensor | None], gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients by torch's operations, which can be differentiated again, for `create_graph`."""
    needed = [x for x in inputs if x is not None and x.requires_grad]
    found = iter(torch.autograd.grad(function(*inputs), needed, gradient, create_graph=True))
    return tuple(next(found) if x is not None and x.requires_grad else None for x in inputs)


def linear_gelu(X: Tensor, W: Tensor, b: Tensor | None) -> Tensor | None:
    """Return gelu(X Wᵀ + b) with the exact GELU, x Φ(x); X (…, D), W (F, D), b (F). None where torch has to do it.

    One pass over the product gives result and derivative; one pass over the gradient gives those of the product and b.
    """
    if not _usable("gelu", X, W, b) or X.dim() < 2 or W.dim() != 2 or X.shape[-1] != W.shape[1] or not X.numel():
        return None
    Y: Tensor = _LinearGelu.apply(X, W, b)  # type: ignore[no-untyped-call]
    return Y


class _LinearGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
        Z = F.linear(X, W)
        Y = torch.empty_like(Z)
        bias = None if b is None else b.contiguous()
        _typed("gelu").gelu_forward(
            Z.data_ptr(), bias if bias is None else bias.data_ptr(), Y.data_ptr(), *_rows(Z), torch.get_num_threads()
        )
        ctx.save_for_backward(X, W, b, Z)  # Z has been overwritten by the derivative.
        return Y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        X, W, b, derivative = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _double_backward(lambda X, W, b: F.gelu(F.linear(X, W, b)), (X, W, b), gradient)
        library = _typed("gelu")
        gradient = gradient.contiguous()
        rows, width = _rows(gradient)
        dZ = torch.empty_like(gradient)
        sums = gradient.new_empty(-(-rows // library.gelu_rows()), width)
        library.gelu_backward(
            gradient.data_ptr(),
            derivative.data_ptr(),
            dZ.data_ptr(),
            sums.data_ptr(),
            rows,
            width,
            torch.get_num_threads(),
        )
        needs = ctx.needs_input_grad
        dX = dZ @ W if needs[0] else None
        dW = dZ.flatten(0, -2).T @ X.flatten(0, -2) if needs[1] else None
        return dX, dW, sums.sum(0) if needs[2] else None


def mlp(
    X: Tensor, W_in: Tensor, b_in: Tensor | None, W_out: Tensor, b_out: Tensor | None, squared: bool
) -> Tensor | None:
    """Return f(X W_inᵀ + b_in) W_outᵀ + b_out with f the exact GELU, or max(x, 0)² if `squared`; None where torch must.

    X (…, D), W_in (F, D), b_in (F), W_out (D, F), b_out (D). D, at most 192, and F are multiples of 16; both weights
    need gradients. A block of rows goes through both products while it is in the L2 cache, backward too.
    """
    hidden, D = W_in.shape
    if (
        D % 16
        or hidden % 16
        or D > MAX_MLP_WIDTH
        or X.shape[-1] != D
        or X.dim() < 2
        or not X.numel()
        or W_out.shape != (D, hidden)
    ):
        return None
    if not (W_in.requires_grad and W_out.requires_grad and _usable("mlp", X, W_in, b_in, W_out, b_out)):
        return None
    parts = (part if part is None else part.contiguous() for part in (X, W_in, b_in, W_out, b_out))
    Y: Tensor = _MLP.apply(*parts, squared)  # type: ignore[no-untyped-call]
    return Y


class _MLP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, X: Tensor, W_in: Tensor, b_in: Tensor | None, W_out: Tensor, b_out: Tensor | None, squared: bool
    ) -> Tensor:
        hidden, D = W_in.shape
        rows = X.numel() // D
        Y, H, S, packed = (
            torch.empty_like(X),
            X.new_empty(rows, hidden),
            X.new_empty(rows, hidden),
            X.new_empty(2 * D * hidden),
        )
        _typed("mlp").mlp_forward(
            *_pointers(W_in, b_in, W_out, b_out, X, Y, H, S, packed), rows, D, hidden, squared, torch.get_num_threads()
        )
        ctx.save_for_backward(X, W_in, b_in, W_out, b_out, H, S)
        ctx.squared = squared
        return Y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        X, W_in, b_in, W_out, b_out, H, S = ctx.saved_tensors
        if torch.is_grad_enabled():
            formula = functools.partial(_mlp_by_formula, squared=ctx.squared)
            return *_double_backward(formula, (X, W_in, b_in, W_out, b_out), gradient), None
        library = _typed("mlp")
        hidden, D = W_in.shape
        rows = X.numel() // D
        groups = library.mlp_groups(rows)
        gradient, dX, packed = gradient.contiguous(), torch.empty_like(X), X.new_empty(2 * D * hidden)
        sums, scratch = (
            X.new_empty(groups, 2 * D * hidden + hidden + D),
            X.new_empty(groups, library.mlp_scratch(hidden)),
        )
        library.mlp_backward(
            *_pointers(W_in, W_out, X, H, S, gradient, dX, sums, packed, scratch),
            rows,
            D,
            hidden,
            torch.get_num_threads(),
        )
        dW_in, dW_out, db_in, db_out = sums.sum(0).split([D * hidden, D * hidden, hidden, D])
        found = dX, dW_in.view(D, hidden).T, db_in, dW_out.view(D, hidden), db_out
        return *(x if need else None for x, need in zip(found, ctx.needs_input_grad, strict=False)), None


def _mlp_by_formula(
    X: Tensor, W_in: Tensor, b_in: Tensor | None, W_out: Tensor, b_out: Tensor | None, squared: bool
) -> Tensor:
    Z = F.linear(X, W_in, b_in)
    return F.linear(F.relu(Z).square() if squared else F.gelu(Z), W_out, b_out)


def rms_norm(X: Tensor, w: Tensor | None, eps: float) -> Tensor | None:
    """Return w ⊙ x / √(mean(x²) + ε) over the last dimension; None where torch has to do it.

    X (…, D), D a multiple of 8; w (D). Only X is saved for the backward pass.
    """
    if X.shape[-1] % 8 or not X.numel() or not _usable("norm", X, w):
        return None
    Y: Tensor = _RMSNorm.apply(X.contiguous(), w, eps)  # type: ignore[no-untyped-call]
    return Y


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, w: Tensor | None, eps: float) -> Tensor:
        Y = torch.empty_like(X)
        _typed("norm").rms_forward(*_pointers(X, w, Y), *_rows(X), eps, torch.get_num_threads())
        ctx.save_for_backward(X, w)
        ctx.eps = eps
        return Y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        X, w = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_double_backward(functools.partial(_rms_by_formula, eps=ctx.eps), (X, w), gradient), None
        library = _typed("norm")
        rows, width = _rows(X)
        gradient, dX = gradient.contiguous(), torch.empty_like(X)
        sums = None if w is None else X.new_empty(-(-rows // library.rms_rows()), width)
        pointers = _pointers(X, w, gradient, dX, sums)
        library.rms_backward(*pointers, rows, width, ctx.eps, torch.get_num_threads())
        needs = ctx.needs_input_grad
        return dX if needs[0] else None, sums.sum(0) if sums is not None and needs[1] else None, None


def _rms_by_formula(X: Tensor, w: Tensor | None, eps: float) -> Tensor:
    Y = X * torch.rsqrt(X.square().mean(-1, keepdim=True) + eps)
    return Y if w is None else Y * w


def _rows(X: Tensor) -> tuple[int, int]:
    return X.numel() // X.shape[-1], X.shape[-1]


def attention(Q: Tensor, K: Tensor, V: Tensor, *, causal: bool = False, real: Tensor | None = None) -> Tensor | None:
    """Return softmax(Q Kᵀ / √Dh) V over the keys that are allowed; None where torch has to do it.

    Q: (B, H, N, Dh). K, V: (B, Hk, M, Dh), H a multiple of Hk. Any strides with contiguous features, so that heads next
    to each other are not copied. causal: no query sees a later key, N = M. real: (B, M) bool, False for padding keys. A
    query without keys gives zeros. Returns (B, H, N, Dh) in the memory order (B, N, H, Dh).
    """
    B, H, N, D = Q.shape
    M = K.shape[2]
    if not (0 < N <= MAX_TOKENS and 0 < M <= MAX_TOKENS and D in HEAD_DIMS and B * H and V.shape == K.shape):
        return None
    if not causal and real is None and M > MAX_UNMASKED and D > 8:
        return None
    if (causal and N != M) or not (real is None or (real.shape == (B, M) and real.device.type == "cpu")):
        return None
    if not _usable("attention", Q, K, V):
        return None
    Y: Tensor = _Attention.apply(Q, K, V, causal, None if real is None else real.contiguous())  # type: ignore[no-untyped-call]
    return Y


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, Q: Tensor, K: Tensor, V: Tensor, causal: bool, real: Tensor | None) -> Tensor:
        B, H, N, D = Q.shape
        packed = [_contiguous_features(X) for X in (Q, K, V)]
        Y = Q.new_empty(B, N, H, D).transpose(1, 2)
        statistics = Q.new_empty(B, H, N, 2)
        _typed("attention").attention_forward(
            *_pointers(*packed, Y, statistics), _strides(*packed, Y), *_pointers(real), *_shape(Q, K, causal)
        )
        ctx.causal = causal
        ctx.save_for_backward(Q, K, V, Y, statistics, real)
        return Y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        Q, K, V, Y, statistics, real = ctx.saved_tensors
        if torch.is_grad_enabled():
            return (
                *_double_backward(functools.partial(_by_formula, ctx.causal, real), (Q, K, V), gradient),
                None,
                None,
            )
        packed = [_contiguous_features(X) for X in (Q, K, V)]
        results = [_like(X) for X in packed]
        gradient = _contiguous_features(gradient)
        _typed("attention").attention_backward(
            *_pointers(*packed, Y, gradient, statistics, *results),
            _strides(*packed, Y, gradient, *results),
            *_pointers(real),
            *_shape(Q, K, ctx.causal),
        )
        return *results, None, None


def _by_formula(causal: bool, real: Tensor | None, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    """The same by operations that can be differentiated twice, unlike torch's fused kernel."""
    group, N, M = Q.shape[1] // K.shape[1], Q.shape[2], K.shape[2]
    K, V = K.repeat_interleave(group, 1), V.repeat_interleave(group, 1)
    masked = torch.ones(N, M, dtype=torch.bool).triu(1) if causal else torch.zeros(N, M, dtype=torch.bool)
    if real is not None:
        masked = masked | ~real[:, None, None, :]
    scores = (Q @ K.transpose(-2, -1) / math.sqrt(Q.shape[-1])).masked_fill(masked, -math.inf)
    empty = masked.all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0) @ V


def newton_schulz(X: Tensor, polynomial: tuple[float, float, float], steps: int) -> Tensor | None:
    """Return X after `steps` of X ← (a I + b A + c A²) X with A = X Xᵀ; None where torch has to do it.

    X: (n, rows, columns) with rows ≤ columns, no gradients. polynomial: a, b, c.
    """
    n, rows, columns = X.shape
    if not (n and 0 < rows <= min(columns, MAX_ROWS)) or type(X) is not Tensor or X.dtype is not torch.float32:
        return None
    if X.device.type != "cpu" or torch.compiler.is_compiling() or _inspected() or not _available("newton_schulz"):
        return None
    X = X.detach().clone(memory_format=torch.contiguous_format)
    library = _typed("newton_schulz")
    library.newton_schulz(X.data_ptr(), n, rows, columns, *polynomial, steps, torch.get_num_threads())
    return X


def _contiguous_features(X: Tensor) -> Tensor:
    return X if X.stride(-1) == 1 else X.contiguous()


def _like(X: Tensor) -> Tensor:
    """Return memory for a gradient, in the memory order of X: (B, N, H, Dh) where its heads are next to each other."""
    B, H, N, D = X.shape
    return X.new_empty(B, N, H, D).transpose(1, 2) if X.stride(2) >= X.stride(1) else X.new_empty(B, H, N, D)


def _pointers(*tensors: Tensor | None) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


def _strides(*tensors: Tensor) -> ctypes.Array[ctypes.c_long]:
    steps = [step for tensor in tensors for step in tensor.stride()[:3]]
    return (ctypes.c_long * len(steps))(*steps)


def _shape(Q: Tensor, K: Tensor, causal: bool) -> tuple[int, int, int, int, int, int, bool, float, int]:
    B, H, N, D = Q.shape
    return B, H, K.shape[1], N, K.shape[2], D, causal, 1 / math.sqrt(D), torch.get_num_threads()

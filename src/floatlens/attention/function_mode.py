"""The hook for attention that does not use transformers' interface: a mode that intercepts calls of torch functions.

Two forms of attention are recognised. `scaled_dot_product_attention` receives everything as arguments. A plain softmax is
attention if it comes between two products: scores = f(q @ kᵀ) before it, weights @ v after it; f may scale, add a position
bias and mask. `nn.MultiheadAttention` uses one or the other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from floatlens.attention.call import CROSS, Inputs
from floatlens.decode.network import current_pass

functional = torch.nn.functional
SDPA = functional.scaled_dot_product_attention
MHA = functional.multi_head_attention_forward
SOFTMAX = {torch.softmax, functional.softmax, torch.Tensor.softmax}
PRODUCTS = {
    torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm,
}  # fmt: skip
ADDED_PRODUCTS = {torch.baddbmm, torch.Tensor.baddbmm}
FAR = 1000.0  # a score this far below the highest of its row is masked: its weight is 0 in any dtype

# (inputs, base, part, finish) -> output (R, Q, H, D); the callee chooses layer and part
Compute = Callable[[Inputs, Callable[[], Any], str | None, Callable[[Inputs], Inputs] | None], Any]


@dataclass
class SoftmaxCall:
    """A softmax whose scores came from a product; it is attention once its weights are multiplied with values."""

    scores: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor


class FunctionMode(TorchFunctionMode):
    """Passes every attention call to `compute`, which returns the output, changed or not."""

    def __init__(self, compute: Compute) -> None:
        super().__init__()
        self.compute = compute
        self.products: list[tuple[torch.Tensor, torch.Tensor, torch.Size]] = []
        self.softmax: SoftmaxCall | None = None
        self.part: str | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is SDPA:
            return self._sdpa(*args, **kwargs)
        if func in SOFTMAX:
            return self._soften(func, args, kwargs)
        if func in PRODUCTS or func in ADDED_PRODUCTS:
            return self._multiply(func, args, kwargs, *operands(func, args, kwargs))
        if func is MHA:
            return self._multi_head(*args, **kwargs)
        if isinstance(func, FunctionType):
            return self._by_name(func, args, kwargs)
        return func(*args, **kwargs)

    def _by_name(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call a Python function. The mode is off inside it, so attention functions are recognised by name instead."""
        functional.scaled_dot_product_attention = self._sdpa
        try:
            return func(*args, **kwargs)
        finally:
            functional.scaled_dot_product_attention = SDPA

    def _multi_head(self, *args: Any, **kwargs: Any) -> Any:
        """Observe nn.MultiheadAttention. With `need_weights` it takes another path, so it is run a second time."""
        given = inspect.signature(MHA).bind(*args, **kwargs)
        given.apply_defaults()
        query, key = given.arguments["query"], given.arguments["key"]
        self.part = None if query is key else CROSS
        try:
            if not given.arguments["need_weights"]:
                return self._by_name(MHA, args, kwargs)
            output = MHA(*args, **kwargs)
            given.arguments |= {"need_weights": False, "training": False}
            if given.arguments["attn_mask"] is None:
                given.arguments["is_causal"] = False
            with torch.no_grad():
                self._by_name(MHA, given.args, given.kwargs)
            return output
        finally:
            self.part = None

    def _sdpa(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        def base() -> Any:
            output = SDPA(*args, **kwargs)
            return output.view(*shape, *output.shape[-2:]).transpose(1, 2), None

        inputs = sdpa_inputs(*args, **kwargs)
        shape = inputs.query.shape[:2]
        output = self.compute(inputs, base, self.part, None)[0].transpose(1, 2)
        return output if args[0].ndim == 4 else output.flatten(0, 1)

    def _multiply(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], left: torch.Tensor, right: torch.Tensor
    ) -> Any:
        softmax, self.softmax = self.softmax, None
        if softmax is None or not meets(softmax, left, right):
            output = func(*args, **kwargs)
            if left.ndim >= 3 and right.ndim >= 3:
                self.products.append((left, right, output.shape))
            else:
                self.softmax = softmax
            return output
        q, k, v = heads_of(softmax.left), heads_of(softmax.right).transpose(2, 3), heads_of(right)
        scores = heads_of(softmax.scores)
        hidden = scores < scores.amax(-1, keepdim=True) - FAR
        visible = ~hidden if bool(hidden.any()) else None
        eye = torch.eye(scores.shape[-1], dtype=scores.dtype, device=scores.device).expand(*scores.shape[:2], -1, -1)
        shape = torch.Size()

        def base() -> Any:
            nonlocal shape
            output = func(*args, **kwargs)
            shape = output.shape
            return heads_of(output).transpose(1, 2), None

        def finish(used: Inputs) -> Inputs:
            """The inputs with the model's own queries and keys, and the scores passed to the softmax as a bias."""
            changed = used.query.float() * (1.0 if used.scaling is None else used.scaling)
            if used.softcap is not None:
                changed = used.softcap * torch.tanh(changed / used.softcap)
            return replace(used, query=q, key=k, scaling=0.0, softcap=None, bias=changed)

        # Any scores equal their product with the identity matrix, so a change can treat them like queries and keys.
        scored = scores if visible is None else scores.masked_fill(hidden, 0.0)
        values = v.to(scores.dtype).expand(-1, scores.shape[1], -1, -1) if v.shape[1] == 1 else v.to(scores.dtype)
        inputs = Inputs(scored, eye, values, 1.0, visible, False)
        output = self.compute(inputs, base, self.part, finish)[0].transpose(1, 2)
        kind = right.dtype
        return output.to(kind).reshape(shape if len(shape) else (*left.shape[:-1], right.shape[-1]))

    def _soften(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        output = func(*args, **kwargs)
        scores = args[0] if args else kwargs["input"]
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        products, self.products = self.products, []
        if scores.ndim not in (3, 4) or dim not in (-1, scores.ndim - 1):
            self.products = products
            return output
        for left, right, shape in products:
            fits = shape[-2:] == scores.shape[-2:] and shape.numel() == scores.numel()
            if fits and left.ndim in (3, 4) and right.ndim == left.ndim:
                self.softmax = SoftmaxCall(scores, left, right)
                break
        return output

    def begin(self) -> None:
        """Start a forward pass: forget the state of the previous one."""
        self.products, self.softmax = [], None


def operands(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The two tensors that a product multiplies."""
    names = ("batch1", "batch2") if func in ADDED_PRODUCTS else ("input", "other", "mat2", "tensor2")
    given = list(args[1:3] if func in ADDED_PRODUCTS else args[:2])
    left, right = [*given, *(kwargs[name] for name in names if name in kwargs)]
    return left, right


def is_of_sequence(inputs: Inputs) -> bool:
    """Whether queries and keys are the positions of the pass, and not landmarks or latents."""
    forward = current_pass()
    if forward is None:
        return True
    T = forward.tokens_BT.shape[1]
    return inputs.query.shape[2] == T - forward.start and inputs.key.shape[2] >= T


def meets(softmax: SoftmaxCall, left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether a product multiplies the softmax's weights with values."""
    shape = softmax.scores.shape
    same = left.shape[-2:] == shape[-2:] and left.numel() == softmax.scores.numel() and right.ndim == left.ndim
    return same and right.shape[-2] == shape[-1]


def heads_of(x: torch.Tensor) -> torch.Tensor:
    """Reshape (B·H, ·, ·) to (B, H, ·, ·) with the B of the forward pass, or H = 1 if it is unknown; 4 dims are kept."""
    if x.ndim == 4:
        return x
    forward = current_pass()
    rows = x.shape[0] if forward is None or x.shape[0] % forward.tokens_BT.shape[0] else forward.tokens_BT.shape[0]
    return x.reshape(rows, -1, *x.shape[1:])


def sdpa_inputs(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Inputs:
    """The arguments of scaled_dot_product_attention as `Inputs`."""
    if query.ndim == 3:
        if attn_mask is not None and attn_mask.ndim == 3:
            attn_mask = heads_of(attn_mask) if attn_mask.shape[0] == query.shape[0] else attn_mask[:, None]
        query, key, value = heads_of(query), heads_of(key), heads_of(value)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*(1,) * (4 - attn_mask.ndim), *attn_mask.shape)
    if is_causal and key.shape[2] > query.shape[2]:
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    return Inputs(query, key, value, scale, attn_mask, is_causal)

"""Products of a network that is cut over a slice: tokens along one axis of the mesh, weights along another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from systolic.bench.cases import Case, fused_spec
from systolic.bench.layers import LayersSpec
from systolic.chips import SliceError
from systolic.spec import MatmulSpec, OneDtype

Kind = Literal["mlp", "columns", "rows", "gathered", "tokens"]
Cuts = tuple[str | tuple[str, ...] | None, ...]  # of an array: for each dimension, the axes that it is cut along

DATA, MODEL = "data", "model"
SUITE = "sharded"
_MODEL_SIZES = ("llama3-8b", 4096, 14336)
_TOKENS = (256, 2048, 8192)  # on all devices together
_GRADIENT_TOKENS = (2048, 8192)
_LAYERS = 2
# Gates and their second halves side by side: (model, k, n, tokens), for which tpu-inference has tiles on eight chips.
_GATES = (("32b", 5120, 51200, (1024, 2048, 4096, 8192)), ("llama3-70b", 8192, 57344, (1024, 2048)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedSpec(OneDtype):
    """One product, or MLPs, on all devices of a slice; m, k and n are sizes of the whole.

    - mlp: two MLPs in a row whose hidden axis n is cut over `model`, so that each sums its result over it.
    - columns: `x[data, -] @ w[-, model]`, without communication.
    - rows: `x[data, model] @ w[model, -]`, whose result is summed over `model`.
    - gathered: `x[data, -] @ w[data, model]`, whose weight is gathered over `data`, as FSDP keeps weights.
    - tokens: `x[data and model, -] @ w[-, model]`, whose tokens are gathered over `model`.

    Raises:
      SliceError: the mesh has other axes, or one that does not divide what it cuts.
    """

    kind: Kind
    m: int
    k: int
    n: int
    dtype: str
    topology: str  # the slice, in chips along each axis
    # Axes of the mesh with their sizes: `data`, which cuts the m tokens, and `model`; one may be missing.
    mesh: tuple[tuple[str, int], ...]
    backward: bool = False  # an mlp's results include the gradients of x and all weights

    def __post_init__(self) -> None:
        if other := [name for name, _ in self.mesh if name not in (DATA, MODEL)]:
            raise SliceError(
                f"suite {SUITE} is cut over axes {DATA} and {MODEL}, and the mesh has {other[0]}: write "
                f"--mesh {DATA}=2,{MODEL}=4, with one of them alone if nothing is cut over the other"
            )
        rows = self.m // self.along(DATA) if self.kind == "tokens" else 0
        for size, name in ((self.m, DATA), (rows, MODEL), (self.n, MODEL), (self.k, MODEL), (self.k, DATA)):
            if size % self.along(name):
                raise SliceError(f"{size} does not divide among {self.along(name)} devices of the axis {name}")

    def along(self, axis: str) -> int:
        return dict(self.mesh).get(axis, 1)

    @property
    def arguments(self) -> tuple[tuple[tuple[int, int], Cuts], ...]:
        """The shape of each argument and its cuts: x, the weights, and for gradients the result's cotangent."""
        x = (self.m, self.k), self._cut(DATA, MODEL if self.kind == "rows" else None)
        if self.kind == "tokens":
            x = (self.m, self.k), (tuple(axis for axis in (DATA, MODEL) if axis in dict(self.mesh)), None)
        if self.kind != "mlp":
            rows = {"columns": None, "tokens": None, "rows": MODEL, "gathered": DATA}[self.kind]
            return x, ((self.k, self.n), self._cut(rows, None if self.kind == "rows" else MODEL))
        up, down = ((self.k, self.n), self._cut(None, MODEL)), ((self.n, self.k), self._cut(MODEL, None))
        return x, *((up, up, down) * _LAYERS), *([x] if self.backward else [])

    @property
    def result(self) -> Cuts:
        """The cuts of the result; a gradient is cut as its primal."""
        return self._cut(DATA, None if self.kind in ("mlp", "rows") else MODEL)

    def _cut(self, *axes: str | None) -> Cuts:
        sizes = dict(self.mesh)
        return tuple(axis if axis in sizes else None for axis in axes)

    @property
    def part(self) -> LayersSpec | MatmulSpec:
        """The product of one device."""
        m, cut = self.m // self.along(DATA), self.along(MODEL)
        if self.kind == "mlp":
            return LayersSpec(m=m, k=self.k, n=self.n // cut, dtype=self.dtype, layers=_LAYERS, backward=self.backward)
        k, n = (self.k // cut, self.n) if self.kind == "rows" else (self.k, self.n // cut)
        return fused_spec(m, k, n, self.dtype)

    @property
    def flops(self) -> int:
        return self.part.flops

    @property
    def least_hbm_bytes(self) -> int:
        """Bytes that have to cross one device's HBM for its part, without the sent bytes."""
        return self.part.least_hbm_bytes


def sharded(dtype: str) -> Iterator[Case]:
    """Yield the MLPs of a model, and its products alone, on one device until `on_slice` names a slice."""
    if dtype not in ("bfloat16", "float32"):  # dtypes that have gradients and that JAX sums over devices
        return
    model, k, n = _MODEL_SIZES
    base = ShardedSpec(kind="mlp", m=0, k=k, n=n, dtype=dtype, topology="", mesh=())
    for m, backward in (*((m, False) for m in _TOKENS), *((m, True) for m in _GRADIENT_TOKENS)):
        name = f"{model} {_LAYERS} MLPs {m}{' and gradients' if backward else ''}"
        spec = replace(base, m=m, backward=backward)
        yield Case(suite=SUITE, group="gradients" if backward else "MLPs", name=name, spec=spec)
    for kind, m in itertools.product([kind for kind in get_args(Kind) if kind not in ("mlp", "tokens")], _TOKENS):
        sizes = {"k": n, "n": k} if kind == "rows" else {}
        name = f"{model} {'down' if kind == 'rows' else 'gate'} by {kind} {m}"
        spec = replace(base, kind=kind, m=m, **sizes)
        yield Case(suite=SUITE, group=kind, name=name, spec=spec)
    for model, k, n, counts in _GATES:
        for m in counts:
            spec = replace(base, kind="tokens", m=m, k=k, n=n)
            yield Case(suite=SUITE, group="tokens", name=f"{model} gate and up of all tokens {m}", spec=spec)


def on_slice(cases: Sequence[Case], topology: str, mesh: Mapping[str, int]) -> list[Case]:
    """Return the suite's cases on a slice; raise SliceError if one is not of the suite, or not cut evenly."""
    if other := [case for case in cases if case.suite != SUITE]:
        raise SliceError(
            f"{other[0].name} of suite {other[0].suite} runs on one device: --topology and --mesh are for suite {SUITE}"
        )
    if math.prod(mesh.values()) < 2:
        raise SliceError("a slice of one device: nothing is cut there; take any other suite without --topology")
    return [replace(case, spec=replace(case.spec, topology=topology, mesh=tuple(mesh.items()))) for case in cases]

"""Products of layers of experts, with fixed sizes of groups."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from systolic.bench.cases import Case
from systolic.ops.grouped.spec import GroupedGradientSpec, GroupedSpec
from systolic.spec import OneDtype, dtype_bytes

Kind = Literal["forward", "dlhs", "drhs", "gated"]
Routing = Literal["even", "skewed", "one expert"]

# Experts, hidden size and intermediate size of one expert, of the models' published config.json: num_local_experts,
# num_experts or n_routed_experts, hidden_size, and intermediate_size or moe_intermediate_size.
MODELS: tuple[tuple[str, int, int, int], ...] = (
    ("mixtral-8x7b", 8, 4096, 14336),
    ("mixtral-8x22b", 8, 6144, 16384),
    ("deepseek-v3", 256, 7168, 2048),
    ("qwen3-235b", 128, 4096, 1536),
    ("qwen3-30b", 128, 2048, 768),
    ("gpt-oss-120b", 128, 2880, 2880),
)
# Of all experts together: a token has as many rows as experts.
ROWS = (64, 256, 1024, 4096, 16384, 65536)
_KINDS: tuple[Kind, ...] = ("forward", "dlhs", "drhs", "gated")
_CONCENTRATION = 2.0
# Another one than tiles are chosen for: the planner does not know these sizes.
_SEED = 1
_FEW, _HUNDREDS = 64, 1024  # rows of a group, on average, up to which they count as few, and as hundreds


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec(OneDtype):
    """One product of the rows of experts, m · k · n as in the forward pass, in bfloat16 or float32.

    - forward: `lhs[rows of g] @ rhs[g]`.
    - dlhs: `cotangent[rows of g] @ rhs[g]ᵀ`.
    - drhs: `lhs[rows of g]ᵀ @ cotangent[rows of g]`.
    - gated: `silu(lhs[rows of g] @ gate[g]) · (lhs[rows of g] @ up[g])`.
    """

    kind: Kind
    m: int
    k: int
    n: int
    groups: int
    routing: Routing
    dtype: str

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each group; their sum is m."""
        return sizes_of(self.m, self.groups, self.routing)

    @property
    def weights(self) -> int:
        """Arrays of matrices that are read."""
        return 2 if self.kind == "gated" else 1

    @property
    def flops(self) -> int:
        return self.weights * 2 * self.m * self.k * self.n

    @property
    def least_hbm_bytes(self) -> int:
        """Bytes of every operand's rows, and matrices of groups that have rows; drhs writes all groups, zeros too."""
        matrices = self.groups if self.kind == "drhs" else sum(size > 0 for size in self.sizes)
        return dtype_bytes(self.dtype) * (self.m * (self.k + self.n) + self.weights * matrices * self.k * self.n)

    @property
    def planned(self) -> GroupedSpec | GroupedGradientSpec:
        """The spec of tile choices: the planner knows the mean rows of a group."""
        rows, out = max(-(-self.m // self.groups), 1), self.dtype
        if self.kind == "drhs":
            return GroupedGradientSpec(
                m=self.m, k=self.k, n=self.n, groups=self.groups, rows_per_group=rows, dtype=self.dtype, dtype_out=out
            )
        k, n = (self.n, self.k) if self.kind == "dlhs" else (self.k, self.n)
        return GroupedSpec(
            m=self.m,
            k=k,
            n=n,
            groups=self.groups,
            rows_per_group=rows,
            dtype=self.dtype,
            dtype_out=out,
            transpose_rhs=self.kind == "dlhs",
            gated=self.kind == "gated",
            activation="silu" if self.kind == "gated" else "",
        )


@functools.lru_cache(maxsize=256)
def sizes_of(m: int, groups: int, routing: Routing) -> tuple[int, ...]:
    """Return the rows of each group; skewed sizes are drawn once."""
    if routing == "one expert":
        return tuple(m if group == groups // 2 else 0 for group in range(groups))
    if routing == "even":
        return tuple(m // groups + (group < m % groups) for group in range(groups))
    random = np.random.default_rng(_SEED)
    return tuple(random.multinomial(m, random.dirichlet([_CONCENTRATION] * groups)).tolist())


def moe(dtype: str) -> Iterator[Case]:
    """Yield every model with every number of rows, skewed; with one number of rows even, and for one expert."""
    if dtype not in ("bfloat16", "float32"):  # dtypes that have gradients
        return
    for kind, (turn, (model, groups, k, n)) in itertools.product(_KINDS, enumerate(MODELS)):
        once: dict[int, Routing] = {ROWS[turn % len(ROWS)]: "even", ROWS[(turn + 1) % len(ROWS)]: "one expert"}
        routings: list[tuple[int, Routing]] = [*((m, "skewed") for m in ROWS), *once.items()]
        for m, routing in routings:
            spec = MoeSpec(kind=kind, m=m, k=k, n=n, groups=groups, routing=routing, dtype=dtype)
            name, series = f"{model} {kind} {m} {routing}", f"{model} {kind} {routing}"
            yield Case(suite="moe", group=group_of(spec), name=name, spec=spec, series=series)


def group_of(spec: MoeSpec) -> str:
    """Return the group of cases: the kind; for forward also the size of groups, which decides the limit."""
    if spec.kind != "forward":
        return spec.kind
    group_rows = spec.m / spec.groups
    return "few rows" if group_rows <= _FEW else "hundreds of rows" if group_rows <= _HUNDREDS else "thousands of rows"

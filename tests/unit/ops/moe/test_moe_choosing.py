"""A kernel chooses experts where it can run; its tiles cover all tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from systolic.ops.engine.backend import Backend, backend_of
from systolic.ops.moe.choosing import largest
from systolic.ops.moe.top_k_schedule import TopKSchedule, why_no_kernel
from systolic.schedule.legality import LANES
from systolic.spec import NoKernelWarning

V6E = backend_of(None, "v6e", None)


@pytest.mark.parametrize("tokens", [1, 128, 129, 640, 1100, 2048, 2049, 8192, 100_000])
@pytest.mark.parametrize("experts", [3, 8, 60, 128, 130, 384, 512])
def test_tiles_cover_all_tokens(tokens: int, experts: int) -> None:
    schedule = TopKSchedule.of(tokens, experts)
    # The last tile begins within the tokens: a copy of none would never end.
    assert (schedule.steps - 1) * schedule.tokens < tokens <= schedule.steps * schedule.tokens
    assert schedule.tokens % (schedule.together * LANES) == 0
    assert schedule.tokens * experts * 4 <= 2**20


def program(backend: Backend, tokens: int, experts: int, top_k: int) -> str:
    logits = jax.ShapeDtypeStruct((tokens, experts), jnp.float32)
    return str(jax.make_jaxpr(lambda logits: largest(backend, logits, top_k))(logits))


@pytest.mark.parametrize(
    ("backend", "tokens", "experts", "top_k", "by_kernel"),
    [
        (V6E, 16, 8, 2, True),
        (V6E, 2048, 512, 16, True),
        (V6E, 2048, 512, 17, False),
        (V6E, 2048, 1024, 8, False),
        (V6E, 0, 8, 2, False),
        (backend_of("interpret", None, None), 16, 8, 2, True),
        (backend_of("pallas", None, None), 16, 8, 2, True),
        (backend_of("xla", None, None), 16, 8, 2, False),
        (backend_of("xla", "v6e", None), 16, 8, 2, False),
        (backend_of(None, None, None), 16, 8, 2, False),
    ],
)
def test_a_kernel_chooses_up_to_16_of_512(
    backend: Backend, tokens: int, experts: int, top_k: int, by_kernel: bool
) -> None:
    assert ("pallas_call" in program(backend, tokens, experts, top_k)) == by_kernel


def test_the_reason_names_both_limits() -> None:
    assert why_no_kernel(512, 16) is None
    assert "16 of 512 at most, not 8 of 1,024" in str(why_no_kernel(1024, 8))


def test_a_program_for_a_tpu_warns_of_too_many_experts() -> None:
    traced = jax.jit(lambda logits: largest(V6E, logits, 8)).trace(jax.ShapeDtypeStruct((16, 1024), jnp.float32))
    with pytest.warns(NoKernelWarning, match="not 8 of 1,024"):
        traced.lower(lowering_platforms=("tpu",))


def test_top_k_of_logits_with_explicit_axes_is_left_to_xla() -> None:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    logits = jax.device_put(np.arange(32.0, dtype=np.float32).reshape(4, 8), NamedSharding(mesh, P("data")))
    values, ids = largest(V6E, logits, 2)
    assert ids.tolist() == [[7, 6]] * 4
    assert values.tolist() == [[8 * row + 7, 8 * row + 6] for row in range(4)]
    assert jax.typeof(ids).sharding.mesh.explicit_axes == ("data",)

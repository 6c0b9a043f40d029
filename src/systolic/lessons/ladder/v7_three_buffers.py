"""v7 · Three buffers instead of two.

    step t computes on buffer t mod 3, while the copies for steps t + 1 and t + 2 are under way

With two buffers, the copy for the next step can begin when a step begins, and has to end when the step ends. That is
tight, because the copies of a step are not equally long: the step that ends an output block also stores it, and HBM
serves reads and writes one after the other. With a third buffer the copies for a step begin two steps ahead. A long one
then has time to spare, and only the average counts.

`pallas_call` keeps two buffers and no more. `pltpu.emit_pipeline` is the same pipeline as a function that a kernel
calls. The kernel gets the arrays where they lie, in HBM (`memory_space=pl.ANY`), and the pipeline copies their blocks
to VMEM. Each block may have as many buffers as one likes: `pl.Buffered(3)`.

Adds: the third buffer, for lhs and for rhs. The step itself is the same as in v6.

Costs: half as much VMEM again for the operands' blocks. And one core: the pipeline runs inside a kernel without a grid,
so there is nothing to share. Where two cores are one device (v4, v5p), the second one idles; the lesson `pl_kernel` has
the mesh that gives it work.

It pays only if the core waited for copies: 4096³ in bfloat16 takes 184 µs instead of v6's 192 on v6e (simulated), but
732 instead of 731 on v5e. A product of 512³ is one step; it takes a tenth (v5e) to a third (v7x) longer, because
`emit_pipeline` has more to set up.

Precision: as in v5.

Grid of the pipeline: (i, j, kk) = (m/bm, n/bn, k/bk), kk fastest. VMEM: a block of lhs and of rhs three times, a block
of out twice, and acc once.
Climb on when you want to decide yourself what is copied when.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

SUBTILE = 1024  # columns that are multiplied at a time
VMEM_LIMIT_BYTES = 56 * 2**20


def step(
    lhs_vmem,  # [bm, bk] float32, bfloat16 or int8
    rhs_vmem,  # [bk, bn] like lhs
    out_vmem,  # [bm, bn] dtype_out
    *,
    acc_vmem,  # [bm, bn] float32 or int32, scratch of the kernel around the pipeline
    steps_k: int,
):
    """Add one product of blocks to the accumulator, one subtile after the other."""
    kk, bn = pl.program_id(2), acc_vmem.shape[1]
    sn = SUBTILE if bn % SUBTILE == 0 else bn

    @pl.loop(0, bn // sn)
    def _multiply_subtile(s):
        columns = pl.ds(pl.multiple_of(s * sn, sn), sn)
        product = jnp.dot(lhs_vmem[...], rhs_vmem[:, columns], preferred_element_type=acc_vmem.dtype)
        total = product + jnp.where(kk == 0, jnp.zeros_like(product), acc_vmem[:, columns])
        acc_vmem[:, columns] = total

        @pl.when(kk == steps_k - 1)
        def _finish():
            out_vmem[:, columns] = total.astype(out_vmem.dtype)


def matmul(lhs: jax.Array, rhs: jax.Array, *, bm=2048, bk=512, bn=2048, dtype_out=None, interpret=False) -> jax.Array:
    """`lhs[m, k] @ rhs[k, n]` by blocks, as `dtype_out` (by default the dtype of lhs, or int32 for int8)."""
    (m, k), n = lhs.shape, rhs.shape[1]
    if k != rhs.shape[0] or m % bm or k % bk or n % bn or 0 in (m, k, n):
        raise ValueError(f"lhs{lhs.shape} @ rhs{rhs.shape}: blocks of {bm=}, {bk=}, {bn=} have to divide the matrices")
    sum_dtype = jnp.int32 if jnp.issubdtype(lhs.dtype, jnp.integer) else jnp.float32
    dtype_out = dtype_out or (jnp.int32 if lhs.dtype == jnp.int8 else lhs.dtype)

    def kernel(
        lhs_hbm,  # [m, k]
        rhs_hbm,  # [k, n]
        out_hbm,  # [m, n]
        acc_vmem,  # [bm, bn]
    ):
        pipeline = pltpu.emit_pipeline(
            functools.partial(step, acc_vmem=acc_vmem, steps_k=k // bk),
            grid=(m // bm, n // bn, k // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j, kk: (i, kk), pipeline_mode=pl.Buffered(3)),
                pl.BlockSpec((bk, bn), lambda i, j, kk: (kk, j), pipeline_mode=pl.Buffered(3)),
            ],
            out_specs=[pl.BlockSpec((bm, bn), lambda i, j, kk: (i, j))],
        )
        # The pipeline asks which chip it is for. Interpreted on a CPU, it has to be told one; any will do.
        v5e = AbstractMesh((), (), abstract_device=AbstractDevice("TPU v5 lite", 1, "tpu"))
        with use_abstract_mesh(v5e) if interpret else contextlib.nullcontext():
            pipeline(lhs_hbm, rhs_hbm, out_hbm)

    in_hbm = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        in_specs=[in_hbm, in_hbm],
        out_specs=in_hbm,
        out_shape=jax.ShapeDtypeStruct((m, n), dtype_out),
        scratch_shapes=[pltpu.VMEM((bm, bn), sum_dtype)],
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=VMEM_LIMIT_BYTES),
        interpret=interpret,
        name="matmul_v7_three_buffers",
    )(lhs, rhs)

"""Categories of operations as XProf names them, and FLOPs of products, from the text of an HLO module."""

from __future__ import annotations

import pytest

from systolic.simulator import parse_hlo

MODULE = """HloModule jit_f.3, is_scheduled=true

%inner (p: bf16[64,128]) -> bf16[64,128] {
  %p = bf16[64,128]{1,0} parameter(0)
  ROOT %convolution.2 = bf16[64,256]{1,0} convolution(%p, %w), dim_labels=bf_io->bf
}

%fused (p0: bf16[64,128], w: bf16[128,256]) -> bf16[64,256] {
  %p0 = bf16[64,128]{1,0} parameter(0)
  %w = bf16[128,256]{1,0} parameter(1)
  ROOT %fusion.9 = bf16[64,256]{1,0} fusion(%p0), kind=kOutput, calls=%inner
}

%loop (q: f32[8]) -> f32[8] {
  %q = f32[8]{0} parameter(0)
  ROOT %add = f32[8]{0} add(%q, %q)
}

ENTRY %main (x: bf16[64,128], y: bf16[128,256]) -> bf16[64,256] {
  %x = bf16[64,128]{1,0} parameter(0)
  %y = bf16[128,256]{1,0} parameter(1)
  %fusion.1 = bf16[64,256]{1,0} fusion(%x, %y), kind=kOutput, calls=%fused
  %fusion.2 = f32[8]{0} fusion(%x), kind=kLoop, calls=%loop
  %copy.1 = bf16[64,128]{0,1} copy(%x)
  %tanh = f32[8]{0} tanh(%fusion.2)
  %convolution.3 = bf16[64,256]{1,0} convolution(%x, %y), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f
  %convolution.4 = bf16[256,64]{1,0} convolution(%y, %x), dim_labels=fb_oi->bf
  ROOT %mine.1 = bf16[64,256]{1,0} custom-call(%x), custom_call_target="tpu_custom_call"
}
"""


@pytest.mark.parametrize(
    ("name", "category", "flops"),
    [
        ("fusion.1", "convolution fusion", 2 * 64 * 128 * 256),
        ("fusion.2", "loop fusion", None),
        ("copy.1", "data formatting", None),
        ("tanh", "non-fusion elementwise", None),
        ("convolution.3", "convolution", None),  # some of its positions are padding
        ("convolution.4", "convolution", 2 * 256 * 64 * 128),
        ("mine.1", "custom-call", None),
        ("absent", "", None),
    ],
)
def test_category_and_flops(name: str, category: str, flops: int | None) -> None:
    hlo = parse_hlo(MODULE)
    assert hlo.module == "jit_f.3"
    assert hlo.kinds.category(name) == category
    assert hlo.flops(name) == flops

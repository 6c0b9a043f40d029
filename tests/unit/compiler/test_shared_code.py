import pytest

from systolic.compiler.shared_code import operation_keys, representatives

BODY = """%body.{n} (p.{n}: bf16[8,128]) -> bf16[8,128] {{
  %p.{n} = bf16[8,128]{{1,0}} parameter(0)
  ROOT %op.{n} = bf16[8,128]{{1,0}} {op}(%p.{n}, %p.{n}), metadata={{op_name="jit(f)/{{n}}\\"{n}" stack_frame_id={n}}}
}}
"""
ALIASES = (
    '{"aliasing_operands":{"lists":[]},"a":[]}',
    '{"aliasing_operands":{"lists":[{"indices":["0","2"]}]},"a":[]}',
)
HLO = f"""HloModule m, num_partitions=8

%first (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %ab = f32[] divide(%a, %b)
}}
%second (d: f32[], c: f32[]) -> f32[] {{
  %c = f32[] parameter(1)
  %d = f32[] parameter(0)
  ROOT %dc = f32[] divide(%d, %c)
}}
%third (f: f32[], e: f32[]) -> f32[] {{
  %e = f32[] parameter(1)
  %f = f32[] parameter(0)
  ROOT %ef = f32[] divide(%e, %f)
}}
{BODY.format(n=1, op="add")}
{BODY.format(n=2, op="add")}
{BODY.format(n=3, op="multiply")}
ENTRY %main (x: bf16[8,128], y: bf16[8,128]) -> bf16[8,128] {{
  %x = bf16[8,128]{{1,0}} parameter(0)
  %y = bf16[8,128]{{1,0:S(1)}} parameter(1)
  %fusion.1 = bf16[8,128]{{1,0}} fusion(%x), kind=kLoop, calls=%body.1, metadata={{op_name="a"}}
  %fusion.2 = bf16[8,128]{{1,0}} fusion(%fusion.1), kind=kLoop, calls=%body.2, control-predecessors={{%x}}
  %other = bf16[8,128]{{1,0}} fusion(%fusion.1), kind=kLoop, calls=%body.3
  %fusion.4 = bf16[8,128]{{1,0}} fusion(%y), kind=kLoop, calls=%body.1
  %fusion.5 = bf16[8,128]{{1,0:S(1)}} fusion(%x), kind=kLoop, calls=%body.1
  %pair.1 = bf16[8,128]{{1,0}} subtract(%x, %fusion.1), backend_config={ALIASES[0]}
  %pair.2 = bf16[8,128]{{1,0}} subtract(%fusion.2, %x), backend_config={ALIASES[1]}
  %same = bf16[8,128]{{1,0}} subtract(%x, %x), backend_config={{"a":[]}}
  %gather.1 = bf16[8,128]{{1,0}} all-gather(%x), channel_id=1, frontend_attributes={{a="g.1"}}
  %gather.2 = bf16[8,128]{{1,0}} all-gather(%x), channel_id=2, frontend_attributes={{a="g.2",chain_id="3"}}
  %gather.3 = bf16[8,128]{{1,0}} all-gather(%x), channel_id=3, replica_groups=[4,2]<=[8], dimensions={{0}}
  %gather.4 = bf16[8,128]{{1,0}} all-gather(%x), replica_groups=mesh['a'=4,'b'=2] {{'b'}}, dimensions={{0}}
  %gather.5 = bf16[8,128]{{1,0}} all-gather(%x), replica_groups=mesh['a'=4,'b'=2] {{'a'}}, dimensions={{0}}
  %reduce.1 = bf16[8] reduce(%x, %y), to_apply=%first
  %reduce.2 = bf16[8] reduce(%x, %y), to_apply=%second
  %reduce.3 = bf16[8] reduce(%x, %y), to_apply=%third
  %kernel.1 = bf16[8,128]{{1,0}} custom-call(%x), backend_config={{"body": "
}}, one"
  %kernel.2 = bf16[8,128]{{1,0}} custom-call(%x), backend_config={{"body": "
}}, two"
  ROOT %kernel.3 = bf16[8,128]{{1,0}} custom-call(%y.1), backend_config={{"body": "
}}, two"
}}
"""


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("fusion.1", "fusion.2"),
        ("pair.1", "pair.2"),
        ("pair.1", "same"),  # one operand twice
        ("gather.1", "gather.2"),
        ("gather.3", "gather.4"),  # the same groups, written in two ways
        ("op.1", "op.2"),
        ("reduce.1", "reduce.2"),
    ],
)
def test_names_origins_channels_and_repeated_operands_do_not_count(name, other):
    keys = operation_keys(HLO)
    assert keys[name] == keys[other]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("fusion.1", "other"),  # another computation
        ("gather.4", "gather.5"),  # other groups
        ("fusion.1", "fusion.4"),  # an operand in other memory
        ("fusion.1", "fusion.5"),  # a result in other memory
        ("reduce.1", "reduce.3"),  # its operands exchanged
        ("kernel.1", "kernel.2"),  # what differs is on a later line
    ],
)
def test_operations_that_differ_have_other_keys(name, other):
    keys = operation_keys(HLO)
    assert keys[name] != keys[other]


def test_an_operation_without_a_listing_has_that_of_an_equal_one():
    listed = ["TLP", "fusion.1", "kernel.1"]
    assert representatives(listed, ["fusion.1", "fusion.2", "kernel.2", "unknown"], HLO) == {"fusion.2": "fusion.1"}

"""Name stacks that JAX and the TPU compiler leave, and the parts and passes that they say."""

from __future__ import annotations

import pytest

from systolic.steps.parts import OTHER, is_differentiated, part_of, pass_of

PARTS = ("attention", "mlp", "loss", "optimizer")
AGAIN = "jit(f)/jit(train_step)/transpose(jvp())/while/body/closed_call/checkpoint/rematted_computation/mlp/dot_general"
BACK = "jit(f)/jit(train_step)/transpose(jvp())/while/body/closed_call/checkpoint/attention/bsd,dhf->bshf/dot_general"
FORTH = "jit(f)/jit(train_step)/jvp(loss)/bsd,dv->bsv/dot_general"
UPDATE = "jit(f)/jit(train_step)/optimizer/sub"


@pytest.mark.parametrize(
    ("scope", "part", "in_pass"),
    [
        (AGAIN, "mlp", "recompute"),
        (BACK, "attention", "backward"),
        (FORTH, "loss", "forward"),
        (UPDATE, "optimizer", "update"),
        ("", OTHER, "update"),
        ("jit(f)/lossy/mlps/dot", OTHER, "update"),  # names are whole
        ("jit(f)/jvp(mlp)/attention/dot_general", "attention", "forward"),  # the innermost counts
    ],
)
def test_part_and_pass_of_a_step_with_derivatives(scope: str, part: str, in_pass: str) -> None:
    assert part_of(scope, PARTS) == part
    assert pass_of(scope, differentiated=True) == in_pass


def test_without_derivatives_everything_is_forward() -> None:
    assert pass_of("jit(f)/attention/dot_general", differentiated=False) == "forward"
    assert not is_differentiated(["jit(f)/attention/dot_general", "jit(f)/jvp(mlp)/dot_general"])
    assert is_differentiated([BACK])


@pytest.mark.parametrize(
    ("scope", "part"),
    [
        (BACK, "attention"),
        ("jit(f)/transpose(jvp(block))/inner/dot_general", "block"),
        ("jit(f)/while/body/dot_general", OTHER),
        ("jit(f)/dot_general", OTHER),
        ("jit(f)/shard_map/vmap(heads)/pallas_call", "heads"),
        ("", OTHER),
    ],
)
def test_without_names_of_parts_the_outermost_name_counts(scope: str, part: str) -> None:
    assert part_of(scope, ()) == part

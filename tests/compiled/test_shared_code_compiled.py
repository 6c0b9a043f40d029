"""Equal operations of a program, which the compiler compiles once."""

import re

import jax.numpy as jnp
import pytest
from compiled_functions import V5E, compile_in, kernel, square

from systolic.compiler import WorkerPool, compile_function

pytestmark = pytest.mark.fresh_workers


def repeated(lhs, rhs):
    for _ in range(3):
        lhs = jnp.tanh(kernel(lhs, rhs))
    return lhs


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(max_workers=1, time_limit_s=60) as pool:
        yield pool


def test_equal_operations_each_have_a_listing(pool):
    program = compile_in(pool, repeated, (square(256), square(256)), V5E)
    called = re.findall(r"= inlined_call [^\n]*?/\* %(\S+) =", program.listings["TLP"])
    assert len(called) >= 3
    assert set(called) <= set(program.listings)


def _compiled_as_if_none_were_equal(fn, args, target):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("systolic.compiler.dump.representatives", lambda *_: {})
        return compile_function(fn, args, target, cache=None)


def test_operations_whose_equal_is_not_found_are_compiled_again(pool):
    args = (square(256), square(256))
    again = pool.submit(_compiled_as_if_none_were_equal, repeated, args, V5E).result()
    shared = compile_in(pool, repeated, args, V5E)
    assert again.listings.keys() == shared.listings.keys()
    assert again.generated_code_bytes == shared.generated_code_bytes
    # Only the names of operations and registers differ.
    assert [len(text.splitlines()) for text in again.listings.values()] == [
        len(shared.listings[name].splitlines()) for name in again.listings
    ]

"""The arithmetic of a product."""

import pytest

from systolic.spec import MatmulSpec, SpecError, accumulator_dtype, dtype_bytes


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float32", 4), ("bfloat16", 2), ("int8", 1), ("float8_e4m3fn", 1), ("float8_e5m2", 1), ("int32", 4)],
)
def test_dtype_bytes(dtype: str, size: int) -> None:
    assert dtype_bytes(dtype) == size


@pytest.mark.parametrize("dtype", ["fp32", "", "float33"])
def test_unknown_dtype(dtype: str) -> None:
    with pytest.raises(SpecError, match=f"^dtype '{dtype}' is unknown; .*choose from float32, bfloat16"):
        dtype_bytes(dtype)


@pytest.mark.parametrize(
    ("dtype", "accumulator"),
    [
        ("float32", "float32"),
        ("bfloat16", "float32"),
        ("float8_e5m2", "float32"),
        ("int8", "int32"),
        ("uint8", "int32"),
    ],
)
def test_accumulator_dtype(dtype: str, accumulator: str) -> None:
    assert accumulator_dtype(dtype) == accumulator


@pytest.mark.parametrize(("dtype", "dtype_out"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("int8", "int32")])
def test_of(dtype: str, dtype_out: str) -> None:
    spec = MatmulSpec.of(2, 3, 5, dtype)
    assert (spec.m, spec.k, spec.n) == (2, 3, 5)
    assert (spec.dtype_lhs, spec.dtype_rhs, spec.dtype_out) == (dtype, dtype, dtype_out)
    assert MatmulSpec.of(2, 3, 5, dtype, "float32").dtype_out == "float32"


def test_arithmetic() -> None:
    spec = MatmulSpec.of(2, 3, 5, "int8")
    assert spec.flops == 60
    assert (spec.lhs_bytes, spec.rhs_bytes, spec.out_bytes) == (6, 15, 40)
    assert spec.least_hbm_bytes == 61
    assert spec.intensity_flops_per_byte == 60 / 61
    assert spec.dtype_accumulator == "int32"


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize("name", ["m", "k", "n"])
def test_a_matrix_has_elements(name: str, size: int) -> None:
    sizes = {"m": 1, "k": 1, "n": 1} | {name: size}
    with pytest.raises(SpecError, match=f"{name}={size}"):
        MatmulSpec.of(sizes["m"], sizes["k"], sizes["n"], "float32")


@pytest.mark.parametrize("place", ["dtype_lhs", "dtype_rhs", "dtype_out"])
def test_every_dtype_is_checked(place: str) -> None:
    dtypes = {"dtype_lhs": "int8", "dtype_rhs": "int8", "dtype_out": "int32"} | {place: "float7"}
    with pytest.raises(SpecError, match="float7"):
        MatmulSpec(
            m=1, k=1, n=1, dtype_lhs=dtypes["dtype_lhs"], dtype_rhs=dtypes["dtype_rhs"], dtype_out=dtypes["dtype_out"]
        )

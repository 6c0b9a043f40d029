"""Values of arguments that are written out: exactly these, or refused with value, limit and fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from systolic.compiler.named import NamedFunctionError, named_argument


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("s8[2]=127,-128", [127, -128]),
        ("u32[2]=4294967295,0", [4294967295, 0]),
        ("s32[2]=1e3,2.0", [1000, 2]),
        ("s4[2]=7,-8", [7, -8]),
        ("s32[2,2]=3", [[3, 3], [3, 3]]),
        ("s32[]=3", 3),
        ("pred[4]=1,0,true,False", [True, False, True, False]),
        ("f32[2]=0.1,-0.5", [np.float32(0.1), -0.5]),
        ("f16[1]=65504", [65504]),
        ("f32[1]=3.4028235e38", [np.finfo(np.float32).max]),
        ("bf16[2]=inf,-inf", [np.inf, -np.inf]),
    ],
)
def test_what_is_written_is_what_is_held(text: str, values: Any) -> None:
    made = named_argument(text)
    assert str(made.dtype) == {"s": "int", "u": "uint", "p": "bool", "f": "float", "b": "bfloat"}[text[0]] + (
        "" if text[0] == "p" else text.split("[")[0].lstrip("subf")
    )
    assert made.astype(np.float64).tolist() == np.asarray(values, np.float64).tolist()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s8[2]=300,-200", "'300' is not among the values of int8, -128 to 127; give another dtype"),
        ("u8[1]=-1", "'-1' is not among the values of uint8, 0 to 255"),
        ("s32[2]=1.9,1", "'1.9' is not an integer"),
        ("s32[1]=99999999999", "-2147483648 to 2147483647"),
        ("s64[1]=99999999999", "JAX holds int64 unless JAX_ENABLE_X64=1 is set"),
        ("s32[1]=nan", "'nan' is not an integer"),
        ("s32[1]=1e999999", "is not among the values"),
        ("pred[1]=2", "'2' is not a truth value: give 1, 0, true or false"),
        ("f16[1]=1e6", "'1e6' is not among the values of float16"),
        ("f32[1]=1e39", "'1e39' is not among the values of float32"),
        ("f8e4m3fn[1]=inf", "'inf' is not among the values of float8_e4m3fn"),
        ("f4e2m1fn[1]=100", "'100' is not among the values of float4_e2m1fn"),
        ("f32[1]=1_0", "'1_0' is not a number for float32"),
        ("f32[1]=٣", "is not a number for float32"),
        ("f32[2]=1,2,3", "give one value, or as many as the shape holds"),
        ("object[2]", "'object' is not an element type"),
        ("str[2]", "'str' is not an element type"),
        ("longdouble[2]=1", "'longdouble' is not an element type"),
    ],
)
def test_what_the_dtype_does_not_hold_is_refused(text: str, said: str) -> None:
    with pytest.raises(NamedFunctionError) as caught:
        named_argument(text)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_with_64_bits_they_are_held() -> None:
    with jax.enable_x64(True):
        assert named_argument("s64[2]=99999999999,-1").tolist() == [99999999999, -1]
        assert named_argument("u64[1]=18446744073709551615").tolist() == [2**64 - 1]


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (HEADER % "10**12,", "its header cannot be read"),
        (HEADER % "1000000000000,", "its header states 1,000,000,000,000 elements of float32, but it holds 4 bytes"),
        ("{[]: 1}", "its header cannot be read"),
        ("(" * 3000, "its header cannot be read"),
    ],
)
def test_a_file_that_is_no_array_is_refused(tmp_path: Path, content: str, said: str) -> None:
    header = content.encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    file = tmp_path / "a.npy"
    file.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"1234")
    with pytest.raises(NamedFunctionError, match="cannot be read as an array") as caught:
        named_argument(str(file))
    assert said in str(caught.value)


def test_arrays_of_files_that_jax_would_change_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.npy"
    np.save(file, np.arange(6).reshape(2, 3))
    assert named_argument(str(file)).tolist() == [[0, 1, 2], [3, 4, 5]]
    for array, said in (
        (np.array([5_000_000_000]), "-2147483648 to 2147483647"),
        (np.array(["a"]), "JAX has no arrays"),
    ):
        np.save(file, array)
        with pytest.raises(NamedFunctionError, match=said):
            named_argument(str(file))

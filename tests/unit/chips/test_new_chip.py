"""A chip that is not one of those shipped: its record is taken wherever a name is, and no room knows chips by name."""

from __future__ import annotations

import ast
import dataclasses
import pickle
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import systolic
from systolic.chips import CHIPS, V6E, Chip, ChipNameError, UnknownChipError, chip, register
from systolic.cli import main
from systolic.cloud.gcloud import Address
from systolic.cloud.offers import create_line
from systolic.cost import ranked_configs
from systolic.spec import MatmulSpec

SOURCE = Path(systolic.__file__).parent
V8X = dataclasses.replace(V6E, name="v8x", aliases=("graphite",), title="TPU v8x", device_kind="TPU v8x")
SQUARE = MatmulSpec.of(1024, 1024, 1024, "bfloat16")


@pytest.fixture
def registered() -> Iterator[Chip]:
    yield register(V8X)
    del CHIPS["v8x"]


# --- names -----------------------------------------------------------------------------------------------------------


def test_a_registered_chip_is_found_by_each_of_its_names(registered: Chip) -> None:
    assert chip("V8x ") is chip("graphite") is registered
    with pytest.raises(UnknownChipError, match="choose from v4, v5e, v5p, v6e, v7x, v8x"):
        chip("v9")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "v5e"}, "'v5e' is a name of TPU v5e"),
        ({"name": "Trillium"}, "lower case"),
        ({"name": "tpu7x"}, "is a name of TPU7x"),
        ({"aliases": ("trillium",)}, "is a name of TPU v6e"),
        ({"name": "v8,x"}, "without commas"),
        ({"name": ""}, "''"),
    ],
)
def test_a_name_that_cannot_be_had(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ChipNameError, match=said):
        register(dataclasses.replace(V8X, **changed))  # pyright: ignore[reportArgumentType]
    assert list(CHIPS) == ["v4", "v5e", "v5p", "v6e", "v7x"]


def test_a_chip_is_a_key_of_caches_and_travels_to_workers() -> None:
    again = pickle.loads(pickle.dumps(V8X))
    assert again == V8X
    assert {V8X: 1}[again] == 1
    assert dataclasses.replace(V8X, hbm_bytes_per_chip=1) != V8X


# --- what works with it ----------------------------------------------------------------------------------------------


def test_a_plan_with_a_record_that_nobody_registered() -> None:
    found = systolic.plan(SQUARE, V8X)
    assert found.chip == "v8x"
    assert found.provenance == "modelled"  # profiles of tiles are shipped by name
    assert found.config == ranked_configs(SQUARE, V6E, count=1)[0][0].config
    slower = dataclasses.replace(V8X, machine=dataclasses.replace(V8X.machine, hbm_bytes_per_s=1e11))
    assert systolic.plan(SQUARE, slower).time_us > 2 * found.time_us


@pytest.mark.parametrize("differentiate", [False, True])
def test_matmul_is_traced_with_a_record(differentiate: bool) -> None:
    def product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        out = systolic.matmul(lhs, rhs, implementation="interpret", chip=V8X)
        return out.sum() if differentiate else out

    shape = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    out = jax.eval_shape(jax.grad(product) if differentiate else product, shape, shape)
    assert out.shape == (256, 256)


def test_what_is_asked_of_google_cloud_is_in_the_record(registered: Chip) -> None:
    line = create_line(
        Address(name="my-tpu"), chip_name=registered.name, accelerator_type="", runtime_version="", spot=False
    )
    assert line[-2:] == ("--accelerator-type=v6e-1", "--version=v2-alpha-tpuv6e")


def test_devices_in_a_ring() -> None:
    assert {name: each.ring_devices for name, each in CHIPS.items()} == {
        "v4": 4, "v5e": 8, "v5p": 4, "v6e": 8, "v7x": 8,
    }  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "1024,1024,1024"),
        ("plan", "1024,1024,1024", "--bias", "--activation", "gelu", "--batch", "4"),
        ("lessons", "roofline"),
    ],
)
def test_commands_that_compile_nothing(
    command: tuple[str, ...], registered: Chip, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--chip", registered.name]) == 0
    assert "v8x" in capsys.readouterr().out


def test_the_chip_is_listed(registered: Chip, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chips", registered.name]) == 0
    assert registered.title in capsys.readouterr().out


# --- no other room knows a chip by its name ---------------------------------------------------------------------------

# Rungs of the ladder have names of this form too.
_RUNGS = {"v4"}


def named_chips(path: Path, names: set[str]) -> list[str]:
    """Name every string that is a chip's name, in any clock state, but for defaults of parameters."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    defaults = {
        default
        for node in nodes
        if isinstance(node, ast.arguments)
        for default in (*node.defaults, *node.kw_defaults)
        if isinstance(default, ast.Constant)
    }
    return [
        f"{path.name}:{node.lineno} {node.value}"
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in defaults
        if node.value.partition("@")[0] in names
    ]


def test_no_other_room_knows_a_chip_by_its_name() -> None:
    names = {name for each in CHIPS.values() for name in (each.name, *each.aliases)}
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        room = path.relative_to(SOURCE).parts[0]
        if room != "chips":
            found += named_chips(path, names - _RUNGS if room == "lessons" else names)
    assert found == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('if chip.name == "v7x":\n    pass', 1),
        ('x = chip.name not in ("v4", "v5e")', 2),
        ('x = {"v5e": 1, "v6e": 2}[chip.name]', 2),
        ('match name:\n    case "trillium":\n        pass', 1),
        ('x = {("128²", "v5e"): 1}', 1),
        ('x = table.get("v7x@p7")', 1),
        ('x = table[("v6e", "v6e-8")]', 1),
        ('name = "v5e"', 1),
        ('def f(chip="v5e", *, other="v6e"):\n    """Of v5e."""\n    return "a v5e"', 0),
    ],
)
def test_a_planted_name_is_found(tmp_path: Path, text: str, lines: int) -> None:
    (tmp_path / "x.py").write_text(text)
    assert len(named_chips(tmp_path / "x.py", {"v4", "v5e", "v6e", "v7x", "trillium"})) == lines


def test_trials_of_a_record_need_its_name() -> None:
    with pytest.raises(UnknownChipError, match="v8x"):
        systolic.tune(MatmulSpec.of(512, 512, 512, "bfloat16"), V8X)

"""`systolic step`: a small transformer's training step and serving, as its user runs them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import systolic
from systolic.cli import main
from systolic.steps import BETWEEN, DoesNotFitError, StepRun

EXAMPLE = Path(__file__).parents[2] / "examples" / "transformer"
ON = ("--chip", "v6e", "--topology", "2x2", "--workers", "1", "-q")
SMALL = ("--config", "tiny", "--param", "width=128", "--seq", "64", "--batch", "2")


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> list[StepRun]:
    file = tmp_path_factory.mktemp("steps") / "step.json"
    tried = ("--try", "mesh=fsdp=2,tensor=2", "--out", str(file.with_suffix(".html")))
    assert main(["step", f"{EXAMPLE}:train", *ON, *SMALL, *tried, "--json", str(file)]) == 0
    assert "mesh=fsdp=2,tensor=2" in file.with_suffix(".html").read_text()
    return [StepRun.from_json(json.dumps(row["run"])) for row in json.loads(file.read_text())["rows"]]


def test_the_parts_of_a_step_are_its_whole_time(predicted: list[StepRun]) -> None:
    run, _ = predicted
    assert (run.devices, run.topology, run.tokens) == (4, "2x2", 4 * 2 * 64)
    assert run.slice_run is not None
    assert sum(each.cycles for each in run.parts) == run.run.cycles
    exposed = sum(each.exposed_cycles for each in run.parts)
    assert run.us(exposed) == pytest.approx(run.slice_run.exposed_us)
    assert {"attention", "mlp", "loss", "embedding", "optimizer", BETWEEN} <= {each.part for each in run.parts}
    passes = {each.part: {one.in_pass for one in run.parts if one.part == each.part} for each in run.parts}
    assert {"forward", "recompute", "backward"} <= passes["mlp"]
    assert passes["optimizer"] == {"update"}


def test_rates_follow_from_the_time(predicted: list[StepRun]) -> None:
    run, _ = predicted
    assert run.tokens_per_s_per_device == pytest.approx(run.tokens / 4 / run.time_us * 1e6)
    assert run.mfu == pytest.approx(
        run.flops / (run.time_us * 1e-6 * 4 * systolic.chip("v6e").peak_ops_per_s("bfloat16"))
    )
    assert run.mfu_causal < run.mfu


def test_the_state_is_donated(predicted: list[StepRun]) -> None:
    run, _ = predicted
    # All but the loss takes the place of the old state.
    assert run.memory.result_bytes - run.memory.donated_bytes < 4096
    memory = run.memory
    apart = replace(memory, peak_bytes=None).needed_bytes
    assert memory.peak_bytes is not None
    assert memory.argument_bytes < memory.needed_bytes <= apart < memory.capacity_bytes


def test_another_mesh_is_simulated_on_request(predicted: list[StepRun]) -> None:
    run, tried = predicted
    assert tried.tokens == run.tokens
    kinds = [{each.kind for each in one.collectives} for one in (run, tried)]
    # Weights that are cut along the batch's axis are gathered; those cut by heads are not, but sums are.
    assert "all-gather" in kinds[0]
    assert "all-reduce" in kinds[1]
    assert tried.time_us != run.time_us


@pytest.mark.parametrize("maker", ["prefill", "decode"])
def test_serving_is_all_forward(maker: str, tmp_path: Path) -> None:
    file = tmp_path / "served.json"
    trace = tmp_path / "trace.json"
    command = ["step", f"{EXAMPLE}:{maker}", "--chip", "v5e", "-q", *SMALL]
    assert main([*command, "--json", str(file), "--trace", str(trace)]) == 0
    assert json.loads(trace.read_text())["traceEvents"]
    for_xprof = str(tmp_path / "trace.xplane.pb")
    assert main([*command, "--trace", for_xprof]) == 0
    assert main(["compare", str(file), for_xprof, "--fail-above", "0.1"]) == 0
    (row,) = json.loads(file.read_text())["rows"]
    run = StepRun.from_json(json.dumps(row["run"]))
    assert run.tokens == (2 * 64 if maker == "prefill" else 2)
    assert {each.in_pass for each in run.parts} <= {"forward", "all"}
    assert run.slice_run is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("maker", ["prefill", "decode"])
def test_experts_of_several_devices_serve(maker: str, tmp_path: Path) -> None:
    file = tmp_path / "served.json"
    sizes = ("--config", "tiny-moe", "--seq", "128", "--batch", "8", "--param", "grouped=megablox")
    widths = ("--param", "width=128", "--param", "expert_width=128")
    command = ("step", f"{EXAMPLE}:{maker}", *ON, *sizes, *widths, "--mesh", "expert=4", "--json", str(file))
    assert main(command) == 0
    (row,) = json.loads(file.read_text())["rows"]
    run = StepRun.from_json(json.dumps(row["run"]))
    assert {"router", "experts", "attention", "mlp"} <= {part.part for part in run.parts}
    assert sum(part.exposed_cycles for part in run.parts if part.part == "experts") > 0
    # Tokens go to all devices, and the parts of their results are added up.
    kinds = {collective.kind for collective in run.collectives}
    assert "all-gather" in kinds
    assert kinds & {"reduce-scatter", "all-reduce"}


def test_a_step_that_does_not_fit_says_by_how_much() -> None:
    state = jax.ShapeDtypeStruct((5 * 2**30,), jnp.float32)
    with pytest.raises(DoesNotFitError) as refused:
        systolic.step(jax.jit(lambda x: (x * 2, x + 1)), state, chip="v5e")
    assert refused.value.argument_bytes == 20 * 2**30
    assert refused.value.needed_bytes > refused.value.available_bytes
    assert "times as many devices" in str(refused.value)


@pytest.mark.exhaustive
@pytest.mark.parametrize("chip", ["v5e", *(pytest.param(chip, marks=pytest.mark.slow) for chip in ("v6e", "v7x"))])
def test_what_goes_to_the_host_and_comes_back_takes_its_link_as_long(chip: str) -> None:
    def step(x: jax.Array, w: jax.Array) -> jax.Array:
        kept = jax.device_put(x @ w, jax.memory.Space.Host)
        return jax.device_put(kept, jax.memory.Space.Device) @ w

    x, w = (jax.ShapeDtypeStruct((size, 2048), jnp.bfloat16) for size in (8192, 2048))
    run = systolic.step(step, x, w, chip=chip, tokens=8192)
    assert run.run is not None
    (core, *_) = run.run.cores
    assert core.host_bytes == 2 * 8192 * 2048 * 2
    link_us = core.host_bytes / systolic.chip(chip).host_bytes_per_s * 1e6
    alone = systolic.step(lambda x, w: (x @ w) @ w, x, w, chip=chip, tokens=8192)
    assert run.time_us == pytest.approx(link_us + alone.time_us, rel=0.05)
    assert any("between chip and host" in each for each in run.run.assumptions)
    assert run.run.error_percent is None


@pytest.mark.slow
def test_a_step_copies_what_it_keeps_on_the_host_there_and_back(tmp_path: Path) -> None:
    file, tokens, heads, kv_heads, head_dim, layers = tmp_path / "step.json", 2 * 128, 4, 2, 8, 2
    asked = (*SMALL, "--seq", "128", "--remat", "offload:query+key")  # 128: nothing is padded
    assert main(["step", f"{EXAMPLE}:train", *ON, *asked, "--json", str(file)]) == 0
    (row,) = json.loads(file.read_text())["rows"]
    run = StepRun.from_json(json.dumps(row["run"]))
    assert run.run is not None
    (core,) = run.run.cores
    assert core.host_bytes == 2 * layers * tokens * (heads + kv_heads) * head_dim * 2


@pytest.mark.exhaustive
@pytest.mark.parametrize(("remat", "kernels"), [("full", 2), ("context", 1)])
def test_attention_does_not_run_again_where_its_context_is_kept(tmp_path: Path, remat: str, kernels: int) -> None:
    file = tmp_path / "step.json"
    attention = ("--param", "attention=splash", "--param", "head_dim=128", "--seq", "256")
    assert main(["step", f"{EXAMPLE}:train", *ON, *SMALL, *attention, "--remat", remat, "--json", str(file)]) == 0
    run = StepRun.from_json(json.dumps(json.loads(file.read_text())["rows"][0]["run"]))
    assert sum("splash_mha_fwd" in op.name for op in run.run.cores[0].ops) == kernels


def test_any_function_is_grouped_by_its_own_names() -> None:
    def step(x: jax.Array, w: jax.Array) -> jax.Array:
        with jax.named_scope("first"):
            x = jnp.tanh(x @ w)
        with jax.named_scope("second"):
            return x @ w

    x = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)
    run = systolic.step(step, x, x, chip="v5e", tokens=1024)
    assert {"first", "second"} <= {each.part for each in run.parts}
    assert run.tokens_per_s_per_device == pytest.approx(1024 / run.time_us * 1e6)


def test_a_step_is_traced_under_its_mesh() -> None:
    """A step like MaxText's, whose constraints name axes of a mesh that `jax.set_mesh` sets."""
    mesh = systolic.slice_mesh("v6e", "2x2", fsdp=4)

    def doubled(x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(2 * x, jax.sharding.PartitionSpec(None, "fsdp"))

    cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("fsdp"))
    x = jax.ShapeDtypeStruct((512, 512), jnp.float32, sharding=cut)
    step = systolic.Step(fn=doubled, args=(x,), mesh=mesh)
    run = systolic.step(step, chip="v6e", topology="2x2")
    assert run.slice_run is not None
    assert [each.kind for each in run.slice_run.collectives] == ["all-to-all"]
    with pytest.raises(RuntimeError, match="mesh"):
        systolic.step(replace(step, mesh=None), chip="v6e", topology="2x2")


@pytest.mark.exhaustive
def test_a_step_on_v7x_whose_collectives_are_sparse_core_programs_in_loops(capsys: pytest.CaptureFixture[str]) -> None:
    on = ("--chip", "v7x", "--topology", "2x2x1", "--workers", "1", "-q")
    assert main(["step", f"{EXAMPLE}:train", *on, *SMALL]) == 0
    said = capsys.readouterr().out
    assert all(kind in said for kind in ("all-gather", "reduce-scatter", "SparseCores"))

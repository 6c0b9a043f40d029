"""The search over a function's static arguments: what can be chosen, what is kept, and what a result says of it."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import systolic
from systolic.accuracy.time_error import ProgramTraits
from systolic.cli import main
from systolic.compiler import NamedFunction
from systolic.store import (
    FunctionConfig,
    FunctionConfigError,
    FunctionSpec,
    Keyword,
    Subject,
    Trial,
    TrialStore,
    read_trials_file,
)
from systolic.support.untrusted import UntrustedError
from systolic.tuning import FunctionTuning, LeftOut, SavedTuningError
from systolic.tuning.function import combinations

SPEC = FunctionSpec(name="kernels.attention", arguments=("bfloat16 8,128", "int32 4 0123456789abcdef"))
SUBJECT = Subject.here(SPEC, "v6e")


def config(program: str = "a", **keywords: Any) -> FunctionConfig:
    named = tuple(Keyword(name=name, value=repr(value)) for name, value in keywords.items())
    return FunctionConfig(keywords=named, program=program * 32)


def trial(time_us: float, pallas: float = 1.0, **keywords: Any) -> Trial:
    # Bound by the matrix units and as long as what was checked: such a time has an error.
    traits = ProgramTraits(pallas_share=pallas, matrix_share=0.9, hbm_share=0.3, time_us=time_us, copies_per_us=0.01)
    return Trial(config=None, status="ok", simulated_us=time_us, function=config(**keywords), traits=traits)


def result(*trials: Trial, default: FunctionConfig | None = None) -> FunctionTuning:
    return FunctionTuning(
        fn=NamedFunction("math:hypot"),
        args=(),
        spec=SPEC,
        chip="v5e",
        trials=trials,
        default=default,
        left_out=(),
        considered=len(trials),
        compiled=len(trials),
        seconds=1.0,
        end="all",
    )


def test_every_combination_comes_once_and_the_function_as_it_is_first() -> None:
    found = list(combinations({"block": (128, 256, 128), "causal": (True,), "shape": ((8, 128), None)}))
    assert found[0] == ()
    assert len(found) == len(set(found)) == 1 + 2 * 1 * 2
    chosen = [FunctionConfig(keywords=each, program="0" * 32).arguments for each in found[1:]]
    assert {"block": 256, "causal": True, "shape": (8, 128)} in chosen


@pytest.mark.parametrize(
    "over",
    [
        {},
        {"block": ()},
        {"block": "128"},
        {"block": 128},
        {"block": (object(),)},
        {"a b": (1,)},
        {"a.b.c": (1,)},
        {"x": range(3000)},
    ],
)
def test_what_cannot_be_chosen_from_is_refused(over: Any) -> None:
    with pytest.raises(FunctionConfigError):
        list(combinations(over))


@pytest.mark.parametrize("value", ["__import__('os')", "1 +1", "x", "nan", "[1, 2", "'" + "a" * 300 + "'"])
def test_a_value_that_is_no_literal_is_not_kept(value: str) -> None:
    with pytest.raises(FunctionConfigError):
        Keyword(name="block", value=value)


def test_a_store_keeps_trials_of_functions_beside_those_of_products(tmp_path: Path) -> None:
    store, mine = TrialStore(tmp_path / "trials.sqlite"), [trial(10.0, block=128), trial(7.0, block=256), trial(9.0)]
    product = Subject.here(systolic.MatmulSpec.of(64, 128, 128, "bfloat16"), "v6e")
    store.keep_all([(SUBJECT, mine), (product, [Trial(config=None, status="ok", simulated_us=3.0)])])
    assert store.trials(SUBJECT) == sorted(mine, key=lambda each: each.simulated_us or 0.0)
    store.keep(SUBJECT, dataclasses.replace(mine[0], simulated_us=5.0))
    assert store.trials(SUBJECT)[0].simulated_us == 5.0
    assert len(store.trials(product)) == 1
    target = tmp_path / "trials.json"
    assert main(["table", "export", str(target), "--store", str(store.file), "-q"]) == 0
    assert dict(read_trials_file(target))[SUBJECT] == store.trials(SUBJECT)


@pytest.mark.parametrize(
    "changed",
    [
        {"function": None},
        {"function": {"keywords": [{"name": "block", "value": "f()"}], "program": "a" * 32}},
        {"function": {"keywords": [], "program": "not a digest"}},
    ],
)
def test_a_trial_of_a_stranger_is_judged(tmp_path: Path, changed: dict[str, Any]) -> None:
    store = TrialStore(tmp_path / "trials.sqlite")
    store.keep(SUBJECT, trial(10.0, block=128))
    target = tmp_path / "trials.json"
    assert main(["table", "export", str(target), "--store", str(store.file), "-q"]) == 0
    document = json.loads(target.read_text())
    document["rows"][0]["trials"][0].update(changed)
    target.write_text(json.dumps(document))
    assert main(["table", "import", str(target), "--store", str(tmp_path / "other.sqlite"), "-q"]) == 2


def test_a_trial_goes_with_what_it_is_of() -> None:
    with pytest.raises(UntrustedError):
        TrialStore(Path("never-written.sqlite")).keep(SUBJECT, Trial(config=None, status="ok", simulated_us=1.0))


def test_the_winner_is_given_as_keywords_and_as_a_partial() -> None:
    found = result(trial(1000.0, block=256), trial(2000.0), default=trial(2000.0).function)
    assert found.keywords == {"block": 256}
    assert (found.partial.keywords, found.partial.func(3.0, 4.0)) == ({"block": 256}, 5.0)
    assert found.speed_ratio == pytest.approx(2.0)
    assert found.verdict == "faster"
    nothing = result(Trial(config=None, status="refused", function=config(block=1)))
    assert (nothing.winner, nothing.speed_ratio, nothing.verdict) == (None, None, "not known")
    with pytest.raises(LookupError):
        _ = nothing.partial


def test_a_result_is_written_and_read_again_without_the_function() -> None:
    left_out = LeftOut(keywords=(Keyword(name="block", value="64"),), reason="it breaks a rule")
    found = result(trial(1000.0, block=256), trial(2000.0), default=trial(2000.0).function)
    found = dataclasses.replace(found, left_out=(left_out,))
    again = FunctionTuning.from_json(found.to_json())
    assert again == dataclasses.replace(found, fn=None)
    with pytest.raises(LookupError, match="from_json"):
        _ = again.partial
    assert FunctionTuning.from_json(found.to_json(), math.hypot).partial.keywords == {"block": 256}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"format": 1', '"format": 9', "format 1 is read here"),
        ('"trials": [', '"trials": 5, "more": [', "trials is not a list"),
        ('"end": "all"', '"end": "bored"', "is none of"),
        ('"simulated_us": 1000.0', '"simulated_us": -1.0', "not a time above 0"),
        ('"op": "function"', '"op": "sorcery"', "is unknown"),
    ],
)
def test_a_text_that_is_no_result_is_refused(old: str, new: str, said: str) -> None:
    text = result(trial(1000.0, block=256)).to_json()
    assert old in text
    with pytest.raises(SavedTuningError, match=said):
        FunctionTuning.from_json(text.replace(old, new))


@dataclasses.dataclass(frozen=True)
class Sizes:
    rows: int = 8
    columns: int = 128


@pytest.mark.exhaustive
def test_fields_of_a_record_are_given_as_a_whole_record() -> None:
    def cut(x: Any, *, sizes: Sizes | None = None) -> Any:
        return cut_by(x, sizes or Sizes(columns=256))

    def cut_by(x: Any, sizes: Sizes) -> Any:
        return x[: sizes.rows, : sizes.columns]

    keywords = (Keyword(name="sizes.rows", value="16"),)
    chosen = Trial(
        config=None, status="ok", simulated_us=1.0, function=FunctionConfig(keywords=keywords, program="a" * 32)
    )
    found = dataclasses.replace(result(chosen), fn=cut, args=(jax.ShapeDtypeStruct((64, 512), jnp.float32),))
    assert found.keywords == {"sizes.rows": 16}
    assert found.partial.keywords == {"sizes": Sizes(rows=16, columns=256)}
    assert found.partial(jnp.zeros((64, 512))).shape == (16, 256)


def test_differences_inside_the_error_of_one_kernel_are_none() -> None:
    trials = [trial(1000.0, block=256), trial(1001.0, block=128), trial(3000.0)]
    found = result(*trials, default=trials[2].function)
    assert found.level_trials == 1
    error = found.ratio_error_percent(trials[1])
    assert error is not None
    # Of two programs of XLA's the errors are independent: theirs say no less.
    mixed = result(*(dataclasses.replace(each, traits=trial(1.0, pallas=0.2).traits) for each in trials))
    other = mixed.ratio_error_percent(mixed.trials[1])
    assert other is None or other >= error
    assert trials[1].traits is not None
    unlike = dataclasses.replace(trials[1], traits=dataclasses.replace(trials[1].traits, unlike="SparseCores"))
    assert result(trials[0], unlike).level_trials is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["math.py:f"],
        ["512,512,512", "--over", "block=1,2"],
        ["512,512,512", "--arg", "f32[8]"],
        [f"{__file__}:config", "--over", "block"],
        [f"{__file__}:config", "--over", "block=1,2", "--measure", "2"],
        [f"{__file__}:config", "--over", "block=1,2", "--suite", "llm"],
    ],
)
def test_calls_that_make_no_sense_are_refused(arguments: list[str]) -> None:
    assert main(["tune", *arguments]) == 2


def test_a_function_without_choices_is_told_so() -> None:
    with pytest.raises(FunctionConfigError):
        systolic.tune(max)  # type: ignore[call-overload]

"""`rung kernels tune`: what may be varied gives the same results, the search finds what is quickest, and the table is obeyed."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.cli.main import main
from rung.errors import InputError
from rung.hardware.device import Device, pick
from rung.kernels import configs, tuned
from rung.kernels.tuned import Key, Trial, chosen, trying
from rung.kernels.variations import EACH, THREADS, refused, variations
from rung.measure import ROUNDS, SIGNED_RANK, judge
from rung.measure.clock import Block

RULE = {"ROWS": 8, "BLOCK": 256, "num_warps": 4}
ROW = {
    "gpu": "Some GPU", "arch": "sm90", "triton": "3.9", "kernel": "rms_norm_forward", "problem": "256 wide, bfloat16",
    "rule": RULE, "use": {**RULE, "num_warps": 2},
}  # fmt: skip
SMALL = {"rows": 24, "columns": 256, "classes": 300, "batch": 2, "heads": 8, "tokens": 5, "head dimension": 64}
FUNCTIONS = [
    "rms_norm", "add_rms_norm", "layer_norm", "silu_mul", "gelu_mul", "rope", "rope_interleaved", "cross_entropy",
]  # fmt: skip
NORMS = [name for name in FUNCTIONS if "norm" in name]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The user's table, not there yet; on some GPU, with some Triton. `forget` has it read again."""
    path = tmp_path / "kernels.toml"
    monkeypatch.setenv("RUNG_KERNELS", str(path))
    monkeypatch.setattr(tuned, "gpu_name", lambda device: "Some GPU")
    monkeypatch.setattr(tuned, "triton_version", lambda: "3.9")
    tuned.forget()
    yield path
    tuned.forget()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """What kernels were launched with."""
    from rung.kernels.families import cross_entropy, gated, layer_norm, rms_norm, rope

    found: list[dict[str, int]] = []

    class Recorded:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: Any) -> Any:
            return lambda *a, **named: (found.append(named), self.kernel[grid](*a, **named))[1]

    for family in (cross_entropy, gated, layer_norm, rms_norm, rope):
        monkeypatch.setattr(family, "wrap_triton", Recorded)
    return found


def asked(name: str, device: str) -> tuple[Trial, Any, Any]:
    """The problems of a function at a small shape, and its example and inputs."""
    from rung.kernels.examples import EXAMPLES
    from rung.ladder.kernel_tuning import _results

    example, trial = EXAMPLES[name], Trial()
    shape = tuple(SMALL[axis] for axis in example.axes)
    inputs = example.inputs(shape, torch.float32, device)
    with trying(trial):
        _results(example.call, inputs)
    return trial, example, inputs


@given(
    kernel=st.sampled_from(["rms_norm_backward", "rms_norm_forward_long", "silu_mul_forward", "rope_half_split"]),
    columns=st.integers(128, 1 << 17),
    warp=st.sampled_from([32, 64]),
    amd=st.booleans(),
)
def test_a_variation_differs_in_one_thing_and_fits_a_program(kernel: str, columns: int, warp: int, amd: bool) -> None:
    rule = {
        "rms_norm_backward": lambda: configs.row_backward(min(columns, configs.LONGEST_ROW_BACKWARD), warp),
        "rms_norm_forward_long": lambda: configs.row_forward(columns + configs.LONGEST_ROW, warp),
        "silu_mul_forward": lambda: configs.elementwise(columns, warp),
        "rope_half_split": lambda: configs.rotation(32, min(columns, 256), warp),
    }[kernel]()
    found = list(variations(kernel, rule, warp, amd))
    assert found
    assert len({tuple(sorted(config.items())) for config in found}) == len(found)
    for config in found:
        changed = [k for k in config if config[k] != rule.get(k)]
        assert len(changed) == 1
        assert ("waves_per_eu" in config) == (changed == ["waves_per_eu"])
        assert amd or changed != ["waves_per_eu"]
        assert config.get("HALF") == rule.get("HALF")
        assert config.get("BLOCK") == rule.get("BLOCK") or kernel in ("rms_norm_forward_long", "silu_mul_forward")
        if changed[0] in ("ROWS", "HEADS", "BLOCK", "num_warps"):
            tile = config.get("ROWS", 1) * config.get("HEADS", 1) * config.get("BLOCK", config.get("HALF", 1))
            assert config["num_warps"] * warp <= min(THREADS, tile)
            assert tile <= EACH * config["num_warps"] * warp


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.booleans())
def test_what_variations_lead_to_is_accepted(path: list[int], amd: bool) -> None:
    arch, rule = ("gfx942" if amd else "sm90"), configs.row_backward(3000, 64 if amd else 32)
    config = rule
    for step in path:
        found = list(variations("rms_norm_backward", config, 64 if amd else 32, amd))
        config = found[step % len(found)]
        assert refused("rms_norm_backward", rule, config, arch) == ""


@pytest.mark.parametrize(
    ("use", "why"),
    [
        ({**RULE, "BLOCK": 128}, "BLOCK = 128"),
        ({"num_warps": 2}, "ROWS = None"),
        ({**RULE, "ROWS": 3}, "ROWS = 3"),
        ({**RULE, "num_warps": 3}, "num_warps = 3"),
        ({**RULE, "num_warps": True}, "num_warps = True"),
        ({**RULE, "num_warps": "4"}, "num_warps = 4"),
        ({**RULE, "num_warps": 64}, "num_warps = 64"),
        ({**RULE, "waves_per_eu": 4}, "waves_per_eu = 4"),
        ({**RULE, "STAGES": 2}, "STAGES = 2"),
    ],
)
def test_what_no_search_finds_is_refused(use: dict[str, Any], why: str) -> None:
    """On an NVIDIA GPU, for a norm that keeps whole rows."""
    assert refused("rms_norm_forward", RULE, use, "sm90") == why


@pytest.mark.parametrize(("name", "long"), [*((name, False) for name in FUNCTIONS), *((name, True) for name in NORMS)])
def test_every_variation_is_launched_and_gives_the_same_results(
    name: str, long: bool, device: str, launches: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rung.ladder.kernel_tuning import _close, _results

    if long:  # every row is, to the norms
        monkeypatch.setattr(configs, "LONGEST_ROW", 100)
        monkeypatch.setattr(configs, "LONGEST_ROW_BACKWARD", 100)
    trial, example, inputs = asked(name, device)
    first = _results(example.call, inputs)
    assert len(trial.asked) == (1 if "rope" in name else 2)
    for key, rule in trial.asked.items():
        for config in variations(key.kernel, rule, 32, False):
            trial.using = {key: config}
            launches.clear()
            with trying(trial):
                found = _results(example.call, inputs)
            assert any(config.items() <= launch.items() for launch in launches), (key, config)
            assert all(_close(a, b) for a, b in zip(found, first, strict=True)), (key, config)


def test_other_results_are_seen(device: str) -> None:
    from rung.ladder.kernel_tuning import _close

    x = torch.randn(64, 64)
    assert _close(x, x.roll(1, 0).roll(-1, 0))
    assert not _close(x, x * 1.0001)
    assert not _close(x, torch.where(torch.arange(64) == 3, 0.0, x))
    assert not _close(x, x.clone().index_fill_(0, torch.tensor([5]), float("nan")))
    assert _close(x.bfloat16(), (x * 1.001).bfloat16())


class Pretended:
    """A timer by what a configuration is said to take, with some noise."""

    name = "events"

    def __init__(self, trial: Trial, takes: Any) -> None:
        self.trial, self.takes, self.count = trial, takes, 0

    def block(self, count: int) -> Block:
        config = next((c for key, c in self.trial.using.items() if key.kernel == "silu_mul_forward"), {})
        self.count += 1
        return Block([self.takes(config) * (1 + 1e-3 * ((self.count * 7 + k) % 5)) for k in range(count)], 0.0, count)


def searched(
    monkeypatch: pytest.MonkeyPatch, device: str, takes: Any, few: Any = None, before: Any = None
) -> list[Any]:
    """What tuning silu_mul finds where its configurations take what is said; few: with fewer rows."""
    from rung.kernels.examples import EXAMPLES
    from rung.ladder import kernel_tuning

    class Search(kernel_tuning._Search):
        def _timer(self, config: Any, make: Any, like: str = "") -> Any:
            self.trial.using[self.key] = config
            make()()
            return Pretended(self.trial, few if few and make is self.steps[-1] else takes)

    monkeypatch.setattr(kernel_tuning, "_Search", Search)
    monkeypatch.setattr(kernel_tuning, "SECONDS", 0.2)
    known = {}
    if before:
        trial = Trial()
        with trying(trial):
            EXAMPLES["silu_mul"].call(*EXAMPLES["silu_mul"].inputs((32, 256), torch.float32, device))
        known = {key: {**rule, **before} for key, rule in trial.asked.items()}
    example = EXAMPLES["silu_mul"]
    return list(kernel_tuning.tune("silu_mul", example, (32, 256), torch.float32, pick(device), set(), known))


def of_warps(*quick: int) -> Any:
    """Half the time with so many warps."""
    return lambda config: 500.0 if config.get("num_warps") in quick else 1000.0


def test_the_search_goes_on_from_what_is_quicker(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 8 rows of 256 (the flat 2048) with 8 warps: both the block and the warps have to change to get there."""
    best = {"BLOCK": 1024, "num_warps": 2}

    def takes(config: dict[str, int]) -> float:
        return 1000.0 * (1 + sum(abs(config.get(k, v * 4).bit_length() - v.bit_length()) for k, v in best.items()))

    forward, backward = searched(monkeypatch, device, takes)
    assert (forward.way, forward.outcome) == ("forward", "faster")
    assert {k: forward.use[k] for k in best} == best
    assert forward.speedup.speedup.value > 2
    assert forward.tried > 5
    assert (backward.use, backward.outcome) == (None, "shown")
    assert "nothing" in backward.why


def test_what_an_earlier_search_found_is_tried_however_far_it_is(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def takes(config: dict[str, int]) -> float:
        return 500.0 if (config.get("BLOCK"), config.get("num_warps")) == (256, 1) else 1000.0

    assert searched(monkeypatch, device, takes)[0].use is None
    monkeypatch.undo()
    found = searched(monkeypatch, device, takes, before={"BLOCK": 256, "num_warps": 1})[0]
    assert (found.use["BLOCK"], found.use["num_warps"]) == (256, 1)


def test_what_costs_where_there_are_fewer_rows_is_not_taken(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert searched(monkeypatch, device, of_warps(4))[0].use["num_warps"] == 4
    monkeypatch.undo()
    forward = searched(monkeypatch, device, of_warps(4), few=lambda c: 1500.0 - of_warps(4)(c))[0]
    assert (forward.use, forward.outcome) == (None, "shown")
    assert "num_warps=4 may cost more than 1% where there are fewer rows" in forward.why


def test_what_did_not_get_clear_is_neither_taken_nor_disproved(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rung.ladder import kernel_tuning

    shown = kernel_tuning._Search.shown
    monkeypatch.setattr(kernel_tuning._Search, "shown", lambda *a: dataclasses.replace(shown(*a), answer="undecided"))
    forward = searched(monkeypatch, device, of_warps(4))[0]
    assert (forward.use, forward.outcome) == (None, "unclear")


def test_what_gives_other_results_is_not_taken(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rung.ladder import kernel_tuning

    results = kernel_tuning._results

    def wrong(fn: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        using = tuned._trial.using.values() if tuned._trial else ()
        found = results(fn, inputs)
        return [x * 1.01 for x in found] if any(config["num_warps"] == 4 for config in using) else found

    monkeypatch.setattr(kernel_tuning, "_results", wrong)
    forward = searched(monkeypatch, device, of_warps(4))[0]
    assert forward.use is None
    assert "other results" in forward.why


def test_what_cannot_be_launched_is_told_and_left(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rung.kernels.families import gated

    plain = gated.wrap_triton

    class Fails:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: Any) -> Any:
            def launch(*arguments: Any, **named: Any) -> None:
                if named["num_warps"] == 4:
                    raise RuntimeError("out of resource: shared memory\nmore")
                plain(self.kernel)[grid](*arguments, **named)

            return launch

    monkeypatch.setattr(gated, "wrap_triton", Fails)
    forward = searched(monkeypatch, device, of_warps(4))[0]
    assert forward.use is None
    assert any("num_warps=4" in text and "out of resource: shared memory" in text for text in forward.failed)


def test_a_search_on_this_machine_ends_and_keeps_no_timer(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the interpreter or on a GPU: every part as it is."""
    import gc

    from rung.kernels.examples import EXAMPLES
    from rung.ladder import kernel_tuning

    monkeypatch.setattr(kernel_tuning, "LOOKS", 1)
    monkeypatch.setattr(kernel_tuning, "SECONDS", 0.2)
    before = sum(type(thing).__name__ in ("Clock", "Events", "Graph") for thing in gc.get_objects())
    example = EXAMPLES["silu_mul"]
    found = list(kernel_tuning.tune("silu_mul", example, (2, 64), torch.float32, pick(device), set(), {}))
    assert [row.way for row in found] == ["forward", "backward"]
    assert all(row.tried > 1 for row in found)
    gc.collect()
    assert sum(type(thing).__name__ in ("Clock", "Events", "Graph") for thing in gc.get_objects()) <= before


def test_a_launch_obeys_the_table_and_a_trial_does_not(file: Path) -> None:
    others = [{**ROW, "gpu": "Another"}, {**ROW, "triton": "3.8"}]
    file.write_text(tuned.text([ROW, *({**row, "use": {**RULE, "num_warps": 1}} for row in others)]))
    x = torch.ones(1, dtype=torch.bfloat16)
    assert chosen("rms_norm_forward", RULE, 256, x) == ROW["use"]
    assert chosen("rms_norm_forward", RULE, 200, x) == ROW["use"]
    assert chosen("rms_norm_forward", RULE, 100, x) == RULE
    assert chosen("rms_norm_backward", RULE, 256, x) == RULE
    assert chosen("rms_norm_forward", RULE, 256, x.float()) == RULE
    assert chosen("rms_norm_forward", RULE, 256, x, x) == RULE
    assert chosen("rms_norm_forward", {**RULE, "ROWS": 4}, 256, x) == {**RULE, "ROWS": 4}
    with trying(Trial()) as trial:
        assert chosen("rms_norm_forward", RULE, 256, x) == RULE
        trial.using[next(iter(trial.asked))] = {**RULE, "ROWS": 16}
        assert chosen("rms_norm_forward", RULE, 256, x)["ROWS"] == 16
    assert chosen("rms_norm_forward", RULE, 256, x) == ROW["use"]


def test_what_is_very_wide_is_one_problem_and_what_is_narrow_another(file: Path) -> None:
    x = torch.ones(1)
    with trying(Trial()) as trial:
        for width in (1 << 17, 1 << 27, 100_000, 1000):
            chosen("silu_mul_forward", RULE, width, x)
    assert [key.problem for key in trial.asked] == ["131072 wide, float32", "1024 wide, float32"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_kernel_is_launched_as_the_table_says(
    name: str, file: Path, device: str, launches: list[dict[str, int]]
) -> None:
    trial, example, inputs = asked(name, device)
    kernels = [(key, rule, next(variations(key.kernel, rule, 32, False))) for key, rule in trial.asked.items()]
    rows = [{**ROW, **key._asdict(), "rule": rule, "use": use} for key, rule, use in kernels]
    file.write_text(tuned.text(rows))
    tuned.forget()
    from rung.ladder.kernel_tuning import _results

    launches.clear()
    _results(example.call, inputs)
    for _, rule, use in kernels:
        assert any(use.items() <= launch.items() for launch in launches)
        assert not any(rule.items() <= launch.items() for launch in launches)


BROKEN = {
    "no TOML": "[[tuned",
    "another table": "tuned = 3",
    "half a row": "[[tuned]]\narch = 'sm90'",
    "no text": "\x00",
    "no rule": tuned.text([{**ROW, "rule": 3}]),
    "part of a row of the matrix": tuned.text([{**ROW, "use": {**RULE, "BLOCK": 128}}]),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_table_is_named_and_no_launch_fails_for_it(
    text: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    with pytest.warns(UserWarning, match=r"kernels\.toml is no table .*remove it.* by the rules"):
        assert chosen("rms_norm_forward", RULE, 256, torch.ones(1, dtype=torch.bfloat16)) == RULE
    assert main(["kernels", "list"]) == 3
    assert "kernels.toml is no table of launch configurations" in capsys.readouterr().err.replace("\n", " ")


def test_a_place_that_cannot_be_read_is_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "kernels.toml", Path("/dev/null")):
        monkeypatch.setenv("RUNG_KERNELS", str(place))
        assert tuned.rows() == []
    monkeypatch.setenv("RUNG_KERNELS", str(tmp_path))
    with pytest.raises(InputError, match="Is a directory"):
        tuned.rows()


def test_compiled_graphs_of_another_table_are_not_taken(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.compiler import config

    if not hasattr(config, "cache_key_tag"):
        pytest.skip("this torch has no tag for its caches")
    tags = []
    for table in ([], [ROW], [{**ROW, "use": {**RULE, "ROWS": 4}}]):
        file.write_text(tuned.text(table))
        tuned.forget()
        with config.patch(cache_key_tag="mine"):
            tuned.mark_caches()
            tuned.mark_caches()
            tags.append(config.cache_key_tag)
    assert tags[0] == "mine"
    assert len(set(tags)) == 3
    assert all(tag.count("rung-kernels-") == 1 for tag in tags[1:])


def decided(kernel: str, use: dict[str, int] | None, outcome: str = "faster") -> Any:
    from rung.ladder.kernel_tuning import Tuned

    faster = judge([0.1 + 0.001 * k for k in range(16)], looks=ROUNDS, method=SIGNED_RANK) if use else None
    key = Key(kernel, "256 wide, bfloat16", tuple(sorted(RULE.items())))
    return Tuned("rms_norm", "forward", key, (64, 256), RULE, use, outcome, "why", faster, 7, ["x: no"])


def gpu(name: str = "Some GPU") -> Device:
    return Device("cuda", 0, "nvidia", name, "sm90", 1 << 34, 100)


def test_the_table_keeps_what_others_found_and_drops_what_was_disproved(file: Path) -> None:
    from rung.ladder.tune_kernels import _save

    few, many = {**RULE, "num_warps": 2}, {**RULE, "num_warps": 8}
    _save(file, decided("rms_norm_forward", None, "shown"), gpu())
    assert not file.exists()
    for name, kernel in (
        ("Some GPU", "rms_norm_forward"),
        ("Another", "rms_norm_forward"),
        ("Some GPU", "layer_norm_forward"),
    ):
        _save(file, decided(kernel, few), gpu(name))
    _save(file, decided("rms_norm_forward", many), gpu())
    _save(file, decided("rms_norm_forward", None, "unclear"), gpu())
    rows = {(row["gpu"], row["kernel"]): row for row in tuned.rows(file)}
    assert len(rows) == 3
    assert rows["Some GPU", "rms_norm_forward"]["use"] == many
    assert rows["Some GPU", "rms_norm_forward"]["speedup"]["value"] == pytest.approx(1.11, abs=0.01)
    _save(file, decided("rms_norm_forward", None, "shown"), gpu())
    assert {(row["gpu"], row["kernel"]) for row in tuned.rows(file)} == set(rows) - {("Some GPU", "rms_norm_forward")}


def test_two_tunings_at_once_lose_nothing(file: Path) -> None:
    from rung.ladder.tune_kernels import _save

    children = []
    for name in "ab":
        child = os.fork()  # two processes that need not load torch again
        if not child:
            with contextlib.suppress(BaseException):
                for k in range(8):
                    _save(file, decided(f"rms_norm_{name}_{k}_long", {**RULE, "num_warps": 2}), gpu())
                os._exit(0)
            os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert len(tuned.rows(file)) == 16


@pytest.fixture
def tuning(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A GPU, and what tuning a function finds there, by its name."""
    from rung.ladder import tune_kernels

    finds: dict[str, Any] = {}

    def tune(name: str, *_: Any) -> Any:
        found = finds[name]
        if isinstance(found, BaseException):
            raise found
        yield found

    monkeypatch.setattr(tune_kernels, "pick", gpu)
    monkeypatch.setattr(tune_kernels, "INTERPRETED", False)
    monkeypatch.setattr(tune_kernels, "environment", lambda device: {})
    monkeypatch.setattr(tune_kernels, "tune", tune)
    return finds


def test_tuning_tells_saves_and_ends_at_its_budget(
    file: Path, device: str, tuning: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    tuning["rms_norm"] = decided("rms_norm_forward", {**RULE, "num_warps": 2})
    tuning["layer_norm"] = decided("layer_norm_forward", None, "shown")
    assert main(["kernels", "tune", "rms_norm,layer_norm", "--shape", "64x256"]) == 0
    told = capsys.readouterr()
    assert "✓ rms_norm forward (64 x 256, bfloat16): 1.1" in told.err
    assert "with num_warps 4 → 2 for rms_norm_forward [7 configurations, 1 not launched]" in told.err
    assert "1 of 2 kernels" in told.out
    assert str(file) in told.out.replace("\n", "")
    assert [row["kernel"] for row in tuned.rows()] == ["rms_norm_forward"]
    assert main(["kernels", "tune", "rms_norm", "--budget", "1e-9"]) == 0
    assert "The budget left out rms_norm" in capsys.readouterr().out
    assert main(["kernels", "list"]) == 0
    assert "1 for Some GPU with Triton 3.9" in capsys.readouterr().out
    tuning["rms_norm"] = decided("rms_norm_forward", None, "shown")
    assert main(["kernels", "tune", "rms_norm"]) == 0
    assert "why; the configuration of before is dropped" in capsys.readouterr().err
    assert tuned.rows() == []


def test_what_does_not_fit_the_memory_is_told_and_the_others_go_on(
    file: Path, device: str, tuning: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    tuning["rms_norm"] = torch.OutOfMemoryError("much")
    tuning["layer_norm"] = decided("layer_norm_forward", {**RULE, "num_warps": 2})
    assert main(["kernels", "tune", "rms_norm,layer_norm", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["failed"] == ["rms_norm at 16384 x 4096 does not fit the GPU's memory; give a smaller one by --shape."]
    assert [row["use"]["num_warps"] for row in found["kernels"]] == [2]


@pytest.mark.parametrize("place", ["/dev/null", "/proc/kernels.toml"])
def test_a_table_that_cannot_be_written_is_told_before_anything_is_measured(
    place: str,
    device: str,
    tuning: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tuning["rms_norm"] = AssertionError("tuned")
    monkeypatch.setenv("RUNG_KERNELS", place)
    assert main(["kernels", "tune", "rms_norm"]) == 3
    assert "have RUNG_KERNELS name" in capsys.readouterr().err.replace("\n", " ")
    assert not Path("/dev/null").is_file()


def test_a_link_stays_one(file: Path, tmp_path: Path, device: str, tuning: dict[str, Any]) -> None:
    (tmp_path / "there").mkdir()
    file.symlink_to(tmp_path / "there" / "shared.toml")
    tuning["rms_norm"] = decided("rms_norm_forward", {**RULE, "num_warps": 2})
    assert main(["kernels", "tune", "rms_norm"]) == 0
    assert file.is_symlink()
    assert len(tuned.rows()) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tune", "softmax"], "nothing to tune by the name of softmax"),
        (["tune", "rope", "--shape", "4x5"], r"has batch x heads x tokens x head dimension"),
        (["tune", "rope", "x=3"], "one argument too many"),
        (["tune", "rope"], "sees none here"),
        (["tune", "--arch", "sm90"], "--arch is of `rung kernels inspect`"),
        (["inspect", "--shape", "4x4"], "--shape is of `rung kernels tune`"),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    words: list[str], says: str, device: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available() and says == "sees none here":
        pytest.skip("there is a GPU")
    assert main(["kernels", *words]) == 2
    assert says in capsys.readouterr().err.replace("\n", " ")


def test_so_many_times_fewer_rows() -> None:
    from rung.kernels.examples import EXAMPLES

    assert EXAMPLES["rope"].fewer((8, 32, 4096, 128), 16) == (1, 32, 2048, 128)
    assert EXAMPLES["rms_norm"].fewer((100, 64), 16) == (6, 64)
    assert EXAMPLES["rms_norm"].fewer((1, 64), 16) == (1, 64)

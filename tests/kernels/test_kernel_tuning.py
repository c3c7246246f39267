"""`rung kernels tune`: what may be varied gives the same results, the search finds what is quickest, and the table is obeyed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.cli.main import main
from rung.errors import InputError, UsageError
from rung.hardware.device import Device, pick
from rung.kernels import configs, tuned
from rung.kernels.tuned import Key, Trial, chosen, trying
from rung.kernels.variations import EACH, THREADS, variations
from rung.measure.clock import Block
from rung.toml import as_toml, parse_toml

RULE = {"ROWS": 8, "BLOCK": 256, "num_warps": 4}
ROW = {"arch": "sm90", "kernel": "rms_norm_forward", "dtype": "bfloat16", "rule": RULE, "use": {**RULE, "num_warps": 2}}
SMALL = {"rows": 24, "columns": 256, "classes": 300, "batch": 24, "heads": 4, "tokens": 5, "head dimension": 16}
FUNCTIONS = [
    "rms_norm", "add_rms_norm", "layer_norm", "silu_mul", "gelu_mul", "rope", "rope_interleaved", "cross_entropy",
]  # fmt: skip


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The user's table, not there yet; what is written to it counts at once."""
    path = tmp_path / "kernels.toml"
    monkeypatch.setenv("RUNG_KERNELS", str(path))
    monkeypatch.setattr(tuned, "_arch", lambda device: "sm90")
    tuned.table.cache_clear()
    yield path
    tuned.table.cache_clear()


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


NORMS = [name for name in FUNCTIONS if "norm" in name]


@pytest.mark.parametrize(("name", "long"), [*((name, False) for name in FUNCTIONS), *((name, True) for name in NORMS)])
def test_every_variation_gives_the_same_results(
    name: str, long: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rung.ladder.kernel_tuning import _close, _results

    if long:  # every row is, to the norms
        monkeypatch.setattr(configs, "LONGEST_ROW", 100)
        monkeypatch.setattr(configs, "LONGEST_ROW_BACKWARD", 100)
    trial, example, inputs = asked(name, device)
    first = _results(example.call, inputs)
    assert len(trial.asked) == {"norm": 3}.get(name[-4:], 2 if "rope" not in name else 1)
    for key, rule in trial.asked.items():
        for config in variations(key.kernel, rule, 32, False):
            trial.using = {key: config}
            with trying(trial):
                found = _results(example.call, inputs)
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
    """A timer by what a configuration is said to take, with some noise. slow_small: what the best loses on fewer rows."""

    name = "events"

    def __init__(self, trial: Trial, kernel: str, takes: Any) -> None:
        self.trial, self.kernel, self.takes, self.count = trial, kernel, takes, 0

    def block(self, count: int) -> Block:
        config = next((c for key, c in self.trial.using.items() if key.kernel == self.kernel), {})
        self.count += 1
        return Block([self.takes(config) * (1 + 1e-3 * ((self.count * 7 + k) % 5)) for k in range(count)], 0.0, count)


def searched(
    monkeypatch: pytest.MonkeyPatch, device: str, takes: Any, kernel: str = "silu_mul_forward", few: Any = None
) -> list[Any]:
    """What tuning silu_mul finds where its configurations take what is said; few: with fewer rows."""
    from rung.kernels.examples import EXAMPLES
    from rung.ladder import kernel_tuning

    made: list[Any] = []
    search = kernel_tuning._Search

    def timer_for(step: Any, *_: Any) -> Pretended:
        small = made and step is made[-1].steps[1]
        return Pretended(made[-1].trial, kernel, few if small and few else takes)

    def kept(*arguments: Any) -> Any:
        made.append(search(*arguments))
        return made[-1]

    monkeypatch.setattr(kernel_tuning, "_Search", kept)
    monkeypatch.setattr(kernel_tuning, "timer_for", timer_for)
    monkeypatch.setattr(kernel_tuning, "SECONDS", 0.2)
    found = kernel_tuning.tune("silu_mul", EXAMPLES["silu_mul"], (32, 256), torch.float32, pick(device), set())
    return list(found)


def test_the_search_goes_on_from_what_is_quicker(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 8 rows of 256 (the flat 2048) with 8 warps: both the block and the warps have to change to get there."""
    best = {"BLOCK": 1024, "num_warps": 2}

    def takes(config: dict[str, int]) -> float:
        return 1000.0 * (1 + sum(abs(config.get(k, v * 4).bit_length() - v.bit_length()) for k, v in best.items()))

    forward, backward = searched(monkeypatch, device, takes)
    assert forward.way == "forward"
    assert {k: forward.use[k] for k in best} == best
    assert forward.speedup.speedup.value > 2
    assert forward.tried > 5
    assert backward.use is None
    assert "nothing" in backward.why


def test_what_is_slower_on_fewer_rows_is_not_taken(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def quick(config: dict[str, int]) -> float:
        return 500.0 if config.get("num_warps") == 4 else 1000.0

    def slow(config: dict[str, int]) -> float:
        return 2000.0 if config.get("num_warps") == 4 else 1000.0

    assert searched(monkeypatch, device, quick)[0].use["num_warps"] == 4
    monkeypatch.undo()
    forward = searched(monkeypatch, device, quick, few=slow)[0]
    assert forward.use is None
    assert "fewer rows" in forward.why


def test_what_gives_other_results_is_not_taken(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rung.ladder import kernel_tuning

    results = kernel_tuning._results

    def wrong(fn: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        using = tuned._trial.using.values() if tuned._trial else ()
        found = results(fn, inputs)
        return [x * 1.01 for x in found] if any(config["num_warps"] == 4 for config in using) else found

    monkeypatch.setattr(kernel_tuning, "_results", wrong)
    forward = searched(monkeypatch, device, lambda c: 500.0 if c.get("num_warps") == 4 else 1000.0)[0]
    assert forward.use is None
    assert "other results" in forward.why


def test_what_cannot_be_launched_is_told_and_left(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rung.ladder import kernel_tuning

    timer = kernel_tuning._Search._timer

    def fails(self: Any, config: dict[str, int], step: Any) -> Any:
        if config["num_warps"] == 4:
            raise RuntimeError("out of resource: shared memory\nmore")
        return timer(self, config, step)

    monkeypatch.setattr(kernel_tuning._Search, "_timer", fails)
    forward = searched(monkeypatch, device, lambda c: 500.0 if c.get("num_warps") == 4 else 1000.0)[0]
    assert forward.use is None
    assert any("num_warps=4" in text and "out of resource: shared memory" in text for text in forward.failed)


def test_a_launch_obeys_the_table_and_a_trial_does_not(file: Path) -> None:
    file.write_text(tuned.text([ROW, {**ROW, "arch": "gfx942", "use": {**RULE, "waves_per_eu": 2}}]))
    x = torch.ones(1, dtype=torch.bfloat16)
    assert chosen("rms_norm_forward", x, RULE) == ROW["use"]
    assert chosen("rms_norm_backward", x, RULE) == RULE
    assert chosen("rms_norm_forward", x.float(), RULE) == RULE
    assert chosen("rms_norm_forward", x, {**RULE, "BLOCK": 512}) == {**RULE, "BLOCK": 512}
    with trying(Trial()) as trial:
        assert chosen("rms_norm_forward", x, RULE) == RULE
        trial.using[next(iter(trial.asked))] = {**RULE, "ROWS": 16}
        assert chosen("rms_norm_forward", x, RULE)["ROWS"] == 16
    assert chosen("rms_norm_forward", x, RULE) == ROW["use"]


def test_a_kernel_is_launched_as_the_table_says(file: Path, device: str) -> None:
    """And gives what it gave."""
    trial, example, inputs = asked("rms_norm", device)
    plain = example.call(*inputs)
    key, rule = next(iter(trial.asked.items()))
    row = {"arch": "sm90", "kernel": key.kernel, "dtype": key.dtype, "rule": rule, "use": {**rule, "ROWS": 1}}
    file.write_text(tuned.text([row]))
    tuned.table.cache_clear()
    assert torch.allclose(example.call(*inputs), plain, rtol=1e-6)
    assert chosen(key.kernel, inputs[0], rule)["ROWS"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "[[tuned",
        "tuned = 3",
        "[[tuned]]\narch = 'sm90'",
        as_toml({"tuned": 1}),
        tuned.text([{**ROW, "use": {**RULE, "num_warps": 0}}]),
        tuned.text([{**ROW, "use": {**RULE, "LDS": 4}}]),
        tuned.text([{**ROW, "use": {**RULE, "num_warps": "4"}}]),
        tuned.text([{**ROW, "rule": 3}]),
        "\x00",
    ],
)
def test_a_broken_table_is_named_with_what_to_do(text: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(InputError, match=r"kernels\.toml is no table of launch configurations .*remove it"):
        chosen("rms_norm_forward", torch.ones(1), RULE)


def test_compiled_graphs_of_another_table_are_not_taken(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.compiler import config

    if not hasattr(config, "cache_key_tag"):
        pytest.skip("this torch has no tag for its caches")
    monkeypatch.setattr(config, "cache_key_tag", "mine")
    tuned.mark_caches()
    assert config.cache_key_tag == "mine"
    file.write_text(tuned.text([ROW]))
    tuned.table.cache_clear()
    tuned.mark_caches()
    tuned.mark_caches()
    first = config.cache_key_tag
    assert first.startswith("mine")
    assert first.count("rung-kernels-") == 1


def decided(use: dict[str, int] | None, kernel: str = "rms_norm_forward") -> dict[str, Any]:
    speedup = {"value": 1.071, "low": 1.06, "high": 1.08} if use else None
    return {"function": "rms_norm", "way": "forward", "kernel": kernel, "dtype": "bfloat16", "shape": [64, 256],
            "rule": RULE, "use": use, "speedup": speedup, "why": "faster", "tried": 5, "failed": []}  # fmt: skip


def test_the_table_keeps_what_others_found_and_drops_what_lost(file: Path) -> None:
    from rung.ladder.tuning_session import _save

    _save(decided(None), "sm90", "here")
    assert not file.exists()
    for arch, kernel in (("sm90", "rms_norm_forward"), ("gfx942", "rms_norm_forward"), ("sm90", "rms_norm_backward")):
        _save(decided({**RULE, "num_warps": 2}, kernel), arch, "here")
    _save(decided({**RULE, "num_warps": 8}), "sm90", "again")
    rows = {(row["arch"], row["kernel"]): row for row in tuned.rows()}
    assert len(rows) == 3
    assert rows["sm90", "rms_norm_forward"]["use"]["num_warps"] == 8
    assert rows["sm90", "rms_norm_forward"]["source"] == "again"
    assert parse_toml(file.read_text())["tuned"][0]["speedup"] == {"value": 1.071, "low": 1.06, "high": 1.08}
    _save(decided(None), "sm90", "here")
    assert {(row["arch"], row["kernel"]) for row in tuned.rows()} == set(rows) - {("sm90", "rms_norm_forward")}


def gpu() -> Device:
    return Device("cuda", 0, "nvidia", "Some GPU", "sm90", 1 << 34, 100)


def test_a_session_tells_saves_and_ends_at_its_budget(
    file: Path, device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rung.ladder import kernel_tuning, tuning_session

    def tune(name: str, example: Any, shape: Any, *_: Any) -> Any:
        key = Key(f"{name}_forward", "bfloat16", tuple(sorted(RULE.items())))
        use = {**RULE, "num_warps": 2} if name == "rms_norm" else None
        from rung.measure import ROUNDS, SIGNED_RANK, judge

        faster = judge([0.1 + 0.001 * k for k in range(16)], looks=ROUNDS, method=SIGNED_RANK) if use else None
        yield kernel_tuning.Tuned(name, "forward", key, shape, RULE, use, faster, "nothing is quicker", 7, ["x: no"])

    monkeypatch.setattr(tuning_session, "pick", gpu)
    monkeypatch.setattr(tuning_session, "INTERPRETED", False)
    monkeypatch.setattr(tuning_session, "environment", lambda device: {})
    monkeypatch.setattr(tuning_session, "tune", tune)
    assert main(["kernels", "tune", "rms_norm,layer_norm", "--shape", "64x256"]) == 0
    told = capsys.readouterr()
    assert "✓ rms_norm_forward (64 x 256, bfloat16), 7 configurations and 1 that could not be launched: 1.1" in told.err
    assert "num_warps 4 → 2" in told.err
    assert "layer_norm_forward (64 x 256, bfloat16)" in told.err
    assert "1 of 2 kernels" in told.out
    assert str(file) in told.out.replace("\n", "")
    assert [row["kernel"] for row in tuned.rows()] == ["rms_norm_forward"]
    assert main(["kernels", "tune", "rms_norm", "--budget", "1e-9"]) == 0
    assert "The budget left out rms_norm" in capsys.readouterr().out
    assert main(["kernels", "list"]) == 0
    assert "1 for sm90" in capsys.readouterr().out


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


def test_a_function_that_does_not_fit_says_which_and_what_to_do(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rung.ladder import tuning_session

    def tune(*_: Any) -> Any:
        raise torch.OutOfMemoryError("much")
        yield

    monkeypatch.setattr(tuning_session, "tune", tune)
    with pytest.raises(UsageError, match=r"rope at 4 x 4 does not fit .* --shape"):
        list(tuning_session._decided("rope", None, (4, 4), "float16", gpu(), set()))

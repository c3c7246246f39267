"""The page of a trace: the record that is drawn, what stands without a script, and that no name leaves its place."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from made_pages import HOSTILE, diff_page_of, document, page_of, trace

from rung.analysis.classified import classified
from rung.analysis.icicle import icicle
from rung.analysis.lanes import MOST, lanes
from rung.cli.main import main
from rung.report.embedded import embedded_json
from rung.report.table_html import html_table
from rung.report.templates import environment
from rung.report.trace_record import record
from rung.trace import read
from rung.trace.table import CURVES

DDP = Path(__file__).parents[1] / "data" / "ddp"
SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"


class Seen(HTMLParser):
    """The elements of a page with their attributes, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data


def drawn(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="record">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_record_has_each_kernel_where_and_as_long_as_the_trace_says(tmp_path: Path) -> None:
    found = trace(tmp_path)
    made = drawn(page_of(found))
    lane = next(lane for lane in made["groups"][0]["lanes"] if lane["side"] == "gpu")
    [row] = lane["rows"]
    ends, starts = 0, []
    for gap, dur in zip(row["gap"], row["dur"], strict=True):
        starts.append(ends + gap)
        ends += gap + dur
    events = classified(found).sort("ts")
    origin = lanes(found).origin_ns
    assert starts == (events["ts"] - origin).to_list()
    assert row["dur"] == events["dur"].to_list()
    names = [made["names"][made["kinds"]["name"][kind]] for kind in row["kind"]]
    assert names == events["name"].to_list()
    details = {made["details"][made["kinds"]["detail"][kind]] for kind in row["kind"]}
    assert "aten::mm 64x128 128x256 bf16" in details
    assert made["span"] == lanes(found).span_ns


def test_slices_together_say_how_many_they_are(tmp_path: Path) -> None:
    found = trace(tmp_path)
    few = lanes(found, most=dict.fromkeys(MOST, 3))
    made = record(few, pl.DataFrame(schema=CURVES), [], {})
    rows = [row for lane in made.groups[0].lanes if lane.side == "gpu" for row in lane.rows]
    assert (
        sum(count for row in rows for _, count, _ in row.together)
        + sum(len(row.dur) - len(row.together) for row in rows)
        == 40
    )
    assert few.together


def test_trees_and_curves_are_in_the_record(tmp_path: Path) -> None:
    found = trace(tmp_path)
    made = drawn(page_of(found))
    assert [tree["title"] for tree in made["trees"]] == ["By module", "By operator", "By line of Python"]
    whole = icicle(found, "operator")
    assert whole is not None
    assert made["trees"][1]["time"] == whole.nodes["time_ns"].to_list()
    titles = [curve["title"] for curve in made["groups"][0]["curves"]]
    assert "GPU 0: allocated by tensors" in titles


def test_it_says_where_the_allocator_numbers_the_gpus_otherwise(tmp_path: Path) -> None:
    said = "number the GPUs differently"
    assert said not in page_of(trace(tmp_path))
    made = document()
    for event in made["traceEvents"]:
        if event.get("cat") == "kernel":
            event["args"]["device"] = 2
    (tmp_path / "other.json").write_text(json.dumps(made))
    assert said in page_of(read(tmp_path / "other.json"))


def test_without_a_script_there_are_pictures_tables_and_findings(tmp_path: Path) -> None:
    page = page_of(trace(tmp_path))
    shown = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    for picture in ("bars", "timeline", "icicle", "roofline", "curves"):
        assert f'<svg class="{picture}"' in shown, picture
    assert 'data-table="kernels"' in shown
    assert "Cijk_MT64" in shown
    assert "Do first" in shown
    assert re.search(
        r"64x128 128x256 bf16: [\d.]+ TFLOP/s, .* of its roof \((memory|compute)\), [\d.]+ µs above it", shown
    )


def test_a_rank_on_which_others_waited_is_marked() -> None:
    made = drawn(page_of(read(DDP / "ranks2-slow-gpu")))
    assert [group["title"] for group in made["groups"]] == ["rank 0", "rank 1"]
    notes = [group["note"] for group in made["groups"]]
    assert any("others waited for it in" in note for note in notes)
    assert not all(notes)
    assert all(any(lane["side"] == "collectives" for lane in group["lanes"]) for group in made["groups"])


def test_the_figures_of_several_ranks_are_means_as_in_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(DDP / "ranks2-slow-gpu"), "--html", str(tmp_path / "page.html")]) == 0
    page, said = (tmp_path / "page.html").read_text(), capsys.readouterr().out
    text = re.sub(r"<[^>]+>|\s+", " ", page)
    step, kernels, idle = (
        re.search(pattern, said).group(1)  # type: ignore[union-attr]
        for pattern in (r"over 2 ranks: ([\d.]+ ms)", r"(\d+) kernels, ", r"idle +([\d.]+ ms) a step and GPU")
    )
    assert re.search(rf"A step +{step}", text)
    assert re.search(rf"GPU kernels a step +{kernels}", text)
    causes = re.findall(r"<tr><td>[a-z ]+</td><td class=\"figure\">([\d.]+) (ms|µs)</td>", page)
    assert "Time a step and GPU" in page
    milliseconds = sum(float(time) * (1 if unit == "ms" else 1e-3) for time, unit in causes)
    assert milliseconds == pytest.approx(float(idle.removesuffix(" ms")), rel=0.01)


def pages(tmp_path: Path) -> list[str]:
    evil = trace(tmp_path, names=HOSTILE)
    return [page_of(evil), diff_page_of(evil, trace(tmp_path, names=HOSTILE, slow=3.0))]


def test_names_of_strangers_stay_text(tmp_path: Path) -> None:
    calm = trace(tmp_path)
    quiet = [page_of(calm), diff_page_of(calm, trace(tmp_path, slow=3.0))]
    for page, usual in zip(pages(tmp_path), quiet, strict=True):
        kinds = {(tag, *sorted(name for name in attributes)) for tag, attributes in Seen(usual).elements}
        found = Seen(page)
        cells = {("td", "data-v"), ("td", "class", "data-v")}
        assert {(tag, *sorted(name for name in attributes)) for tag, attributes in found.elements} <= kinds | cells
        assert len(found.scripts) == len(Seen(usual).scripts)
        assert "{{ 7 * 7 }}{% raw %}" in page
        for control in "\x1b\x07\u202e\u2066":
            assert control not in page
        assert "<img" not in page
    assert HOSTILE[0] in drawn(pages(tmp_path)[0])["names"]


def test_a_page_asks_for_nothing_and_runs_its_own_scripts_only(tmp_path: Path) -> None:
    for page in pages(tmp_path):
        found = Seen(page)
        policy = next(attributes["content"] for tag, attributes in found.elements if attributes.get("http-equiv"))
        assert policy is not None
        assert "default-src 'none'" in policy
        assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]
        own = [text for text in found.scripts if not text.startswith("{")]
        hashes = {f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}" for text in own}
        assert set(re.findall(r"sha256-[\w+/=]+", policy)) == hashes
        loads = [attributes[key] for _, attributes in found.elements for key in ("src", "href") if key in attributes]
        assert all(str(url).startswith(("#", "data:,")) for url in loads)
        assert "@import" not in page
        assert "url(" not in page


@pytest.mark.parametrize("text", [*HOSTILE, "<!--", "]]>", "\\u003c", "é𝄞"])
def test_json_in_a_page_is_read_back_as_it_was(text: str) -> None:
    shown = str(embedded_json({"name": text}))
    assert not re.search("[<>&\u2028\u2029]", shown)
    assert json.loads(shown) == {"name": text}


def test_a_cell_has_its_own_value_where_what_is_shown_is_not_all_of_it() -> None:
    frame = pl.DataFrame(
        {
            "time_ns": [1_234_567, None],
            "kernel": ["void at::native::copy<int>(int)", "<b>"],
            "count": [3, 4],
            "never": [None, None],
        }
    )
    table = html_table("kernels", "?", frame)
    assert '<td class=number data-v="1234567">1.23 ms</td>' in table.html
    assert '<td class=kernel-name data-v="void at::native::copy&lt;int&gt;(int)">copy&lt;int&gt;</td>' in table.html
    assert "<td class=number>3</td>" in table.html
    assert "&lt;b&gt;" in table.html
    assert "never" not in table.html
    assert html_table("k", "?", pl.DataFrame({"a": range(250)})).more == 150


def test_the_command_writes_the_page_and_prints_what_it_printed(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document()))
    assert main(["analyze", str(path)]) == 0
    before = capsys.readouterr().out
    assert main(["analyze", str(path), "--html", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr()
    assert said.out == before
    assert "page.html" in said.err
    assert (tmp_path / "page.html").read_text().endswith("</html>")
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_all_tables_are_written_at_once(tmp_path: Path, kind: str, capsys: Any) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document()))
    assert main(["analyze", str(path), "--out", str(tmp_path / "tables"), "--format", kind]) == 0
    files = {file.name for file in (tmp_path / "tables").iterdir()}
    assert {f"kernels.{kind}", f"ops.{kind}", f"idle.{kind}", f"memory_timeline.{kind}"} <= files
    assert all(name.endswith(f".{kind}") for name in files)
    reader = pl.read_csv if kind == "csv" else pl.read_parquet
    kernels = reader(tmp_path / "tables" / f"kernels.{kind}")
    assert kernels["time_ns"].sum() == 800_000
    assert f"({len(files)} of " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--format", "csv"], "add --out"),
        (["--out", "FILE"], "is a file"),
        (["FILE", "--html", "x.html"], "--html takes one PATH"),
        (["FILE", "--out", "x"], "--out takes one PATH"),
    ],
)
def test_wrong_use_is_a_sentence(tmp_path: Path, options: list[str], said: str, capsys: Any) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document()))
    assert main(["analyze", str(path), *(str(path) if option == "FILE" else option for option in options)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document()))
    assert main(["analyze", str(path), "--html", str(path / "page.html")]) == 3
    assert "could not be written" in capsys.readouterr().err


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real traces are not here")
@pytest.mark.parametrize("name", ["mi300_vit", "mi300_sglang_decode", "v100_alexnet_train", "mi210_gpu_only"])
def test_real_traces_have_pages_that_say_what_the_tables_say(name: str) -> None:
    found = read(SHARED / f"{name}.json.gz")
    made = drawn(page_of(found))
    times = [
        dur
        for group in made["groups"]
        for lane in group["lanes"]
        if lane["side"] == "gpu"
        for row in lane["rows"]
        for dur in row["dur"]
    ]
    assert sum(times) == classified(found)["dur"].sum()


def test_a_recording_of_the_host_alone_does_not_speak_of_a_gpu(tmp_path: Path) -> None:
    rows = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 9}]
    (tmp_path / "host.json").write_text(json.dumps({"traceEvents": rows}))
    of_host, of_gpu = page_of(read(tmp_path / "host.json")), page_of(trace(tmp_path))
    assert "<h2>Where the time went</h2>" in of_host
    assert " (CPU time)</span>" in of_host
    assert " (CPU time)</span>" not in of_gpu
    assert "the parts are CPU time." in of_host  # the note of the breakdown
    assert re.search(r'<td class="kernel">aten::mm</td><td class="kind">matrix products</td>', of_host)
    assert "Operators that take the most time" not in of_gpu
    assert ('id="table-durations"' in of_host, 'id="table-durations"' in of_gpu) == (False, True)
    assert "<h2>Where the GPU's time went</h2>" in of_gpu
    assert ("GPU kernels" in of_host, "GPU kernels" in of_gpu) == (False, True)


def test_the_time_that_is_divided_is_not_called_the_recording(tmp_path: Path) -> None:
    """The GPU's window may be far shorter than what was recorded: one name for each, at every place."""
    page = page_of(trace(tmp_path))
    assert re.search(r"<h1><span>[^<]+ of the time from the first to the last GPU event</span>", page)
    assert re.search(r'class="barlabel"[^>]*>From the first to the last GPU event: ', page)
    assert "<dt>Whole recording</dt>" in page
    assert "of the recording" not in page


def test_texts_on_pages_are_sentences_without_backticks() -> None:
    filters = environment().filters
    assert filters["ticked"]("use `a<b>` & go") == "use <code>a&lt;b&gt;</code> &amp; go"
    assert filters["ticked"]("one ` alone") == "one ` alone"
    assert filters["sentence"]("replay the step") == "Replay the step"
    assert filters["sentence"]("aten::mm 40 %") == "aten::mm 40 %"
    assert filters["title_of"]("what_if") == "What if"


def test_a_table_leaves_out_empty_columns_and_gives_names_room() -> None:
    frame = pl.DataFrame({"kernel": ["gemm"], "detail": [""], "share": [0.5], "ranks": [None]})
    text = str(html_table("kernels", "", frame).html)
    assert re.findall('data-name="(.*?)"', text) == ["kernel", "share"]
    assert "<td class=kernel-name>gemm" in text

"""Published models: from the numbers of their configurations come the published parameters, and their work where it is published."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.analysis.estimate.configuration import Configuration, read
from rung.analysis.estimate.families import READERS, architecture, read_architecture
from rung.analysis.estimate.step import MODES, estimate
from rung.errors import InputError, RungError, UsageError
from rung.toml import parse_toml

PUBLISHED = parse_toml((Path(__file__).parents[1] / "data" / "published_models.toml").read_text())


def model(name, **change):
    return architecture(Configuration({**PUBLISHED[name]["config"], **change}, name))


def rounds_to(value, text):
    """Whether a number of parameters is the published one, in billions, to its last digit (or the next: some cut, some round)."""
    decimals = len(text.partition(".")[2])
    return abs(value / 1e9 - float(text)) <= 1.0001 * 10**-decimals


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_are_the_published_ones(name):
    row = PUBLISHED[name]
    found = model(name)
    assert found.parameters == row["exact"]
    assert rounds_to(found.parameters - row.get("apart", 0), row["total"]), found.parameters
    if "active" in row:
        assert rounds_to(found.active - row.get("active_apart", 0), row["active"]), found.active
    else:
        assert found.active == found.parameters


def test_at_least_twenty_models_of_every_kind_are_checked():
    kinds = {row["config"].get("model_type") or row["config"]["_class_name"] for row in PUBLISHED.values()}
    assert len(PUBLISHED) >= 50
    # Names for the sizes of a family that is checked under another name, or that no published model was at hand for.
    assert set(READERS) - kinds == {"kimi_k2", "mt5", "mbart", "xlm-roberta", "gemma3", "smollm3", "olmo"}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
@pytest.mark.parametrize("mode", MODES)
def test_every_model_is_estimated_in_every_mode_that_it_has(name, mode):
    found = model(name)
    if mode == "decode" and not found.decodes:
        with pytest.raises(UsageError, match="does not generate one token after another"):
            estimate(found, mode=mode)
        return
    result = estimate(found, mode=mode, seq=min(found.tokens or 128, 128) if found.decodes else None)
    assert result.flops == sum(part.flops for part in result.parts) > 0
    assert result.memory.total > 0
    assert bool(result.cache_per_sequence) == found.decodes
    # A product of each weight that a token uses, and attention: never less than the active matrices, once the source is small.
    if mode == "decode" and not found.source and found.source is not None:
        tied = not PUBLISHED[name]["config"].get("tie_word_embeddings", False)
        assert (
            result.flops >= 2 * (found.active - 2 * PUBLISHED[name]["config"]["vocab_size"] * found.hidden * tied) * 0.9
        )


# Figures that others publish of the work and the cache.
def test_dit_needs_the_papers_operations():
    """118.64 Gflops (multiplications and additions as one) for DiT-XL/2 at 256 x 256 (Peebles and Xie 2022, table 4)."""
    found = estimate(model("dit-xl-2-256"), mode="infer")
    assert found.flops / 2e9 == pytest.approx(118.64, rel=0.0005)


def test_caches_are_the_published_ones():
    """Elements a token of all layers: DeepSeek-V2 has 34.6 K (section 2.1.4 and appendix D.2: 60 x 576); bytes: Llama 3 70B 320 KiB in
    bf16 (80 layers, 8 heads of 128, 2 tensors)."""
    assert estimate(model("deepseek-v2"), mode="decode").cache_per_token == 2 * 60 * 576
    assert estimate(model("llama-3-70b"), mode="decode").cache_per_token == 320 * 1024


def test_vit_and_whisper_have_the_lengths_of_their_configurations():
    assert model("vit-base-16").tokens == 197
    whisper = estimate(model("whisper-large-v3"), mode="decode")
    assert (whisper.seq, whisper.source) == (448, 1500)
    # Self-attention caches 448 tokens, cross-attention the 1500 frames.
    assert whisper.cache_per_sequence == 2 * 32 * 2 * 1280 * (448 + 1500)


def test_an_encoder_does_not_run_again_for_each_token():
    t5 = model("t5-base")
    one = estimate(t5, mode="decode", seq=64, source=512)
    assert one.flops < 2 * t5.parameters
    assert estimate(t5, mode="infer", seq=64, source=512).flops > 512 * 2 * 12 * (4 * 768**2 + 2 * 768 * 3072)


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("mistral-7b", 32),
        ("gemma-2-9b", 21),
        ("gemma-3-1b", 22),
        ("gpt-oss-20b", 12),
        ("qwen2-7b", 0),
        ("llama-3-8b", 0),
    ],
)
def test_layers_have_the_window_that_the_family_gives_them(name, windows):
    """Gemma 2: every other layer (section 2); Gemma 3: five of six (section 2); gpt-oss: every other."""
    found = model(name)
    layers = {g.blocks: g.count for g in found.groups if g.layer}
    assert sum(n for blocks, n in layers.items() if any(getattr(b, "window", None) for b in blocks)) == windows


def test_layer_types_say_which_layers_have_a_window():
    kinds = ["sliding_attention"] * 20 + ["full_attention"] * 8
    late = model("qwen2-7b", use_sliding_window=True, sliding_window=4096, layer_types=kinds)
    assert [g.count for g in late.groups if g.layer] == [20, 8]
    assert model("qwen2-7b", sliding_window=0) == model("qwen2-7b")  # as transformers writes a window that is not used
    with pytest.raises(InputError, match="28 layers: there should be one for each layer"):
        model("qwen2-7b", use_sliding_window=True, sliding_window=4096, layer_types=kinds[1:])


def test_a_model_that_sees_images_is_counted_without_them_and_says_so(tmp_path):
    inner = {k: v for k, v in PUBLISHED["gemma-3-4b"]["config"].items() if k != "model_type"}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "text_config": inner, "vision_config": {}})
    )
    found = read_architecture(tmp_path)
    assert found.parameters == PUBLISHED["gemma-3-4b"]["exact"]
    assert "vision" in found.omitted[0]


def test_a_pipelines_folder_has_the_model_that_denoises(tmp_path):
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer" / "config.json").write_text(json.dumps(PUBLISHED["flux.1-dev"]["config"]))
    assert read_architecture(tmp_path).name == "FluxTransformer2DModel"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "has no fields"),
        ("{}", "has no model_type and no _class_name"),
        ('{"model_type": "rwkv"}', "describes a 'rwkv', which Rung cannot estimate; it can estimate"),
        ('{"model_type": ["llama"]}', "has no model_type"),
        ('{"model_type": "llama"}', "lacks hidden_size or n_embd or d_model"),
        ('{"model_type": "gemma3"}', "lacks text_config"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_what_is_no_configuration_is_told_in_a_sentence(tmp_path, text, said):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json") as error:
        read_architecture(tmp_path)
    assert said in str(error.value)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_field_that_is_missing_is_named(name):
    """Each number of a published configuration is either needed, and named where it is missing, or has a default."""
    config = PUBLISHED[name]["config"]
    for key in (k for k, v in config.items() if isinstance(v, int) and not isinstance(v, bool)):
        try:
            architecture(Configuration({k: v for k, v in config.items() if k != key}, "x.json"))
        except InputError as error:
            said = str(error)
        else:
            continue
        assert key in said
        assert "x.json" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": -4096}, "has -4096 as hidden_size: it should be a whole number"),
        ({"hidden_size": "4096"}, "has '4096' as hidden_size"),
        ({"hidden_size": True}, "has True as hidden_size"),
        ({"hidden_size": 4097}, "do not divide: give head_dim"),
        ({"num_key_value_heads": 7}, "should be a multiple"),
        ({"tie_word_embeddings": "no"}, "should be true or false"),
        ({"num_hidden_layers": 2**40}, "whole number from 1 to 2^31"),
        ({"num_hidden_layers": 2**30}, "no model has more than 10000 layers"),
    ],
)
def test_a_field_that_is_none_is_told(change, said):
    with pytest.raises(InputError) as error:
        model("llama-3-8b", **change)
    assert said in str(error.value)


VALUES = (
    st.none() | st.booleans() | st.integers(-2, 400) | st.text(max_size=3) | st.lists(st.integers(0, 9), max_size=3)
)


@given(st.data())
def test_any_fields_end_in_an_answer_or_a_sentence(data):
    name = data.draw(st.sampled_from(sorted(PUBLISHED)))
    config = PUBLISHED[name]["config"]
    keys = data.draw(
        st.lists(st.sampled_from([k for k in config if k not in ("model_type", "_class_name")]), max_size=4)
    )
    change = {key: data.draw(VALUES) for key in keys}
    try:
        found = architecture(Configuration({**config, **change}, "x.json"))
        result = estimate(found, mode="infer", seq=8, batch=1)
    except RungError as error:
        said = str(error)
    else:
        assert result.parameters >= result.active > 0
        return
    assert "\n" not in said


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(InputError, match=r"config\.json could not be read"):
        read(tmp_path)


def test_the_table_of_the_documentation_is_what_is_counted():
    text = (Path(__file__).parents[2] / "docs/internals/estimate.md").read_text()
    rows = {
        row[1]: row
        for line in text.splitlines()
        if len(row := [c.strip() for c in line.split("|")]) == 9 and row[1] in PUBLISHED
    }
    assert rows.keys() == PUBLISHED.keys()
    for name, row in rows.items():
        found = model(name)
        active = f" ({found.active:,} active)" if "active" in PUBLISHED[name] else ""
        assert row[3] == f"{found.parameters:,}{active}"
        tokens = found.tokens if found.tokens and not found.decodes and "flux" not in name else 256
        source = 192 if found.source is None or "stable" in name or "flux" in name else None
        assert row[5] == f"{estimate(found, mode='infer', seq=tokens, source=source).flops / 1e9:,.3f}"


def test_the_documentation_lists_every_kind_that_is_read():
    text = (Path(__file__).parents[2] / "docs/internals/estimate.md").read_text()
    listed = {
        name.strip()
        for line in text.splitlines()[17:28]
        if line.startswith("| ")
        for name in line.split("|")[2].split(",")
    }
    assert set(READERS) <= listed

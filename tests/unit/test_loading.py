import json
import os
import subprocess
import sys

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    BartConfig,
    BartForCausalLM,
    BertConfig,
    BertLMHeadModel,
    BloomConfig,
    BloomForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedTokenizerFast,
    RwkvConfig,
    RwkvForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from specaudit.core.errors import InputError
from specaudit.models.loading import check_same_tokenizer, load_model

TEXT = ["to be, or not to be: that is the question", "def main():\n    return 12345", "the rest is silence"]
OTHER_TEXT = ["ceci n'est pas une pipe", "la vie est un long fleuve tranquille", "return False # 99"]


def byte_pairs(text, size=300):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(text, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


def llama(vocabulary, seed=0):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def tokenizer():
    return byte_pairs(TEXT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    """A small model with safetensors weights."""
    path = tmp_path_factory.mktemp("models") / "small"
    llama(len(tokenizer)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def save(tmp_path, tokenizer):
    def saved(model, name="other", tokenizer=tokenizer):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return str(tmp_path / name)

    return saved


def refusal(name, **options):
    with pytest.raises(InputError) as caught:
        load_model(str(name), device=options.pop("device", "cpu"), **options)
    return str(caught.value)


def test_a_folder_is_loaded_ready_to_decode(folder, tokenizer):
    model = load_model(str(folder), device="cpu")
    assert model.name == str(folder)
    assert (model.vocabulary, model.max_context, model.dtype_name) == (len(tokenizer), 64, "float32")
    assert model.end_ids == frozenset([0])
    assert model.tokenizer("to be").input_ids == tokenizer("to be").input_ids
    assert not model.model.training
    ids = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        expected = llama(len(tokenizer)).eval()(input_ids=ids).logits
    torch.testing.assert_close(model.score_full(ids, [3]), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_dtype_can_be_asked_for(folder, dtype):
    assert load_model(str(folder), dtype=dtype, device="cpu").dtype_name == dtype


def test_the_content_hash_follows_the_weights(folder, save, tokenizer):
    first, again = load_model(str(folder), device="cpu"), load_model(str(folder), device="cpu")
    other = load_model(save(llama(len(tokenizer), seed=1)), device="cpu")
    assert first.content.startswith("sha256:")
    assert first.content == again.content != other.content


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c"])
def test_a_missing_folder(name):
    message = refusal(name, role="draft")
    assert message.startswith(f"--draft = '{name}': there is no such folder")
    assert "hub id" in message


def test_a_folder_without_a_configuration(tmp_path):
    assert "the folder has no config.json" in refusal(tmp_path)


def test_a_file_of_another_kind(tmp_path):
    file = tmp_path / "weights.bin"
    file.write_bytes(b"")
    assert "is a file of another kind" in refusal(file)


def test_a_missing_gguf_file(tmp_path):
    assert "there is no such file" in refusal(tmp_path / "model.gguf")


def test_a_broken_configuration(tmp_path):
    (tmp_path / "config.json").write_text("{")
    assert "cannot be loaded" in refusal(tmp_path)
    assert "check the files" in refusal(tmp_path)


def test_pickled_weights_are_refused_and_then_allowed_by_flag(folder, tmp_path, tokenizer):
    model = llama(len(tokenizer))
    model.config.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    message = refusal(tmp_path)
    assert "it has no safetensors weights" in message
    assert "--allow-pickle" in message
    allowed = load_model(str(tmp_path), device="cpu", allow_pickle=True)
    ids = torch.tensor([[5, 6, 7]])
    expected = load_model(str(folder), device="cpu").score_full(ids, [3])
    torch.testing.assert_close(allowed.score_full(ids, [3]), expected)


def test_an_encoder_decoder_is_refused(save):
    config = T5Config(vocab_size=300, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    assert "is an encoder-decoder" in refusal(save(T5ForConditionalGeneration(config)))


def test_a_model_that_looks_ahead_is_refused(save):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64, initializer_range=0.5,
    )  # fmt: skip
    assert "its outputs depend on later tokens" in refusal(save(BertLMHeadModel(config)))


def test_a_recurrent_model_is_refused(save):
    config = MambaConfig(vocab_size=300, hidden_size=16, state_size=4, num_hidden_layers=1, expand=2)
    assert "keep a state that cannot be rewound" in refusal(save(MambaForCausalLM(config)))


ROWLESS = {
    # counts positions by itself
    "bart": lambda: BartForCausalLM(
        BartConfig(
            vocab_size=300, d_model=16, decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=16, init_std=0.3,
            max_position_embeddings=64, is_encoder_decoder=False,
        )
    ),
    # builds its position bias from a padding mask
    "bloom": lambda: BloomForCausalLM(BloomConfig(vocab_size=300, hidden_size=16, n_layer=1, n_head=2)),
    # keeps a recurrent state and does not say so
    "rwkv": lambda: RwkvForCausalLM(
        RwkvConfig(vocab_size=300, hidden_size=16, num_hidden_layers=2, attention_hidden_size=16, context_length=32)
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ROWLESS)
def test_a_model_that_cannot_decode_rows_of_different_lengths_is_refused(save, kind):
    torch.manual_seed(0)
    assert "rows of different lengths" in refusal(save(ROWLESS[kind]()))


def test_local_attention_that_counts_from_the_end_is_refused(save):
    config = GPTNeoConfig(
        vocab_size=300, hidden_size=16, num_layers=2, num_heads=2, window_size=4, max_position_embeddings=64,
        attention_types=[[["global", "local"], 1]],
    )  # fmt: skip
    assert "its local attention layers" in refusal(save(GPTNeoForCausalLM(config)))


def test_weights_that_are_not_finite_are_refused(save, tokenizer):
    model = llama(len(tokenizer))
    torch.nn.init.constant_(model.model.norm.weight, float("nan"))
    assert "its logits are not finite" in refusal(save(model))


@pytest.mark.parametrize("dtype", ["float8", "double", ""])
def test_a_bad_dtype(folder, dtype):
    message = refusal(folder, dtype=dtype)
    assert message.startswith(f"--dtype = {dtype!r}: is not supported")
    assert "bfloat16" in message


@pytest.mark.parametrize("device", ["gpu", "tpu:0", "cuda:99", "meta", "cpu:x"])
def test_a_bad_device(folder, device):
    assert refusal(folder, device=device).startswith(f"--device = {device!r}: ")


def test_an_unknown_zoo_model():
    assert "is not in the zoo, which has" in refusal("zoo:huge")


def test_a_draft_of_another_tokenizer_is_refused(folder, save):
    other = byte_pairs(OTHER_TEXT)
    target = load_model(str(folder), device="cpu")
    draft = load_model(save(llama(len(other)), tokenizer=other), role="draft", device="cpu")
    with pytest.raises(InputError, match="its tokenizer splits text otherwise"):
        check_same_tokenizer(target, draft)


def test_a_draft_whose_tokens_have_other_ids_is_refused(folder, save, tokenizer, tmp_path):
    """The same split of the probed text, but two rare tokens have changed places."""
    target = load_model(str(folder), device="cpu")
    name = save(llama(len(tokenizer)))
    file = tmp_path / "other" / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    first, second = "\u0101", "\u0102"  # how byte-level tokenizers write the control bytes 1 and 2
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InputError, match="2 tokens have other ids"):
        check_same_tokenizer(target, load_model(name, role="draft", device="cpu"))


def test_a_padded_embedding_is_allowed(folder, save, tokenizer):
    target = load_model(str(folder), device="cpu")
    draft = load_model(save(llama(len(tokenizer) + 20)), role="draft", device="cpu")
    assert draft.vocabulary == target.vocabulary + 20
    check_same_tokenizer(target, draft)
    check_same_tokenizer(draft, target)


@pytest.fixture(scope="module")
def offline(folder, tmp_path_factory):
    """What a process without network finds, with one model in the hub's local cache."""
    home, commit = tmp_path_factory.mktemp("hub"), "0123456789abcdef0123456789abcdef01234567"
    repository = home / "hub" / "models--org--small"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file in folder.iterdir():
        (snapshot / file.name).write_bytes(file.read_bytes())
    code = """if True:
        import json
        from specaudit.core.errors import InputError
        from specaudit.models.loading import load_model
        model = load_model("org/small", device="cpu")
        try:
            load_model("org/unknown", role="draft", device="cpu")
        except InputError as error:
            message = str(error)
        print(json.dumps({"content": model.content, "vocabulary": model.vocabulary, "message": message}))
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "commit": commit}


def test_a_hub_id_is_loaded_from_the_local_cache(offline, tokenizer):
    assert offline["vocabulary"] == len(tokenizer)
    assert offline["content"] == f"commit:{offline['commit']}"


def test_a_hub_id_that_is_not_in_the_cache_is_refused_without_network(offline):
    assert offline["message"].startswith("--draft = 'org/unknown': is neither a local folder nor found")
    assert "in the local cache (HF_HUB_OFFLINE is set)" in offline["message"]

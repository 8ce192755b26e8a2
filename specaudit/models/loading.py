"""Models by name: a hub id, a folder, a ``.gguf`` file or ``zoo:tiny``. Safetensors only, and no remote code."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Literal, cast

import torch
from huggingface_hub import try_to_load_from_cache
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from specaudit.core.errors import NOT_FINITE, InputError
from specaudit.core.zoo import ZOO
from specaudit.models.causal import HuggingFaceModel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PROBE = "def main():\n    return 'Äpfel — 12,345 tokens'  # To be, or not to be? 你好\n"
Role = Literal["target", "draft"]


def load_model(
    name: str, *, role: Role = "target", dtype: str = "auto", device: str = "auto", allow_pickle: bool = False
) -> HuggingFaceModel:
    """Loads a causal language model and its tokenizer.

    Parameters
    ----------
    name : str
        A hub id, a folder, a ``.gguf`` file (also ``ORG/REPO/FILE.gguf`` on the hub), or ``zoo:tiny``.
    role : {"target", "draft"}
        Which of a bundled pair is meant, and which argument an error names.
    dtype : {"auto", "float32", "bfloat16", "float16"}
        "auto" is float32 on a CPU and the checkpoint's own type on a GPU.
    device : str
        "auto", "cpu", "cuda" or "cuda:N".
    allow_pickle : bool
        Load ``.bin`` weights, which can run code, where there are no safetensors.

    Raises
    ------
    InputError
        If the model cannot be found or read, is not causal, or keeps a state that cannot be rewound.
    """
    argument = f"--{role}"
    place, torch_dtype = _device(device), _dtype(dtype)
    if torch_dtype is None and place.type == "cpu":
        torch_dtype = torch.float32
    source, options = _source(name, role)
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False, **options)
        if getattr(config, "is_encoder_decoder", False):
            raise InputError(argument, name, "is an encoder-decoder", "use a decoder-only (causal) language model")
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=torch_dtype or "auto", trust_remote_code=False, weights_only=True,
            use_safetensors=None if allow_pickle or options else True, **options,
        )  # fmt: skip
    except InputError:
        raise
    except (OSError, ValueError, ImportError, KeyError, RuntimeError) as error:
        raise _explained(argument, name, error, allow_pickle) from error
    loaded = HuggingFaceModel(cast("Any", model).eval().to(place), tokenizer, name, _content(source, options))
    _check_causal(argument, loaded)
    _check_rows(argument, loaded)
    return loaded


def check_same_tokenizer(target: HuggingFaceModel, draft: HuggingFaceModel) -> None:
    """Raises unless the draft's ids mean what the target's do; a padded embedding is allowed.

    Speculative sampling compares probabilities of ids, so the two vocabularies must agree token by token.
    """
    remedy = "use a draft that was trained with the target's tokenizer"
    ids, other = (model.tokenizer(PROBE, add_special_tokens=False)["input_ids"] for model in (target, draft))
    if ids != other:
        raise InputError("--draft", draft.name, f"its tokenizer splits text otherwise than {target.name}'s", remedy)
    ours, theirs = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
    wrong = sorted(token for token, index in ours.items() if theirs.get(token, index) != index)
    missing = sorted(token for token in ours if token not in theirs)
    if wrong or missing:
        example = (wrong or missing)[0]
        count = len(wrong) + len(missing)
        raise InputError("--draft", draft.name, f"{count} tokens have other ids, for example {example!r}", remedy)


def _source(name: str, role: Role) -> tuple[str, dict[str, Any]]:
    argument = f"--{role}"
    if name.startswith("zoo:"):
        folder = ZOO / name.removeprefix("zoo:") / role
        if not folder.is_dir():
            known = ", ".join(sorted(f"zoo:{p.parent.name}" for p in ZOO.glob("*/target")))
            raise InputError(argument, name, f"is not in the zoo, which has {known}", "use one of those")
        return str(folder), {}
    path = Path(name)
    if name.endswith(".gguf"):
        if path.is_file():
            return str(path.parent), {"gguf_file": path.name}
        parts = name.split("/")
        if len(parts) == 3 and not path.parent.exists():
            return "/".join(parts[:2]), {"gguf_file": parts[2]}
        raise InputError(argument, name, "there is no such file", "check the path")
    if path.is_dir() and not (path / "config.json").is_file():
        raise InputError(argument, name, "the folder has no config.json", "name a Hugging Face model folder")
    if path.is_file():
        raise InputError(argument, name, "is a file of another kind", "name a model folder, a .gguf file or a hub id")
    if not path.exists() and (name.count("/") > 1 or name.startswith((".", "/", "~"))):
        raise InputError(argument, name, "there is no such folder", "check the path, or name a hub id as ORG/NAME")
    return name, {}


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError:
        raise InputError("--device", device, "is not a device", "use auto, cpu, cuda or cuda:N") from None
    if place.type == "cuda" and not (torch.cuda.is_available() and (place.index or 0) < torch.cuda.device_count()):
        raise InputError("--device", device, f"{torch.cuda.device_count()} CUDA devices are there", "use cpu or auto")
    if place.type not in ("cpu", "cuda"):
        raise InputError("--device", device, "is not supported", "use auto, cpu, cuda or cuda:N")
    return place


def _dtype(dtype: str) -> torch.dtype | None:
    if dtype != "auto" and dtype not in DTYPES:
        raise InputError("--dtype", dtype, "is not supported", f"use auto, {', '.join(DTYPES)}")
    return DTYPES.get(dtype)


def _explained(argument: str, name: str, error: Exception, allow_pickle: bool) -> InputError:
    text = str(error)
    if "safetensors" in text and not allow_pickle:
        return InputError(
            argument, name, "it has no safetensors weights",
            "convert it, or pass --allow-pickle if you trust whoever made the pickled file",
        )  # fmt: skip
    if "trust_remote_code" in text or "custom code" in text:
        return InputError(argument, name, "it needs code from its own repository, which is never run", "use another")
    if "Unrecognized configuration class" in text:
        return InputError(argument, name, "it is not a causal language model", "use a decoder-only language model")
    if isinstance(error, OSError) and not Path(name).exists():
        offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
        where = "in the local cache (HF_HUB_OFFLINE is set)" if offline else "on the hub or in the local cache"
        return InputError(
            argument, name, f"is neither a local folder nor found {where}", "check the name, or download it"
        )
    return InputError(
        argument, name, f"cannot be loaded ({type(error).__name__}: {text.strip()[:300]})", "check the files"
    )


@torch.inference_mode()
def _check_causal(argument: str, model: HuggingFaceModel) -> None:
    """A later token must not change an earlier one's logits: encoders pass transformers' own checks."""
    ids = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5]]) % model.vocabulary
    logits = model.score_full(ids, [4, 4])[:, :3].float()
    if not bool(torch.isfinite(logits).all()):
        raise InputError(argument, model.name, "its logits are not finite", NOT_FINITE)
    if not torch.allclose(logits[0], logits[1], atol=1e-2, rtol=1e-2):
        raise InputError(argument, model.name, "its outputs depend on later tokens", "use a causal language model")


@torch.inference_mode()
def _check_rows(argument: str, model: HuggingFaceModel) -> None:
    """Rows of different lengths must give what an ordinary pass gives: some models count positions by themselves."""
    ids = torch.arange(1, 11).reshape(2, 5) % model.vocabulary
    whole = model.score_full(ids, [5, 5]).float()
    fed = torch.tensor([[*ids[0, 3:].tolist(), 0, 0], ids[1, 1:].tolist()], device=model.device)
    remedy = "use a model whose attention takes positions and a mask, such as a llama"
    try:
        rows = model.open_rows(2, 8)
        rows.read([ids[0, :3].tolist(), ids[1, :1].tolist()])
        logits = rows.forward(fed).float()
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        problem = f"it cannot decode rows of different lengths ({type(error).__name__}: {str(error).strip()[:100]})"
        raise InputError(argument, model.name, problem, remedy) from error
    drift = torch.cat([logits[0, :2] - whole[0, 3:], logits[1] - whole[1, 1:]]).abs().mean()
    # Rounding, of half precision too, is far below a tenth of the logits' spread; a wrong position is far above.
    if not bool(drift <= 0.1 * whole.std()):
        raise InputError(argument, model.name, "it gives other logits to rows of different lengths", remedy)


def _content(source: str, options: dict[str, Any]) -> str:
    """A hub commit, or a hash of the weight files' names, sizes, first and last mebibyte."""
    folder = Path(source)
    if not folder.is_dir():
        # Configurations no longer say which commit they came from; the hub's cache keeps each in a folder of its name.
        cached = try_to_load_from_cache(source, options.get("gguf_file", "config.json"))
        return f"commit:{Path(cached).parent.name if isinstance(cached, str) else 'unknown'}"
    files = (
        [folder / options["gguf_file"]]
        if options
        else sorted(folder.glob("*.safetensors")) + sorted(folder.glob("*.bin"))
    )
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(1 << 20))
            stream.seek(max(0, size - (1 << 20)))
            digest.update(stream.read())
    return "sha256:" + digest.hexdigest()[:16]

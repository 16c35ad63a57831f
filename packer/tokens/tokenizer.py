"""Tokenizers behind one seam: files of Hugging Face's `tokenizers`, of sentencepiece, and plain bytes.

Nothing is ever downloaded: a name that is no file is refused. The tokenizer itself adds no special tokens; ids before
and behind a document are put there by number.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from packer.text import Text
from packer_reader.errors import MissingError, SampleError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BYTES", "Tokenizer", "open_tokenizer", "tokenized"]

BYTES = "bytes"
"""The tokenizer that needs no file: the 256 bytes of UTF-8, and an end of text."""
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]", "<|im_end|>")
"""Special tokens that are taken for the end of a document, the first that there is."""

Ids = npt.NDArray[np.unsignedinteger[Any]]


class Tokenizer(Protocol):
    """Documents to ids, one process at a time."""

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, without any of its own around them.

        Raises:
            SampleError: the library failed.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""


def tokenized(
    tokenizer: str = BYTES, *, bos: str | int | None = None, eos: str | int | None = "", **options: Any
) -> Text:
    """How text becomes tokens, with what a tokenizer's file says of itself.

    Args:
        tokenizer: path of a tokenizer.json or a sentencepiece .model; or `bytes`.
        bos: id, or the token itself, before each document; None for none.
        eos: the same behind each document; left empty it is the tokenizer's own end of text, where it is known.
        options: see `Text`.

    Raises:
        UsageError: there is no such file, or it is no tokenizer.
        MissingError: its library is not installed.

    Example:
        packer.build("docs.jsonl", "out", packer.Recipe(text=packer.tokenized("tok.json", pack="concat", seq_len=2048)))
    """
    if tokenizer == BYTES:
        end = 256 if eos == "" else _id_of(eos, "eos", {})
        options.setdefault("pad", 256 if end is None else end)
        return Text(bos=_id_of(bos, "bos", {}), eos=end, **options)
    path = Path(tokenizer)
    if _is_file(path / "tokenizer.json"):
        path /= "tokenizer.json"
    if not _is_file(path):
        raise UsageError(
            f"--tokenizer {tokenizer[:200]!r} is no file, and names are never downloaded: make the file once, with "
            f'`python -c "from tokenizers import Tokenizer; Tokenizer.from_pretrained({tokenizer[:200]!r})'
            ".save('tok.json')\"`, "
            "or train one with `packer tokenizer train`"
        )
    opened = _open(path, allow_special=options.get("allow_special", False))
    end = opened.end if eos == "" else _id_of(eos, "eos", opened.ids)
    options.setdefault("pad", end if end is not None else 0)
    return Text(
        tokenizer=opened.kind,
        digest=_digest(path),
        vocabulary=opened.vocabulary,
        bos=_id_of(bos, "bos", opened.ids),
        eos=end,
        file=str(path.absolute()),
        **options,
    )


def _id_of(token: str | int | None, name: str, ids: dict[str, int]) -> int | None:
    """An id from what was given: digits are a number, and anything else is a token."""
    if token is None or isinstance(token, int):
        return token
    if re.fullmatch("[0-9]{1,10}", token):
        return int(token)
    if token in ids:
        return ids[token]
    raise UsageError(f"--{name} is {token[:40]!r}, it must be an id, or a token of the tokenizer's vocabulary")


@lru_cache(maxsize=2)
def open_tokenizer(kind: str, path: str, digest: str, *, allow_special: bool = False) -> Tokenizer:
    """The tokenizer of a recipe, once per process.

    Args:
        kind: `bytes`, `tokenizers` or `sentencepiece`.
        path: of its file.
        digest: SHA-256 that the file had when the recipe was made.
        allow_special: see `Text`.

    Raises:
        UsageError: its file cannot be read, or is another one by now.
        MissingError: its library is not installed.
    """
    if kind == BYTES:
        return _Bytes()
    if _digest(Path(path)) != digest:
        raise UsageError(f"--tokenizer {path!r} has changed since the build began: put it back, or start over")
    return _open(Path(path), allow_special=allow_special)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long
        return False


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"--tokenizer {str(path)!r} cannot be read ({error.strerror}): check the path") from None


def _open(path: Path, *, allow_special: bool) -> _HuggingFace | _SentencePiece:
    if path.suffix == ".model":
        if allow_special:
            raise UsageError("--allow-special: sentencepiece takes no special tokens out of text; leave it out")
        return _SentencePiece(path)
    return _HuggingFace(path, allow_special=allow_special)


class _Bytes:
    """A token for each byte of UTF-8."""

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(one for one in ids if one < 256).decode("utf-8", "replace")


class _HuggingFace:
    """A tokenizer.json."""

    kind = "tokenizers"

    def __init__(self, path: Path, *, allow_special: bool) -> None:
        # One thread: several processes convert, and a fork behind threads of tokenizers would hang.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            from tokenizers import Tokenizer as Library  # noqa: PLC0415 - an extra
        except ImportError:
            raise MissingError(f"{str(path)!r} needs tokenizers: pip install 'packer-data[text]'") from None
        try:
            self._library: Any = Library.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise UsageError(f"{str(path)!r} is no tokenizer.json ({error}): save one with Tokenizer.save") from None
        self._library.encode_special_tokens = not allow_special
        self._library.no_truncation()
        self._library.no_padding()
        self.ids: dict[str, int] = self._library.get_vocab(with_added_tokens=True)
        self.vocabulary = max(self.ids.values(), default=-1) + 1
        if not self.vocabulary:
            raise UsageError(f"{str(path)!r} is no tokenizer.json that can be used: its vocabulary is empty")
        special = {token.content for token in self._library.get_added_tokens_decoder().values() if token.special}
        self.end = next((self.ids[name] for name in _ENDS if name in special), None)
        # Models that have special tokens among their own pieces (Unigram, WordLevel) find them in text all the same.
        spelled = {} if allow_special else {self.ids[name]: name for name in special if self._spells(name)}
        self._spelled = {number: name for number, name in spelled.items() if name != self._unknown()}

    def _spells(self, name: str) -> bool:
        """Whether the name of a special token in a text becomes that token, although it should be plain text."""
        return self.ids[name] in self._library.encode(f"a {name} b", add_special_tokens=False).ids

    def _unknown(self) -> str | None:
        """The token of what the model does not know, which is no special token that a text could spell."""
        model = json.loads(self._library.to_str()).get("model", {})
        number = model.get("unk_id")
        name = model.get("unk_token")
        return name if number is None else next((token for token, one in self.ids.items() if one == number), name)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        found = self._encoded(texts)
        if self._spelled:
            specials = np.array(sorted(self._spelled), np.uint32)
            for ids in found:
                odd = ids[np.isin(ids, specials)]
                if len(odd):
                    raise SampleError(
                        "unsupported",
                        f"it spells {self._spelled[int(odd[0])]!r}, which this tokenizer cannot take as plain text "
                        "(--allow-special takes it as that token)",
                    )
        return found

    def _encoded(self, texts: Sequence[str]) -> list[Ids]:
        try:
            found = self._library.encode_batch(list(texts), add_special_tokens=False)
        except BaseException as error:
            if type(error).__name__ == "PanicException" or isinstance(error, Exception):
                raise SampleError("unsupported", "the tokenizer failed on it") from None
            raise
        return [np.array(one.ids, np.uint32) for one in found]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._library.decode(list(ids), skip_special_tokens=False))


class _SentencePiece:
    """A sentencepiece .model."""

    kind = "sentencepiece"

    def __init__(self, path: Path) -> None:
        try:
            from sentencepiece import SentencePieceProcessor  # noqa: PLC0415 - an extra
        except ImportError:
            raise MissingError(f"{str(path)!r} needs sentencepiece: pip install 'packer-data[text]'") from None
        try:
            self._library: Any = SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as error:
            raise UsageError(f"{str(path)!r} is no sentencepiece model ({error}): give the .model file") from None
        self.vocabulary = int(self._library.vocab_size())
        self.ids = {self._library.id_to_piece(number): number for number in range(self.vocabulary)}
        self.end = end if (end := int(self._library.eos_id())) >= 0 else None

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        try:
            found = self._library.encode(list(texts), out_type=int, num_threads=1)
        except RuntimeError:
            raise SampleError("unsupported", "the tokenizer failed on it") from None
        return [np.array(one, np.uint32) for one in found]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._library.decode(list(ids)))

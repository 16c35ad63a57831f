"""Stored tokens as text again, by the tokenizer that the store keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packer.text import Text
from packer.tokens.tokenizer import open_tokenizer
from packer_reader.format.names import tokenizer_file

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from packer_reader.stores.base import Store

__all__ = ["text_of"]


def text_of(store: Store) -> Callable[[npt.NDArray[np.integer[Any]]], str] | None:
    """What makes text of a store's tokens, int (n,); None for a store of anything else.

    Raises:
        MissingError: its library is not installed.
        UsageError: the store's copy of the tokenizer is damaged.
    """
    document = store.manifest.recipe.get("text")
    if not document:
        return None
    text = Text.from_json(document)
    tokenizer = open_tokenizer(text.tokenizer, str(store.path / tokenizer_file(text.tokenizer)), text.digest)
    return lambda tokens: tokenizer.decode(tokens.tolist())

"""The data set card of a folder of splits. Pure.

Hugging Face `load_dataset(folder)` guesses the format of split folders by counting extensions, and a store with one
shard has more `.json` files than `.tar` files; the card's header tells it where the shards are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CARD", "card_text"]

CARD = "README.md"


def card_text(splits: Sequence[str]) -> str:
    """The card of a folder that holds these splits as tar stores; always the same text for the same splits."""
    files = "".join(f"  - split: {name}\n    path: {name}/*.tar\n" for name in sorted(splits))
    return (
        f"---\nconfigs:\n- config_name: default\n  data_files:\n{files}---\n\n"
        f"One store of WebDataset shards per split: {', '.join(sorted(splits))}. Written by packer; read it with "
        "`packer_reader`, `webdataset`, or `datasets.load_dataset` on this folder.\n"
    )

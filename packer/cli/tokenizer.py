"""`packer tokenizer`."""

from __future__ import annotations

import json

import click

from packer.cli.options import output_options

__all__ = ["tokenizer"]


@click.group()
def tokenizer() -> None:
    """Make tokenizers, on this machine.

    \b
    Example:
      packer tokenizer train docs.jsonl books/ --vocab 32000 -o tokenizer.json
    """


@tokenizer.command()
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@click.option("-o", "--output", required=True, metavar="FILE", help="The tokenizer.json to write.")
@click.option("--vocab", type=int, default=32_000, show_default=True, help="Ids, with the 256 bytes and <|endoftext|>.")
@click.option("--limit", metavar="SIZE", help="Take documents evenly, about so much text; all when left out.")
@click.option("--text-field", default="text", show_default=True, metavar="NAME", help="Key or column of the text.")
@click.option(
    "--doc-sep",
    default="file",
    show_default=True,
    metavar="file|line|blank",
    help="What ends a document of a .txt file.",
)
@output_options
def train(
    files: tuple[str, ...], output: str, vocab: int, limit: str | None, *, as_json: bool, quiet: bool, **text: str
) -> None:
    """Train a byte-level BPE tokenizer on FILES: the same bytes every time.

    \b
    Example:
      packer tokenizer train docs.jsonl books/ --vocab 32000 -o tokenizer.json
    """
    from packer.text import Text
    from packer.tokens.train import train_tokenizer
    from packer_reader.sizes import format_bytes, parse_bytes

    how = Text(field=text["text_field"], separator=text["doc_sep"], errors="replace", max_document=1 << 30)  # type: ignore[arg-type]
    size = parse_bytes(limit, "--limit") if limit else None
    trained = train_tokenizer(files, output, vocab, how, limit=size, quiet=quiet or as_json)
    if as_json:
        found = {"tokenizer": output, "vocabulary": trained.vocabulary, "documents": trained.documents}
        click.echo(json.dumps(found | {"bytes": trained.bytes, "skipped": trained.skipped, "problem": trained.problem}))
    else:
        click.echo(
            f"{output}: {trained.vocabulary:,} ids from {trained.documents:,} documents, "
            f"{format_bytes(trained.bytes)}, {trained.skipped:,} skipped"
            + f" ({trained.problem})"
            * bool(trained.skipped)
        )
        if trained.vocabulary < vocab:
            click.echo(f"fewer ids than the {vocab:,} asked for: there is too little text for more")

"""Build or read one data set with one peer, and say in one JSON line how long that took.

    python scripts/peers.py ffcv|webdataset|mds|litdata jpg|jpg512|raw IMAGES OUT
    python scripts/peers.py ffcv|webdataset|litdata jpg|jpg512|raw --read OUT [--crop random|centre]

The second reads what the first has built: shuffled epochs of uint8 batches of 256, by two processes or threads; the
line has the rate of each epoch. The crops, to 224x224, are FFCV's own: RandomResizedCrop, and the middle without a
change of size.

IMAGES holds one folder of pictures for each class; OUT is a new folder. jpg stores pictures stretched to 256x256 as
JPEG of quality 90, jpg512 to 512x512; raw stores the pixels of a 224x224 centre crop, uncompressed. All peers are given
the same samples in one random order. FFCV, MDS and litdata use two processes; webdataset's writer has only its own.

The peers live in an environment apart from the project's (Python 3.11, as root on Debian):

    apt-get update && apt-get install -y --no-install-recommends g++ libopencv-dev libturbojpeg0-dev pkg-config
    python -m venv .peers
    .peers/bin/pip install "setuptools<81" "torch==2.13.0" numpy opencv-python-headless webdataset mosaicml-streaming \
        litdata numba pytorch_pfn_extras fastargs pandas assertpy tqdm psutil terminaltables
    .peers/bin/pip install --no-build-isolation --no-deps "ffcv==1.0.2"

Take a CPU build of torch. MDS imports torchvision, whose build for CUDA stops at "operator torchvision::nms does not
exist" beside it. No peer uses that operator, so leaving out its registration is enough:

    sed -i "/^    _meta_registrations,$/d" .peers/lib/python3.11/site-packages/torchvision/__init__.py
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import random
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cv2.typing import MatLike

WORKERS = 2
SIDES, QUALITY, RAW_SIDE = {"jpg": 256, "jpg512": 512}, 90, 224
SHARD_BYTES = 1 << 26

cv2.setNumThreads(1)  # here, so that processes started afresh have it too


def labelled_files(images: Path) -> list[tuple[str, int]]:
    """Each picture with the number of its class folder, in an order that is random but always the same."""
    folders = sorted(folder for folder in images.iterdir() if folder.is_dir())
    found = [(str(file), label) for label, folder in enumerate(folders) for file in sorted(folder.iterdir())]
    random.Random(0).shuffle(found)
    return found


def read(path: str) -> MatLike:
    picture = cv2.imread(path)
    if picture is None:
        raise ValueError(f"{path}: not a picture that OpenCV reads")
    return picture


def stretched(picture: MatLike, side: int) -> MatLike:
    return cv2.resize(picture, (side, side), interpolation=cv2.INTER_AREA)


def cropped(picture: MatLike) -> MatLike:
    height, width = picture.shape[:2]
    scale = RAW_SIDE / min(height, width)
    width, height = round(width * scale), round(height * scale)
    scaled = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
    top, left = (height - RAW_SIDE) // 2, (width - RAW_SIDE) // 2
    return scaled[top : top + RAW_SIDE, left : left + RAW_SIDE]


def rgb(path: str, mode: str) -> MatLike:
    small = stretched(read(path), SIDES[mode]) if mode in SIDES else cropped(read(path))
    return cv2.cvtColor(small, cv2.COLOR_BGR2RGB)


def stored(path: str, mode: str) -> bytes | MatLike:
    """What a peer that doesn't encode pictures itself is given: the bytes of a JPEG, or pixels."""
    if mode == "raw":
        return rgb(path, mode)
    return cv2.imencode(".jpg", stretched(read(path), SIDES[mode]), [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()


def record(item: tuple[str, int], mode: str) -> dict[str, Any]:
    path, label = item
    return {"image": stored(path, mode), "label": label}


class Pictures:
    """Pixels and labels by index, which is how FFCV asks for them."""

    def __init__(self, items: list[tuple[str, int]], mode: str) -> None:
        self.items, self.mode = items, mode

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[MatLike, int]:
        path, label = self.items[index]
        return rgb(path, self.mode), label


def build_ffcv(items: list[tuple[str, int]], mode: str, out: Path) -> float:
    from ffcv.fields import IntField, RGBImageField  # type: ignore[import-not-found]
    from ffcv.writer import DatasetWriter  # type: ignore[import-not-found]

    fields = {
        "image": RGBImageField(write_mode="raw" if mode == "raw" else "jpg", jpeg_quality=QUALITY),
        "label": IntField(),
    }
    started = time.perf_counter()
    writer = DatasetWriter(str(out / "data.beton"), fields, num_workers=WORKERS)
    writer.from_indexed_dataset(Pictures(items, mode))
    return time.perf_counter() - started


def build_webdataset(items: list[tuple[str, int]], mode: str, out: Path) -> float:
    from webdataset import ShardWriter

    column = "jpg" if mode in SIDES else "npy"
    started = time.perf_counter()
    with ShardWriter(str(out / "%06d.tar"), maxsize=SHARD_BYTES, verbose=0) as sink:
        for number, (path, label) in enumerate(items):
            sink.write({"__key__": f"{number:08d}", column: stored(path, mode), "cls": label})
    return time.perf_counter() - started


def write_mds_part(items: list[tuple[str, int]], mode: str, out: str) -> None:
    from streaming import MDSWriter  # type: ignore[import-not-found]

    image = "bytes" if mode in SIDES else f"ndarray:uint8:{RAW_SIDE},{RAW_SIDE},3"
    with MDSWriter(out=out, columns={"image": image, "label": "int"}, size_limit=SHARD_BYTES) as sink:
        for item in items:
            sink.write(record(item, mode))


def build_mds(items: list[tuple[str, int]], mode: str, out: Path) -> float:
    """Each process writes a part of its own, and MDS merges their indexes: the way its manual has for several."""
    from streaming.base.util import merge_index  # type: ignore[import-not-found]

    parts = [(items[number::WORKERS], mode, str(out / f"{number:05d}")) for number in range(WORKERS)]
    started = time.perf_counter()
    with multiprocessing.Pool(WORKERS) as pool:
        pool.starmap(write_mds_part, parts)
    merge_index(str(out))
    return time.perf_counter() - started


def build_litdata(items: list[tuple[str, int]], mode: str, out: Path) -> float:
    from litdata import optimize  # type: ignore[import-not-found]

    started = time.perf_counter()
    optimize(partial(record, mode=mode), items, str(out), chunk_bytes=SHARD_BYTES, num_workers=WORKERS)
    return time.perf_counter() - started


def token_block(number: int, path: str) -> Any:
    """Two thousand sequences of a flat file of tokens."""
    import torch

    rows = np.memmap(path, np.uint16, "r", offset=number * TOKENS * 2000 * 2)[: TOKENS * 2000]
    return torch.from_numpy(rows.astype(np.int32)).to(torch.uint16)


def build_tokens(flat: Path, out: Path) -> None:
    """A flat file of uint16 tokens, for litdata's TokensLoader."""
    from litdata import TokensLoader, optimize

    blocks = flat.stat().st_size // (TOKENS * 2000 * 2)
    optimize(
        partial(token_block, path=str(flat)), list(range(blocks)), str(out), chunk_size=TOKENS * 8000,
        item_loader=TokensLoader(block_size=TOKENS), num_workers=WORKERS,
    )  # fmt: skip


def read_tokens(out: Path, batch: int) -> Iterable[Any]:
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    data = StreamingDataset(str(out), item_loader=TokensLoader(block_size=TOKENS), shuffle=True)
    workers = WORKERS if batch > 64 else 0
    return ((None, rows) for rows in StreamingDataLoader(data, batch_size=batch, num_workers=workers))


BUILDERS: dict[str, Callable[[list[tuple[str, int]], str, Path], float]] = {
    "ffcv": build_ffcv,
    "webdataset": build_webdataset,
    "mds": build_mds,
    "litdata": build_litdata,
}


BATCH, EPOCHS, TOKENS = 256, 5, 2048


def read_ffcv(mode: str, out: Path, crop: str | None) -> Iterable[Any]:
    from ffcv.fields.decoders import (  # type: ignore[import-not-found]
        CenterCropRGBImageDecoder,
        IntDecoder,
        RandomResizedCropRGBImageDecoder,
        SimpleRGBImageDecoder,
    )
    from ffcv.loader import Loader, OrderOption  # type: ignore[import-not-found]
    from ffcv.transforms import Squeeze, ToTensor  # type: ignore[import-not-found]

    size = (RAW_SIDE, RAW_SIDE)
    decoders = {
        None: SimpleRGBImageDecoder,
        "random": partial(RandomResizedCropRGBImageDecoder, size),
        "centre": partial(CenterCropRGBImageDecoder, size, ratio=RAW_SIDE / SIDES.get(mode, RAW_SIDE)),
    }
    decoder = decoders[crop]()
    pipelines = {"image": [decoder, ToTensor()], "label": [IntDecoder(), ToTensor(), Squeeze()]}
    found: Iterable[Any] = Loader(
        str(out / "data.beton"), batch_size=BATCH, num_workers=WORKERS, order=OrderOption.RANDOM, os_cache=True,
        drop_last=False, batches_ahead=3, pipelines=pipelines,
    )  # fmt: skip
    return found


def decoded(data: bytes) -> Any:
    import torch

    picture: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    return torch.from_numpy(picture)


def read_webdataset(mode: str, out: Path, crop: str | None) -> Iterable[Any]:
    import torch
    from webdataset import WebDataset, WebLoader

    assert crop is None
    column = "jpg" if mode in SIDES else "npy"

    def unpack(sample: dict[str, bytes]) -> tuple[Any, int]:
        data = sample[column]
        return (decoded(data) if mode in SIDES else torch.from_numpy(np.load(io.BytesIO(data)))), int(sample["cls"])

    urls = sorted(str(path) for path in out.glob("*.tar"))
    source: Any = WebDataset(urls, shardshuffle=100, seed=0, nodesplitter=lambda urls: urls, empty_check=False)
    return WebLoader(source.shuffle(1000).map(unpack).batched(BATCH), batch_size=None, num_workers=WORKERS)  # type: ignore[no-any-return]


def read_litdata(mode: str, out: Path, crop: str | None) -> Iterable[Any]:
    from litdata import StreamingDataLoader, StreamingDataset

    assert crop is None

    class Decoded(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return (decoded(sample["image"]) if mode in SIDES else sample["image"]), sample["label"]

    return StreamingDataLoader(Decoded(str(out), shuffle=True), batch_size=BATCH, num_workers=WORKERS)  # type: ignore[no-any-return]


READERS: dict[str, Callable[[str, Path, str | None], Iterable[Any]]] = {
    "ffcv": read_ffcv,
    "webdataset": read_webdataset,
    "litdata": read_litdata,
}


def rates(batches: Iterable[Any]) -> list[float]:
    """Images per second of each epoch."""
    found = []
    for _ in range(EPOCHS):
        started, count = time.perf_counter(), 0
        for batch in batches:
            count += len(batch[1])
        found.append(count / (time.perf_counter() - started))
    return found


def rates_once(batches: Iterable[Any]) -> float:
    """Samples per second of one epoch."""
    started, count = time.perf_counter(), 0
    for _, rows in batches:
        count += len(rows)
    return count / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=BUILDERS)
    parser.add_argument("mode", choices=("jpg", "jpg512", "raw", "tokens64", "tokens512"))
    parser.add_argument("images", type=Path, nargs="?")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--read", type=Path, metavar="OUT")
    parser.add_argument("--crop", choices=("random", "centre"), help="by FFCV, to 224x224")
    arguments = parser.parse_args()
    line: dict[str, Any] = {"peer": arguments.peer, "mode": arguments.mode}
    with contextlib.redirect_stdout(sys.stderr):  # what a peer says is no part of the line
        if arguments.mode.startswith("tokens"):
            if arguments.read:
                batch = int(arguments.mode.removeprefix("tokens"))
                line["rates"] = [rates_once(read_tokens(arguments.read.resolve(), batch)) for _ in range(EPOCHS)]
            else:
                build_tokens(arguments.images.resolve(), arguments.out.resolve())
        elif arguments.read:
            line["rates"] = rates(READERS[arguments.peer](arguments.mode, arguments.read.resolve(), arguments.crop))
        else:
            items = labelled_files(arguments.images)
            arguments.out.mkdir(parents=True)
            seconds = BUILDERS[arguments.peer](items, arguments.mode, arguments.out.resolve())
            line |= {"samples": len(items), "seconds": round(seconds, 3)}
    print(json.dumps(line))


if __name__ == "__main__":
    main()

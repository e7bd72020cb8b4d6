"""A program that stores objects until it is killed: `object_writer.py FOLDER SEED`. It prints the hash of each."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from switchyard.model.files.file_tree import hash_of
from switchyard.storage.folder_store import FolderStore


def main() -> None:
    store = FolderStore(Path(sys.argv[1]))
    store.prepare()
    noise = random.Random(int(sys.argv[2]))
    while True:
        batch = [noise.randbytes(noise.choice([0, 100, 4096, 300_000])) for _ in range(noise.choice([1, 7, 40]))]
        objects = [(hash_of(data), data) for data in batch]
        store.put_many(objects)
        for digest, _ in objects:
            print(digest.hex(), flush=True)


if __name__ == "__main__":
    main()


def an_object(seed: int, size: int = 1000) -> tuple[bytes, bytes]:
    data = random.Random(seed).randbytes(size)
    return hash_of(data), data

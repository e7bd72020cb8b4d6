"""flytekit, unmodified, in a process of its own: serializes a folder of workflows and prints what it would register.

    python corpus_client.py FOLDER PROJECT DOMAIN VERSION

One line for each entity, in the order of registration: the kind of the message, and the message in base64. Knows
nothing of Switchyard.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import sys
from pathlib import Path

from flytekit.configuration import ImageConfig, SerializationSettings
from flytekit.tools import repo

IMAGE = "registry.example/team/image:1"


def main(folder: str, project: str, domain: str, version: str) -> None:
    settings = SerializationSettings(
        image_config=ImageConfig.auto(img_name=IMAGE), project=project, domain=domain, version=version
    )
    sys.path.insert(0, folder)
    with contextlib.redirect_stdout(io.StringIO()):
        repo.serialize_load_only([file.stem for file in sorted(Path(folder).glob("*.py"))], settings, folder)
        entities = repo.serialize_get_control_plane_entities(settings, folder)
    for entity in entities:
        message = entity.to_flyte_idl()
        body = base64.b64encode(message.SerializeToString()).decode()
        print(json.dumps([type(message).__name__, body]))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""`yard schema`: the JSON Schema of a job file, as this version reads it; the server has it at /v1/schema."""

from __future__ import annotations

import msgspec

from switchyard.cli.terminal.parser import Parser

ABOUT = """\
Print the JSON Schema of a job file, the plain form that `yard submit -f` reads. Editors check a file and complete its
fields by it. A running server has the same at /v1/schema, open to all."""

EXAMPLES = """\
  yard schema > job.schema.json

  # yaml-language-server: $schema=http://127.0.0.1:8080/v1/schema
      as the first line of a job file: the editor asks the server"""


def main(argv: list[str]) -> int:
    from switchyard.model.job.jobfile import job_file_schema

    Parser("yard schema", ABOUT, examples=EXAMPLES).parse_args(argv)
    print(msgspec.json.format(msgspec.json.encode(job_file_schema()), indent=2).decode())
    return 0

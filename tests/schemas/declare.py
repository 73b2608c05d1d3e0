"""Write the schema files of classes that have changed: `PYTHONPATH=. python tests/schemas/declare.py [--replace]`.

A schema that readers would tell apart from the checked-in one becomes the current version, and the old one is kept as the next
`<ClassName>.<n>.avsc`. `--replace` keeps nothing: for a version that no running application has written yet.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from schemas.declaration import declaration, header
from schemas.envelopes import ENVELOPES
from schemas.facts import FACTS

FOLDER = Path(__file__).parents[2] / "schemas" / "avro"


def text(schema: dict[str, Any]) -> str:
    """A schema as its file holds it."""
    head = {key: value for key, value in schema.items() if key != "fields"}
    fields = ",\n".join(f"    {json.dumps(field, ensure_ascii=False)}" for field in schema["fields"])
    return f'{json.dumps(head, indent=2, ensure_ascii=False)[:-2]},\n  "fields": [\n{fields}\n  ]\n}}\n'


def ledger(folder: Path) -> str:
    """The text of FINGERPRINTS for the schemas in a folder."""
    lines = [
        f"{header(json.loads(file.read_text(encoding='utf-8')))[2:].hex()} {file.name}"
        for file in sorted(folder.glob("*.avsc"))
    ]
    return "\n".join(lines) + "\n"


def main(*, keep: bool) -> None:
    """Bring the folder up to date."""
    for cls in (*FACTS, *ENVELOPES):
        file = FOLDER / f"{cls.__name__}.avsc"
        wanted = text(declaration(cls))
        if file.exists() and file.read_text(encoding="utf-8") == wanted:
            continue
        if keep and file.exists():
            before = file.read_text(encoding="utf-8")
            if header(json.loads(before)) != header(json.loads(wanted)):
                number = 1 + len(list(FOLDER.glob(f"{cls.__name__}.*.avsc")))
                (FOLDER / f"{cls.__name__}.{number}.avsc").write_text(before, encoding="utf-8")
        file.write_text(wanted, encoding="utf-8")
        print(f"wrote {file.name}")
    (FOLDER / "FINGERPRINTS").write_text(ledger(FOLDER), encoding="utf-8")


if __name__ == "__main__":
    main(keep="--replace" not in sys.argv[1:])

"""`make references`: writes docs/reference."""

from __future__ import annotations

import sys

from tests.support.references import FOLDER, pages, problems
from tests.support.references.running_node import observe


def main() -> int:
    observed = observe()
    found = problems(observed)
    for problem in found:
        print(f"references: {problem}", file=sys.stderr)
    if found:
        return 1
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages(observed).items():
        file = FOLDER / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            print(f"references: {file.relative_to(FOLDER.parents[1])} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Prints how large the house is: lines and files of core and features, folders, modules with one importer."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
FEATURES = SRC / "switchyard" / "features"


def main() -> None:
    sources = sorted(SRC.rglob("*.py"))
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources}
    trees = {_module(path): ast.parse(path.read_text(encoding="utf-8")) for path in sources}
    written = [path for path in sources if "versions" not in path.parts]  # migrations are never changed
    folders = Counter(path.parent for path in written if path.name != "__init__.py")
    importers = _importers(trees)
    beside = [
        module
        for module, names in importers.items()
        if len(names) == 1 and next(iter(names)).rpartition(".")[0] == module.rpartition(".")[0]
    ]
    imported = sum(_import_lines(tree) for tree in trees.values())
    for what, value in (
        ("lines of the core", sum(count for path, count in lines.items() if FEATURES not in path.parents)),
        ("lines of the features", sum(count for path, count in lines.items() if FEATURES in path.parents)),
        ("files of the core", sum(FEATURES not in path.parents for path in sources)),
        ("files of the features", sum(FEATURES in path.parents for path in sources)),
        ("folders over 20 modules", sum(count > 20 for count in folders.values())),
        ("modules in the largest folder", max(folders.values())),
        ("modules with one importer, beside them", len(beside)),
        ("share of lines that are imports, %", round(100 * imported / sum(lines.values()), 1)),
    ):
        print(f"{what:<42} {value:>8}")


def _module(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


def _importers(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """By module: the modules that import it."""
    importers: dict[str, set[str]] = defaultdict(set)
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in node.names:
                    whole = f"{node.module}.{name.name}"
                    target = whole if whole in trees else node.module
                    if target in trees and target != module:
                        importers[target].add(module)
    return importers


def _import_lines(tree: ast.Module) -> int:
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


if __name__ == "__main__":
    main()

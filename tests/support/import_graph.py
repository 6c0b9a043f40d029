"""The graph of a package: all imports, also under TYPE_CHECKING, in functions, and by a name in text."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

# Code that is handed to another process.
_IMPORT_IN_TEXT = re.compile(r"\b(?:from|import) ([\w.]+)", re.ASCII)


def module_name(path: Path, root: Path, package: str) -> str:
    """Return the dotted name of a file of a package whose folder is `root`."""
    parts = (package, *path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(
    tree: ast.Module, module: str, modules: Mapping[str, Collection[str]], *, is_package: bool
) -> set[str]:
    """Return every module that a file imports; where it imports a name of a module, that module.

    Args:
      modules: of the package, with the names that each binds: one may be that of a submodule.

    Text counts as an import of one of `modules` where it is its name, where it is code that imports it, and where an
    f-string such as `f"package.{name}"` or `f"{__name__}.{name}"` makes its name: of the modules whose name is in the
    file, or of all that it may be if none is.
    """
    imports: set[str] = set()
    documentation = {id(text) for text in _docstrings(tree)}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(node, module, is_package=is_package)
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                is_module = submodule in modules and alias.name not in modules.get(source, ())
                imports.add(submodule if is_module else source)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            names = [node.value, *_IMPORT_IN_TEXT.findall(node.value)]
            imports.update(name for name in names if "." in name and name in modules)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            imports.update(str(arg.value) for arg in node.args if isinstance(arg, ast.Constant))
        elif isinstance(node, ast.JoinedStr):
            candidates = set(_named_in_pieces(node, module, modules))
            imports.update({name for name in candidates if name.rpartition(".")[2] in texts} or candidates)
    return imports


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value


def _absolute(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    package = module.split(".") if is_package else module.split(".")[:-1]
    return ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])


def _named_in_pieces(node: ast.JoinedStr, module: str, modules: Collection[str]) -> Iterator[str]:
    """Yield the modules that an f-string may name, if it begins with the package's name or the file's own."""
    pattern = ""
    for piece in node.values:
        if isinstance(piece, ast.Constant):
            pattern += re.escape(str(piece.value))
        elif isinstance(piece, ast.FormattedValue):
            is_own_name = isinstance(piece.value, ast.Name) and piece.value.id in ("__name__", "__package__")
            pattern += re.escape(module) if is_own_name else r"\w+"
    if pattern.startswith(re.escape(module.partition(".")[0] + ".")):
        yield from (name for name in modules if name != module and re.fullmatch(pattern, name))


def module_paths(root: Path, package: str) -> dict[str, Path]:
    """Return the files of the package whose folder is `root`, by the name of the module."""
    return {module_name(path, root, package): path for path in sorted(root.rglob("*.py"))}


def bound_names(paths: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return the names that each module's own statements bind: where a package binds one, it hides a submodule."""
    names: dict[str, set[str]] = {}
    for module, path in paths.items():
        names[module] = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names[module].add(node.name)
            elif isinstance(node, ast.ImportFrom):
                names[module].update(alias.asname or alias.name for alias in node.names if node.module != module)
    return names


def read_imports(paths: Mapping[str, Path], modules: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """Return what every file imports, in the package that has `modules`."""
    return {
        name: imported_modules(ast.parse(path.read_text()), name, modules, is_package=path.name == "__init__.py")
        for name, path in paths.items()
    }


def import_graph(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the modules of the package, and which of each other they import."""
    return {module: (targets & imports.keys()) - {module} for module, targets in imports.items()}


def import_circles(graph: Mapping[str, Collection[str]]) -> list[set[str]]:
    """Return the sets of modules that import each other: strongly connected components, by Tarjan's algorithm."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    circles: list[set[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for target in graph[module]:
            if target not in number:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], number[target])
        if lowest[module] == number[module]:
            at = stack.index(module)
            circle = set(stack[at:])
            del stack[at:]
            if len(circle) > 1:
                circles.append(circle)

    for module in sorted(graph):
        if module not in number:
            visit(module)
    return circles


def shortest_way_round(graph: Mapping[str, Collection[str]], circle: set[str]) -> str:
    """Return one shortest way round in a circle, for a message."""
    ways = [way for start in sorted(circle) if (way := _way_back(graph, circle, start))]
    return " → ".join(min(ways, key=len, default=[]))


def _way_back(graph: Mapping[str, Collection[str]], circle: set[str], start: str) -> list[str]:
    ways, seen = [[start]], {start}
    while ways:
        extended: list[list[str]] = []
        for way in ways:
            for target in sorted(circle.intersection(graph[way[-1]])):
                if target == start:
                    return [*way, start]
                if target not in seen:
                    seen.add(target)
                    extended.append([*way, target])
        ways = extended
    return []

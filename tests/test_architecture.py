"""The rules of the house: imports run one way, and heavy libraries stay in their rooms."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "autosplit"

# From the ground up: a room imports only from rooms that stand before it.
ORDER = """
    errors registry checks units sizes deadline program types serialize journal cluster hardware
    modelspec tracers layers graph schedules stages
    solvers readers cost chain places constraints devices variants simulate ties repair assign
    advice fit baselines judge planner configurations search
    profilers codegen launchers targets artifacts weights
    verification report workflow cli __main__
""".split()  # noqa: SIM905 (one row a floor)
TEMPLATES = PACKAGE / "targets" / "templates"


def sources():
    return [path for path in sorted(PACKAGE.rglob("*.py")) if TEMPLATES not in path.parents]


def room(path):
    """Name of the top-level module or package a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports(path):
    """Return ``(name, line)`` of every import in a file, those inside functions included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def test_every_room_has_its_place():
    rooms = {room(path) for path in sources()} - {"__init__"}
    assert rooms <= set(ORDER), "say in ORDER where the new module stands"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path):
    here = room(path)
    if here == "__init__":
        return
    for name, line in imports(path):
        parts = name.split(".")
        if parts[0] != "autosplit" or parts[1] in (here, "__version__"):
            continue
        before = ORDER.index(parts[1]) < ORDER.index(here)
        assert before, f"{path}:{line} imports {parts[1]} from {here}"


def users(library):
    return {
        str(path.relative_to(PACKAGE))
        for path in sources()
        for name, _ in imports(path)
        if name.split(".")[0] == library
    }


def test_one_file_imports_pulp():
    assert users("pulp") <= {"solvers/ilp.py"}


def test_torch_stays_in_the_rooms_that_need_it():
    rooms = {path.split("/")[0].removesuffix(".py") for path in users("torch")}
    assert rooms <= {"tracers", "profilers", "modelspec", "weights", "verification"}


def test_click_stays_in_the_command_line():
    assert {path.split("/")[0] for path in users("click")} == {"cli"}


WRITERS = {"open", "mkdir", "makedirs", "mkstemp", "mkdtemp", "write_text", "write_bytes"}


def writes(path):
    """Yield the lines of a file that call something that writes to disk."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in WRITERS:
                yield node.lineno
            case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="open")):
                continue
            case ast.Call(func=ast.Attribute(attr=name)) if name in WRITERS:
                yield node.lineno


def test_few_files_write_to_disk():
    allowed = {"serialize", "journal", "artifacts", "weights", "verification"}
    for path in sources():
        if room(path) not in allowed:
            assert not list(writes(path)), f"{path} writes to disk"


def test_only_consoles_print():
    """A stray ``print`` would mix with the data on standard output."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="print")):
                    pytest.fail(f"{path}:{node.lineno} prints past the console")


# ---------------------------------------------------------------- start-up


def loaded_by(code):
    """Return the modules that are loaded after running ``code`` in a new process."""
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return set(run.stderr.split())


HEAVY = {"torch", "transformers", "pulp", "networkx", "safetensors"}


def test_the_package_loads_nothing_heavy():
    assert not loaded_by("import autosplit") & HEAVY


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["profile", "--help"], ["plan", "--help"], ["export", "--help"], ["show", "-h"]],
    ids=" ".join,
)
def test_help_loads_nothing_heavy(arguments):
    code = f"from autosplit.cli.main import cli\ncli.main({arguments}, standalone_mode=False)"
    assert not loaded_by(code) & {"torch", "transformers"}

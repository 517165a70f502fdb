"""Put a real transcript of the demo, and the code it exports, into README.md.

Run it on a machine that does nothing else: the times in the transcript are measured.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STAGE = ROOT / "demo" / "pipeline" / "stages" / "stage_0.py"


def main() -> None:
    """Run the demo and rewrite the two marked places."""
    command = [sys.executable, str(ROOT / "tools" / "demo.py")]
    run = subprocess.run(
        command,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
    )
    readme = ROOT / "README.md"
    text = fill(readme.read_text(encoding="utf-8"), "demo", f"```text\n{tidy(run.stdout)}\n```")
    code = without_docstrings(STAGE.read_text(encoding="utf-8"))
    text = fill(text, "stage", f"```python\n{code}\n```")
    readme.write_text(text, encoding="utf-8")


def tidy(transcript: str) -> str:
    """Return a transcript without blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in transcript.strip("\n").splitlines())


def without_docstrings(source: str) -> str:
    """Return source text without its docstrings and the empty lines after them."""
    lines = source.splitlines()
    dropped: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            first, last = node.body[0].lineno, node.body[0].end_lineno or 0
            following = 1 if last < len(lines) and not lines[last].strip() else 0
            dropped.update(range(first, last + 1 + following))
    return "\n".join(line for at, line in enumerate(lines, 1) if at not in dropped).strip("\n")


def fill(text: str, name: str, content: str) -> str:
    """Replace what stands between two marks."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    return pattern.sub(lambda _: f"{start}\n\n{content}\n\n{end}", text)


if __name__ == "__main__":
    main()

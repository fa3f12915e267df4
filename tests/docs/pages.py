#!/usr/bin/env python3
"""What the pages say of the repository holds: tests/docs/pages.py [TESSERA]

Links lead to files and headings that are there. Paths in backticks exist. No line is longer than 120 columns, tables aside.
Each page of docs/ is in the index, and each command of the program in docs/commands.md.
"""
import pathlib
import re
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parents[2]
pages = sorted(p for p in [*root.glob("*.md"), *root.glob("docs/**/*.md")])
wrong = []


def anchors(page):
    """GitHub's anchors of a page's headings."""
    found = set()
    for line in page.read_text().split("\n"):
        heading = re.match(r"#+ (.*)", line)
        if heading:
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


for page in pages:
    where = page.relative_to(root)
    for number, line in enumerate(page.read_text().split("\n"), 1):
        if len(line) > 120 and not line.startswith(("|", "<!--")):
            wrong.append(f"{where}:{number}: {len(line)} columns")
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            if re.match(r"https?:", target):
                continue
            path, _, anchor = target.partition("#")
            to = (page.parent / path).resolve() if path else page
            if not to.exists() or anchor and to.suffix == ".md" and anchor not in anchors(to):
                wrong.append(f"{where}:{number}: {target} leads nowhere")
        for path in re.findall(r"`((?:codelets|docs|graph|machines|models|runtime|tests|tools)/[\w./-]+)`", line):
            if "NAME" not in path and "..." not in path and not (root / path).exists():
                wrong.append(f"{where}:{number}: there is no {path}")

index = (root / "docs/README.md").read_text()
for page in sorted((root / "docs").glob("*.*")):
    if page.name != "README.md" and f"({page.name}" not in index:
        wrong.append(f"docs/README.md: {page.name} is not in it")
if len(sys.argv) > 1:
    commands = (root / "docs/commands.md").read_text()
    said = subprocess.run([sys.argv[1], "--help"], capture_output=True, text=True, check=True).stdout
    for name in re.findall(r"^  tessera (\w+)", said, re.M):
        if f"`tessera {name} " not in commands and f"`tessera {name}`" not in commands:
            wrong.append(f"docs/commands.md: {name} is not in it")
print(*wrong, sep="\n", end="\n" if wrong else "")
sys.exit(1 if wrong else 0)

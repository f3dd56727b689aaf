#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts all faults of a list into one copy of a header, each switched on by its number, and lists their names.

usage: mutate.py HEADER MUTANTS COPY NAMES
"""
import re
import sys

header, listed, copy, names = sys.argv[1:]
source = open(header, encoding="utf-8").read()


def fail(message):
    sys.exit(f"mutate.py: {listed}: {message}")


mutants = []
part = None
for line in open(listed, encoding="utf-8"):
    line = line.rstrip("\n")
    if line.startswith("== "):
        mutants.append({"name": line[3:], "why": None, "old": "", "new": "", "mode": ""})
        part = None
    elif line.startswith("?? "):
        mutants[-1]["why"] = line[3:]
        part = None
    elif line in ("--", "-"):
        mutants[-1]["mode"] = line
        part = "old"
    elif line in ("++", "+"):
        part = "new"
    elif part and not (part == "new" and not line):
        mutants[-1][part] += line + "\n"

# spaces do not count, so that clang-format may move the lines
for number, mutant in enumerate(mutants):
    tokens = re.findall(r"\w+|[^\w\s]", mutant["old"])
    places = list(re.finditer(r"\s*".join(re.escape(token) for token in tokens), source))
    if not tokens or len(places) != 1:
        fail(f"“{mutant['name']}”: its text is found {len(places)} times in {header}, and must be found once")
    mutant["number"], mutant["span"] = number, places[0].span()


def render(begin, end, inside):
    """The text from begin to end with these mutants in it; they are sorted by where they begin, long ones first."""
    text, at = "", begin
    while inside:
        first, *inside = inside
        start, stop = first["span"]
        if start < at or stop > end:
            fail(f"“{first['name']}”: its text overlaps another's without lying inside it")
        nested = [mutant for mutant in inside if mutant["span"][0] < stop]
        inside = inside[len(nested) :]
        old, new = render(start, stop, nested), first["new"].strip()
        text += source[at:start]
        if first["mode"] == "--":
            text += f"if (chosen_mutant == {first['number']}) {{ {new} }} else {{ {old} }}"
        else:
            text += f"(chosen_mutant == {first['number']} ? ({new}) : ({old}))"
        at = stop
    return text + source[at:end]


text = render(0, len(source), sorted(mutants, key=lambda mutant: (mutant["span"][0], -mutant["span"][1])))
with open(copy, "w", encoding="utf-8") as out:
    out.write(text)
with open(names, "w", encoding="utf-8") as out:
    for number, mutant in enumerate(mutants):
        why = "nullptr" if mutant["why"] is None else f'"{mutant["why"]}"'
        out.write(f'{{"{mutant["name"]}", {why}, none, {number}}},\n')
print(f"{len(mutants)} mutants")

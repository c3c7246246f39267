"""A comparison for a CI job: a comment on a pull request, and a JUnit file."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

from rung.report import units
from rung.report.compare import NOT_COMPARED, ranking_rows, sides_of, verdict_lines

NAME = "rung compare"


def comment(result: dict[str, Any], failure: str = "") -> str:
    """Markdown: the verdict, a table of the sides, what a reader must know. failure: why the job fails."""
    first, *rest = verdict_lines(result)
    lines = [f"**{_cell(first)}**"]
    lines += ["", f"❌ The job fails: {_cell(failure)}"] if failure else []
    if "ranking" in result and "times" in result:
        heading, *rows = ranking_rows(result)
        lines += ["", *_table(heading, rows)]
    elif "times" in result:
        memory = result.get("memory") or {}
        rows = [
            (
                name.upper(),
                said,
                units.duration_interval(result["times"][name]),
                units.data_size(units.peak(memory[name])) if name in memory else "–",
            )
            for name, said in sides_of(result).items()
        ]
        lines += ["", *_table(("", "what", "step", "peak memory"), rows)]
    lines += ["", *(f"{_cell(line)}  " for line in rest if line != NOT_COMPARED)] if rest else []
    if result.get("results_compared") is False:
        lines += ["", f"⚠️ {NOT_COMPARED}"]
    lines += ["", *(f"- {_cell(warning)}" for warning in result.get("warnings") or ())]
    if environment := units.section(result, "environment"):
        where = (environment["device"]["name"], f"torch {environment['torch']}" if environment.get("torch") else "")
        lines += ["", f"<sub>{_cell(' · '.join(filter(None, where)))}</sub>"]
    return "\n".join(line for k, line in enumerate(lines) if line or (k and lines[k - 1])).rstrip() + "\n"


def junit(result: dict[str, Any], failure: str = "") -> str:
    """One test case, which failed, was skipped where nothing can be said, or passed."""
    suites = ET.Element("testsuites", name=NAME)
    unclear = result["verdict"] == "inconclusive" and not failure
    seconds = f"{result.get('seconds') or 0.0:.3f}"
    counts = {"tests": "1", "failures": str(int(bool(failure))), "errors": "0", "skipped": str(int(unclear))}
    suite = ET.SubElement(suites, "testsuite", {"name": NAME, "time": seconds, **counts})
    said = " against ".join(reversed(list(sides_of(result).values())))
    case = ET.SubElement(suite, "testcase", classname=NAME, name=said, time=seconds)
    text = "\n".join(units.clean(line) for line in verdict_lines(result))
    if failure:
        ET.SubElement(case, "failure", message=units.clean(failure)).text = text
    elif unclear:
        ET.SubElement(case, "skipped", message=units.clean(verdict_lines(result)[0]))
    ET.SubElement(case, "system-out").text = text
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def _table(heading: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    written = [f"| {' | '.join(map(_cell, row))} |" for row in (heading, *rows)]
    return [written[0], f"|{'---|' * len(heading)}", *written[1:]]


def _cell(text: str) -> str:
    """A stranger's text as text: names of targets and notes are no Markdown, and no HTML."""
    found = units.clean(text)
    for mark in ("\\", "|", "<", "*", "_", "`", "[", "@", "#"):
        found = found.replace(mark, f"\\{mark}")
    return found.replace("\n", " ")

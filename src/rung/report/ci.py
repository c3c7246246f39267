"""A comparison for a CI job: a comment on a pull request, and a JUnit file."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from rung.records.compare import Comparison, Ranking
from rung.report import units
from rung.report.compare import NOT_COMPARED, ranking_rows, sides_of, verdict_lines

NAME = "rung compare"


def comment(result: Comparison | Ranking, failure: str = "") -> str:
    """Markdown: the verdict, a table of the sides, what a reader must know. failure: why the job fails."""
    first, *rest = verdict_lines(result)
    lines = [f"**{_cell(first)}**"]
    lines += ["", f"❌ The job fails: {_cell(failure)}"] if failure else []
    if table := _sides(result):
        lines += ["", *_table(*table)]
    lines += ["", *(f"{_cell(line)}  " for line in rest if line != NOT_COMPARED)] if rest else []
    if not result.results_compared:
        lines += ["", f"⚠️ {NOT_COMPARED}"]
    lines += ["", *(f"- {_cell(warning)}" for warning in result.warnings or ())]
    if environment := result.environment:
        where = (environment.device.name, f"torch {environment.torch}" if environment.torch else "")
        lines += ["", f"<sub>{_cell(' · '.join(filter(None, where)))}</sub>"]
    return "\n".join(line for k, line in enumerate(lines) if line or (k and lines[k - 1])).rstrip() + "\n"


def _sides(result: Comparison | Ranking) -> list[tuple[str, ...]]:
    """A heading and a row a side; none where nothing was timed."""
    if isinstance(result, Ranking):
        return ranking_rows(result)
    if not result.times:
        return []
    times, memory = result.times, result.memory or {}
    rows: list[tuple[str, ...]] = [("", "what", "step", "peak memory")]
    for name, said in sides_of(result).items():
        held = units.data_size(units.peak(memory[name])) if name in memory else units.NONE
        rows.append((name.upper(), said, units.duration_interval(times[name]), held))
    return rows


def junit(result: Comparison | Ranking, failure: str = "") -> str:
    """One test case, which failed, was skipped where nothing can be said, or passed."""
    suites = ET.Element("testsuites", name=NAME)
    unclear = result.verdict == "inconclusive" and not failure
    seconds = f"{result.seconds:.3f}"
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


def _table(heading: tuple[str, ...], *rows: tuple[str, ...]) -> list[str]:
    written = [f"| {' | '.join(map(_cell, row))} |" for row in (heading, *rows)]
    return [written[0], f"|{'---|' * len(heading)}", *written[1:]]


def _cell(text: str) -> str:
    """A stranger's text as text: names of targets and notes are no Markdown, and no HTML."""
    found = units.clean(text)
    for mark in ("\\", "|", "<", "*", "_", "`", "[", "@", "#"):
        found = found.replace(mark, f"\\{mark}")
    return found.replace("\n", " ")

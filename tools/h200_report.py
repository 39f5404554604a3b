"""Puts what the parts of h200_run.sh left in a folder into results.json and results.md. Usage: h200_report.py FOLDER

results.json: {"gpu", "gpus", "parts": [{part, rc, seconds, limit, outcome}], "tests": [...], "sanitizer": [...], and the lines that were printed under "bench",
"peer", "interference" and "kernels"}; `hicache bench cuda --recorded results.json` judges those against the bars. Where the hicache command lies beside this
file, it does so here too, and the table is part of results.md.
"""
import csv
import json
import pathlib
import re
import subprocess
import sys

METRICS = {
    "gpu__time_duration.sum": ("us", 1e-3),
    "dram__bytes.sum.per_second": ("dram_gb_s", 1e-9),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("dram_percent", 1),
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": ("memory_percent", 1),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("sm_percent", 1),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("occupancy_percent", 1),
    "launch__registers_per_thread": ("registers", 1),
}


def text_of(path):
    return path.read_text(errors="replace") if path.exists() else ""


def printed(text):
    """The JSON objects among the lines of a log; a line that a stopped program left half is none."""
    lines = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                lines.append(json.loads(line))
            except ValueError:
                pass
    return lines


def outcome(rc):
    return {0: "passed", 124: "STOPPED at its limit", 137: "STOPPED at its limit", 125: "NOT RUN: no time was left", 127: "NOT RUN: the tool is not there"}.get(rc, f"FAILED (exit {rc})")


def gtest(name, text):
    """What a GoogleTest program says at its end."""
    ran = re.search(r"\[=+\] (\d+) tests? from \d+ test suites? ran", text)
    passed = re.search(r"\[  PASSED  \] (\d+) test", text)
    skipped = re.search(r"\[  SKIPPED \] (\d+) test", text)
    failed = sorted(set(re.findall(r"^\[  FAILED  \] ([\w/]+\.[\w/.]+)", text, re.M)))
    return {"name": name, "ran": int(ran.group(1)) if ran else None, "passed": int(passed.group(1)) if passed else 0,
            "skipped": int(skipped.group(1)) if skipped else 0, "failed": failed}


def profiled(text):
    """Rows of an ncu log, one a launch in order: {kernel, figures}. Takes ncu's tables of one metric a row and of one launch a row."""
    table = [line for line in text.splitlines() if line.startswith('"')]
    launches = {}
    for row in csv.DictReader(table):
        if not (row.get("ID") or "").strip().isdigit() or not row.get("Kernel Name") or None in row.values():
            continue  # the row of units, or one that was cut off
        launch = launches.setdefault(int(row["ID"]), {"kernel": row["Kernel Name"].split("(")[0]})
        pairs = [(row["Metric Name"], row["Metric Value"])] if "Metric Name" in row else row.items()
        for metric, value in pairs:
            if metric in METRICS:
                name, scale = METRICS[metric]
                try:
                    launch[name] = round(float(value.replace(",", "")) * scale, 2)
                except ValueError:
                    pass
    return [launches[i] for i in sorted(launches)]


def kernels(text):
    """One line for each launch that the bench announced, with ncu's figures: of the launches of a kernel the last ones, since opening makes some."""
    announced = [line for line in printed(text) if line.get("work") == "kernel launched"]
    rows = profiled(text)
    lines = []
    for kernel in dict.fromkeys(line["kernel"] for line in announced):
        mine = [line for line in announced if line["kernel"] == kernel]
        found = [row for row in rows if row["kernel"] == kernel][-len(mine):]
        for line, row in zip(mine, found):
            lines.append({"work": "kernel under ncu", "kernel": kernel, "what": line["what"], "bytes": line["bytes"], **{k: v for k, v in row.items() if k != "kernel"}})
    return lines


def sanitizer(part, log):
    summary = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", log)
    tests = gtest(part, log)
    return {"part": part, "summary": summary[-1] if summary else "none printed", "passed": tests["passed"], "failed": tests["failed"]}


def judged(folder):
    """Rows of `hicache bench cuda`, or why there are none."""
    command = pathlib.Path(__file__).resolve().parent / "hicache"
    if not command.exists():
        return [], "the hicache command is not beside h200_report.py: run `hicache bench cuda --recorded results.json`"
    try:
        run = subprocess.run([command, "bench", "cuda", "--recorded", folder / "results.json", "--json"], capture_output=True, text=True, timeout=30)
        return json.loads(run.stdout), run.stderr.strip()
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return [], f"hicache bench cuda: {error}"


def cell(value):
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def markdown(result, rows, remark):
    lines = [f"GPU: {result['gpu']}; GPUs: {result['gpus']}", "", "| part | outcome | seconds |", "|---|---|---|"]
    lines += [f"| {p['part']} | {p['outcome']} | {p['seconds']} of {p['limit']} |" for p in result["parts"]]
    if result["tests"]:
        lines += ["", "| tests | ran | passed | skipped | failed |", "|---|---|---|---|---|"]
        lines += [f"| {t['name']} | {cell(t['ran']) or 'did not end'} | {t['passed']} | {t['skipped']} | {' '.join(t['failed']) or 0} |" for t in result["tests"]]
    if result["sanitizer"]:
        lines += ["", "| compute-sanitizer | summary | tests passed | failed |", "|---|---|---|---|"]
        lines += [f"| {s['part']} | {s['summary']} | {s['passed']} | {' '.join(s['failed']) or 0} |" for s in result["sanitizer"]]
    if result["kernels"]:
        columns = ["kernel", "what", "bytes"] + [name for name, _ in METRICS.values()]
        lines += ["", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        lines += ["| " + " | ".join(cell(k.get(c)) for c in columns) + " |" for k in result["kernels"]]
    judged_rows = [row for row in rows if row["bar"] is not None]
    missed = [row for row in judged_rows if row["meets"] is False]
    lines += ["", f"Bars: {sum(row['meets'] is True for row in judged_rows)} met, {len(missed)} missed, {sum(row['meets'] is None for row in judged_rows)} not judged."]
    if remark:
        lines += ["", remark]
    if judged_rows:
        lines += ["", "| work | config | measured | of the ceiling | bar | |", "|---|---|---|---|---|---|"]
        for row in judged_rows:
            share = "" if row["ratio"] is None else f"{100 * row['ratio']:.1f} %"
            verdict = {True: "met", False: "**missed**", None: "?"}[row["meets"]]
            lines.append(f"| {row['work']} | {row['config']} | {cell(row['value'])} {row['unit']} | {share} | {row['bar']} | {verdict} |")
    printed_lines = result["bench"] + result["peer"] + result["interference"]
    if printed_lines:
        lines += ["", "| printed | figures |", "|---|---|"]
        lines += [f"| {line.get('work', 'error')} | {'; '.join(f'{k} {v}' for k, v in line.items() if k != 'work')} |" for line in printed_lines]
    return "\n".join(lines) + "\n"


def report(folder):
    parts = printed(text_of(folder / "parts.jsonl"))
    for part in parts:
        part["outcome"] = outcome(part["rc"])
    gpus = [line for line in text_of(folder / "gpu.txt").splitlines() if line.strip()]
    logs = {path.stem: text_of(path) for path in sorted(folder.glob("*.log"))}
    result = {
        "gpu": gpus[0].strip() if gpus else "?",
        "gpus": len(gpus),
        "parts": parts,
        "tests": [gtest(name, text) for name, text in logs.items() if name.startswith("tests_")],
        "sanitizer": [sanitizer(name, text) for name, text in logs.items() if name.startswith("sanitizer_")],
        "bench": printed(logs.get("bench", "")),
        "peer": printed(logs.get("peer", "")),
        "interference": printed(logs.get("interference", "")),
        "kernels": kernels(logs.get("ncu", "")),
    }
    (folder / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    rows, remark = judged(folder)
    if rows:
        result["figures"] = rows
        (folder / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    (folder / "results.md").write_text(markdown(result, rows, remark))


if __name__ == "__main__":
    report(pathlib.Path(sys.argv[1]))

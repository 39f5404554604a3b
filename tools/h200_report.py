"""Puts the lines of bench.jsonl and interference.jsonl of a run into results.json and results.md. Usage: h200_report.py FOLDER"""
import json
import pathlib
import sys

folder = pathlib.Path(sys.argv[1])
lines = {}
for name in ("bench", "interference"):
    path = folder / f"{name}.jsonl"
    lines[name] = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")] if path.exists() else []
gpu = (folder / "gpu.txt").read_text().strip().splitlines()[-1] if (folder / "gpu.txt").exists() else "?"
(folder / "results.json").write_text(json.dumps({"gpu": gpu, **lines}, indent=1) + "\n")
text = [f"GPU: {gpu}", "", "| work | figures |", "|---|---|"]
for line in lines["bench"] + lines["interference"]:
    figures = "; ".join(f"{k} {v}" for k, v in line.items() if k != "work")
    text.append(f"| {line.get('work', 'error')} | {figures} |")
(folder / "results.md").write_text("\n".join(text) + "\n")

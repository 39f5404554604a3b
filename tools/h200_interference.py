"""What transfers and moves cost the compute beside them, and what of their rate they keep.

The compute never pauses: captured graphs are replayed back to back (GEMM 8192^3 bf16; a prefill chain and a decode chain of llama-3-8b's matrix
products), and the transfer is switched on and off beside them. Prints one JSON object a line. Usage: h200_interference.py libbench.so
"""
import ctypes
import json
import statistics
import sys
import threading
import time

import torch

KINDS = {0: "envelopes H2D", 1: "envelopes D2H", 2: "envelopes both ways", 3: "layer-wise loads", 4: "moves at 0.1 TB/s", 5: "rows of 2 KiB H2D", 6: "rows of 2 KiB D2H",
         7: "slices of 32 KiB H2D", 8: "slices of 32 KiB D2H"}
WINDOW_S, MARGIN_MS = 0.12, 8.0


def capture(work):
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def workloads():
    device = torch.device("cuda", 0)
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    shapes = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096))
    weights = [[torch.randn(k, m, device=device, dtype=torch.bfloat16).mul_(0.02) for k, m in shapes] for _ in range(32)]

    def chain(rows, layers):
        inputs = [torch.randn(rows, k, device=device, dtype=torch.bfloat16) for k, _ in shapes]
        outputs = [torch.empty(rows, m, device=device, dtype=torch.bfloat16) for _, m in shapes]

        def work():
            for layer in range(layers):
                for i in range(4):
                    torch.mm(inputs[i], weights[layer][i], out=outputs[i])

        return capture(work), (inputs, outputs)

    prefill, keep_prefill = chain(2048, 8)
    decode, keep_decode = chain(64, 32)
    return {"gemm": capture(lambda: torch.mm(a, b, out=c)), "prefill": prefill, "decode": decode}, (a, b, c, weights, keep_prefill, keep_decode)


def measure(bench, name, graph, kind, seconds=1.8):
    stream, side = torch.cuda.Stream(), torch.cuda.Stream()
    zero = torch.cuda.Event(enable_timing=True)
    zero.record(side)
    zero.synchronize()
    spans, rates, stop = [], [], threading.Event()

    def toggle():
        while not stop.is_set():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            bench.bench_start(kind)
            begin.record(side)
            time.sleep(WINDOW_S)
            end.record(side)
            down = kind in (1, 6, 8)
            rate = [bench.bench_stop(1 if down else 0)]
            if kind == 2:
                rate.append(bench.bench_stop(1))
            rates.append(rate)
            after = torch.cuda.Event(enable_timing=True)
            after.record(side)
            spans.append((begin, end, after))
            time.sleep(WINDOW_S)

    thread = threading.Thread(target=toggle)
    events, started = [], time.time()
    with torch.cuda.stream(stream):
        thread.start()
        while time.time() - started < seconds:
            graph.replay()
            event = torch.cuda.Event(enable_timing=True)
            event.record(stream)
            events.append(event)
            if len(events) > 6:
                events[-6].synchronize()
        stop.set()
        while thread.is_alive():
            graph.replay()
            torch.cuda.current_stream().synchronize()
    thread.join()
    torch.cuda.synchronize()
    on = [(zero.elapsed_time(b) + MARGIN_MS, zero.elapsed_time(e)) for b, e, _ in spans]
    touched = [(zero.elapsed_time(b) - 1, zero.elapsed_time(a) + MARGIN_MS) for b, _, a in spans]
    ends = [zero.elapsed_time(e) for e in events]
    alone, beside = [], []
    for x, y in zip(ends[10:], ends[11:]):
        if any(x > b and y < e for b, e in on):
            beside.append(y - x)
        elif not any(y > b and x < e for b, e in touched):
            alone.append(y - x)
    if len(alone) < 8 or len(beside) < 8:
        print(json.dumps({"work": KINDS[kind], "beside": name, "error": f"too few replays: {len(alone)} alone, {len(beside)} beside"}), flush=True)
        return

    def trimmed(values):
        values = sorted(values)
        cut = len(values) // 20
        return statistics.fmean(values[cut:len(values) - cut])

    gb_s = [round(statistics.median(r[i] for r in rates), 1) for i in range(len(rates[0]))]
    print(json.dumps({"work": KINDS[kind], "beside": name, "slowdown_percent": round((trimmed(beside) / trimmed(alone) - 1) * 100, 2), "gb_s": gb_s,
                      "alone_ms": round(trimmed(alone), 4), "replays": [len(alone), len(beside)]}), flush=True)


def main():
    bench = ctypes.CDLL(sys.argv[1])
    bench.bench_stop.restype = ctypes.c_double
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    bench.bench_open()
    graphs, keep = workloads()
    for kind in KINDS:
        for name, graph in graphs.items():
            measure(bench, name, graph, kind)
    del keep


main()

"use strict";
const $ = id => document.getElementById(id);
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const S = DATA.samples, pools = DATA.pools;
const POOL_COLOURS = ["--sky", "--red", "--purple", "--green", "--yellow", "--orange", "--blue"];
const poolColour = i => POOL_COLOURS[i % POOL_COLOURS.length];

// ---- numbers ----
const trim = (v, d = 3) => { const s = Number(v.toPrecision(d)); return Math.abs(s) >= 1e6 ? s.toLocaleString("en") : String(s); };
function bytes(v) {
  const u = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]; let i = 0;
  while (Math.abs(v) >= 1024 && i < u.length - 1) { v /= 1024; i++; }
  return (Math.abs(v) >= 1000 ? v.toFixed(0) : trim(v)) + " " + u[i];
}
const rate = v => bytes(v) + "/s";
function count(v) {
  for (const [f, u] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (Math.abs(v) >= f) return trim(v / f) + " " + u;
  return trim(v);
}
const percent = v => trim(v * 100) + " %";
function micros(v) { return v >= 1e6 ? trim(v / 1e6) + " s" : v >= 1e3 ? trim(v / 1e3) + " ms" : trim(v) + " µs"; }
function seconds(v) { return v >= 120 ? Math.floor(v / 60) + " min " + Math.round(v % 60) + " s" : trim(v) + " s"; }

// Round tick values for [0, top]; in powers of 1024 for bytes.
function ticks(top, binary, parts = 4) {
  if (!(top > 0)) return [0, 1];
  let unit = 1;
  if (binary) while (top / unit >= 1024) unit *= 1024;
  const raw = top / unit / parts, mag = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find(m => m * mag >= raw) * mag * unit, out = [];
  for (let v = 0; v < top + step * 0.999; v += step) out.push(v);
  return out;
}

// ---- tooltip ----
const tip = $("tip");
function showTip(e, text) {
  tip.textContent = text; tip.style.display = "block";
  const w = tip.offsetWidth, h = tip.offsetHeight;
  tip.style.left = Math.max(4, Math.min(innerWidth - w - 8, e.clientX + 14)) + "px";
  tip.style.top = Math.max(4, e.clientY + h + 22 > innerHeight ? e.clientY - h - 12 : e.clientY + 14) + "px";
}
const hideTip = () => { tip.style.display = "none"; };

// ---- charts ----
const NS = "http://www.w3.org/2000/svg";
function el(parent, name, attrs, text) {
  const n = document.createElementNS(NS, name);
  for (const k in attrs) n.setAttribute(k, attrs[k]);
  if (text !== undefined) n.textContent = text;
  parent.appendChild(n);
  return n;
}
function legend(box, series) {
  const div = document.createElement("div"); div.className = "legend";
  for (const s of series) {
    const item = document.createElement("span"), key = document.createElement("i");
    if (s.dash) { key.style.width = "22px"; key.style.background = `repeating-linear-gradient(90deg, var(${s.colour}) 0 5px, transparent 5px 8px)`; } else
    key.style.background = s.hatch ? `repeating-linear-gradient(45deg, var(${s.colour}) 0 3px, transparent 3px 6px)` : `var(${s.colour})`;
    item.append(key, s.name); div.append(item);
  }
  box.append(div);
}

// chart draws series over time: stacked areas or lines. o: {series: [{name, colour, values, dash, hatch}], stack, fmt, label, top, binary, log}
function chart(id, o) {
  const box = $(id);
  for (const old of box.querySelectorAll(".legend, svg, .none")) old.remove();
  const xs = o.xs, last = xs[xs.length - 1];
  if (xs.length < 2 || !o.series.some(s => s.values.some(v => v > 0))) {
    const none = document.createElement("div"); none.className = "none"; none.textContent = o.none || "nothing to show"; box.append(none);
    return;
  }
  legend(box, o.series);
  const W = Math.max(360, box.clientWidth - 30), H = 250, L = 92, R = 14, T = 8, B = 40;
  const svg = el(box, "svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": box.querySelector("figcaption").textContent });
  const X = v => L + (W - L - R) * v / last;
  const sums = xs.map((_, i) => o.stack ? o.series.reduce((a, s) => a + s.values[i], 0) : Math.max(...o.series.map(s => s.values[i])));
  let top = o.top || Math.max(...sums), marks, Y;
  if (o.log) {
    const low = Math.min(...o.series.flatMap(s => s.values.filter(v => v > 0)));
    const a = Math.floor(Math.log10(low)), b = Math.max(a + 1, Math.ceil(Math.log10(top)));
    marks = []; for (let e = a; e <= b; e++) marks.push(10 ** e);
    Y = v => T + (H - T - B) * (1 - (Math.log10(Math.max(v, 10 ** a)) - a) / (b - a));
  } else {
    marks = ticks(top, o.binary).filter(v => !o.top || v <= top * 1.0001);
    top = o.top || marks[marks.length - 1];
    Y = v => T + (H - T - B) * (1 - Math.min(v, top) / top);
  }
  for (const v of marks) {
    el(svg, "line", { x1: L, x2: W - R, y1: Y(v), y2: Y(v), stroke: "var(--grid)" });
    el(svg, "text", { x: L - 7, y: Y(v) + 4, "text-anchor": "end" }, o.fmt(v));
  }
  for (const v of ticks(last, false, 7).filter(v => v <= last * 1.0001)) {
    el(svg, "line", { x1: X(v), x2: X(v), y1: H - B, y2: H - B + 4, stroke: "var(--soft)" });
    el(svg, "text", { x: X(v), y: H - B + 17, "text-anchor": "middle" }, trim(v));
  }
  el(svg, "text", { x: (L + W - R) / 2, y: H - 5, "text-anchor": "middle" }, "time since the start, s");
  el(svg, "text", { x: 11, y: (T + H - B) / 2, "text-anchor": "middle", transform: `rotate(-90 11 ${(T + H - B) / 2})` }, o.label);
  drawSeries(svg, o, X, Y);
  el(svg, "line", { x1: L, x2: W - R, y1: H - B, y2: H - B, stroke: "var(--soft)" });
  hover(svg, o, X, { L, R, T, B, W, H }, sums);
}

function drawSeries(svg, o, X, Y) {
  if (!o.stack) {
    for (const s of o.series) {
      let d = "";
      const seen = s.values.map((v, i) => i).filter(i => !o.log || s.values[i] > 0), sparse = o.log && seen.length < o.xs.length * 0.8;
      for (const i of seen) d += (d ? "L" : "M") + X(o.xs[i]).toFixed(1) + " " + Y(s.values[i]).toFixed(1);
      el(svg, "path", { d, fill: "none", stroke: `var(${s.colour})`, "stroke-width": sparse ? 0.8 : 1.8, "stroke-opacity": sparse ? 0.6 : 1, "stroke-linejoin": "round", "stroke-linecap": "round", "stroke-dasharray": s.dash || "none" });
      if (sparse) for (const i of seen) el(svg, "circle", { cx: X(o.xs[i]), cy: Y(s.values[i]), r: 2.2, fill: s.dash ? "var(--panel)" : `var(${s.colour})`, stroke: `var(${s.colour})`, "stroke-width": 1.3 });
    }
    return;
  }
  const base = o.xs.map(() => 0);
  o.series.forEach((s, k) => {
    const upper = base.map((b, i) => b + s.values[i]);
    let d = "";
    upper.forEach((v, i) => { d += (i ? "L" : "M") + X(o.xs[i]).toFixed(1) + " " + Y(v).toFixed(1); });
    const edge = d;
    for (let i = base.length - 1; i >= 0; i--) d += "L" + X(o.xs[i]).toFixed(1) + " " + Y(base[i]).toFixed(1);
    let fill = `var(${s.colour})`;
    if (s.hatch) {
      const pid = "h" + Math.random().toString(36).slice(2), p = el(el(svg, "defs", {}), "pattern", { id: pid, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
      el(p, "rect", { width: 3, height: 6, fill: `var(${s.colour})` });
      fill = `url(#${pid})`;
    }
    el(svg, "path", { d: d + "Z", fill, "fill-opacity": 0.85 });
    el(svg, "path", { d: edge, fill: "none", stroke: "var(--panel)", "stroke-width": 0.7 });
    upper.forEach((v, i) => { base[i] = v; });
  });
}

function hover(svg, o, X, g, sums) {
  const cross = el(svg, "line", { y1: g.T, y2: g.H - g.B, stroke: "var(--ink)", "stroke-opacity": 0.5, visibility: "hidden" });
  svg.addEventListener("mousemove", e => {
    const r = svg.getBoundingClientRect(), t = ((e.clientX - r.left) / r.width * g.W - g.L) / (g.W - g.L - g.R) * o.xs[o.xs.length - 1];
    let i = 0; while (i < o.xs.length - 1 && o.xs[i + 1] <= t) i++;
    if (i < o.xs.length - 1 && t - o.xs[i] > o.xs[i + 1] - t) i++;
    cross.setAttribute("x1", X(o.xs[i])); cross.setAttribute("x2", X(o.xs[i])); cross.setAttribute("visibility", "visible");
    const lines = o.series.map(s => `${s.name}: ${o.fmt(s.values[i])}`);
    if (o.stack && o.total) lines.push(`sum: ${o.fmt(sums[i])}`);
    showTip(e, seconds(o.xs[i]) + "\n" + lines.join("\n"));
  });
  svg.addEventListener("mouseleave", () => { cross.setAttribute("visibility", "hidden"); hideTip(); });
}

// ---- series ----
// Differences over windows wide enough to be calm: about 120 of them.
function windows() {
  const step = Math.max(1, Math.ceil((S.length - 1) / 120)), out = [];
  for (let i = step; i < S.length; i += step) out.push([S[i - step], S[i]]);
  if (out.length && out[out.length - 1][1] !== S[S.length - 1]) out.push([out[out.length - 1][1], S[S.length - 1]]);
  return out;
}
const TIERS = [["device", "--blue"], ["host", "--orange"], ["storage", "--green"]];

function drawCharts() {
  const xs = S.map(s => s.t), w = windows(), wx = w.map(p => p[1].t);
  const diff = (f, p) => f(p[1]) - f(p[0]);
  const share = TIERS.map(([name, colour], k) => ({ name, colour, values: w.map(p => { const n = diff(s => s.prompt, p); return n ? diff(s => s.hit[k], p) / n : 0; }) }));
  share.push({ name: "computed", colour: "--grey", hatch: true, values: w.map((p, i) => diff(s => s.prompt, p) ? 1 - share[0].values[i] - share[1].values[i] - share[2].values[i] : 0) });
  chart("hits", { xs: wx, series: share, stack: true, top: 1, fmt: percent, label: "share of prompt tokens", none: "no prompts" });
  chart("totalhits", { xs, series: TIERS.map(([name, colour], k) => ({ name, colour, values: S.map(s => s.hit[k]) })), stack: true, total: true, fmt: count, label: "tokens", none: "nothing was reused" });
  for (const tier of ["device", "host"]) {
    const series = pools.map((p, i) => ({ name: p.name, colour: poolColour(i), values: S.map(s => s[tier][i].live) }));
    const sum = k => S.map(s => s[tier].reduce((a, o) => a + o[k], 0));
    for (const [name, key, colour] of [["reserved", "reserved", "--yellow"], ["quarantined", "quarantined", "--purple"], ["holes", "hole", "--grey"]]) {
      const values = sum(key);
      if (values.some(v => v > 0)) series.push({ name, colour, hatch: true, values });
    }
    chart(tier, { xs, series, stack: true, total: true, top: DATA[tier].bytes || undefined, binary: true, fmt: bytes, label: "bytes", none: tier === "host" ? "no host tier" : "nothing" });
  }
  const speed = f => w.map(p => p[1].t > p[0].t ? diff(f, p) / (p[1].t - p[0].t) : 0);
  chart("rates", { xs: wx, binary: true, fmt: rate, label: "bytes a second", none: "nothing was transferred", series: [
    { name: "host → device", colour: "--blue", values: speed(s => s.h2d) }, { name: "device → host", colour: "--orange", dash: "7 3", values: speed(s => s.d2h) },
    { name: "storage read", colour: "--green", dash: "2 4", values: speed(s => s.read) }, { name: "storage write", colour: "--red", dash: "9 3 2 3", values: speed(s => s.write) }].filter(s => s.values.some(v => v > 0)) });
  chart("latency", { xs, log: true, fmt: micros, label: "time", none: "no load-backs", series: [
    { name: "submit p50", colour: "--blue", values: S.map(s => s.submit50) }, { name: "submit p99", colour: "--sky", dash: "5 3", values: S.map(s => s.submit99) },
    { name: "readable p50", colour: "--red", values: S.map(s => s.load50) }, { name: "readable p99", colour: "--orange", dash: "5 3", values: S.map(s => s.load99) }].filter(s => s.values.some(v => v > 0)) });
}

// ---- memory map ----
const M = DATA.map, GAP = 0, SINK = 1, LIVE = 2, HOLE = 3, RESERVED = 4, QUARANTINED = 5;
const NAMES = ["free", "sink", "live", "hole", "reserved", "quarantined"];
const columns = M.columns.map(c => ({ t: c.t, cells: Uint8Array.from(atob(c.c), ch => ch.charCodeAt(0)) }));
function rgb(hex) { const n = parseInt(hex.slice(1), 16); return [n >> 16 & 255, n >> 8 & 255, n & 255]; }
const blend = (a, b, t) => a.map((v, i) => Math.round(v + (b[i] - v) * t));
// A cell's colour: the pool's, paler with age, darker (lighter in the dark) when pinned; states that are not live have one each.
function palette() {
  const bg = rgb(css("--panel")), ink = rgb(css("--ink")), pool = pools.map((_, i) => rgb(css(poolColour(i))));
  const one = { [GAP]: bg, [SINK]: rgb(css("--soft")), [HOLE]: blend(bg, rgb(css("--grey")), 0.75), [RESERVED]: rgb(css("--yellow")), [QUARANTINED]: blend(rgb(css("--purple")), ink, 0.35) };
  return (b, age) => {
    const state = b & 7, p = b >> 3 & 15;
    if (state !== LIVE) return one[state] || bg;
    const old = Math.min(0.72, age / (M.age_steps * 14)), c = blend(pool[p] || ink, bg, old);
    return b & 0x80 ? blend(pool[p] || ink, ink, 0.55) : c;
  };
}
function mapLegend() {
  const box = $("maplegend"); box.textContent = "";
  const add = (style, text) => { const s = document.createElement("span"), i = document.createElement("i"); i.style.background = style; s.append(i, text); box.append(s); };
  pools.forEach((p, i) => add(`linear-gradient(90deg, var(${poolColour(i)}), color-mix(in srgb, var(${poolColour(i)}) 28%, var(--panel)))`, `${p.name}, used just now → long ago`));
  add("color-mix(in srgb, var(--sky) 45%, var(--ink))", "pinned");
  add("color-mix(in srgb, var(--grey) 75%, var(--panel))", "hole"); add("var(--yellow)", "reserved");
  add("color-mix(in srgb, var(--purple) 65%, var(--ink))", "quarantined"); add("var(--soft)", "sink"); add("var(--panel)", "free");
}
const STRIP = { L: 78, B: 34, H: 430 };
function drawStrip() {
  const cv = $("strip"), dpr = devicePixelRatio || 1, W = cv.parentElement.clientWidth - 30, { L, B, H } = STRIP;
  if (!columns.length) { $("map").style.display = "none"; return; }
  cv.style.height = H + "px"; cv.width = W * dpr; cv.height = H * dpr;
  const c = cv.getContext("2d"); c.scale(dpr, dpr);
  const colour = palette(), img = new ImageData(columns.length, M.rows);
  columns.forEach((col, x) => {
    for (let r = 0; r < M.rows; r++) {
      const [red, green, blue] = colour(col.cells[2 * r], col.cells[2 * r + 1]), at = 4 * ((M.rows - 1 - r) * columns.length + x);
      img.data[at] = red; img.data[at + 1] = green; img.data[at + 2] = blue; img.data[at + 3] = 255;
    }
  });
  const off = document.createElement("canvas"); off.width = columns.length; off.height = M.rows; off.getContext("2d").putImageData(img, 0, 0);
  c.imageSmoothingEnabled = false;
  c.drawImage(off, L, 0, W - L, H - B);
  c.strokeStyle = css("--line"); c.strokeRect(L + 0.5, 0.5, W - L - 1, H - B - 1);
  c.fillStyle = css("--soft"); c.font = "11.5px system-ui, sans-serif"; c.textAlign = "right";
  for (const v of ticks(M.bytes, true).filter(v => v <= M.bytes)) { const y = (H - B) * (1 - v / M.bytes); c.fillText(bytes(v), L - 7, Math.max(10, Math.min(H - B, y + 4))); }
  c.textAlign = "center";
  const t0 = columns[0].t, t1 = columns[columns.length - 1].t, n = columns.length;
  for (let k = 0; k <= 6; k++) { const i = Math.round(k * (n - 1) / 6); c.fillText(trim(columns[i].t, 2), Math.min(W - 14, Math.max(L + 8, L + (W - L) * (i + 0.5) / n)), H - B + 15); }
  c.fillText("time since the start, s", (L + W) / 2, H - 4);
  c.save(); c.translate(11, (H - B) / 2); c.rotate(-Math.PI / 2); c.fillText("place in the arena", 0, 0); c.restore();
  $("mapnote").textContent = `${M.rows} places × ${n} moments (${trim(t0)} to ${trim(t1)} s)` + (M.sampled ? `; one page is shown of each ${bytes(M.bytes / M.rows)}` : "; a cell a page") + ". Pale cells have not been used for long.";
}
function cellText(col, r) {
  const b = col.cells[2 * r], state = b & 7, age = col.cells[2 * r + 1], from = M.bytes / M.rows * r;
  let s = `${seconds(col.t)}, byte ${bytes(from)}\n${NAMES[state] || "?"}`;
  if (state >= LIVE) s += `, pool ${(pools[b >> 3 & 15] || {}).name}` + (b & 0x80 ? ", pinned" : "");
  if (state === LIVE) s += `\nunused for ${age ? micros(1000 * 2 ** (age / M.age_steps)) : "less than 1 ms"}`;
  return s;
}
let chosen = 0;
function drawMoment() {
  const cv = $("moment"), col = columns[chosen];
  if (!col) return;
  const dpr = devicePixelRatio || 1, W = cv.parentElement.clientWidth - 30, size = M.rows > 1024 ? 7 : M.rows > 256 ? 10 : 14, per = Math.floor(W / size), H = Math.ceil(M.rows / per) * size;
  cv.style.height = H + "px"; cv.width = W * dpr; cv.height = H * dpr;
  const c = cv.getContext("2d"); c.scale(dpr, dpr);
  const colour = palette();
  for (let r = 0; r < M.rows; r++) {
    const x = r % per * size, y = Math.floor(r / per) * size, b = col.cells[2 * r];
    c.fillStyle = `rgb(${colour(b, col.cells[2 * r + 1])})`; c.fillRect(x, y, size - 1, size - 1);
    if ((b & 7) === GAP) { c.strokeStyle = css("--grid"); c.strokeRect(x + 0.5, y + 0.5, size - 2, size - 2); }
  }
  cv.onmousemove = e => { const q = cv.getBoundingClientRect(), r = Math.floor((e.clientY - q.top) / size) * per + Math.floor((e.clientX - q.left) / size); if (r < M.rows) showTip(e, cellText(col, r)); };
  cv.onmouseleave = hideTip;
  $("maphint").textContent = `The arena at ${seconds(col.t)}, from byte 0; move over the strip to choose another moment.`;
}
$("strip").addEventListener("mousemove", e => {
  const q = $("strip").getBoundingClientRect(), { L, B, H } = STRIP, x = e.clientX - q.left - L, y = e.clientY - q.top;
  if (x < 0 || y > H - B || y < 0) { hideTip(); return; }
  const i = Math.min(columns.length - 1, Math.floor(x / (q.width - L) * columns.length)), r = Math.min(M.rows - 1, Math.floor((1 - y / (H - B)) * M.rows));
  if (i !== chosen) { chosen = i; drawMoment(); }
  showTip(e, cellText(columns[i], r));
});
$("strip").addEventListener("mouseleave", hideTip);

// ---- totals ----
function drawTotals() {
  DATA.totals.forEach((g, k) => {
    if (k === 0) {
      for (const r of g.rows) { const d = document.createElement("div"); d.className = "tile"; const b = document.createElement("b"), s = document.createElement("span"); b.textContent = r.value; s.textContent = r.name; d.append(b, s); $("headline").append(d); }
      return;
    }
    const f = document.createElement("figure"), cap = document.createElement("figcaption"), b = document.createElement("b"), t = document.createElement("table");
    b.textContent = g.title; cap.append(b); f.append(cap, t); $("totals").append(f);
    for (const r of g.rows) {
      const tr = t.insertRow(), n = tr.insertCell(), v = tr.insertCell();
      n.textContent = r.name; v.textContent = r.value; v.className = "v";
      if (r.note) { const s = document.createElement("small"); s.textContent = r.note; n.append(s); }
    }
  });
}

function draw() { drawCharts(); mapLegend(); drawStrip(); drawMoment(); }
const wanted = new URLSearchParams(location.search).get("theme");
if (wanted ? wanted === "dark" : matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.classList.add("dark");
$("theme").addEventListener("click", () => { document.documentElement.classList.toggle("dark"); draw(); });
let pending;
addEventListener("resize", () => { clearTimeout(pending); pending = setTimeout(draw, 120); });
chosen = Math.floor(columns.length * 0.6);
drawTotals();
draw();

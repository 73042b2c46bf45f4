// Draws view.json: the page of one search, or the index of a storage. Agents' texts become text nodes, never markup.
"use strict";
let D = JSON.parse(document.getElementById("view").textContent);
const BASE = document.body.dataset.base; // set on a served page alone
const S = { node: null, other: null, x: "gpu_hours", zoom: null, sort: ["node", 1] };
const $ = id => document.getElementById(id);

// --- building ------------------------------------------------------------------------------------------------

function build(made, attrs, parts) {
  for (const [name, value] of Object.entries(attrs || {})) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...parts.flat(3).filter(part => part != null && part !== false));
  return made;
}
const h = (tag, attrs, ...parts) => build(document.createElement(tag), attrs, parts);
const s = (tag, attrs, ...parts) => build(document.createElementNS("http://www.w3.org/2000/svg", tag), attrs, parts);

// The report's own sentences mark what matters with ** and code with `.
const rich = text => String(text).split(/(\*\*.+?\*\*|`[^`]+`)/).map(part =>
  part.startsWith("**") ? h("b", {}, part.slice(2, -2)) : part.startsWith("`") && part.length > 2 ? h("code", {}, part.slice(1, -1)) : part);

// As Python rounds: half to even, so that the page and the commands print the same digits.
function fix(x, places = 4) {
  if (x == null) return "–";
  const scaled = Math.abs(x) * 10 ** places, low = Math.floor(scaled);
  const n = scaled - low === 0.5 ? low + (low % 2) : Math.round(scaled);
  return (x < 0 && n ? "−" : "") + (n / 10 ** places).toFixed(places);
}
const signed = (x, places = 4) => x == null ? "–" : (x < 0 ? "" : "+") + fix(x, places);
const short = (x) => x == null ? "–" : Math.abs(x) >= 1000 ? Math.round(x).toLocaleString("en") : String(+x.toPrecision(3));
const way = x => x == null ? "" : x >= 0 ? "up" : "down";
const cut = (text, n) => text.length > n ? text.slice(0, n - 1) + "…" : text;
const words = text => String(text).replaceAll("_", " ");
function span(seconds) {
  if (seconds == null) return "–";
  const [n, unit] = seconds < 90 ? [seconds, "s"] : seconds < 5400 ? [seconds / 60, "min"] : seconds < 172800 ? [seconds / 3600, "h"] : [seconds / 86400, "days"];
  return `${n < 10 && unit !== "s" ? n.toFixed(1) : Math.round(n)} ${unit}`;
}
const clock = at => new Date(at * 1000).toISOString().replace("T", " ").slice(0, 19);
const byNode = () => Object.fromEntries(D.nodes.map(node => [node.node, node]));
const policy = what => D.policies.find(one => one.what === what);
const button = (text, click, attrs) => h("button", { type: "button", onclick: click, ...attrs }, text);

// Redraws a part only if what it shows has changed; focus and scrolling stay.
const drawn = {};
function part(id, shown, draw) {
  const now = JSON.stringify(shown), place = $(id);
  if (drawn[id] === now) return;
  drawn[id] = now;
  const had = place.contains(document.activeElement) && document.activeElement.dataset.key;
  const open = [...place.querySelectorAll("details[open]")].map(one => one.dataset.key);
  const at = [place.scrollLeft, place.scrollTop];
  place.replaceChildren(...[draw()].flat(3).filter(Boolean));
  for (const one of place.querySelectorAll("details")) if (open.includes(one.dataset.key)) one.open = true;
  [place.scrollLeft, place.scrollTop] = at;
  if (had) place.querySelector(`[data-key="${had}"]`)?.focus({ preventScroll: true });
}

// --- head ----------------------------------------------------------------------------------------------------

function head() {
  const live = D.live, steering = live && live.steering && BASE;
  return [
    h("a", { href: BASE ? "/" : "#", class: "dim" }, "llmzero"), D.name,
    h("span", { class: "chip " + D.stage.split(" ")[0] }, D.stage),
    h("span", { class: "chip" }, `${D.task} · ${D.model}`),
    live && h("span", { class: "dim", id: "alive" }),
    h("span", { class: "spread" }),
    steering && ["hint", "pause", "stop"].map(kind => button(kind + "…", () => ask(kind), { "data-key": kind })),
  ];
}

function verdict() {
  const base = policy("base"), best = policy("best"), split = best && best.test ? "test" : "validation";
  const from = base && base[split], to = best && best[split];
  const gain = from && to ? to.mean - from.mean : null;
  return [
    to && h("div", {},
      h("div", { class: "big" }, from && [fix(from.mean, 3), h("span", { class: "dim" }, " → ")], fix(to.mean, 3), " ",
        gain != null && h("small", { class: way(gain) }, signed(gain, 3))),
      h("div", { class: "dim" }, `${split} accuracy, base model → best strategy`, to.interval && ` [${fix(to.interval[0], 3)}, ${fix(to.interval[1], 3)}]`)),
    h("div", {}, h("p", {}, D.sentence), h("ul", {}, D.verdict.map(line => h("li", {}, rich(line))))),
  ];
}

function budgets() {
  const shown = D.budgets.map(one => h("div", {},
    `${one.name} ${short(one.used)} of ${short(one.limit)}`, one.ends && h("span", { class: "dim" }, " · ends it first"),
    h("div", { class: "bar" + (one.ends ? " ends" : "") }, bar(one.share))));
  if (D.left_s != null) shown.push(h("div", { id: "left" }, h("b", {}, `≈ ${span(D.left_s)}`), " left until it decides to end"));
  return shown;
}
function bar(share) {
  const fill = h("i");
  fill.style.width = `${Math.min(100, 100 * share)}%`;
  return fill;
}

// --- the tree of weights -------------------------------------------------------------------------------------

const W = 160, H = 50, GAP_X = 44, GAP_Y = 14;
let places = {}, children = {};

function lay() {
  places = {}; children = {};
  for (const node of D.nodes) (children[node.resume_node ?? -1] ??= []).push(node.node);
  let row = 0;
  const order = [], todo = [[-1, 0]]; // without recursion: a chain may be long
  while (todo.length) {
    const [node, depth] = todo.pop(), below = children[node] || [];
    order.push(node);
    places[node] = { depth, row: below.length ? null : row++ };
    for (const child of [...below].reverse()) todo.push([child, depth + 1]);
  }
  for (const node of order.reverse()) {
    const below = children[node] || [];
    if (below.length) places[node].row = (places[below[0]].row + places[below.at(-1)].row) / 2;
  }
  for (const one of Object.values(places)) { one.x = 4 + one.depth * (W + GAP_X); one.y = 4 + one.row * (H + GAP_Y); }
}

function factor(change) {
  const { old, name, before, now } = change, ratio = change.new / old;
  if (typeof old === "number" && typeof change.new === "number" && old > 0 && ratio > 0) {
    if (ratio >= 1.5) return `${name} ×${short(ratio)}`;
    if (ratio <= 1 / 1.5) return `${name} ÷${short(1 / ratio)}`;
  }
  return `${name} ${before} → ${now}`;
}
const changed = node => node.changes.length ? node.changes.map(factor).join(" · ") : node.kind === "root" ? "default recipe" : node.status === "pending" ? "being proposed" : "unchanged";

function colour(score) {
  const base = policy("base")?.validation?.mean ?? D.nodes[0]?.start_score ?? 0;
  const scores = D.nodes.map(node => node.score).filter(one => one != null);
  if (score == null) return "var(--line)";
  const [end, tone] = score >= base ? [Math.max(...scores, base), "--good"] : [Math.min(...scores, base), "--bad"];
  return `color-mix(in srgb, var(${tone}) ${Math.round(15 + 50 * (end === base ? 1 : (score - base) / (end - base)))}%, var(--card))`;
}

function tree() {
  lay();
  const all = Object.values(places), known = byNode();
  const width = Math.max(...all.map(one => one.x)) + W + 6, height = Math.max(...all.map(one => one.y)) + H + 6;
  S.zoom ??= Math.max(.75, Math.min(1, $("tree").clientWidth / width));
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width: width * S.zoom, height: height * S.zoom, role: "group", "aria-label": "Tree of weights: each node starts from a checkpoint of the one to its left" });
  const edge = (from, to, kind) => s("path", { class: "edge " + kind, d: `M${from.x + W},${from.y + H / 2} C${from.x + W + GAP_X / 2},${from.y + H / 2} ${to.x - GAP_X / 2},${to.y + H / 2} ${to.x},${to.y + H / 2}` });
  const path = new Set(D.strategy.map(phase => phase.node));
  for (const strategy of [false, true]) for (const node of D.nodes) if (path.has(node.node) === strategy) {
    const to = places[node.node], made = edge(places[node.resume_node ?? -1], to, strategy ? "best" : "");
    made.dataset.edge = node.resume_node == null ? "base" : `${node.resume_node}@${node.resume_step}`;
    made.dataset.to = node.node;
    svg.append(made);
    if (node.resume_node != null) svg.append(s("text", { class: "dim", x: to.x - 5, y: to.y + H / 2 - 6, "text-anchor": "end", "font-size": 10 }, "@" + node.resume_step));
  }
  const chosen = known[S.node];
  if (chosen && chosen.seen_in != null && chosen.seen_in !== chosen.resume_node) svg.append(edge(places[chosen.seen_in], places[chosen.node], "seen"));
  const base = policy("base")?.validation?.mean ?? D.nodes[0]?.start_score;
  svg.append(box(-1, { score: base, status: "base", gain: null }, "base model", path.size > 0));
  for (const node of D.nodes) svg.append(box(node.node, node, changed(node), path.has(node.node)));
  return svg;
}

function box(id, node, text, best) {
  const at = places[id], running = node.status === "running", begun = running || node.status === "interrupted";
  const mark = { failed: "✗ ", early_stopped: "■ ", running: "▶ ", pending: "… ", cancelled: "– ", interrupted: "– " }[node.status] || "";
  const steps = node.series_last != null ? `${node.series_last}/${node.n_steps}` : "";
  const label = id < 0 ? `base model, ${fix(node.score)}` : `node ${id}${best ? ", in the strategy" : ""}, ${words(node.status)}, score ${fix(node.score)}, gain ${signed(node.gain)}, ${text}`;
  const g = s("g", { class: `node ${node.status}${best ? " best" : ""}${id === S.node ? " sel" : ""}${id === S.other ? " also" : ""}`, transform: `translate(${at.x},${at.y})`,
    tabindex: id === (S.focus ?? S.node ?? -1) ? 0 : -1, role: "button", "aria-label": label, "data-node": id, "data-key": "node" + id });
  const score = s("text", { x: 14, y: 20 }, s("tspan", { class: "dim", fill: "var(--dim)" }, id < 0 ? "base  " : `${mark}${id}  `), s("tspan", { class: "strong" }, node.score == null && begun && steps ? steps : fix(node.score, 3)));
  if (node.gain != null) score.append(s("tspan", { class: way(node.gain), dx: 7 }, signed(node.gain, 3)));
  if (best && id === D.strategy.at(-1)?.node) score.append(s("tspan", { fill: "var(--best)", dx: 6 }, "★"));
  g.append(s("rect", { class: "box", width: W, height: H, rx: 7 }), s("rect", { x: 4, y: 6, width: 4, height: H - 12, rx: 2, fill: colour(node.score) }),
    score, s("text", { class: "dim", x: 14, y: 38, "font-size": 11 }, cut(text, 25)), s("title", {}, label));
  if (begun && node.series_last) g.append(s("rect", { x: 6, y: H - 4, height: 2.5, rx: 1, width: (W - 12) * Math.min(1, node.series_last / node.n_steps), fill: "var(--best)" }));
  return g;
}

function walk(event) {
  const here = event.target.closest?.("g.node");
  if (!here) return;
  const id = +here.dataset.node, at = places[id];
  const same = Object.entries(places).filter(([, one]) => one.depth === at.depth).sort((a, b) => a[1].row - b[1].row).map(([n]) => +n);
  const known = byNode();
  const to = {
    ArrowLeft: id < 0 ? null : known[id].resume_node ?? -1,
    ArrowRight: children[id]?.[0],
    ArrowUp: same[same.indexOf(id) - 1],
    ArrowDown: same[same.indexOf(id) + 1],
  }[event.key];
  if (event.key === "Enter" || event.key === " ") choose(id, event.shiftKey);
  else if (event.key.startsWith("Arrow")) { if (to != null) focusNode(to); }
  else return;
  event.preventDefault();
}
function focusNode(id) {
  S.focus = id;
  for (const one of $("tree").querySelectorAll("g.node")) one.setAttribute("tabindex", +one.dataset.node === id ? 0 : -1);
  const found = $("tree").querySelector(`[data-node="${id}"]`);
  found.focus();
  found.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function choose(id, also) {
  if (!byNode()[id]) return;
  if (also && S.node != null && id !== S.node) S.other = id;
  else [S.node, S.other] = [id, null];
  S.focus = id;
  history.replaceState(null, "", S.other == null ? `#n${S.node}` : `#n${S.node}-${S.other}`);
  draw();
}

// --- panel ---------------------------------------------------------------------------------------------------

function panel() {
  const known = byNode(), node = known[S.node];
  if (!node) return h("p", { class: "dim" }, "No run has begun yet.");
  if (S.other != null) return difference(node, known[S.other]);
  const from = node.resume_node == null ? "the base model" : `node ${node.resume_node}, step ${node.resume_step}`;
  const why = node.kind === "root" ? "It is the default recipe: no agent proposed it." : "No agent proposed this phase.";
  const others = D.nodes.filter(one => one.node !== node.node);
  return [
    h("h2", {}, `Node ${node.node} · ${node.kind} · ${words(node.status)}`, node.in_strategy && " · in the strategy", node.pruned && " · pruned"),
    h("div", { class: "big" }, fix(node.score), " ", h("small", { class: way(node.gain) }, signed(node.gain))),
    h("div", { class: "dim" }, node.global_step != null && `at global step ${node.global_step}, `, `from ${from}`, node.start_score != null && ` with ${fix(node.start_score)}`, node.interval && ` · 95 % interval ${fix(node.interval[0])} to ${fix(node.interval[1])}`),
    node.doubts.map(doubt => h("p", { class: "down" }, "In doubt: " + doubt)),
    h("h3", {}, node.seen_in == null ? "Seen before it" : `Seen in node ${node.seen_in}`, node.state && `: ${node.state}`),
    h("p", { class: "agent diagnosis" }, node.diagnosis || why),
    node.evidence.length > 0 && h("ul", { class: "dim agent" }, node.evidence.map(line => h("li", {}, line))),
    h("h3", {}, "Changed"),
    node.changes.length ? h("table", { class: "changes" }, h("tr", {}, ["setting", "before", "now", "why"].map(one => h("th", {}, one))), node.changes.map(one =>
      h("tr", {}, h("td", {}, one.name), h("td", { class: "num" }, one.before), h("td", { class: "num" }, h("b", {}, one.now)), h("td", { class: "agent" }, one.reason)))) : h("p", {}, changed(node)),
    node.note && h("p", { class: "dim agent" }, "On the way from proposal to phase: " + node.note),
    node.rationale && h("details", { "data-key": "plan" }, h("summary", {}, "Plan"), h("p", { class: "agent" }, node.rationale)),
    h("h3", {}, "Result"),
    node.validations.length > 1 && chart({ w: room("panel") - 34, h: 130, x: "global step", lines: [{ kind: "best", points: node.validations.map(one => [one.global_step, one.score, one.error]) }] }),
    h("p", { class: "validations num dim" }, "validation " + (node.validations.map(one => `${fix(one.score)}@${one.global_step}`).join(", ") || "–")),
    node.levels.length > 0 && h("p", { class: "dim" }, node.levels.map(([name, first, last]) => `${name} ${first} → ${last}`).join(" · ")),
    node.ended_by && h("p", { class: "agent" }, node.ended_by === "n_steps" ? `It trained all its ${node.n_steps} steps.` : `${node.steps_done} of ${node.n_steps} steps. Ended by ${node.ended_by}`),
    node.verdicts.length > 0 && [h("h3", {}, `Verdicts of the stopper: ${node.verdicts.length}`), h("ul", { class: "verdicts" }, node.verdicts.map(one =>
      h("li", { class: "agent" }, `step ${one.step}: `, h("b", {}, one.stop ? "STOP" : "CONTINUE"), `, ${one.reason}`, one.saves && h("span", { class: "dim" }, ` (a stop saves ${one.saves})`))))],
    node.wall_s != null && [h("h3", {}, "Cost"), h("p", {}, `${span(node.wall_s)}${node.setup_s == null ? "" : `, ${span(node.setup_s)} of it set-up`} · ${node.start} · ${short(node.gpu_hours)} GPU h${node.rollouts ? ` · ${node.rollouts.toLocaleString("en")} rollouts` : ""}`)],
    node.why && h("p", { class: "dim" }, "Why here: " + node.why),
    h("p", {}, h("label", {}, "Differences to ", h("select", { "data-key": "other", onchange: event => choose(+event.target.value, true) }, h("option", { value: "" }, "node …"), others.map(one => h("option", { value: one.node }, one.node)))),
      " ", D.live?.steering && BASE && ["clone", "veto"].map(kind => [button(kind + "…", () => ask(kind, node.node), { "data-key": kind }), " "])),
  ];
}

function difference(a, b) {
  const full = node => ({ ...D.default, ...node.own });
  const [old, now] = [full(a), full(b)], same = key => JSON.stringify(old[key]) === JSON.stringify(now[key]);
  const keys = [...new Set([...Object.keys(old), ...Object.keys(now)])].filter(key => !same(key));
  return [
    h("h2", {}, `Node ${a.node} → node ${b.node}`, h("span", { class: "tools" }, button("close", () => choose(a.node)))),
    h("div", { class: "big" }, fix(a.score), h("span", { class: "dim" }, " → "), fix(b.score), " ", a.score != null && b.score != null && h("small", { class: way(b.score - a.score) }, signed(b.score - a.score))),
    keys.length ? h("table", { class: "diff" }, h("tr", {}, ["setting", `node ${a.node}`, `node ${b.node}`].map(one => h("th", {}, one))), keys.map(key =>
      h("tr", { "data-hp": key }, h("td", {}, D.short[key] || key), h("td", { class: "num" }, text(old[key])), h("td", { class: "num" }, text(now[key]))))) : h("p", {}, "The same configuration."),
  ];
}
const text = value => value === undefined ? "–" : typeof value === "number" ? short(value) : typeof value === "string" ? value : JSON.stringify(value);

// --- charts --------------------------------------------------------------------------------------------------

function ticks(lo, hi, n) {
  const raw = (hi - lo) / n || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(one => one * power).find(one => one >= raw), found = [];
  for (let at = Math.ceil(lo / step) * step; at <= hi + step * 1e-9; at += step) found.push(+at.toPrecision(12));
  return found;
}

// Viewed at its own width, a chart's text has the size of the page's.
const room = id => Math.max(280, Math.min(700, $(id).clientWidth || 640));

// lines: {kind, points: [[x, y, error]], label, node, step, band: [[x, low, high]]}; `range` keeps a far line from flattening the rest.
function chart({ w = 640, h: height = 300, x, lines, range, until, integers = true, title }) {
  const left = 44, right = 30, top = title ? 22 : 8, bottom = 30;
  const xs = lines.flatMap(line => line.points.map(point => point[0]));
  const fit = range || lines, ys = fit.flatMap(line => [...line.points.flatMap(([, y, e]) => [y - (e || 0), y + (e || 0)]), ...(line.band || []).flatMap(one => one.slice(1))]);
  if (!xs.length || !ys.length) return h("p", { class: "dim" }, "Nothing to show yet.");
  let [x0, x1] = [Math.min(...xs), until ?? Math.max(...xs)], [y0, y1] = [Math.min(...ys), Math.max(...ys)];
  if (x1 <= x0) x1 = x0 + 1;
  const room = (y1 - y0 || Math.abs(y1) || 1) * .07;
  y0 -= room; y1 += room;
  const px = at => left + (at - x0) / (x1 - x0) * (w - left - right), py = at => top + (y1 - at) / (y1 - y0) * (height - top - bottom);
  const clip = `c${++chart.n}`, svg = s("svg", { class: "fluid", viewBox: `0 0 ${w} ${height}`, role: "img", "aria-label": title || `chart over ${x}` });
  svg.append(s("clipPath", { id: clip }, s("rect", { x: left - 4, y: top - 4, width: w - left - right + 8, height: height - top - bottom + 8 })));
  if (title) svg.append(s("text", { x: left, y: 12, class: "strong" }, title));
  for (const at of ticks(y0, y1, height < 180 ? 3 : 5)) svg.append(s("path", { class: "grid", d: `M${left},${py(at)}H${w - right}` }), s("text", { class: "dim num", x: left - 7, y: py(at) + 4, "text-anchor": "end" }, short(at)));
  for (const at of ticks(x0, x1, w < 400 ? 4 : 7)) if (!integers || Number.isInteger(at)) svg.append(s("text", { class: "dim num", x: px(at), y: height - 13, "text-anchor": "middle" }, short(at)));
  svg.append(s("text", { class: "dim", x: w - right, y: height, "text-anchor": "end", "font-size": 11 }, x));
  const inside = s("g", { "clip-path": `url(#${clip})` }), labels = [];
  for (const line of lines) {
    if (!line.points.length) continue;
    if (line.band) inside.append(s("path", { class: "band", d: "M" + [...line.band.map(([a, , hi]) => `${px(a)},${py(hi)}`), ...[...line.band].reverse().map(([a, lo]) => `${px(a)},${py(lo)}`)].join("L") + "Z" }));
    const d = line.points.map(([a, b], i) => i && line.step ? `H${px(a)}V${py(b)}` : `${i ? "L" : "M"}${px(a)},${py(b)}`).join("");
    inside.append(s("path", { class: "line " + line.kind, d, "data-line": line.node }));
    if (line.points.length < 60 && (!line.step || line.points.length === 1) && line.dots !== false) for (const [a, b, e] of line.points) {
      if (e) inside.append(s("path", { class: "whisker " + line.kind, d: `M${px(a)},${py(b - e)}V${py(b + e)}` }));
      inside.append(s("circle", { class: "dot " + line.kind, cx: px(a), cy: py(b), r: line.kind ? 3.2 : 2.2 }, s("title", {}, `${line.label ?? ""}: ${fix(b)} at ${short(a)}`)));
    }
    const [a, b] = line.points.at(-1);
    if (line.label != null) labels.push({ x: Math.min(px(a), w - right) + 7, y: Math.max(top, Math.min(height - bottom, py(b))) + 4, line });
  }
  labels.sort((a, b) => a.y - b.y).forEach((one, i) => { const above = labels[i - 1]; if (above && one.y - above.y < 12 && Math.abs(one.x - above.x) < (String(one.line.label).length > 3 ? 60 : 16)) one.y = above.y + 12; });
  svg.append(inside, ...labels.map(({ x: a, y, line }) => {
    const long = String(line.label).length > 3;
    return s("text", { x: long ? a - 10 : a, y: long ? y - 9 : y, "text-anchor": long ? "end" : "start", class: (line.kind === "" ? "dim" : "strong") + " halo", "font-size": 11, fill: line.kind === "best" ? "var(--best)" : null }, line.label);
  }));
  svg.scale = { px, x0, x1, left, right, w, height };
  return svg;
}
chart.n = 0;

const kindOf = node => node.node === S.node ? "sel" : node.in_strategy ? "best" : "";
const ordered = () => [...D.nodes].sort((a, b) => (kindOf(a) !== "") - (kindOf(b) !== "") || (kindOf(a) === "sel") - (kindOf(b) === "sel"));
const leftAt = node => node.node === S.node ? Infinity : D.strategy.find(phase => phase.node === node.node)?.end ?? Infinity; // past it the strategy goes on elsewhere
const lastStep = () => Math.max(1, ...D.nodes.map(node => (node.base_step || 0) + (node.steps_done ?? node.series_last ?? 0)));

function curves() {
  const lines = ordered().flatMap(node => {
    const points = node.validations.map(one => [one.global_step, one.score, one.error]), left = leftAt(node);
    const past = points.filter(one => one[0] >= left);
    return [past.length > 1 && { kind: "", node: node.node, points: past }, { kind: kindOf(node), node: node.node, label: node.node, points: points.filter(one => one[0] <= left) }].filter(Boolean);
  });
  const base = policy("base")?.validation?.mean, end = lastStep();
  if (D.reference) lines.unshift({ kind: "default", label: "default recipe", dots: false, points: D.reference.validations.filter(one => one[0] <= end) });
  if (base != null) lines.unshift({ kind: "base", label: "base model", dots: false, points: [[0, base], [end, base]] });
  const main = lines.filter(line => line.kind && line.kind !== "default"), floor = Math.min(...main.flatMap(line => line.points.map(one => one[1])));
  const near = lines.filter(line => line.points.length && Math.min(...line.points.map(one => one[1])) >= floor - .12);
  return chart({ w: room("curves"), x: "global step", lines, range: near.length ? near : lines, until: end });
}

function progress() {
  const x = S.x, points = D.progress.map(one => [one[x], one.score]), last = D.progress.at(-1);
  if (!last) return h("p", { class: "dim" }, "No phase has a score yet.");
  const band = D.progress.flatMap((one, i) => one.interval ? [[one[x], ...one.interval], ...(D.progress[i + 1] ? [[D.progress[i + 1][x], ...one.interval]] : [])] : []);
  const lines = [], base = policy("base")?.validation?.mean, ref = D.reference;
  if (base != null) lines.push({ kind: "base", label: "base model", points: [[0, base], [last[x], base]], dots: false });
  if (ref && (x === "steps" || ref.gpu_hours)) {
    const per = x === "steps" ? 1 : ref.gpu_hours / ref.steps_done;
    let most = -1;
    lines.push({ kind: "default", label: "default recipe", step: true, points: ref.validations.map(([step, score]) => [step * per, most = Math.max(most, score)]).filter(one => one[0] <= last[x]) });
  }
  lines.push({ kind: "best", label: `node ${last.node}`, step: true, band, points });
  return chart({ w: room("progress"), h: 230, x: x === "steps" ? "training steps of all phases" : "GPU hours of all phases", lines, integers: x === "steps" });
}

function multiples() {
  const names = Object.keys(D.labels).filter(name => D.nodes.some(node => D.series[node.node]?.[name]));
  if (!names.length) return null;
  const made = names.map(name => chart({ w: 380, h: 190, x: "global step", title: D.labels[name], until: lastStep(),
    lines: ordered().filter(node => D.series[node.node]?.[name]).map(node => ({ kind: kindOf(node), node: node.node, label: kindOf(node) ? node.node : null, dots: false, points: D.series[node.node][name][0].map((step, i) => [step, D.series[node.node][name][1][i]]) })) }));
  const grid = h("div", { class: "multiples" }, made.map(one => h("div", {}, one)));
  const cursors = made.map(svg => { const line = s("path", { class: "cursor" }), at = s("text", { class: "dim num", y: 12, "text-anchor": "end", x: 370, "font-size": 11 }); svg.append(line, at); return [line, at]; });
  grid.addEventListener("pointermove", event => {
    const over = event.target.closest("svg"), rect = over?.getBoundingClientRect();
    if (!over?.scale) return;
    const { px, x0, x1, left, right, w } = over.scale, inView = (event.clientX - rect.left) / rect.width * w;
    const step = Math.round(x0 + (inView - left) / (w - left - right) * (x1 - x0)), shown = S.node;
    made.forEach((svg, i) => {
      const values = D.series[shown]?.[names[i]], at = values ? values[0].findIndex(one => one >= step) : -1;
      cursors[i][0].setAttribute("d", `M${svg.scale.px(step)},22V${svg.scale.height - 30}`);
      cursors[i][1].textContent = at < 0 ? `@${step}` : `${short(values[1][at])} @${values[0][at]}`;
    });
  });
  return [h("h2", {}, "Dynamics ", h("span", { class: "tools" }, "blue: the strategy · dark: the chosen node · grey: the others")), grid];
}

function slots() {
  const rows = [...new Set(D.slots.map(stay => stay.slot))].sort((a, b) => a - b);
  if (!rows.length) return null;
  const known = byNode(), last = Object.fromEntries(D.slots.map(stay => [stay.slot, stay])), now = ["searching", "measuring"].includes(D.stage) && D.live ? D.live.now : 0;
  const runs = stay => stay === last[stay.slot] && (known[stay.node] ?? D.reference)?.status === "running"; // its end is that of the newest event
  const stays = D.slots.map(stay => runs(stay) ? { ...stay, end: Math.max(stay.end, now) } : stay);
  const end = Math.max(...stays.map(stay => stay.end)), all = end - D.begun || 1, w = 1200, left = 60, row = 34;
  const svg = s("svg", { class: "fluid", viewBox: `0 0 ${w} ${rows.length * row + 24}`, role: "img", "aria-label": "What each slot did over time" });
  const px = at => left + (at - D.begun) / all * (w - left - 10);
  for (const stay of stays) {
    const node = known[stay.node], y = rows.indexOf(stay.slot) * row, width = Math.max(2, px(stay.end) - px(stay.begin) - 1), name = node ? stay.node : "default";
    svg.append(s("g", { "data-node": node ? stay.node : null, class: node ? "node" : null },
      s("rect", { x: px(stay.begin), y, width, height: 24, rx: 4, fill: stay.lost ? "none" : node ? colour(node.score) : "var(--soft)", stroke: stay.lost ? "var(--bad)" : "var(--line)", "stroke-dasharray": stay.lost ? "4 3" : null }),
      s("text", { x: px(stay.begin) + width / 2, y: y + 16, "text-anchor": "middle" }, width > 16 ? (stay.lost ? "✗ " : "") + (width > 70 || node ? name : "") : ""),
      s("title", {}, `${node ? "node " + stay.node : "default recipe"}, ${span(stay.end - stay.begin)}${stay.lost ? ", lost with its process" : ""}`)));
  }
  rows.forEach((slot, i) => svg.append(s("text", { class: "dim", x: 0, y: i * row + 16 }, `slot ${slot}`)));
  const unit = all > 172800 ? [86400, "d"] : all > 7200 ? [3600, "h"] : all > 120 ? [60, "min"] : [1, "s"];
  for (const at of ticks(0, all / unit[0], 8)) svg.append(s("text", { class: "dim num", x: px(D.begun + at * unit[0]), y: rows.length * row + 14, "text-anchor": "middle" }, `${short(at)} ${unit[1]}`));
  return [h("h2", {}, "Slots over time ", h("span", { class: "tools" }, "colour: score against the base model · ✗ lost, and repeated")), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "slots over time" }, svg)];
}

// --- tables --------------------------------------------------------------------------------------------------

function table(name) {
  const found = D.tables[name];
  if (!found) return null;
  const number = i => found.rows.every(row => /^[-+−–\d.,<%∞ ]*$/.test(row[i]));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, h("table", { "data-table": name }, h("tr", {}, found.header.map((one, i) => h("th", { class: number(i) ? "num" : "" }, one))),
    found.rows.map(row => h("tr", {}, row.map((cell, i) => h("td", { class: number(i) ? "num" : "agent" }, rich(cell || "–")))))));
}

function phases() {
  if (!D.strategy.length) return null;
  const known = byNode();
  return [h("h2", {}, `The best strategy: ${D.strategy.length} phase${D.strategy.length > 1 ? "s" : ""}, ${D.strategy.at(-1).end} steps`), h("div", { class: "phases" }, D.strategy.map((phase, i) => {
    const node = known[phase.node];
    return h("div", {}, h("b", {}, `${i + 1}. node ${phase.node}`), h("span", { class: "dim" }, ` steps ${phase.begin}–${phase.end}`),
      h("div", { class: "num" }, h("span", { class: "dim" }, `${fix(node.start_score)} → `), h("b", {}, fix(phase.score))),
      node.diagnosis && h("p", { class: "agent" }, node.diagnosis),
      node.changes.length ? h("dl", {}, node.changes.map(one => [h("dt", {}, `${one.name} ${one.before} → ${one.now}`), h("dd", { class: "agent" }, one.reason)])) : h("p", {}, h("b", {}, changed(node))));
  }))];
}

function compare() {
  return [table("scores"), D.how_sure.length > 0 && [h("h3", {}, "How sure is this?"), h("ul", {}, D.how_sure.map(line => h("li", {}, rich(line))))],
    [["differences", "Differences"], ["parts", "By part of the task"], ["confirmed", "On fresh items"], ["node_tests", "Every node on the test split"]]
      .map(([name, title]) => D.tables[name] && [h("h3", {}, title), table(name)])];
}

const COLUMNS = [["node", one => one.node], ["from", one => one.resume_node == null ? "base" : `${one.resume_node}@${one.resume_step}`], ["changed", one => one.changes.map(c => `${c.name} ${c.before} → ${c.now}`).join(", ")],
  ["score", one => one.score], ["gain", one => one.gain], ["steps", one => one.steps_done], ["status", one => words(one.status)], ["ended by", one => one.ended_by === "n_steps" ? "all its steps" : one.ended_by || ""], ["seen before it", one => one.diagnosis || ""]];
function nodes() {
  const [key, sense] = S.sort, of = Object.fromEntries(COLUMNS)[key];
  const rows = [...D.nodes].sort((a, b) => { const [x, y] = [of(a), of(b)]; return sense * (x == null ? 1 : y == null ? -1 : x < y ? -1 : x > y ? 1 : 0); });
  const sort = name => { S.sort = [name, S.sort[0] === name ? -S.sort[1] : 1]; draw(); };
  return h("table", {}, h("tr", {}, COLUMNS.map(([name]) => h("th", { "aria-sort": name === key ? (sense > 0 ? "ascending" : "descending") : null }, button(name + (name === key ? (sense > 0 ? " ↑" : " ↓") : ""), () => sort(name), { "data-key": "sort " + name })))),
    rows.map(node => h("tr", { class: node.node === S.node ? "sel" : "", "data-row": node.node }, COLUMNS.map(([name, get]) => name === "node" ? h("td", {}, h("a", { href: `#n${node.node}` }, node.node), node.in_strategy && " ★")
      : name === "score" ? h("td", { class: "num" }, fix(node.score)) : name === "gain" ? h("td", { class: "num " + way(node.gain) }, signed(node.gain)) : h("td", { class: "agent" }, cut(String(get(node) ?? "–"), 140))))));
}
function csv() {
  const quote = value => /[",\n]/.test(value ?? "") ? `"${String(value).replaceAll('"', '""')}"` : value ?? "";
  save(`${D.name}.csv`, [COLUMNS.map(one => one[0]), ...D.nodes.map(node => COLUMNS.map(one => one[1](node)))].map(row => row.map(quote).join(",")).join("\n"));
}
function save(name, content) {
  const link = h("a", { href: URL.createObjectURL(new Blob([content])), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

function more() {
  const flat = (value, path = "") => value && typeof value === "object" && !Array.isArray(value) ? Object.entries(value).flatMap(([key, one]) => flat(one, path ? `${path}.${key}` : key)) : [[path, text(value)]];
  const pairs = entries => h("table", {}, entries.map(([name, value]) => h("tr", {}, h("td", {}, name), h("td", {}, value))));
  const section = (name, ...content) => content.flat().some(Boolean) && h("details", { "data-key": name, open: name === "Events" && BASE ? true : null }, h("summary", {}, name), content);
  return [
    section("Events", h("p", { class: "dim" }, "Newest first, in UTC."), h("ul", { id: "feed" }, [...D.feed].reverse().map(([at, line]) => h("li", { class: "agent" }, h("span", { class: "dim num" }, clock(at) + "  "), line)))),
    section("Failures", table("failures") || h("p", {}, "No run failed.")),
    section("Losses and interruptions", D.losses.length ? h("ul", {}, D.losses.map(line => h("li", { class: "agent" }, line))) : h("p", {}, "No process and no hardware was lost.")),
    section("Cost", D.on_cpu && h("p", { class: "dim" }, "GPU hours are those of logical GPUs: this ran on CPUs."), table("account"), h("p", {}, D.notes.account), table("phases"), table("calls")),
    section("Decisions of the search", h("p", {}, D.notes.decisions), table("decisions")),
    section("Verdicts of the stopper", table("verdicts")),
    section("What the metrics mean", table("metrics")),
    section("Configuration", pairs(flat(D.config))),
    section("Default recipe", pairs(Object.entries(D.default).map(([key, value]) => [D.short[key] || key, text(value)]))),
    section("Software", pairs(Object.entries(D.versions))),
  ];
}

// --- requests of a person ------------------------------------------------------------------------------------

const FORMS = {
  hint: { says: "The proposer reads it with every later question.", fields: [["text", "Hint", true]] },
  pause: { says: "Ends its processes and gives the hardware back; `llmzero resume` continues it.", fields: [["reason", "Reason"]] },
  stop: { says: "Ends the search in good order: each running phase ends at its next step, and the outcome is written.", fields: [["reason", "Reason"]] },
  veto: { says: "Closes this node and all below it.", fields: [["reason", "Reason"]] },
  clone: { says: "Continues this node with changes of your own, one KEY=VALUE a line, such as lr=5e-4.", fields: [["settings", "Changes", true], ["step", "From step (empty: the best one)"], ["n_steps", "Steps (empty: as usual)"]] },
  approve: { says: "Trains it as proposed, or with changes of yours, one KEY=VALUE a line. The agents are told changes and reason.", fields: [["settings", "Changes (empty: none)", true], ["n_steps", "Steps (empty: as proposed)"], ["reason", "Reason"]] },
  refuse: { says: "Sends it back to its author with your reason; the next proposal waits again.", fields: [["reason", "Reason"]] },
};
function ask(kind, node, tries) {
  const form = FORMS[kind], answer = h("p", { role: "status", id: "answer" }), dialog = $("dialog");
  const inputs = form.fields.map(([name, label, long]) => [name, h(long ? "textarea" : "input", { name, rows: long ? 3 : null, "aria-label": label }), label]);
  const send = button("send", async () => {
    answer.textContent = "sent; waiting for the coordinator …";
    const fields = Object.fromEntries(inputs.map(([name, input]) => [name, input.value]));
    const response = await fetch(`${BASE}/requests`, { method: "POST", headers: { "Content-Type": "application/json", "X-Llmzero": "1" }, body: JSON.stringify({ kind, node, tries, ...fields }) }).catch(error => ({ text: () => `the page's server does not answer: ${error.message}` }));
    answer.textContent = await response.text();
  });
  dialog.replaceChildren(h("h2", {}, node == null ? kind : `${kind} node ${node}`), h("p", {}, rich(form.says)), ...inputs.map(([, input, label]) => h("label", {}, label, input)), answer, h("p", {}, send, " ", button("close", () => dialog.close())));
  dialog.showModal();
}

// --- all of it -----------------------------------------------------------------------------------------------

function index() {
  document.title = "llmzero · searches";
  for (const one of document.querySelectorAll("main > section")) one.hidden = one.id !== "index";
  part("head", D.storage, () => ["llmzero", h("span", { class: "chip" }, D.storage)]);
  part("index", D.searches, () => [h("h2", {}, "Searches"), h("div", { class: "cards" }, D.searches.map(one => h("a", { class: "card", href: `/s/${encodeURIComponent(one.name)}/` },
    h("b", {}, one.name), " ", h("span", { class: "chip " + one.stage.split(" ")[0] }, cut(one.stage, 60)),
    h("div", { class: "big" }, fix(one.best_score, 3)), spark(one.scores), one.task && h("div", { class: "dim" }, `${one.task} · ${one.model}`),
    h("div", { class: "dim" }, `${one.runs} of ${one.max_runs ?? "?"} runs · ${short(one.gpu_hours)} GPU h`), one.begun && h("div", { class: "dim" }, `begun ${clock(one.begun)} UTC`), h("div", { class: "dim" }, one.at_work || (one.last_alive ? `last alive ${clock(one.last_alive)} UTC` : "")))))]);
}
function spark(scores) {
  if (!scores || scores.length < 2) return null;
  const [lo, hi] = [scores[0], scores.at(-1)], at = scores.map((one, i) => `${(i / (scores.length - 1) * 196 + 2).toFixed(1)},${(30 - (one - lo) / (hi - lo || 1) * 26).toFixed(1)}`);
  return s("svg", { class: "fluid", viewBox: "0 0 200 34", role: "img", "aria-label": `best validation score after each phase: ${fix(lo, 3)} to ${fix(hi, 3)}` }, s("path", { class: "line best", d: "M" + at.join("L") }));
}

function draw() {
  if (D.searches) return index();
  document.title = `${D.name} · llmzero`;
  for (const one of document.querySelectorAll("main > section")) one.hidden = !D.nodes || one.id === "index";
  if (!D.nodes) { part("head", D, () => [D.name, h("span", { class: "chip" }, D.stage)]); part("verdict", D.sentence, () => h("p", {}, D.sentence)); return undefined; }
  for (const node of D.nodes) node.series_last = Object.values(D.series[node.node] || {}).reduce((most, [steps]) => Math.max(most, steps.at(-1) - node.base_step), 0) || null;
  const known = byNode();
  if (!known[S.node]) S.node = D.strategy.at(-1)?.node ?? D.nodes.at(-1)?.node ?? null;
  const shown = D.nodes.map(({ node, status, score, gain, n_steps, resume_node, series_last, in_strategy }) => [node, status, score, gain, n_steps, resume_node, series_last, in_strategy]);
  part("head", [D.name, D.stage, D.live?.steering], head);
  part("verdict", [D.sentence, D.verdict, D.policies], verdict);
  part("budgets", [D.budgets.map(one => [short(one.used), one.limit, one.ends]), span(D.left_s)], budgets);
  part("needs", [D.needs, D.live?.steering], () => D.needs.map(one => h("p", {}, "▲ ", rich(one.text), one.node != null && [" ", h("a", { href: `#n${one.node}` }, `node ${one.node}`)],
    one.tries != null && D.live.steering && BASE && ["approve", "refuse"].map(kind => [" ", button(kind + "…", () => ask(kind, one.node, one.tries), { "data-key": kind + one.node })]))));
  part("zoom", S.zoom, () => [["−", .8], ["+", 1.25]].map(([sign, by]) => button(sign, () => { S.zoom = Math.min(2, Math.max(.2, S.zoom * by)); draw(); }, { "aria-label": by > 1 ? "larger" : "smaller", "data-key": sign })));
  part("tree", [shown, S.node, S.other, S.zoom], tree);
  part("panel", [known[S.node], known[S.other], D.live?.steering, D.nodes.length, room("panel")], panel);
  part("curves", [shown, S.node, D.nodes.map(node => node.validations.length), D.reference, room("curves")], curves);
  part("axes", S.x, () => [["gpu_hours", "GPU h"], ["steps", "steps"]].map(([x, name]) => button(name, () => { S.x = x; draw(); }, { "aria-pressed": String(S.x === x), "data-key": x })));
  part("progress", [D.progress, S.x, D.reference, room("progress")], progress);
  part("phases", [D.strategy, D.strategy.map(phase => known[phase.node].changes)], phases);
  part("multiples", [shown, S.node], multiples);
  part("compare", [D.tables.scores, D.tables.differences, D.how_sure], compare);
  part("slots", [D.slots, shown, D.live?.now], slots);
  part("csv", D.name, () => [button("CSV", csv), button("view.json", () => save(`${D.name}.view.json`, JSON.stringify(D)))]);
  part("nodes", [shown, S.node, S.sort], nodes);
  part("more", [D.feed, D.tables, D.losses, D.config], more);
  for (const one of document.querySelectorAll("main > section[id]")) one.hidden = !one.firstChild;
  return undefined;
}

function fromHash() {
  const found = location.hash.match(/^#n(\d+)(?:-(\d+))?$/);
  if (found) [S.node, S.other] = [+found[1], found[2] == null ? null : +found[2]];
  draw();
}

addEventListener("hashchange", fromHash);
addEventListener("resize", draw);
addEventListener("keydown", walk);
addEventListener("click", event => {
  const found = event.target.closest?.("g.node[data-node]");
  if (found) choose(+found.dataset.node, event.shiftKey);
});
fromHash();
if (places[S.node]) {
  const box = $("tree"), { x, y } = places[S.node];
  [box.scrollLeft, box.scrollTop] = [(x + W) * S.zoom - box.clientWidth + 20, y * S.zoom - box.clientHeight / 2];
}

if (BASE != null) {
  let heard = Date.now(), events;
  const listen = () => {
    events = new EventSource(`${BASE}/events`);
    events.addEventListener("error", () => { if (events.readyState === EventSource.CLOSED) setTimeout(listen, 5000); }); // refused: it does not try again by itself
    events.addEventListener("view", event => {
      const { whole, ...news } = JSON.parse(event.data);
      heard = Date.now();
      if (news.nodes && D.nodes && !whole) {
        const known = { ...byNode(), ...Object.fromEntries(news.nodes.map(node => [node.node, node])) };
        D = { ...D, ...news, nodes: Object.values(known).sort((a, b) => a.node - b.node), series: { ...D.series, ...news.series } };
      } else D = news;
      draw();
    });
  };
  listen();
  setInterval(() => {
    const at = $("alive"), live = D.live;
    if (!at || !live) return;
    const ago = live.now - (live.status.last_alive ?? live.now) + (Date.now() - heard) / 1000;
    at.textContent = events.readyState === EventSource.OPEN ? (D.stage === "finished" ? "" : `● sign of life ${span(Math.max(0, ago))} ago`) : "○ the page's server does not answer; trying again. If it was started anew, open the address that it printed.";
  }, 1000);
}
